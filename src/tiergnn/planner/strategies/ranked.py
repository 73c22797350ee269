"""Ranked: several ranks, each with one part of the rows; how they reach each other's is a strategy.

Every rank holds the rows of its part on its device, as long as something reads them. A stage whose
graph operation adds up over sets of edges is AGGREGATE, one for each class of sources (``slice`` is
the class), and UPDATE for the row-local rest; in backward BACKWARD of the rest, then BACKWARD of
each class. Any other stage is FORWARD and BACKWARD over all sources of a part, which are brought
together first. Ways to the rows of others are ``Sources``.

Legend: P rows of one part, S source rows it reads, E edges.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tiergnn.planner.strategies.draft import Draft
from tiergnn.planner.strategies.fitting import fitted
from tiergnn.planner.strategies.lives import Lives
from tiergnn.planner.strategies.moments import Moments
from tiergnn.planner.strategies.rooms import Rooms, Rows
from tiergnn.schedule.actions import Lane, Op, Work
from tiergnn.schedule.contents import Content, What
from tiergnn.schedule.schedule import Schedule
from tiergnn.workload import StageWork

Gathered = dict[int, dict[str, str]]  # rank -> tensor -> buffer of all its sources


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
        """From the gradients of sums: rank -> what is to be added to those of its rows."""
        ...

    def bring(self, stage: StageWork, op: Op) -> Gathered:
        """All sources of every part, of each tensor that a stage gathers."""
        ...

    def give_back(self, stage: StageWork, grads: Gathered) -> None:
        """Add the gradients of sources to those of their owners' rows, and release them."""
        ...

    def dropped(self, name: str, rank: int) -> None:
        """The device's rows of a tensor are given back."""
        ...


def written(draft: Draft, sources: Callable[[Ranked], Sources], *, training: bool) -> Schedule:
    """The schedule of a strategy's ``sources``. Raises PlanError where a tier is too small."""
    ranked = Ranked(draft, training=training)
    ranked.write(sources(ranked))
    return fitted(draft.finish(), draft.machine)


