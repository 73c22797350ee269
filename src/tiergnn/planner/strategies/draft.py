"""Draft: a schedule being written, with the sizes and works that every strategy asks for.

Names of buffers: rows ``h1`` of part 3 are ``h1.p3`` on the device, ``h1.p3@host`` and
``h1.p3@disk`` elsewhere, their gradient ``h1.grad.p3``; what each rank has ends in ``.r0``.
A rank has the part of its number.

Legend: P rows of one part, S source rows it reads, E edges.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from tiergnn.errors import ConfigError, PlanError
from tiergnn.graph.shape import GraphShape, Layout
from tiergnn.hardware.machine import Machine
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.planner.strategies.works import Works
from tiergnn.row_kinds import DTYPE_BYTES, INPUTS
from tiergnn.schedule.actions import Lane, Op, Work
from tiergnn.schedule.contents import Content, What
from tiergnn.schedule.schedule import Schedule, Writer
from tiergnn.schedule.sizing import Sized, Sizer
from tiergnn.workload import Extent, StageWork, Workload


class Draft:
    """The five descriptions that a schedule is written from, and its Writer.

    ``uses`` names the knobs of the strategy. Raises ConfigError for knobs that do not belong to it
    or to the layout, PlanError for more ranks than the machine has devices, and for prepared rows
    where it does not say that it ``prepares`` them. With ``sizing`` only what the schedule would
    hold is wanted.
    """

    def __init__(
        self,
        strategy: str,
        workload: Workload,
        shape: GraphShape,
        layout: Layout,
        machine: Machine,
        knobs: Knobs,
        *,
        uses: Iterable[str],
        sizing: bool = False,
        prepares: bool = False,
    ) -> None:
        self.strategy, self.workload, self.shape = strategy, workload, shape
        self.layout, self.machine, self.knobs = layout, machine, knobs
        uses = frozenset(uses)
        knobs.check(strategy, uses)
        wanted = knobs.ranks if "ranks" in uses else knobs.parts
        if layout.num_parts != wanted:
            raise ConfigError(
                f"{strategy} was asked for {wanted} parts, the layout has {layout.num_parts}",
                hint="a layout of as many parts",
            )
        known = {stage.index for stage in workload.stages}
        if not set(knobs.recompute) <= known:
            raise ConfigError(
                f"{workload.name} has no stage {max(set(knobs.recompute) - known)}",
                hint="one of " + ", ".join(map(str, sorted(known))),
            )
        self.num_ranks = knobs.ranks if "ranks" in uses else 1
        devices = machine.num_devices * machine.num_hosts
        if self.num_ranks > devices:
            raise PlanError(
                f"{strategy} needs {self.num_ranks} devices, {machine.name} has {devices}",
                hint=f"ranks <= {devices}",
            )
        if workload.prepared and not prepares:
            raise PlanError(f"{strategy} prepares no rows", hint="prepare=False")
        self.parts = range(layout.num_parts)
        self.writer = (Sizer if sizing else Writer)(strategy, self.num_ranks)
        self._rows = {rows.name: rows for rows in workload.rows}
        self.sizes: dict[str, int] = {}  # bytes of every buffer that was taken
        self._taken: dict[str, int] = {}  # name -> times that it was declared
        self.works = Works(shape, workload.dtype).of
        learned = [name for name in workload.inputs if self._rows[name].grad]
        if learned:
            raise PlanError(
                f"{strategy} plans no learned rows of nodes, {workload.name} learns {learned[0]}",
                hint="the strategy resident",
            )

    # Sizes

    def extent(self, part: int) -> Extent:
        shape = self.layout.parts[part]
        return Extent(shape.rows, shape.sources, shape.edges)

    @staticmethod
    def dense(rows: int) -> Extent:
        """Rows without edges: what row-local code runs on."""
        return Extent(rows, rows, 0)

    @cached_property
    def whole(self) -> Extent:
        """The whole graph as one block."""
        rows = sum(part.rows for part in self.layout.parts)
        return Extent(rows, rows, sum(part.edges for part in self.layout.parts))

    def count(self, name: str, part: int) -> int:
        """Rows of a tensor in a part (-1: in all): its nodes, or its edges."""
        shape = self.whole if part < 0 else self.layout.parts[part]
        return shape.rows if self._rows[name].of == "nodes" else shape.edges

    def row_bytes(self, name: str) -> int:
        """Of a row as it is computed with."""
        return self._rows[name].row_bytes

    def stored_bytes(self, name: str, *, made: bool = False) -> int:
        """Of a row in host memory, on disk and between ranks; the graph's own lie there as they
        came, what is ``made`` of them as wide does not."""
        rows = self._rows[name]
        computed = DTYPE_BYTES[rows.dtype]
        if name in INPUTS and not made:
            of_nodes = rows.of == "nodes"
            stored = DTYPE_BYTES.get(self.shape.feature_dtype, computed) if of_nodes else computed
        elif rows.dtype.startswith(("float", "bfloat")):
            stored = DTYPE_BYTES[self.knobs.storage or rows.dtype]
        else:
            stored = computed
        return rows.width * min(stored, computed)

    def width(self, name: str) -> int:
        return self._rows[name].width

    def of_edges(self, name: str) -> bool:
        return self._rows[name].of == "edges"

    def has_grad(self, name: str) -> bool:
        """Whether backward makes one; the loss gives that of the output."""
        return self._rows[name].grad or name == self.workload.output

    def backward_held(self, stage: StageWork, extent: Extent) -> int:
        """The most that a stage's backward holds beside buffers. Metered passes let go of a
        gradient once it was read; here its buffer is held until the pass is over."""
        given = sum(
            self.row_bytes(name) * (extent.edges if self.of_edges(name) else extent.rows)
            for name in stage.writes
            if self.has_grad(name)
        )
        return stage.backward_held.at(extent) + given

    @property
    def edge_ids(self) -> bool:
        """Whether a block has to know which edges of the graph its own are: for rows of edges, and
        for random numbers of edges, which a graph operation on columns alone does not draw."""
        return any(rows.of == "edges" for rows in self.workload.rows) or any(
            stage.kind == "graph" and (self.attends(stage) or not stage.columnwise)
            for stage in self.workload.stages
        )

    def sum_bytes(self, stage: StageWork) -> int:
        """A row of what an aggregation leaves: as wide as the rows that it gathers."""
        return sum(self.row_bytes(name) for name in stage.gathers)

    @staticmethod
    def attends(stage: StageWork) -> bool:
        """Whether an aggregation scores its edges: then it reads own rows too, and again in
        backward what it gathers."""
        return len(stage.gathers) > 1 or stage.op.startswith("gat")

    def units(self, stage: StageWork) -> int:
        """What gathered rows can be cut into: columns, or heads where edges are scored."""
        width = self.width(stage.gathers[0])
        if not self.attends(stage):
            return width
        heads = next((int(word) for word in stage.op.split() if word.isdecimal()), 1)
        return heads if heads and width % heads == 0 else 1

    def moments_bytes(self, stage: StageWork) -> int:
        """Of the moments that a stage makes."""
        of = self._rows[stage.moments_of]
        return 3 * of.width * max(4, DTYPE_BYTES[of.dtype])

    # Links

    def link(self, *names: str) -> str:
        """The first link of these that the machine has; raises PlanError for none."""
        for name in names:
            if name in self.machine.links:
                return name
        self.machine.link(names[0])
        raise AssertionError("unreachable")

    def peer(self, rank: int, other: int, *, bulk: bool) -> str:
        """The link between two ranks: peers of one host, or the network."""
        hosts = self.machine.num_devices
        if rank // hosts != other // hosts:
            return self.link("network")
        return self.link("peer_copy", "peer") if bulk else self.link("peer", "peer_copy")

    def remote_reads(
        self, rank: int, row_bytes: int, count: int, *, leaving: bool = False
    ) -> list[Work]:
        """So many reads of rows of other ranks, dealt to owners as the boundary rows are."""
        part = self.layout.part(rank, leaving=leaving)
        return self.reads_of(rank, part.halo_of, row_bytes, count)

    def reads_of(
        self, rank: int, rows_of: Sequence[int], row_bytes: int, count: int | None = None
    ) -> list[Work]:
        """Reads of so many rows of each other rank (or of ``count``, dealt alike): of peers of the
        host, and over the network."""
        by_link: dict[str, int] = {}
        for owner, rows in enumerate(rows_of):
            if rows and owner != rank:
                link = self.peer(rank, owner, bulk=False)
                by_link[link] = by_link.get(link, 0) + rows
        total = max(1, sum(by_link.values()))
        count = sum(by_link.values()) if count is None else count
        return [
            Work(
                kind="move",
                amount=count * rows // total * row_bytes,
                grain=max(1, row_bytes),
                place=link,
            )
            for link, rows in by_link.items()
        ]

    # Who reads and writes rows

    def users(self, name: str) -> list[StageWork]:
        """The stages that make rows of a tensor's, in their order; not those of moments alone."""
        return [s for s in self.workload.stages if s.writes and name in (*s.gathers, *s.reads)]

    def statistics(self, name: str) -> list[StageWork]:
        """The stages that take moments of a tensor."""
        return [s for s in self.workload.stages if s.moments_of == name]

    @property
    def ending(self) -> StageWork | None:
        """The stage that makes the output alone, where nobody else reads that. Its forward and its
        backward are one visit, with the loss between them."""
        out = self.workload.output
        stage = next(s for s in self.workload.stages if out in s.writes)
        read = self.users(out) or self.statistics(out) or stage.writes != (out,)
        return None if read else stage

    # Buffers

    def own(self, name: str, rank: int) -> str:
        """The name of what each rank has; one rank alone needs no number."""
        return name if self.num_ranks == 1 else f"{name}.r{rank}"

    def room(
        self,
        name: str,
        rank: int,
        tier: str,
        kind: str,
        num_bytes: int,
        holds: Content | None = None,
    ) -> str:
        """A buffer; a name that was taken before gets a number, since each is reserved once."""
        times = self._taken.get(name, 0)
        self._taken[name] = times + 1
        unique = f"{name}~{times}" if times else name
        self.sizes[unique] = num_bytes
        return self.writer.buffer(unique, rank, tier, kind, num_bytes, holds=holds)

    def take(
        self,
        name: str,
        kind: str,
        num_bytes: int,
        *,
        rank: int = 0,
        tier: str = "device",
        lane: Lane = Lane.COMPUTE,
        holds: Content | None = None,
    ) -> str:
        """A buffer that is reserved at once."""
        room = self.room(name, rank, tier, kind, num_bytes, holds)
        self.writer.reserve(rank, room, lane=lane)
        return room

    def parameters(self, rank: int, *, optimizer: bool = True) -> None:
        """Parameters and the optimizer's state: there before and after."""
        there = {"parameters": self.workload.parameter_bytes}
        if optimizer:
            there["optimizer"] = self.workload.optimizer_bytes
        for name, num_bytes in there.items():
            self.writer.given(self.own(name, rank), rank, "device", name, num_bytes)

    # Loss, gradients and step

    def answer(self, part: int) -> tuple[str, int]:
        """A buffer for those of a part's rows of the output that an evaluation is asked for, the
        labelled ones of its layout; and its bytes. They stay in host memory, as computed."""
        name = self.workload.output
        num_bytes = self.layout.parts[part].labelled * self.row_bytes(name)
        buffer = self.writer.buffer(
            f"answer.p{part}@host", 0, "host", "activations", num_bytes, lasting=True,
            holds=Content(What.ANSWER, name, part),
        )  # fmt: skip
        return buffer, num_bytes

    def clear_gradients(self, rank: int) -> None:
        """Room for the parameters' gradients, at zero."""
        num_bytes = self.workload.parameter_bytes
        gradients = self.take(self.own("gradients", rank), "gradients", num_bytes, rank=rank)
        self.writer.add(
            rank,
            Lane.COMPUTE,
            Op.ZERO,
            writes=[gradients],
            work=[Work(kind="stream", amount=num_bytes)],
        )

    def loss(self, rank: int, part: int, out: str) -> str:
        """The gradient of a part's output, a new buffer; zeros where no row is labelled."""
        name = self.workload.output
        labelled = self.layout.parts[part].labelled
        num_bytes = self.count(name, part) * self.row_bytes(name)
        grad = self.take(
            f"{name}.grad.p{part}", "gradients", num_bytes, rank=rank,
            holds=Content(What.GRAD, name, part),
        )  # fmt: skip
        if not labelled:
            self.writer.add(
                rank,
                Lane.COMPUTE,
                Op.ZERO,
                part=part,
                writes=[grad],
                work=[Work(kind="stream", amount=num_bytes)],
            )
            return grad
        extent = Extent(labelled, labelled, 0)
        held = self.workload.loss_held.at(extent)
        scratch = self.take(f"work.loss.p{part}", "workspace", held, rank=rank)
        self.writer.add(
            rank,
            Lane.COMPUTE,
            Op.LOSS,
            part=part,
            reads=[out],
            writes=[grad, scratch],
            work=self.works(self.workload.loss, extent),
        )
        self.writer.release(rank, scratch)
        return grad

    def step(self) -> None:
        """Gradients summed over ranks, where there are several, and the optimizer's step."""
        ranks = range(self.num_ranks)
        if self.num_ranks > 1:
            links = {self.peer(0, rank, bulk=True) for rank in ranks if rank}
            link = "network" if "network" in links else links.pop()
            moved = self.reduce_bytes
            for rank in ranks:
                gradients = self.own("gradients", rank)
                self.writer.add(
                    rank,
                    Lane.PEER,
                    Op.REDUCE,
                    tag="gradients",
                    reads=[gradients],
                    writes=[gradients],
                    work=[Work(kind="move", amount=moved, place=link)],
                )
        for rank in ranks:
            scratch = self.take(
                self.own("work.step", rank), "workspace", self.workload.step_held, rank=rank
            )
            parameters, optimizer, gradients = (
                self.own(name, rank) for name in ("parameters", "optimizer", "gradients")
            )
            self.writer.add(
                rank,
                Lane.COMPUTE,
                Op.STEP,
                reads=[gradients, parameters, optimizer],
                writes=[parameters, optimizer, scratch],
                work=self.works(self.workload.step, Extent(0, 0, 0)),
            )
            self.writer.release(rank, scratch, gradients)

    @property
    def reduce_bytes(self) -> int:
        """What a rank sends of gradients in a ring: 2 (N - 1) / N of them."""
        return round(2 * (self.num_ranks - 1) / self.num_ranks * self.workload.parameter_bytes)

    def finish(self) -> Schedule:
        return self.writer.finish()

    def sized(self) -> Sized:
        """With ``sizing``: what the schedule would hold."""
        assert isinstance(self.writer, Sizer)
        return self.writer.sized()
