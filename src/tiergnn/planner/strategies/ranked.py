"""Ranked: several ranks, each with one part of the rows; how they reach each other's is a strategy.

Every rank holds the rows of its part on its device, as long as something reads them. A stage with a
graph operation is AGGREGATE, one for each class of sources (``slice`` is the class), and UPDATE
for the row-local rest; in backward BACKWARD of the part, then BACKWARD of each class over the
transposed graph. Ways to the rows of others are ``Sources``.

Legend: P rows of one part, S source rows it reads, E edges.
"""

from __future__ import annotations

from typing import Protocol

from tiergnn.errors import PlanError
from tiergnn.planner.strategies.draft import Draft
from tiergnn.planner.strategies.lives import Lives
from tiergnn.planner.strategies.moments import Moments
from tiergnn.schedule.actions import Lane, Op, Work
from tiergnn.workload import StageWork

Rows = dict[tuple[str, int], str]  # (tensor, rank) -> buffer


class Sources(Protocol):
    """How ranks reach the rows that they read. Buffers of sums are given away: released later."""

    def give(self) -> None:
        """Declare what is there before the first action: topology, inputs, caches of inputs."""
        ...

    def made(self, name: str) -> None:
        """All ranks have made rows of a tensor."""
        ...

    def sums(self, stage: StageWork, op: Op) -> dict[int, list[str]]:
        """rank -> the sums of each class of sources, [P] rows each."""
        ...

    def summed(self, stage: StageWork, sums: dict[int, list[str]]) -> None:
        """All sums of a stage are there, its UPDATE is not issued yet."""
        ...

    def scatter(self, stage: StageWork, grads: dict[int, str]) -> dict[int, list[str]]:
        """From the gradients of sums: rank -> what each class gives to those of its rows."""
        ...

    def dropped(self, name: str, rank: int) -> None:
        """The device's rows of a tensor are given back."""
        ...


