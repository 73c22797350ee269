"""Columns: the aggregating half of stages, slice after slice of columns over the whole topology.

Legend: V nodes of the graph, E edges.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import partial

from tiergnn.errors import PlanError
from tiergnn.planner.strategies.draft import Draft
from tiergnn.planner.strategies.edges import (
    csr_bytes,
    held_edges,
    in_edge_bytes,
    out_edge_bytes,
    turned_bytes,
)
from tiergnn.planner.strategies.passing import ahead
from tiergnn.planner.strategies.slices import Slices
from tiergnn.schedule.actions import Lane, Op, Work
from tiergnn.schedule.contents import Content, What
from tiergnn.workload import Extent, StageWork


def like(draft: Draft, stage: StageWork, name: str) -> bool:
    """Whether rows are cut as those are that a stage gathers."""
    return draft.width(name) == draft.width(stage.gathers[0])


def _largest(sizes: Sequence[tuple[int, ...]]) -> list[int]:
    """The places of those that no other exceeds or equals in everything."""
    found: list[int] = []
    for place in sorted(range(len(sizes)), key=lambda p: sizes[p], reverse=True):
        beyond = (all(a >= b for a, b in zip(sizes[p], sizes[place], strict=True)) for p in found)
        if not any(beyond):
            found.append(place)
    return found


_DEGREE_BYTES = 16  # of a row: how many in-edges it has, with and without loops, and its id
# Of a row of a block without its edges: degrees, an empty row pointer, a number made of a degree.
_VIEW_BYTES = 32


class Columns:
    """Aggregations of one device; ``graded`` names the tensors whose gradient is there.

    ``sizing``: of the chunks of a topology in host memory only the largest are brought, which tells
    what is held, as each gives back all that it took.
    """

    def __init__(self, draft: Draft, slices: Slices, *, sizing: bool = False) -> None:
        self._draft, self._writer, self._slices = draft, draft.writer, slices
        self.graded: set[str] = set()
        self._edges: dict[int, dict[str, tuple[int, Content]]] = {}
        self._chunks = list(draft.parts) if draft.knobs.topology == "host" else [-1]
        if sizing and draft.knobs.topology == "host":
            taken = [[size for size, _ in self._topology(p).values()] for p in draft.parts]
            self._chunks = _largest([(*t, self._extent(p).edges) for p, t in enumerate(taken)])
        self._turn = ""  # of the edges one way or the other, which are on the device now

    def open_grad(self, name: str) -> None:
        """Room for a tensor's gradient, where there is none yet."""
        if name not in self.graded:
            self.graded.add(name)
            self._slices.open(f"{name}.grad", "gradients", of=name)

    def give_topology(self) -> None:
        """The edges where they lie; on the device how many each row has, for row-local code."""
        draft = self._draft
        in_chunks = draft.knobs.topology == "host"
        tier = "device" if draft.knobs.topology == "device" else "host"
        for part in draft.parts if in_chunks else (-1,):
            for name, (num_bytes, holds) in self._topology(part).items():
                home = self._home(name, part)
                self._writer.given(home, 0, tier, "topology", num_bytes, holds=holds)
        if any(stage.by_degrees for stage in draft.workload.stages):
            num_bytes = _DEGREE_BYTES * draft.whole.rows
            holds = Content(What.DEGREES)
            self._writer.given("degrees", 0, "device", "topology", num_bytes, holds=holds)

    def _home(self, name: str, part: int) -> str:
        block = "" if part < 0 else f".p{part}"
        return f"{name}{block}" + ("" if self._draft.knobs.topology == "device" else "@host")

    def close(self) -> None:
        """The edges that were brought last are not needed any more."""
        if self._turn:
            self._writer.release(0, self._turn)
        self._turn = ""

    def _topology(self, part: int) -> dict[str, tuple[int, Content]]:
        """The in-edges of a block's rows (-1: of all) and, by their sources, the same edges."""
        if part not in self._edges:
            draft, edges = self._draft, self._held(part)
            held, out = in_edge_bytes(draft, edges, edges[0].rows), out_edge_bytes(draft, edges)
            if draft.knobs.topology == "turns":
                out = turned_bytes(draft, edges)
            self._edges[part] = {
                "topology": (held, Content(What.TOPOLOGY, "", part)),
                "topology.out": (out, Content(What.OUT_EDGES, "", part)),
            }
        return self._edges[part]

    def _extent(self, part: int) -> Extent:
        """A block (-1: all rows), whose sources are all rows."""
        return self._held(part)[0]

    def _held(self, part: int) -> tuple[Extent, ...]:
        """The same without loops, where no stage reads them; or, after it, too."""
        draft, whole = self._draft, self._draft.whole
        shapes = draft.layout.parts if part < 0 else draft.layout.parts[part : part + 1]
        rows, edges, loops = (
            sum(getattr(shape, of) for shape in shapes) for of in ("rows", "edges", "loops")
        )
        return held_edges(draft, Extent(rows, whole.sources, edges), loops)

    def bring_topology(self, part: int, *, backward: bool) -> tuple[list[str], list[str]]:
        """The edges of a block's rows (-1: of all) on the device, and which of those buffers were
        brought for this once."""
        names = ("topology", "topology.out") if backward else ("topology",)
        if self._draft.knobs.topology == "device":
            return list(names), []
        if self._draft.knobs.topology == "turns":
            return [self._take_turn(names[-1])], []
        brought = [self._bring(name, part) for name in names]
        return brought, brought

    @property
    def turn_bytes(self) -> int:
        """Of all in-edges, where they are not on the device between steps."""
        if self._draft.knobs.topology != "turns":
            return 0
        num_bytes, _ = self._topology(-1)["topology"]
        return num_bytes

    def _take_turn(self, name: str) -> str:
        """All edges one way, in the place of those the other way."""
        if self._turn.partition("~")[0] != name:
            self.close()
            self._turn = self._bring(name, -1)
        return self._turn

    def _bring(self, name: str, part: int) -> str:
        draft, (num_bytes, holds) = self._draft, self._topology(part)[name]
        label = name if part < 0 else f"{name}.p{part}"
        buffer = draft.take(label, "topology", num_bytes, lane=Lane.H2D, holds=holds)
        self._writer.add(
            0,
            Lane.H2D,
            Op.COPY,
            part=part,
            reads=[self._home(name, part)],
            writes=[buffer],
            work=[Work(kind="move", amount=num_bytes, place=draft.link("h2d"))],
        )
        return buffer

    def of_rows(self, stage: StageWork, part: int) -> tuple[list[str], list[str]]:
        """What row-local code of a block reads of its edges: how many each row has, or, if it asks
        for more, themselves. And which of that was brought for this once."""
        if stage.by_degrees:
            return ["degrees"], []
        return self.bring_topology(part, backward=False)

    def view_bytes(self, stage: StageWork, part: int) -> int:
        """Of a block of rows cut out of all of them, while it is at work."""
        shape = self._draft.layout.parts[part]
        if stage.by_degrees:
            return _VIEW_BYTES * shape.rows + 8
        if self._draft.knobs.topology == "host":
            return 0
        return csr_bytes(self._draft, Extent(shape.rows, shape.rows, shape.edges))

    def aggregate(self, stage: StageWork, op: Op, last: Container[str] = ()) -> None:
        """Slice after slice over all rows, from the gathered rows to sums; ``last``: the tensors
        that nobody reads after that."""
        main = stage.gathers[0]
        total = f"sum.s{stage.index}"
        self._slices.open(total, "activations", of=main)
        whole = {name: self._slices.bring(name, 0) for name in self._uncut(stage)}
        begun = ahead(range(self._slices.count(main)), partial(self._begin_slice, stage, last))
        for index, inputs in begun:
            out = self._slices.room(total, index)
            self._run_slice(stage, op, index, [*inputs.values(), *whole.values()], [out])
            for name, buffer in inputs.items():
                self._slices.leave(name, index, buffer, written=False, last=name in last)
            self._slices.leave(total, index, out, written=True)
        for name, buffer in whole.items():
            self._slices.leave(name, 0, buffer, written=False)

    def cut(self, stage: StageWork) -> list[str]:
        """The tensors of nodes that an aggregation takes slice by slice."""
        names = [stage.gathers[0]]
        names += [n for n in stage.before if like(self._draft, stage, n)]
        return list(dict.fromkeys(names))

    def _uncut(self, stage: StageWork) -> list[str]:
        """Those that it reads whole, whatever the slice: scores."""
        names = [*stage.gathers, *stage.before]
        cut = self.cut(stage)
        return [n for n in dict.fromkeys(names) if n not in cut and not self._draft.of_edges(n)]

    def _begin_slice(
        self, stage: StageWork, last: Container[str], index: int
    ) -> tuple[int, dict[str, str]]:
        bring = self._slices.bring
        return index, {name: bring(name, index, last=name in last) for name in self.cut(stage)}

    def _run_slice(
        self,
        stage: StageWork,
        op: Op,
        index: int,
        reads: list[str],
        writes: list[str],
        *,
        adds: bool = False,
    ) -> None:
        """One slice over the topology, at once or chunk after chunk as it is brought. ``adds``: to
        gradients that are there."""
        draft = self._draft
        backward = op is Op.BACKWARD
        terms = stage.backward if backward else stage.forward
        frac = self._slices.frac(stage.gathers[0], index)
        edges = [n for n in stage.before if self._draft.of_edges(n)]
        again = backward and not stage.divisible
        if stage.parameter_bytes and not stage.divisible:
            reads = [*reads, "parameters", *(["gradients"] if backward else [])]
            writes = [*writes, *(["gradients"] if backward else [])]
        for part in self._chunks:
            extent = self._extent(part)
            topology, brought = self.bring_topology(part, backward=backward)
            scratch = draft.take(
                f"work.s{stage.index}.c{index}",
                "workspace",
                self._work_bytes(stage, extent, frac, backward=backward, part=part, adds=adds),
            )
            work = draft.works(terms, extent, kinds=("gather",), frac=frac, backward=backward)
            if again:
                forward = draft.works(stage.forward, extent, kinds=("gather",), frac=frac)
                work = [*forward, *work]
            self._writer.add(
                0,
                Lane.COMPUTE,
                op,
                stage=stage.index,
                part=part,
                slice=index,
                reads=[*reads, *edges, *topology],
                writes=[*writes, scratch],
                work=work,
            )
            self._writer.release(0, scratch, *brought)
            reads = list(dict.fromkeys([*reads, *writes]))  # chunks add to what is there

    def _work_bytes(
        self,
        stage: StageWork,
        extent: Extent,
        frac: float,
        *,
        backward: bool,
        part: int,
        adds: bool,
    ) -> int:
        """What one slice holds while it is at work."""

        if stage.slices is None:  # of a workload that was saved before they were metered
            raise PlanError(
                f"sliced: the workload does not say what slices of stage {stage.index} hold",
                hint="a workload and a plan made anew by this version",
            )
        units = self._draft.units(stage)
        held = stage.slices.held(extent, frac, units, backward=backward)
        main = self._draft.row_bytes(stage.gathers[0])
        slice_bytes = round(frac * self._draft.whole.rows * main)
        turned = 0
        if part >= 0:  # the order in which a chunk has its sources
            more = (n for n in stage.gathers[1:] if not self._draft.of_edges(n))
            turned = slice_bytes + sum(self._draft.row_bytes(n) for n in more) * extent.sources
        if not backward:
            # A chunk's sums are added to those that are there.
            return held + turned + (0 if part < 0 else round(frac * extent.rows * main))
        fresh = stage.divisible and part < 0 and not adds  # nothing to add to
        return max(0, held - slice_bytes * fresh) + 2 * turned

    def scatter(self, stage: StageWork) -> None:
        """Slice after slice, from the gradients of sums to those of the rows that were gathered."""
        draft, slices, total = self._draft, self._slices, f"sum.s{stage.index}.grad"
        again = not stage.divisible
        cut = [n for n in self.cut(stage) if draft.has_grad(n)]
        uncut = [n for n in self._uncut(stage) if draft.has_grad(n)]
        whole = {n: slices.bring(n, 0) for n in self._uncut(stage)} if again else {}
        olds = {n for n in (*cut, *uncut) if n in self.graded}
        for name in (*cut, *uncut):
            self.open_grad(name)
        scores = {}
        for name in uncut:
            bring = slices.bring if name in olds else slices.room
            scores[name] = bring(f"{name}.grad", 0)
            if name not in olds:
                self._writer.add(0, Lane.COMPUTE, Op.ZERO, writes=[scores[name]])

        def begin(index: int) -> tuple[int, dict[str, str], dict[str, str]]:
            inputs = {total: slices.bring(total, index, last=True)}
            if again:
                inputs |= {name: slices.bring(name, index) for name in self.cut(stage)}
            return index, inputs, {n: slices.bring(f"{n}.grad", index) for n in cut if n in olds}

        for index, inputs, grads in ahead(range(slices.count(stage.gathers[0])), begin):
            read = list(grads.values())
            for name in cut:
                if name not in grads:
                    grads[name] = slices.room(f"{name}.grad", index)
            out = [*grads.values(), *scores.values()]
            reads = [*inputs.values(), *whole.values(), *read, *scores.values()]
            self._run_slice(stage, Op.BACKWARD, index, reads, out, adds=bool(read))
            for name, buffer in inputs.items():
                slices.leave(name, index, buffer, written=False, last=name == total)
            for name, buffer in grads.items():
                slices.leave(f"{name}.grad", index, buffer, written=True)
        for name, buffer in whole.items():
            slices.leave(name, 0, buffer, written=False)
        for name, buffer in scores.items():
            slices.leave(f"{name}.grad", 0, buffer, written=True)
        slices.drop(total)
