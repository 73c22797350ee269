"""Refreshing: replicas of rows made here, from their owners' sums, where those are the narrower.

A rank then does the row-local rest for its replicas as well: the stages from one sum to the next
(``Chain``). Nothing of it is for backward, which asks the owners.

Legend: P rows of one part, C rows of others that a rank keeps, the device's first.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiergnn.errors import PlanError
from tiergnn.planner.strategies.classes import Classes
from tiergnn.planner.strategies.draft import Draft
from tiergnn.planner.strategies.ranked import Ranked
from tiergnn.planner.strategies.shares import Replicas, forget, replicas_of
from tiergnn.schedule.actions import Lane, Op, Work
from tiergnn.schedule.contents import Content, What
from tiergnn.workload import StageWork, Workload

Held = dict[tuple[str, int], Replicas]  # (first gathered tensor, rank) -> its replicas


@dataclass(frozen=True, slots=True)
class Chain:
    """The stages from one whose sums are exchanged to the one that makes what ``user`` gathers."""

    stages: tuple[StageWork, ...]
    user: StageWork

    @property
    def start(self) -> StageWork:
        return self.stages[0]

    def wanted(self, stage: StageWork) -> list[str]:
        """What a stage of the chain writes that a later one, or ``user``, takes."""
        later = self.stages[self.stages.index(stage) + 1 :]
        read = {name for each in later for name in each.reads} | {*self.user.gathers}
        return [name for name in stage.writes if name in read]


def chain_to(workload: Workload, user: StageWork) -> Chain | str:
    """How replicas of what a stage gathers come of sums, or why they cannot."""
    wanted, found = set(user.gathers), []
    for stage in reversed(workload.stages[: workload.stages.index(user)]):
        made, name = not wanted.isdisjoint(stage.writes), f"stage {stage.index} ({stage.op})"
        if made:
            if not stage.by_degrees:
                return f"{name} asks for the edges of its rows, which their owner has"
            found.insert(0, stage)
            wanted = (wanted - set(stage.writes)) | set(stage.reads)
        if stage.kind == "graph":
            if not made or not stage.divisible:
                return f"{name} is not a sum that it comes of"
            missing = sorted(wanted - set(stage.gathers))
            if missing:
                return f"{missing[0]} is read as well, of which there are no replicas by then"
            return Chain(tuple(found), user)
    return "no sum comes before it"


def chains_of(draft: Draft, by: Classes) -> dict[int, Chain]:
    """The stages whose sums refresh replicas, as ``exchange`` says.

    Raises PlanError where sums were asked for and no replica can come of them.
    """
    knobs, workload = draft.knobs, draft.workload
    shares = [by.shares(rank, False) for rank in range(draft.num_ranks)]
    cached = any(each.device_rows + each.host_rows for each in shares)
    if not cached or knobs.managed or knobs.exchange == "outputs":
        return {}
    found: dict[int, Chain] = {}
    refused: list[str] = []
    for user in workload.stages:
        if not user.divisible or user.gathers[0] in workload.inputs:
            continue
        chain = chain_to(workload, user)
        if isinstance(chain, str):
            refused.append(f"{user.gathers[0]}, which stage {user.index} gathers: {chain}")
        elif knobs.exchange == "inputs" or draft.sum_bytes(chain.start) < draft.sum_bytes(user):
            found.setdefault(chain.start.index, chain)
    if knobs.exchange == "inputs" and refused and not found:
        why = refused[-1]  # before the first one there may be no sum at all
        raise PlanError(
            f"{draft.strategy}: no sums of {workload.name} can refresh its caches\n  {why}",
            hint="exchange='outputs' or 'narrower'",
        )
    return found


class Refreshing:
    """Of all ranks. ``held`` are the replicas that they have now; those that it makes go there."""

    def __init__(self, ranked: Ranked, by: Classes, held: Held) -> None:
        self._ranked, self._draft, self._writer = ranked, ranked.draft, ranked.writer
        self._by, self._held = by, held
        self._chains = chains_of(ranked.draft, by)
        self._open: Chain | None = None
        self._summed: dict[int, str] = {}  # rank -> sums of its replicas [C]
        self._made: dict[tuple[str, int], str] = {}  # (tensor, rank) -> its rows [C] on the way

    def give(self) -> None:
        """What row-local code asks of rows whose edges are elsewhere: their ids and degrees."""
        for rank in self._ranked.ranks if self._chains else ():
            self._writer.given(self._ids(rank), rank, "device", "topology", 32 * self._rows(rank))

    @staticmethod
    def _ids(rank: int) -> str:
        return f"cached.r{rank}"

    def _rows(self, rank: int) -> int:
        shares = self._by.shares(rank, False)
        return shares.device_rows + shares.host_rows

    def begins(self, stage: StageWork) -> bool:
        """Whether a stage's sums are exchanged, so that its replicas may be read once more."""
        return stage.index in self._chains

    def exchange(self, stage: StageWork, sums: dict[int, list[str]]) -> None:
        """The sums of all classes added up and, those of replicated rows, copied to replicas."""
        self._open = self._chains[stage.index]
        ranks, tag = self._ranked.ranks, f"s{stage.index}.sums"
        for rank in ranks:
            self._add_up(stage, rank, sums[rank])
        met = self._writer.meet(
            Op.BARRIER, f"{tag}.in", Lane.PEER, reads=sums, after=dict.fromkeys(ranks, ())
        )
        copies: dict[int, list[int]] = {rank: [] for rank in ranks}
        for rank in ranks:
            if self._rows(rank):
                others = [name for r in ranks if r != rank for name in sums[r]]
                copies[rank].append(self._copy(stage, rank, others, met[rank]))
        self._writer.meet(Op.BARRIER, f"{tag}.out", Lane.PEER, after=copies)

    def _add_up(self, stage: StageWork, rank: int, sums: list[str]) -> None:
        first, *more = sums
        if not more:
            return
        size = self._draft.layout.parts[rank].rows * self._draft.sum_bytes(stage)
        self._writer.add(
            rank,
            Lane.COMPUTE,
            Op.ACCUMULATE,
            stage=stage.index,
            part=rank,
            reads=sums,
            writes=[first],
            work=[Work(kind="stream", amount=(len(more) + 2) * size)],
        )
        self._writer.release(rank, *more)
        del sums[1:]

    def _copy(self, stage: StageWork, rank: int, others: list[str], met: int) -> int:
        rows, row, knobs = self._rows(rank), self._draft.sum_bytes(stage), self._draft.knobs
        self._summed[rank] = self._draft.take(
            f"sum.s{stage.index}.cache.p{rank}", "cache", rows * row, rank=rank,
            holds=Content(What.SUM_REPLICAS, stage.gathers[0], rank, rows=(0, rows)),
        )  # fmt: skip
        return self._writer.add(
            rank,
            Lane.PEER if knobs.asynchronous and knobs.pipeline else Lane.COMPUTE,
            Op.COPY,
            stage=stage.index,
            part=rank,
            reads=others,
            writes=[self._summed[rank]],
            after=[met],
            work=self._draft.remote_reads(rank, row, rows),
        )

    def made(self, name: str) -> None:
        """A stage of the open chain that has run on own rows runs on replicas, too."""
        chain = self._open
        if chain is None:
            return
        stage = next((s for s in chain.stages if name == s.writes[-1]), None)
        if stage is None:
            return
        last = stage is chain.stages[-1]
        for rank in self._ranked.ranks:
            if self._rows(rank):
                if not last:
                    self._update(chain, stage, rank, self._on_the_way(chain, stage, rank))
                    continue
                targets, chunks = self._end(chain, rank)
                self._update(chain, stage, rank, [*targets, *chunks])
                host = self._held[chain.user.gathers[0], rank].host
                for chunk, piece in zip(chunks, host, strict=True):
                    self._by.to_host(chain.user, rank, chunk, piece, stage.index)
        if last:
            self._close(chain)

    def _on_the_way(self, chain: Chain, stage: StageWork, rank: int) -> list[str]:
        """Room for rows that later stages of the chain read."""
        rows = self._rows(rank)
        for name in chain.wanted(stage):
            self._made[name, rank] = self._draft.take(
                f"{name}.cache.p{rank}", "cache", rows * self._draft.row_bytes(name), rank=rank,
                holds=Content(What.REPLICAS, name, rank, rows=(0, rows)),
            )  # fmt: skip
        return [self._made[name, rank] for name in chain.wanted(stage)]

    def _end(self, chain: Chain, rank: int) -> tuple[list[str], list[str]]:
        """Room for the replicas that were wanted; those in host memory pass over the device, in
        chunks of their own."""
        user, pieces = chain.user, self._by.pieces(False)
        new = replicas_of(self._draft, user, rank, pieces, given=False)
        self._held[user.gathers[0], rank] = new
        chunks = [
            self._by.chunk(user, rank, piece, What.REPLICAS, Lane.COMPUTE) for piece in new.host
        ]
        return [piece.buffer for piece in new.device], chunks

    def _update(self, chain: Chain, stage: StageWork, rank: int, targets: list[str]) -> None:
        """The row-local code of a stage on the rows that a rank has replicas of."""
        draft, extent = self._draft, self._draft.dense(self._rows(rank))
        reads = [self._summed.pop(rank)] if stage is chain.start else []
        gone = [*reads]
        work = draft.works(stage.forward, extent, kinds=("matmul", "stream"))
        if chain.start.gathers[0] in stage.reads:
            old = self._held[chain.start.gathers[0], rank]
            reads += old.buffers
            if old.host:
                moved = self._by.shares(rank, False).host_rows * self._by.stored(chain.start)
                work.append(Work(kind="move", amount=moved, place=draft.link("h2d")))
        reads += [self._made[name, rank] for name in stage.reads if (name, rank) in self._made]
        parameters = [draft.own("parameters", rank)] if stage.parameter_bytes else []
        held = stage.forward_held.at(extent)
        scratch = draft.take(f"work.s{stage.index}.cache.p{rank}", "workspace", held, rank=rank)
        moments = self._ranked.moments[rank].of(stage)
        self._writer.add(
            rank,
            Lane.COMPUTE,
            Op.UPDATE,
            stage=stage.index,
            part=rank,
            slice=1,
            reads=[*reads, *parameters, *moments, self._ids(rank)],
            writes=[*targets, scratch],
            work=work,
        )
        self._writer.release(rank, scratch, *gone)

    def _close(self, chain: Chain) -> None:
        """What was read on the way goes, and the replicas before it."""
        for (_, rank), buffer in self._made.items():
            self._writer.release(rank, buffer)
        self._made.clear()
        for rank in self._ranked.ranks:
            key = chain.start.gathers[0], rank
            if not self._held[key].given:
                forget(self._writer, rank, self._held.pop(key))
        self._open = None