class Ranked:
    """Writes one training step of all ranks, stage by stage."""

    def __init__(self, draft: Draft) -> None:
        self.draft, self.writer = draft, draft.writer
        self.ranks = range(draft.num_ranks)
        self.rows: Rows = {}
        self.moments = [Moments(draft, rank) for rank in self.ranks]
        self._again = frozenset(draft.knobs.recompute)
        self._lives = Lives(draft.workload, self._again)
        self._grads: Rows = {}
        self._saved: dict[tuple[int, int], list[str]] = {}  # (stage, rank) -> what it keeps
        self._stages = draft.workload.stages

    def write(self, sources: Sources) -> None:
        draft = self.draft
        for rank in self.ranks:
            draft.parameters(rank)
        sources.give()
        for stage in self._stages:
            self._forward(stage, sources)
            for name in self._lives.end_forward(stage):
                self._drop(name, sources)
        out = draft.workload.output
        for rank in self.ranks:
            self._grads[out, rank] = draft.loss(rank, rank, self.rows[out, rank])
        for name in self._lives.after_loss():
            self._drop(name, sources)
        for rank in self.ranks:
            draft.clear_gradients(rank)
        for stage in reversed(self._stages):
            if any((name, 0) in self._grads for name in stage.writes):
                self._backward(stage, sources)
            if stage.moments_of and self.moments[0].graded(stage):
                self._statistic_backward(stage)
            for rank in self.ranks:
                self.moments[rank].free(stage)
            for name in self._lives.end_backward(stage):
                self._drop(name, sources)
        draft.step()

    def topology(self, rank: int) -> None:
        """A rank's edges, in and out, in its device's memory."""
        draft, extent = self.draft, self.draft.extent(rank)
        for name, num_bytes in (
            ("topology", draft.csr_bytes(extent)),
            ("topology.out", draft.transposed_bytes(extent)),
        ):
            self.writer.given(f"{name}.r{rank}", rank, "device", "topology", num_bytes)

    def inputs(self, rank: int) -> None:
        """A rank's rows of the inputs, in its device's memory."""
        for name in self.draft.workload.inputs:
            num_bytes = self.draft.count(name, rank) * self.draft.stored_bytes(name)
            self.rows[name, rank] = self.writer.given(
                f"{name}.p{rank}", rank, "device", "features", num_bytes
            )

    def divisible(self, stage: StageWork) -> None:
        """Raises PlanError for a graph operation that wants all its sources at once."""
        if not stage.columnwise:
            raise PlanError(
                f"{self.draft.strategy}: stage {stage.index} ({stage.op}) wants all sources of a "
                "row at once",
                hint="the strategy halo",
            )

    def sum_room(self, stage: StageWork, rank: int, index: int) -> str:
        """Room for the sums of one class of sources."""
        num_bytes = self.draft.layout.parts[rank].rows * self.draft.sum_bytes(stage)
        name = f"sum.s{stage.index}.p{rank}.c{index}"
        return self.draft.take(name, "activations", num_bytes, rank=rank)

    def grad_room(self, stage: StageWork, rank: int, index: int) -> str:
        """Room for what one class gives to the gradients of gathered rows."""
        num_bytes = self.draft.layout.parts[rank].rows * self.draft.sum_bytes(stage)
        name = f"grad.s{stage.index}.p{rank}.c{index}"
        return self.draft.take(name, "gradients", num_bytes, rank=rank)

    def _drop(self, name: str, sources: Sources) -> None:
        for rank in self.ranks:
            buffer = self.rows.get((name, rank))
            if buffer is not None and name not in self.draft.workload.inputs:
                self.writer.release(rank, self.rows.pop((name, rank)))
                sources.dropped(name, rank)

    # Forward

    def _forward(self, stage: StageWork, sources: Sources) -> None:
        if stage.moments_of:
            self._statistic(stage)
        if not stage.writes:
            return  # moments for later stages
        keep = stage.index not in self._again
        self._run(stage, sources, Op.FORWARD, keep=keep)
        for name in stage.writes:
            sources.made(name)

    def _statistic(self, stage: StageWork) -> None:
        for rank in self.ranks:
            self.moments[rank].take(stage, rank, self.rows[stage.moments_of, rank])
        if self.draft.num_ranks > 1:
            for rank in self.ranks:
                self.moments[rank].exchange(stage)
        for rank in self.ranks:
            self.moments[rank].commit(stage)

    def _run(self, stage: StageWork, sources: Sources, op: Op, *, keep: bool) -> Rows:
        """A stage's forward on every rank; gives the rows that it wrote."""
        draft, written = self.draft, {}
        sums: dict[int, list[str]] = {rank: [] for rank in self.ranks}
        if stage.kind == "graph":
            sums = sources.sums(stage, Op.AGGREGATE if op is Op.FORWARD else op)
            if op is Op.FORWARD:
                sources.summed(stage, sums)
                op = Op.UPDATE
        for rank in self.ranks:
            extent = draft.extent(rank)
            outputs = {}
            for name in stage.writes:
                num_bytes = self.draft.count(name, rank) * draft.row_bytes(name)
                outputs[name] = draft.take(f"{name}.p{rank}", "activations", num_bytes, rank=rank)
            held = stage.kept_held.at(extent) if keep else stage.forward_held.at(extent)
            kept = stage.kept.at(extent) if keep else 0
            saved = []
            if keep:
                saved = [draft.take(f"saved.s{stage.index}.p{rank}", "saved", kept, rank=rank)]
                self._saved[stage.index, rank] = saved
            scratch = draft.take(
                f"work.s{stage.index}.p{rank}", "workspace", max(0, held - kept), rank=rank
            )
            kinds = ("matmul", "stream") if sums[rank] else ("gather", "matmul", "stream")
            self.writer.add(
                rank,
                Lane.COMPUTE,
                op,
                stage=stage.index,
                part=rank,
                reads=[*sums[rank], *self._own(stage, rank), *self._shared(stage, rank)],
                writes=[*outputs.values(), *saved, scratch],
                work=draft.works(stage.forward, extent, kinds=kinds),
            )
            self.writer.release(rank, scratch, *sums[rank])
            written |= {(name, rank): buffer for name, buffer in outputs.items()}
        if op is not Op.RECOMPUTE:
            self.rows |= written
        return written

    def _own(self, stage: StageWork, rank: int) -> list[str]:
        return [self.rows[name, rank] for name in stage.reads]

    def _shared(self, stage: StageWork, rank: int) -> list[str]:
        parameters = [self.draft.own("parameters", rank)] if stage.parameter_bytes else []
        return [*parameters, *self.moments[rank].of(stage)]

    # Backward

    def _backward(self, stage: StageWork, sources: Sources) -> None:
        draft = self.draft
        again: Rows = {}
        if stage.index in self._again:
            again = self._run(stage, sources, Op.RECOMPUTE, keep=True)
        graph = stage.kind == "graph"
        through = graph and any(draft.has_grad(name) for name in stage.gathers)
        wanted = [name for name in dict.fromkeys(stage.reads) if draft.has_grad(name)]
        sums = {rank: self._dense(stage, rank, again, wanted, through) for rank in self.ranks}
        if through:
            for rank, parts in sources.scatter(stage, sums).items():
                self.writer.release(rank, sums[rank])
                self._gather_grads(stage, rank, parts)
        for name in stage.writes:
            for rank in self.ranks:
                if (name, rank) in self._grads:
                    self.writer.release(rank, self._grads.pop((name, rank)))

    def _dense(
        self, stage: StageWork, rank: int, again: Rows, wanted: list[str], through: bool
    ) -> str:
        """The row-local half: to the gradients of sums, of own rows and of parameters."""
        draft, extent = self.draft, self.draft.extent(rank)
        self.moments[rank].clear_grads(stage)
        added = []
        for name in wanted:
            if (name, rank) in self._grads:
                added.append(self._grads[name, rank])
            else:
                self._open_grad(name, rank)
        made = [self._grads[name, rank] for name in wanted]
        total = ""
        if through:
            num_bytes = extent.rows * draft.sum_bytes(stage)
            total = draft.take(
                f"sum.s{stage.index}.grad.p{rank}", "gradients", num_bytes, rank=rank
            )
            made.append(total)
        scratch = draft.take(
            f"work.s{stage.index}.p{rank}.back",
            "workspace",
            stage.backward_held.at(extent),
            rank=rank,
        )
        gradients = [draft.own("gradients", rank)] if stage.parameter_bytes else []
        moments = self.moments[rank].grads_of(stage)
        saved = self._saved.pop((stage.index, rank))
        kept = [
            buffer
            for name in self._lives.kept(stage)
            if (buffer := self.rows.get((name, rank))) is not None
        ]
        grads = [self._grads[name, rank] for name in stage.writes if (name, rank) in self._grads]
        remade = [buffer for (_, r), buffer in again.items() if r == rank]
        kinds = ("matmul", "stream") if through else ("gather", "matmul", "stream")
        self.writer.add(
            rank,
            Lane.COMPUTE,
            Op.BACKWARD,
            stage=stage.index,
            part=rank,
            reads=[
                *saved, *kept, *remade, *grads, *added, *self._shared(stage, rank), *gradients,
                *moments,
            ],
            writes=[*made, *gradients, *moments, scratch],
            work=draft.works(stage.backward, extent, kinds=kinds, backward=True),
        )  # fmt: skip
        self.writer.release(rank, scratch, *saved, *remade)
        return total

    def _open_grad(self, name: str, rank: int) -> None:
        num_bytes = self.draft.count(name, rank) * self.draft.row_bytes(name)
        self._grads[name, rank] = self.draft.take(
            f"{name}.grad.p{rank}", "gradients", num_bytes, rank=rank
        )

    def _gather_grads(self, stage: StageWork, rank: int, parts: list[str]) -> None:
        """What all classes gave to the gradients of gathered rows, in one order."""
        for name in stage.gathers:
            if not self.draft.has_grad(name):
                continue
            size = self.draft.count(name, rank) * self.draft.row_bytes(name)
            new = (name, rank) not in self._grads
            if new:
                self._open_grad(name, rank)
            grad = self._grads[name, rank]
            if new:
                self.writer.add(
                    rank,
                    Lane.COMPUTE,
                    Op.ZERO,
                    part=rank,
                    writes=[grad],
                    work=[Work(kind="stream", amount=size)],
                )
            self.writer.add(
                rank,
                Lane.COMPUTE,
                Op.ACCUMULATE,
                stage=stage.index,
                part=rank,
                reads=[*parts, grad],
                writes=[grad],
                work=[Work(kind="stream", amount=(len(parts) + 2) * size)],
            )
        self.writer.release(rank, *parts)

    def _statistic_backward(self, stage: StageWork) -> None:
        if self.draft.num_ranks > 1:
            for rank in self.ranks:
                self.moments[rank].reduce(stage)
        name = stage.moments_of
        for rank in self.ranks:
            if (name, rank) in self._grads:
                self.moments[rank].give_back(
                    name, rank, self.rows[name, rank], self._grads[name, rank]
                )
