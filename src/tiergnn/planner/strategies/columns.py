"""Columns: the aggregating half of stages, slice after slice of columns over the whole topology.

Legend: V nodes of the graph, E edges.
"""

from __future__ import annotations

from functools import partial

from tiergnn.planner.strategies.draft import Draft
from tiergnn.planner.strategies.passing import ahead
from tiergnn.planner.strategies.slices import Slices
from tiergnn.schedule.actions import Lane, Op, Work
from tiergnn.workload import Extent, StageWork


def like(draft: Draft, stage: StageWork, name: str) -> bool:
    """Whether rows are cut as those are that a stage gathers."""
    return draft.width(name) == draft.width(stage.gathers[0])


class Columns:
    """Aggregations of one device; ``graded`` names the tensors whose gradient is there."""

    def __init__(self, draft: Draft, slices: Slices) -> None:
        self._draft, self._writer, self._slices = draft, draft.writer, slices
        self.graded: set[str] = set()

    def open_grad(self, name: str) -> None:
        """Room for a tensor's gradient, where there is none yet."""
        if name not in self.graded:
            self.graded.add(name)
            self._slices.open(f"{name}.grad", "gradients", of=name)

    def give_topology(self) -> None:
        draft = self._draft
        if draft.knobs.topology == "device":
            whole = draft.whole
            self._writer.given("topology", 0, "device", "topology", draft.csr_bytes(whole))
            self._writer.given(
                "topology.out", 0, "device", "topology", draft.transposed_bytes(whole)
            )
            return
        for part in draft.parts:
            for name, num_bytes in self._topology_sizes(part).items():
                self._writer.given(f"{name}.p{part}@host", 0, "host", "topology", num_bytes)

    def _topology_sizes(self, part: int) -> dict[str, int]:
        """Of the edges of a block's rows, in and out: as many, over all blocks, as of the whole."""
        extent = self._chunk(part)
        return {
            "topology": self._draft.csr_bytes(extent),
            "topology.out": self._draft.transposed_bytes(extent),
        }

    def _chunk(self, part: int) -> Extent:
        shape = self._draft.layout.parts[part]
        return Extent(shape.rows, shape.rows, shape.edges)

    def aggregate(self, stage: StageWork, op: Op) -> None:
        """Slice after slice over all rows, from the gathered rows to sums."""
        main = stage.gathers[0]
        total = f"sum.s{stage.index}"
        self._slices.open(total, "activations", of=main)
        whole = {name: self._slices.bring(name, 0) for name in self._uncut(stage)}
        begun = ahead(range(self._slices.count(main)), partial(self._begin_slice, stage))
        for index, inputs in begun:
            out = self._slices.room(total, index)
            self._run_slice(stage, op, index, [*inputs.values(), *whole.values()], [out])
            for name, buffer in inputs.items():
                self._slices.leave(name, index, buffer, written=False)
            self._slices.leave(total, index, out, written=True)
        for name, buffer in whole.items():
            self._slices.leave(name, 0, buffer, written=False)

    def _cut(self, stage: StageWork) -> list[str]:
        """The tensors of nodes that an aggregation takes slice by slice."""
        names = [stage.gathers[0]]
        if self._draft.attends(stage):
            names += [
                n
                for n in stage.reads
                if not self._draft.of_edges(n) and like(self._draft, stage, n)
            ]
        return list(dict.fromkeys(names))

    def _uncut(self, stage: StageWork) -> list[str]:
        """Those that it reads whole, whatever the slice: scores."""
        names = [*stage.gathers, *(stage.reads if self._draft.attends(stage) else ())]
        cut = self._cut(stage)
        return [n for n in dict.fromkeys(names) if n not in cut and not self._draft.of_edges(n)]

    def _begin_slice(self, stage: StageWork, index: int) -> tuple[int, dict[str, str]]:
        return index, {name: self._slices.bring(name, index) for name in self._cut(stage)}

    def _run_slice(
        self,
        stage: StageWork,
        op: Op,
        index: int,
        reads: list[str],
        writes: list[str],
    ) -> None:
        """One slice over the topology, at once or chunk after chunk as it is brought."""
        draft = self._draft
        backward = op is Op.BACKWARD
        terms = stage.backward if backward else stage.forward
        frac = self._slices.frac(stage.gathers[0], index)
        held = stage.backward_held if backward else stage.forward_held
        edges = [n for n in stage.reads if self._draft.of_edges(n)]
        streamed = draft.knobs.topology == "host"
        direction = "topology.out" if backward else "topology"
        for part in draft.parts if streamed else (-1,):
            extent = self._chunk(part) if streamed else draft.whole
            topology = direction
            if streamed:
                num_bytes = self._topology_sizes(part)[direction]
                topology = draft.take(f"{direction}.p{part}", "topology", num_bytes, lane=Lane.H2D)
                self._writer.add(
                    0,
                    Lane.H2D,
                    Op.COPY,
                    part=part,
                    reads=[f"{direction}.p{part}@host"],
                    writes=[topology],
                    work=[Work(kind="move", amount=num_bytes, place=draft.link("h2d"))],
                )
            beyond = held.at(Extent(0, extent.sources, extent.edges)) - held.at(Extent(0, 0, 0))
            scratch = draft.take(
                f"work.s{stage.index}.c{index}", "workspace", round(frac * max(0, beyond))
            )
            work = draft.works(terms, extent, kinds=("gather",), frac=frac, backward=backward)
            self._writer.add(
                0,
                Lane.COMPUTE,
                op,
                stage=stage.index,
                part=part,
                slice=index,
                reads=[*reads, *edges, topology],
                writes=[*writes, scratch],
                work=work,
            )
            self._writer.release(0, scratch, *([topology] if streamed else []))

    def scatter(self, stage: StageWork) -> None:
        """Slice after slice, from the gradients of sums to those of the rows that were gathered."""
        draft, slices, total = self._draft, self._slices, f"sum.s{stage.index}.grad"
        again = self._draft.attends(stage)
        cut = [n for n in self._cut(stage) if draft.has_grad(n)]
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
            inputs = {total: slices.bring(total, index)}
            if again:
                inputs |= {name: slices.bring(name, index) for name in self._cut(stage)}
            return index, inputs, {n: slices.bring(f"{n}.grad", index) for n in cut if n in olds}

        for index, inputs, grads in ahead(range(slices.count(stage.gathers[0])), begin):
            read = list(grads.values())
            for name in cut:
                if name not in grads:
                    grads[name] = slices.room(f"{name}.grad", index)
            out = [*grads.values(), *scores.values()]
            reads = [*inputs.values(), *whole.values(), *read, *scores.values()]
            self._run_slice(stage, Op.BACKWARD, index, reads, out)
            for name, buffer in inputs.items():
                slices.leave(name, index, buffer, written=False)
            for name, buffer in grads.items():
                slices.leave(f"{name}.grad", index, buffer, written=True)
        for name, buffer in whole.items():
            slices.leave(name, 0, buffer, written=False)
        for name, buffer in scores.items():
            slices.leave(f"{name}.grad", 0, buffer, written=True)
        slices.drop(total)
