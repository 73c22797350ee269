"""Workload: what training a model takes of a machine, as data, for graphs of any size.

A traced model is a chain of stages (``models/stages``). What a stage computes and holds is linear
in the block that it runs on, so a few small runs tell it for every graph and every part of one.

Legend: P rows of one part (destinations), S source rows it reads, E edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiergnn import frozen
from tiergnn.errors import ConfigError, unknown

FORMAT = "tiergnn-workload"
VERSION = 1
INPUTS = ("x", "edge_weight", "edge_attr")  # that a graph has
PRODUCTS: tuple[str, ...] = ("matmul", "outer")  # kinds of work that have a dtype
STAGES = ("rows", "graph", "statistic")  # kinds
TERMS = ("gather", "stream", "rowwise", *PRODUCTS, "add", "total", "walk", "attend", "softmax",
         "drop", "draw", "fresh")  # fmt: skip
PREPARED_COLUMNS = 128  # of inputs that are made before the first step: so many at a time


def _check_counts(value: Any, *names: str) -> None:
    """Raises ConfigError for fields of a dataclass that are below 0."""
    for name in names:
        if getattr(value, name) < 0:
            raise ConfigError(f"{name} is 0 or more, had {getattr(value, name)}")


@dataclass(frozen=True, slots=True)
class Extent:
    """The block that a stage runs on: its rows, the sources that they read, its edges."""

    rows: int
    sources: int
    edges: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How a kernel cuts a block into tasks: one every ``units`` row ends and edges (a last short
    one too where ``rest``), ``most`` at most; of the out-edges of sources with ``transposed``."""

    units: int
    most: int
    rest: bool
    transposed: bool = False

    def count(self, extent: Extent) -> int:
        units = extent.edges + (extent.sources if self.transposed else extent.rows)
        tasks = -(-units // self.units) if self.rest else units // self.units
        return min(self.most, max(1, tasks))


# The work arrays of the CPU's kernels: aggregate's cpu_tasks, attention's cpu_rows.
TASKS = {
    "sums": Cut(units=8192, most=1024, rest=False),
    "sums_t": Cut(units=8192, most=1024, rest=False, transposed=True),
    "attention": Cut(units=2048, most=256, rest=True),
    "attention_t": Cut(units=2048, most=256, rest=True, transposed=True),
}


# The tasks of a GPU's kernels (``kernels.tasks``).
DENSE_DEGREE = 128  # the mean in-degree from which on tasks are large
MOST, MOST_DENSE = 256, 1024  # edges of a task
MOST_MERGED = 128  # parts that one task merges
CUT_BYTES = 1 / 8  # an edge, at most, of the tasks and parts of rows that are cut
PACKED_BYTES = 64  # at whose multiples arrays start that lie in one piece of memory
_INT32 = 2**31


def packed_bytes(num_rows: int, num_edges: int) -> int:
    """The room of the tasks that a GPU's kernels cut such a block into, whatever the degrees.

    A whole row is one task; long ones are cut, so that there is one more for every ``MOST`` edges
    at most. That is at most ``CUT_BYTES`` an edge beyond what they take.
    """
    return _packed_bytes(num_rows, num_edges, MOST, 4 if num_rows < _INT32 else 8)


def _packed_bytes(num_rows: int, num_edges: int, most: int, row_bytes: int) -> int:
    cut = min(num_rows, num_edges // (most + 1))  # rows that have more than one task
    more = num_edges // most if cut else 0
    tasks, parts = num_rows + more, cut + more
    start_bytes = 4 if num_edges < _INT32 else 8
    arrays = tasks * row_bytes, tasks * start_bytes, 4 * tasks, 4 * parts
    held = sum(-(-array // PACKED_BYTES) * PACKED_BYTES for array in arrays)
    return held + (_packed_bytes(cut, parts, MOST_MERGED, row_bytes) if cut else 0)


@dataclass(frozen=True, slots=True)
class Tasks:
    """So many bytes for each task of a kind (of ``TASKS``)."""

    kind: str
    per_task: float

    def __post_init__(self) -> None:
        if self.kind not in TASKS:
            raise unknown("kind of tasks", self.kind, TASKS)


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes or operations: fixed + per_row P + per_source S + per_edge E, and those of tasks."""

    fixed: float = 0.0
    per_row: float = 0.0
    per_source: float = 0.0
    per_edge: float = 0.0
    tasks: tuple[Tasks, ...] = ()

    def at(self, extent: Extent) -> int:
        return round(
            self.fixed
            + self.per_row * extent.rows
            + self.per_source * extent.sources
            + self.per_edge * extent.edges
            + sum(task.per_task * TASKS[task.kind].count(extent) for task in self.tasks)
        )

    def __add__(self, other: Size) -> Size:
        each: dict[str, float] = {}
        for task in (*self.tasks, *other.tasks):
            each[task.kind] = each.get(task.kind, 0.0) + task.per_task
        return Size(
            self.fixed + other.fixed,
            self.per_row + other.per_row,
            self.per_source + other.per_source,
            self.per_edge + other.per_edge,
            tuple(Tasks(kind, number) for kind, number in sorted(each.items()) if number),
        )

    def __neg__(self) -> Size:
        tasks = tuple(Tasks(task.kind, -task.per_task) for task in self.tasks)
        return Size(-self.fixed, -self.per_row, -self.per_source, -self.per_edge, tasks)

    def __sub__(self, other: Size) -> Size:
        return self + -other


@dataclass(frozen=True, slots=True)
class Peak:
    """The most bytes held at once: the largest of some sizes, none of which bounds another."""

    sizes: tuple[Size, ...] = ()

    def at(self, extent: Extent) -> int:
        return max(0, *(size.at(extent) for size in self.sizes), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One kind of work of a stage.

    kind "gather": ``amount`` bytes read as rows of ``grain`` bytes, at random, of a ``table``;
    "matmul": ``amount`` operations, ``grain`` the narrowest of the product's three sizes and
    ``table`` the bytes that one reads and writes, "outer" where it sums over rows; "stream":
    ``amount`` bytes read and written in order, "rowwise" by kernels of ours. ``launches`` kernels
    do it. The others, as of ``schedule.actions.Work``: "add", "total", and what some operations
    take besides, "walk", "attend", "drop", "draw" and "fresh".
    """

    kind: str
    amount: Size
    grain: int = 0
    table: Size = Size()
    launches: int = 1

    def __post_init__(self) -> None:
        if self.kind not in TERMS:
            raise unknown("kind of work", self.kind, TERMS)
        _check_counts(self, "grain", "launches")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowKind:
    """A tensor with one row a node (or an edge): what a schedule moves and stores."""

    name: str
    width: int  # elements of a row
    dtype: str
    of: str = "nodes"  # or edges
    grad: bool = True  # whether backward makes a gradient of it

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            raise unknown("dtype", self.dtype, DTYPE_BYTES)
        if self.of not in ("nodes", "edges"):
            raise unknown("kind of rows", self.of, ("nodes", "edges"))
        _check_counts(self, "width")

    @property
    def row_bytes(self) -> int:
        return self.width * DTYPE_BYTES[self.dtype]


DTYPE_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceWork:
    """What a columnwise stage's operation holds on a slice beyond the rows that it reads: of all
    columns, and of the least that can be a slice (a column, or a head). Forward beyond the sums
    that it writes, too; ``back``, with all gradients that it makes."""

    whole: Peak = Peak()
    least: Peak = Peak()
    back_whole: Peak = Peak()
    back_least: Peak = Peak()

    def held(self, extent: Extent, frac: float, units: int, *, backward: bool) -> int:
        """Of a share of the ``units``: the most is convex in it, so a line is never below."""
        least, whole = (self.back_least, self.back_whole) if backward else (self.least, self.whole)
        if units <= 1 or frac >= 1:
            return whole.at(extent)
        part = max(0.0, (frac - 1 / units) / (1 - 1 / units))
        return round((1 - part) * least.at(extent) + part * whole.at(extent))


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainWork:
    """A forward that is run again for its backward alone: what it writes less the ``unread``."""

    unread: tuple[str, ...]
    works: tuple[Term, ...] = ()
    held: Peak = Peak()  # the most while it runs, as ``StageWork.kept_held``


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """One stage: what it reads and writes by name, computes, and holds beyond its rows.

    ``reads`` are own rows, those of edges and ``moments_of`` among them; ``frees`` and ``saves``
    may name moments.
    ``forward_held`` is the most beyond what it reads and writes when nothing is kept;
    ``kept`` is what stays for backward beyond the rows named in ``saves`` (inputs or outputs that
    backward reads), ``kept_held`` the most while it runs so, ``backward_held`` the most in
    backward beyond what is kept, the rows and their gradients.
    """

    index: int
    kind: str  # rows, graph or statistic
    op: str
    gathers: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    frees: tuple[str, ...]
    saves: tuple[str, ...]
    columnwise: bool  # the graph operation works on every column (or head) by itself
    forward: tuple[Term, ...]
    backward: tuple[Term, ...]
    forward_held: Peak
    kept: Size
    kept_held: Peak
    backward_held: Peak
    parameter_bytes: int  # of those that it uses; their gradients are as large
    moments_of: str = ""  # the rows whose moments, named ``s{index}``, it makes before it runs
    statistics: tuple[str, ...] = ()  # moments that it reads, of this stage or earlier ones
    divisible: bool = False  # the graph operation is a sum that adds up over sets of edges
    by_degrees: bool = False  # its row-local code asks of edges only how many each row has
    before: tuple[str, ...] = ()  # of what a columnwise stage reads: up to its operation,
    after: tuple[str, ...] = ()  # and after it
    slices: SliceWork | None = None  # of a columnwise one
    again: AgainWork | None = None  # where that is less than its forward

    def __post_init__(self) -> None:
        if self.kind not in STAGES:
            raise unknown("kind of stage", self.kind, STAGES)
        if not self.writes and not self.moments_of:
            raise ConfigError(f"wanted rows that stage {self.index} writes, had none")
        if self.again is not None and (strange := {*self.again.unread} - {*self.writes}):
            raise unknown("rows of a stage", min(strange), self.writes)
        _check_counts(self, "index", "parameter_bytes")


@dataclass(frozen=True, slots=True)
class Topology:
    """What stays with a block beyond its CSR once forward, and then backward, has run: out-edges,
    edges without loops, degrees, tasks. ``loops``: of a graph that has edges from a row to itself.
    ``sorting``: the most held beyond that while a GPU makes edges without loops, and out-edges.
    ``without_loops``: no stage reads loops, and edges "alone" without them do; or some stages leave
    them out, of which edges without them are held "beside"; "": none does.
    """

    forward: Size = Size()
    backward: Size = Size()
    loops: bool = True
    sorting: Peak = Peak()
    without_loops: str = ""

    def __post_init__(self) -> None:
        if self.without_loops not in ("", "alone", "beside"):
            raise unknown("without_loops", self.without_loops, ("", "alone", "beside"))


@dataclass(frozen=True, slots=True)
class Learned:
    """Of a row of inputs that is a parameter: bytes that the optimizer's step holds for it
    meanwhile, and those of its state."""

    step_held: int = 0
    optimizer_bytes: int = 0

    def __post_init__(self) -> None:
        _check_counts(self, "step_held", "optimizer_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model's stages and what stands around them; without torch, and JSON both ways.

    ``loss`` and its ``loss_held`` are of all labelled rows (as ``per_row``); ``step`` is the
    optimizer's, whose state takes ``optimizer_bytes``.
    """

    name: str
    dtype: str  # that it computes in
    rows: tuple[RowKind, ...]
    inputs: tuple[str, ...]  # names of rows that the graph gives
    output: str
    stages: tuple[StageWork, ...]
    loss: tuple[Term, ...]
    loss_held: Peak
    step: tuple[Term, ...]
    step_held: int
    parameter_bytes: int
    optimizer_bytes: int
    topology: Topology = Topology()
    learned: Learned = Learned()
    preparing: Peak = Peak()  # the most held beside inputs while some of them are made
    by_column: bool = True  # whether these are made column by column, from those of x
    buffer_bytes: int = 0  # of the model's buffers, and of single numbers between steps
    label_bytes: int = 0  # of a node's label and its id, on a device that is not the host

    def __post_init__(self) -> None:
        """Raises ConfigError where names or order contradict each other."""
        _check_counts(
            self, "step_held", "parameter_bytes", "optimizer_bytes", "buffer_bytes", "label_bytes"
        )
        if self.dtype not in DTYPE_BYTES:
            raise unknown("dtype", self.dtype, DTYPE_BYTES)
        names = [rows.name for rows in self.rows]
        for each in (names, self.inputs):
            if len(set(each)) < len(each):
                raise ConfigError(f"wanted rows of different names, had {', '.join(each)}")
        there = {*self.inputs}
        for stage in self.stages:
            moments = {f"s{stage.index}"} if stage.moments_of else set()
            used = {*stage.gathers, *stage.reads, *stage.statistics, *stage.saves} - {*stage.writes}
            used |= {stage.moments_of} - {""}
            made = {*stage.writes} | moments
            if missing := (used - moments | {*stage.frees} - made) - there:
                raise ConfigError(
                    f"stage {stage.index} reads or frees {min(missing)}, which nothing before it "
                    "makes",
                    hint=", ".join(sorted(there)),
                )
            there |= made
        indices = [stage.index for stage in self.stages]
        if not indices or len(indices) > len(set(indices)):
            raise ConfigError(f"wanted stages, each with an index of its own, had {indices}")
        moments = {f"s{stage.index}" for stage in self.stages}
        for what in (*there - moments, self.output):
            if what not in names:
                raise unknown("rows", what, names)
        if self.output not in there:
            raise unknown("output", self.output, there)

    @property
    def prepared(self) -> tuple[str, ...]:
        """Inputs that are made of the graph's before the first step."""
        return tuple(name for name in self.inputs if name not in INPUTS)

    @property
    def gathered_inputs(self) -> tuple[str, ...]:
        """Inputs that a stage gathers and nothing changes."""
        gathered = {name for stage in self.stages for name in stage.gathers}
        return tuple(n for n in self.inputs if n in gathered and not self.row_kind(n).grad)

    def row_kind(self, name: str) -> RowKind:
        return next(rows for rows in self.rows if rows.name == name)

    def save(self, path: str | Path) -> None:
        """Raises StoreError when the file cannot be written."""
        frozen.save(path, FORMAT, VERSION, self)

    @classmethod
    def load(cls, path: str | Path) -> Workload:
        """Raises StoreError for a file that cannot be read, ConfigError for anything else in it."""
        return frozen.load(cls, path, FORMAT, VERSION)
