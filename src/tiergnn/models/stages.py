"""Stage and Program: what a traced model was cut into, and how it runs.

Legend: V nodes, P rows of one part (destinations), S source rows it reads, E edges, D columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

import torch
from torch import Tensor, nn

from tiergnn.errors import ConfigError
from tiergnn.kernels.block import Block
from tiergnn.kernels.dropout import Key
from tiergnn.models import norms
from tiergnn.models.functional import Columns
from tiergnn.models.moments import combine_moments, moments, moments_beside
from tiergnn.workload import PREPARED_COLUMNS

AS_IT_STANDS = "as it stands"  # ends the text of a layer that is called whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A tensor with one row a node or an edge: its other dimensions."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    of: str = "nodes"  # or edges

    @property
    def width(self) -> int:
        width = 1
        for size in self.shape:
            width *= size
        return width

    @property
    def row_bytes(self) -> int:
        return self.width * self.dtype.itemsize

    def __str__(self) -> str:
        shape = ("E", *self.shape) if self.of == "edges" else self.shape
        return f"{self.name} [{', '.join(map(str, shape))}]"


@dataclass(frozen=True, kw_only=True, eq=False)
class Statistic:
    """Moments [3, D] of one row tensor over all nodes, which a stage needs before it runs."""

    name: str
    of: str  # the row tensor
    least_rows: int  # of the whole graph
    follow: nn.Module | None = field(repr=False)  # the BatchNorm whose running statistics follow


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage:
    """One graph operation or statistic and the row-local code that follows it.

    kind: "rows" (code before any of them), "graph" or "statistic". A stage runs on any part of the
    rows: it ``gathers`` rows of sources, ``reads`` own rows, and ``writes`` own rows. After it,
    ``frees`` are not needed any more.

    Of kind "graph" it is also two stages, which executors run as any other: ``halves`` are the code
    up to the graph operation, which writes ``sum.sINDEX`` and what else is needed then, and the
    row-local code after it. One after the other they give the stage's bits. ``sums`` (none where
    the operation is not a sum or mean over edges) are another two: the first may run on blocks
    that hold a part of the edges (``Block.only``); what it writes is added up over them, and the
    second, on the block with all of the rows' edges, takes the total. ``divisible`` are those of
    which the first reads gathered rows and inputs of edges alone: over the out-edges of rows it
    makes their gradients, and the stage has an ``adjoint``, which makes of the gradient of what the
    first of ``columns`` wrote that of what it gathered. ``columns`` (none where columns or heads
    depend on each other) are again two, of which the first may run on a slice of the columns of
    what it gathers first; own rows that a plain sum is added to are added there.

    Of what it writes ``unread`` are products that its backward does not read: run ``again`` for
    that alone, it need not make them.
    """

    index: int
    kind: str
    op: str  # the graph operation or statistic, for people
    gathers: tuple[str, ...]
    reads: tuple[str, ...]
    edges: tuple[str, ...]  # inputs of edges that it reads
    statistics: tuple[str, ...]  # moments that it reads, of this stage or earlier ones
    writes: tuple[str, ...]
    frees: tuple[str, ...]
    code: tuple[str, ...]  # its operations in order, for people
    module: str  # path of the module with the operation
    place: str  # file:line: code of the operation, in the user's model
    random: bool  # whether it needs a key
    statistic: Statistic | None
    function: Callable[..., tuple[Tensor, ...]] = field(repr=False)
    root: nn.Module = field(repr=False)
    halves: tuple[Stage, ...] = field(default=(), repr=False)
    sums: tuple[Stage, ...] = field(default=(), repr=False)
    divisible: bool = field(default=False, repr=False)
    # Whether row-local code (of ``sums`` the second) asks of edges only how many each row has, so
    # that it runs on rows whose edges are elsewhere: ``Block.bare``.
    by_degrees: bool = field(default=False, repr=False)
    skips_loops: bool = field(default=False, repr=False)  # of the edges that it goes over
    # Whether it gives the same without loops; and whether it asks for edges without them.
    ignores_loops: bool = field(default=False, repr=False)
    leaves_out_loops: bool = field(default=False, repr=False)
    columns: tuple[Stage, ...] = field(default=(), repr=False)
    adjoint: Stage | None = field(default=None, repr=False)
    unread: tuple[str, ...] = ()
    again: Callable[..., tuple[Tensor, ...]] | None = field(default=None, repr=False)

    def edges_of(self, block: Block) -> Block:
        """The block of the edges that the graph operation goes over, which stays with ``block``."""
        return block.without_loops if self.skips_loops else block

    @property
    def opaque(self) -> bool:
        """Whether it calls a layer that could not be looked into."""
        return self.op.endswith(AS_IT_STANDS)

    def run(
        self,
        block: Block,
        key: Key | None,
        gathered: Mapping[str, Tensor],
        own: Mapping[str, Tensor] | None = None,
        columns: Columns | None = None,
        *,
        again: bool = False,
    ) -> dict[str, Tensor]:
        """What the stage writes, name -> [P, ...], or [E, ...] for rows of edges. With ``again``
        what is ``unread`` has no numbers, but backward flows through it.

        ``gathered`` holds rows [S, ...] of ``gathers``; ``own`` rows [P, ...] of ``reads``, rows
        [E, ...] of ``edges`` in the block's order, and ``statistics`` (None: as ``gathered``,
        where the block is the whole graph). ``columns`` says of which columns the rows are.
        """
        own = gathered if own is None else own
        given = [gathered[name] for name in self.gathers]
        given += [own[name] for name in (*self.reads, *self.edges, *self.statistics)]
        function = (again and self.again) or self.function
        made = function(self.root, block, key, columns, *given)
        return dict(zip(self.writes, made, strict=True))

    def partial(self, block: Block, own: Mapping[str, Tensor]) -> Tensor:
        """The moments [3, D] of this part's rows; raises ConfigError for a graph too small."""
        return moments(self._rows_of_moments(block, own))

    def partial_beside(self, block: Block, own: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The same and the rows, for what reads them from then on: see ``moments_beside``."""
        return moments_beside(self._rows_of_moments(block, own))

    def _rows_of_moments(self, block: Block, own: Mapping[str, Tensor]) -> Tensor:
        assert self.statistic is not None
        if (block.num_graph_nodes or 0) == 1 and self.statistic.least_rows > 1:
            raise ConfigError(
                "a batch norm needs more than one row in training",
                culprit=self.place or self.module,
                hint="torch_geometric's BatchNorm(allow_single_element=True)",
            )
        return own[self.statistic.of]

    def combine(self, parts: Sequence[Tensor]) -> Tensor:
        """The moments of all rows, from the parts' in the order of the parts."""
        return combine_moments(parts)

    def commit(self, values: Tensor, num_rows: int) -> None:
        """Move the running statistics; once a training step, whatever is computed again."""
        assert self.statistic is not None
        if self.statistic.follow is not None:
            norms.commit(self.statistic.follow, values.detach(), num_rows)


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """Rows that the graph and its features alone decide: an input that ``program`` makes, once.

    ``columnwise``: from any columns of x it makes the same columns. Programs with the same ``text``
    make the same.
    """

    name: str
    program: Program
    text: str
    columnwise: bool

    @property
    def columns(self) -> int:
        """How many are made at a time."""
        width = self.program.rows[self.program.output].width
        sliced = self.columnwise and "x" in self.program.needs
        return min(width, PREPARED_COLUMNS) if sliced else width


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """A model as stages, for training or for evaluation. ``print(program)`` shows the cut.

    ``needs`` are the inputs that it reads, among x, edge_weight, edge_attr, and the ``prepared``.
    """

    training: bool
    needs: tuple[str, ...]
    stages: tuple[Stage, ...]
    rows: Mapping[str, Rows]  # every row tensor by name, the inputs among them
    between: Mapping[str, Rows]  # what halves of stages hand over, by name
    output: str  # the row tensor that the model returns
    prepared: tuple[Prepared, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """What of the graph is read, for prepared rows, too."""
        names = [name for made in self.prepared for name in made.program.needs]
        given = {made.name for made in self.prepared}
        return tuple(n for n in dict.fromkeys([*names, *self.needs]) if n not in given)

    def sort_out_edges(self, block: Block) -> None:
        """Make what backward passes read of a block's out-edges, which stays with it."""
        for stage in self.stages:
            if stage.kind == "graph" and not stage.opaque:
                _ = stage.edges_of(block).transposed

    def run(self, inputs: Mapping[str, Tensor], block: Block, key: Key | None = None) -> Tensor:
        """The model's output [V, ...] over a block that is the whole graph, differentiable.

        ``inputs`` are x [V, D] and what else the program ``needs``, rows of edges in the block's
        order; ``key`` is the dropout key of the step. Raises ConfigError when one is missing.
        Prepared rows that are not among the inputs are made.
        """
        rows: dict[str, Tensor] = {}
        made = {p.name: p.program for p in self.prepared if p.name not in inputs}
        inputs = {**inputs, **{name: program.run(inputs, block) for name, program in made.items()}}
        for name in self.needs:
            if name not in inputs:
                raise ConfigError(f"the program needs {name}", hint="pass it in inputs")
            rows[name] = inputs[name]
        if key is None and any(stage.random for stage in self.stages):
            raise ConfigError("dropout needs a key", hint="kernels.dropout.step_key(seed, step)")
        for stage in self.stages:
            if stage.statistic is not None:
                values = stage.combine([stage.partial(block, rows)])
                rows[stage.statistic.name] = values
                stage.commit(values, block.num_dst)
            written = stage.run(block, key, rows)
            for name in stage.frees:
                del rows[name]
            rows |= written
            del written
        return rows[self.output]

    def __str__(self) -> str:
        mode = "training" if self.training else "evaluation"
        inputs = ", ".join(str(self.rows[name]) for name in self.needs)
        lines = [f"{inputs} -> {self.rows[self.output]}, {mode}, {len(self.stages)} stages"]
        for made in self.prepared:
            code = ", ".join(" ".join(stage.code) for stage in made.program.stages)
            lines.append(f"{self.rows[made.name]} is prepared once: {code}")
        table = [("stage", "operation", "gathers", "reads", "writes", "code", "at")]
        for stage in self.stages:
            table.append(
                (
                    str(stage.index),
                    stage.op,
                    self._list(stage.gathers),
                    self._list((*stage.reads, *stage.edges)),
                    self._list(stage.writes),
                    " ".join(stage.code),
                    " ".join(filter(None, (stage.module, _short(stage.place)))),
                )
            )
        widths = [max(len(row[i]) for row in table) for i in range(len(table[0]) - 1)]
        for row in table:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            lines.append("  ".join([*cells, row[-1]]).rstrip())
        return "\n".join(lines)

    def _list(self, names: Sequence[str]) -> str:
        return ", ".join(str(self.rows[name]) for name in names) or "-"


def _short(place: str) -> str:
    """``/a/b/model.py:31: x = ...`` -> ``model.py:31``."""
    if not place:
        return ""
    return PurePath(place.split(": ", 1)[0]).name
