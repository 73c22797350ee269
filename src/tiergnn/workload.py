"""Workload: what training a model takes of a machine, as data, for graphs of any size.

A traced model is a chain of stages (``models/stages``). What a stage computes and holds is linear
in the block that it runs on, so a few small runs tell it for every graph and every part of one.

Legend: P rows of one part (destinations), S source rows it reads, E edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tiergnn import frozen
from tiergnn.errors import ConfigError, unknown
from tiergnn.frozen import check_counts
from tiergnn.row_kinds import DTYPE_BYTES, INPUTS, RowKind

FORMAT = "tiergnn-workload"
VERSION = 1
PRODUCTS: tuple[str, ...] = ("matmul", "outer")  # kinds of work that have a dtype
STAGES = ("rows", "graph", "statistic")  # kinds
TERMS = ("gather", "stream", "rowwise", *PRODUCTS, "add", "total", "walk", "attend", "softmax",
         "drop", "draw", "fresh")  # fmt: skip
PREPARED_COLUMNS = 128  # of inputs that are made before the first step: so many at a time


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
        check_counts(self, "grain", "launches")


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
        check_counts(self, "index", "parameter_bytes")
        if not self.writes and not self.moments_of:
            raise ConfigError(f"writes: wanted rows that stage {self.index} writes, had none")
        if self.again is not None and (strange := {*self.again.unread} - {*self.writes}):
            raise unknown("rows of a stage (again.unread)", min(strange), self.writes)
        graph = self.kind == "graph"
        if graph != bool(self.gathers):
            wanted = "the rows that a graph operation reads" if graph else "none but of kind graph"
            found = ", ".join(self.gathers) or "none"
            raise ConfigError(f"gathers: wanted {wanted}, had {found} of stage {self.index}")
        if (self.columnwise or self.divisible) and not graph:
            name = "columnwise" if self.columnwise else "divisible"
            raise ConfigError(f"{name}: wanted false but of kind graph, had true")
        if self.divisible and len(self.gathers) > 1:
            raise ConfigError(
                f"divisible: wanted a stage that gathers one tensor, had {', '.join(self.gathers)}"
            )
        for name in ("before", "after"):
            if strangers := set(getattr(self, name)).difference(self.reads):
                raise ConfigError(
                    f"{name}: wanted some of what stage {self.index} reads, had {min(strangers)}",
                    hint=", ".join(self.reads) or None,
                )


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
        check_counts(self, "step_held", "optimizer_bytes")


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
    # Of a file: the model where rows that the graph and its features decide are inputs.
    prepared_form: Workload | None = None

    def __post_init__(self) -> None:
        """Raises ConfigError where names or order contradict each other."""
        check_counts(
            self, "step_held", "parameter_bytes", "optimizer_bytes", "buffer_bytes", "label_bytes"
        )
        if self.dtype not in DTYPE_BYTES:
            raise unknown("dtype", self.dtype, DTYPE_BYTES)
        names = [rows.name for rows in self.rows]
        for each in (names, self.inputs):
            if len(set(each)) < len(each):
                raise ConfigError(f"wanted rows of different names, had {', '.join(each)}")
        indices = [stage.index for stage in self.stages]
        if not indices or len(indices) > len(set(indices)):
            raise ConfigError(
                f"stages: wanted some, each with an index of its own, had {indices or 'none'}"
            )
        made = [name for stage in self.stages for name in stage.writes]
        for field, used in (("inputs", self.inputs), ("writes", made), ("output", [self.output])):
            for what in used:
                if what not in names:
                    raise unknown(f"rows ({field})", what, names)
        if self.output not in made:
            raise unknown("output", self.output, made)
        form = self.prepared_form
        if form is not None and (not form.prepared or form.prepared_form is not None):
            raise ConfigError(
                "prepared_form: wanted a workload with inputs that are prepared, and no other such "
                f"form, had the inputs {', '.join(form.inputs)}"
            )
        self._check_stages()

    def _check_stages(self) -> None:
        """Each finds the rows and moments that it names; all are made and freed once."""
        rows, moments, gone = {*self.inputs}, set[str](), set[str]()
        of_nodes = {kind.name for kind in self.rows if kind.of == "nodes"}
        for stage in self.stages:
            own = {f"s{stage.index}"} if stage.moments_of else set[str]()
            taken_of = (stage.moments_of,) if stage.moments_of else ()
            left = rows | {*stage.writes} | moments | own
            for field, used, known in (
                ("gathers", stage.gathers, rows & of_nodes),
                ("reads", stage.reads, rows),
                ("moments_of", taken_of, rows & of_nodes),
                ("statistics", stage.statistics, moments | own),
                ("saves", stage.saves, left),
                ("frees", stage.frees, left - {self.output}),
            ):
                for name in used:
                    if name not in known:
                        raise ConfigError(
                            f"{field} of stage {stage.index}: wanted what is there then"
                            f"{' of nodes' if name in left else ''}, had {name}"
                            f"{', which an earlier stage frees' if name in gone else ''}",
                            hint=", ".join(sorted(known)) or None,
                        )
            for field, named, before in (
                ("writes", stage.writes, rows | gone),
                ("frees", stage.frees, set[str]()),
            ):
                if twice := [n for i, n in enumerate(named) if n in before or n in named[:i]]:
                    raise ConfigError(
                        f"{field} of stage {stage.index}: wanted each tensor once, had "
                        f"{twice[0]} again"
                    )
            freed = {*stage.frees}
            rows, moments = (rows | {*stage.writes}) - freed, (moments | own) - freed
            gone |= freed
        if kept := sorted((rows | moments) - {*self.inputs, self.output}):
            raise ConfigError(
                f"frees: wanted all that stages make but the output, none frees {kept[0]}"
            )

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
