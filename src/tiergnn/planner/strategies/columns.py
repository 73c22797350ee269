"""Columns: the aggregating half of stages, slice after slice of columns over the whole topology.

Legend: V nodes of the graph, E edges.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field
from functools import partial

from tiergnn.errors import PlanError
from tiergnn.planner.strategies.chunks import Chunk, Chunks
from tiergnn.planner.strategies.cuts import like
from tiergnn.planner.strategies.draft import Draft
from tiergnn.planner.strategies.passing import Turns
from tiergnn.planner.strategies.slices import Slices
from tiergnn.schedule.actions import Lane, Op
from tiergnn.workload import Extent, StageWork


@dataclass(slots=True)
class _Slice:
    """A slice at work: buffers of the device by the rows that they hold."""

    index: int
    inputs: dict[str, str] = field(default_factory=dict)
    grads: dict[str, str] = field(default_factory=dict)
    out: str = ""


class Columns:
    """Aggregations of one device; ``graded`` names the tensors whose gradient is there."""

    def __init__(self, draft: Draft, slices: Slices, chunks: Chunks, turns: Turns) -> None:
        self._draft, self._writer, self._slices = draft, draft.writer, slices
        self._chunks, self._turns = chunks, turns
        self.graded: set[str] = set()

    def open_grad(self, name: str) -> None:
        """Room for a tensor's gradient, where there is none yet."""
        if name not in self.graded:
            self.graded.add(name)
            self._slices.open(f"{name}.grad", "gradients", of=name)

    def aggregate(self, stage: StageWork, op: Op, last: Container[str] = ()) -> None:
        """Slice after slice over all rows, from the gathered rows to sums; ``last``: the tensors
        that nobody reads after that."""
        main, slices = stage.gathers[0], self._slices
        total, whole = f"sum.s{stage.index}", dict[str, str]()
        slices.open(total, "activations", of=main)

        def begin(at: _Slice) -> None:
            for name in self._uncut(stage) if at.index == 0 else ():
                whole[name] = slices.bring(name, 0)
            for name in self.cut(stage):
                at.inputs[name] = slices.bring(name, at.index, last=name in last)

        def run(at: _Slice, chunk: Chunk) -> None:
            at.out = at.out or slices.room(total, at.index)
            reads = [*at.inputs.values(), *whole.values()]
            self._run_chunk(stage, op, at.index, chunk, reads, [at.out])

        def end(at: _Slice) -> None:
            for name, buffer in at.inputs.items():
                slices.leave(name, at.index, buffer, written=False, last=name in last)
            slices.leave(total, at.index, at.out, written=True)

        count = slices.count(main)
        for index in range(count):
            self._walk(_Slice(index), begin, run, end, backward=False)
        slices.expect(total, index=count - 1)
        self._turns.then(lambda: self._leave_whole(whole))

    def _leave_whole(self, whole: dict[str, str]) -> None:
        for name, buffer in whole.items():
            self._slices.leave(name, 0, buffer, written=False)

    def _walk(
        self,
        at: _Slice,
        begin: Callable[[_Slice], None],
        run: Callable[[_Slice, Chunk], None],
        end: Callable[[_Slice], None],
        *,
        backward: bool,
    ) -> None:
        """A slice over the topology, at once or in chunks, each of which is a turn."""

        def bring(part: int, *, first: bool) -> Chunk:
            if first:
                begin(at)
            return self._chunks.bring(part, backward=backward)

        def do(chunk: Chunk, *, last: bool) -> None:
            run(at, chunk)
            if last:
                end(at)

        parts = [part for part in self._chunks.parts if part is not None]
        for part in self._chunks.parts:
            if part is None:
                self._turns.finish()
            else:
                self._turns.take(
                    partial(bring, part, first=part == parts[0]),
                    partial(do, last=part == parts[-1]),
                )

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

    def _run_chunk(
        self,
        stage: StageWork,
        op: Op,
        index: int,
        chunk: Chunk,
        reads: list[str],
        writes: list[str],
        *,
        adds: bool = False,
    ) -> None:
        """A slice over the topology, or a chunk of it. ``adds``: to gradients that are there."""
        draft, part = self._draft, chunk.part
        backward = op is Op.BACKWARD
        terms = stage.backward if backward else stage.forward
        frac = self._slices.frac(stage.gathers[0], index)
        edges = [n for n in stage.before if self._draft.of_edges(n)]
        if stage.parameter_bytes and not stage.divisible:
            reads = [*reads, "parameters", *(["gradients"] if backward else [])]
            writes = [*writes, *(["gradients"] if backward else [])]
        extent = self._chunks.extent(part)
        scratch = draft.take(
            f"work.s{stage.index}.c{index}",
            "workspace",
            self._work_bytes(stage, extent, frac, backward=backward, part=part, adds=adds),
        )
        work = draft.works(terms, extent, kinds=("gather",), frac=frac, backward=backward)
        if backward and not stage.divisible:
            forward = draft.works(stage.forward, extent, kinds=("gather",), frac=frac)
            work = [*forward, *work]
        self._writer.add(
            0,
            Lane.COMPUTE,
            op,
            stage=stage.index,
            part=part,
            slice=index,
            reads=[*reads, *(writes if part > 0 else ()), *edges, *chunk.topology],
            writes=[*writes, scratch],
            work=work,
        )
        self._writer.release(0, scratch, *chunk.brought)

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
        olds = {n for n in (*cut, *uncut) if n in self.graded}
        for name in (*cut, *uncut):
            self.open_grad(name)
        whole, scores = dict[str, str](), dict[str, str]()

        def begin(at: _Slice) -> None:
            if at.index == 0:
                for name in self._uncut(stage) if again else ():
                    whole[name] = slices.bring(name, 0)
                for name in (n for n in uncut if n in olds):
                    scores[name] = slices.bring(f"{name}.grad", 0)
            at.inputs[total] = slices.bring(total, at.index, last=True)
            for name in self.cut(stage) if again else ():
                at.inputs[name] = slices.bring(name, at.index)
            for name in (n for n in cut if n in olds):
                at.grads[name] = slices.bring(f"{name}.grad", at.index)

        def run(at: _Slice, chunk: Chunk) -> None:
            for name in (n for n in uncut if n not in scores):
                scores[name] = slices.room(f"{name}.grad", 0)
                self._writer.add(0, Lane.COMPUTE, Op.ZERO, writes=[scores[name]])
            for name in (n for n in cut if n not in at.grads):
                at.grads[name] = slices.room(f"{name}.grad", at.index)
            read = [at.grads[n] for n in cut if n in olds]
            reads = [*at.inputs.values(), *whole.values(), *read, *scores.values()]
            out = [*at.grads.values(), *scores.values()]
            self._run_chunk(stage, Op.BACKWARD, at.index, chunk, reads, out, adds=bool(read))

        def end(at: _Slice) -> None:
            for name, buffer in at.inputs.items():
                slices.leave(name, at.index, buffer, written=False, last=name == total)
            for name, buffer in at.grads.items():
                slices.leave(f"{name}.grad", at.index, buffer, written=True)

        def close() -> None:
            self._leave_whole(whole)
            for name, buffer in scores.items():
                slices.leave(f"{name}.grad", 0, buffer, written=True)
            slices.drop(total)

        count = slices.count(stage.gathers[0])
        for index in range(count):
            self._walk(_Slice(index), begin, run, end, backward=True)
        for name in (*cut, *uncut):
            slices.expect(f"{name}.grad", index=0 if name in uncut else count - 1)
        self._turns.then(close)