class Ranked:
    """Writes one training step of all ranks, or an evaluation, stage by stage."""

    def __init__(self, draft: Draft, *, training: bool = True) -> None:
        self.draft, self.writer, self.training = draft, draft.writer, training
        self.ranks = range(draft.num_ranks)
        self.rooms = Rooms(draft, training=training)
        self.rows: Rows = self.rooms.rows
        self.moments = [Moments(draft, rank) for rank in self.ranks]
        self._again = frozenset(draft.knobs.recompute) if training else frozenset[int]()
        self._lives = Lives(draft.workload, self._again, training=training)
        self._grads: Rows = {}
        self._saved: dict[tuple[int, int], list[str]] = {}  # (stage, rank) -> what it keeps
        self._stages = draft.workload.stages

    def write(self, sources: Sources) -> None:
        """One training step, or the forward of an evaluation, whose output's rows stay."""
        draft = self.draft
        for rank in self.ranks:
            draft.parameters(rank, optimizer=self.training)
        sources.give()
        for stage in self._stages:
            self._forward(stage, sources)
            if not self.training:
                self._free_moments(stage)
            for name in self._lives.end_forward(stage):
                self._drop(name, sources)
        if self.training:
            self._train(sources)

    def _train(self, sources: Sources) -> None:
        draft = self.draft
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

    def _free_moments(self, stage: StageWork) -> None:
        """Of an evaluation: moments go after their last reader."""
        last: dict[str, int] = {}
        for reader in self._stages:
            last |= dict.fromkeys((*reader.statistics, f"s{reader.index}"), reader.index)
        gone = [name for name, index in last.items() if index == stage.index]
        for rank in self.ranks:
            self.moments[rank].drop(gone)

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
        graded = any(self.draft.has_grad(name) for name in stage.writes)
        keep = self.training and graded and stage.index not in self._again
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
        draft, written, again = self.draft, {}, op is Op.RECOMPUTE
        sums: dict[int, list[str]] = {rank: [] for rank in self.ranks}
        brought: Gathered = {rank: {} for rank in self.ranks}
        if stage.divisible:
            sums = sources.sums(stage, Op.AGGREGATE if op is Op.FORWARD else op)
            if op is Op.FORWARD:
                sources.summed(stage, sums)
                op = Op.UPDATE
        elif stage.kind == "graph":
            brought = sources.bring(stage, op)
        for rank in self.ranks:
            extent = draft.extent(rank)
            outputs = {name: self._output(name, rank) for name in stage.writes}
            held = stage.kept_held.at(extent) if keep else stage.forward_held.at(extent)
            kept = stage.kept.at(extent) if keep else 0
            saved = [self._keep(stage, rank, kept)] if keep else []
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
                reads=[
                    *sums[rank], *brought[rank].values(), *self._own(stage, rank),
                    *self._shared(stage, rank),
                ],
                writes=[*outputs.values(), *saved, scratch],
                work=draft.works(stage.forward, extent, kinds=kinds),
            )  # fmt: skip
            self.writer.release(rank, scratch, *sums[rank])
            for name, buffer in brought[rank].items():
                if buffer in self.rooms.kept.values():
                    continue  # it stays, whoever reads it
                if keep and name in stage.saves:
                    saved.append(buffer)
                else:
                    self.writer.release(rank, buffer)
            if keep:
                self._saved[stage.index, rank] = saved
            written |= {(name, rank): buffer for name, buffer in outputs.items()}
        if not again:
            self.rows |= written
        return written

    def _output(self, name: str, rank: int) -> str:
        """Room for a part's rows; those of an evaluation's output are there after it."""
        draft, label, holds = self.draft, f"{name}.p{rank}", Content(What.ROWS, name, rank)
        num_bytes = draft.count(name, rank) * draft.row_bytes(name)
        if self.training or name != draft.workload.output:
            return draft.take(label, "activations", num_bytes, rank=rank, holds=holds)
        answer = self.writer.buffer(
            label, rank, "device", "activations", num_bytes, lasting=True, holds=holds
        )
        self.writer.reserve(rank, answer)
        return answer

    def _keep(self, stage: StageWork, rank: int, num_bytes: int) -> str:
        """Room for what a stage keeps for its backward."""
        holds = Content(What.SAVED, f"s{stage.index}", rank)
        name = f"saved.s{stage.index}.p{rank}"
        return self.draft.take(name, "saved", num_bytes, rank=rank, holds=holds)

    def _own(self, stage: StageWork, rank: int) -> list[str]:
        return [self.rows[name, rank] for name in stage.reads]

    def _shared(self, stage: StageWork, rank: int) -> list[str]:
        """What every pass of a stage reads beside rows: degrees may be asked for by any code."""
        parameters = [self.draft.own("parameters", rank)] if stage.parameter_bytes else []
        return [f"topology.r{rank}", *parameters, *self.moments[rank].of(stage)]

    # Backward

    def _backward(self, stage: StageWork, sources: Sources) -> None:
        draft = self.draft
        again: Rows = {}
        if stage.index in self._again:
            again = self._run(stage, sources, Op.RECOMPUTE, keep=True)
        graded = [name for name in stage.gathers if draft.has_grad(name)]
        through = stage.divisible and bool(graded)
        wanted = [name for name in dict.fromkeys(stage.reads) if draft.has_grad(name)]
        whole: Gathered = {rank: {} for rank in self.ranks}
        if not stage.divisible:
            whole = {rank: self._source_grads(stage, rank, graded) for rank in self.ranks}
        sums = {
            rank: self._dense(stage, rank, again, wanted, whole[rank], through=through)
            for rank in self.ranks
        }
        if through:
            for rank, parts in sources.scatter(stage, sums).items():
                self.writer.release(rank, sums[rank])
                self.add_up(stage, rank, stage.gathers[0], parts)
                self.writer.release(rank, *parts)
        elif graded:
            sources.give_back(stage, whole)
        for name in stage.writes:
            for rank in self.ranks:
                if (name, rank) in self._grads:
                    self.writer.release(rank, self._grads.pop((name, rank)))

    def _source_grads(self, stage: StageWork, rank: int, names: list[str]) -> dict[str, str]:
        draft = self.draft
        return {
            name: draft.take(
                f"{name}.grad.p{rank}.in", "gradients",
                draft.extent(rank).sources * draft.row_bytes(name), rank=rank,
                holds=Content(What.SOURCES_GRAD, name, rank),
            )
            for name in names
        }  # fmt: skip

    def _dense(
        self,
        stage: StageWork,
        rank: int,
        again: Rows,
        wanted: list[str],
        whole: dict[str, str],
        *,
        through: bool,
    ) -> str:
        """To the gradients of parameters and of own rows, and of the sums, which it gives
        (``through``), or of all sources (``whole``). Own rows that are gathered, too, count there.
        """
        draft, extent = self.draft, self.draft.extent(rank)
        self.moments[rank].clear_grads(stage)
        added, made = [], list(whole.values())
        for name in wanted:
            if name in whole:
                continue
            if (name, rank) in self._grads:
                added.append(self._grads[name, rank])
            else:
                self._open_grad(name, rank)
            made.append(self._grads[name, rank])
        total = ""
        if through:
            total = draft.take(
                f"sum.s{stage.index}.grad.p{rank}", "gradients",
                extent.rows * draft.sum_bytes(stage), rank=rank,
                holds=Content(What.SUM_GRAD, stage.gathers[0], rank),
            )  # fmt: skip
            made.append(total)
        scratch = draft.take(
            f"work.s{stage.index}.p{rank}.back",
            "workspace",
            draft.backward_held(stage, extent),
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
        kinds = ("matmul", "stream") if stage.divisible else ("gather", "matmul", "stream")
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
            f"{name}.grad.p{rank}", "gradients", num_bytes, rank=rank,
            holds=Content(What.GRAD, name, rank),
        )  # fmt: skip

    def add_up(
        self,
        stage: StageWork,
        rank: int,
        name: str,
        parts: list[str],
        *,
        after: tuple[int, ...] = (),
        work: tuple[Work, ...] = (),
    ) -> int:
        """Add to the gradient of a rank's rows what was given to it, in one order."""
        size = self.draft.count(name, rank) * self.draft.row_bytes(name)
        if (name, rank) not in self._grads:
            self._open_grad(name, rank)
            self.writer.add(
                rank,
                Lane.COMPUTE,
                Op.ZERO,
                part=rank,
                writes=[self._grads[name, rank]],
                work=[Work(kind="stream", amount=size)],
            )
        grad = self._grads[name, rank]
        return self.writer.add(
            rank,
            Lane.COMPUTE,
            Op.ACCUMULATE,
            stage=stage.index,
            part=rank,
            reads=[*parts, grad],
            writes=[grad],
            after=after,
            work=[Work(kind="stream", amount=(len(parts) + 2) * size), *work],
        )

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
