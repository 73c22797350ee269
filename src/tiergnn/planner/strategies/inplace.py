"""InPlace: rows of other ranks read where they lie, or from replicas on the device and the host.

Sums are over classes of sources (``classes``). Backward goes over the transposed graph
(``Layout.leaving``).

Legend: P rows of one part, V nodes of the graph.
"""

from __future__ import annotations

from collections.abc import Callable

from tiergnn.planner.strategies.classes import Classes
from tiergnn.planner.strategies.ranked import Gathered, Ranked
from tiergnn.planner.strategies.reading import Reading
from tiergnn.planner.strategies.shares import Replicas, replicas_of
from tiergnn.schedule.actions import Lane, Op, Work
from tiergnn.workload import StageWork


class InPlace:
    """The sources of ``mgg`` and ``leo``."""

    def __init__(self, ranked: Ranked) -> None:
        self._ranked, self._draft, self._writer = ranked, ranked.draft, ranked.writer
        self._knobs = ranked.draft.knobs
        self._held: dict[tuple[str, int], Replicas] = {}  # (first gathered tensor, rank)
        self._summed: dict[int, str] = {}  # rank -> sums of its replicas, on their way
        self._whole = Reading(ranked, self)
        self._by = Classes(ranked)

    def give(self) -> None:
        for rank in self._ranked.ranks:
            self._ranked.rooms.topology(rank, num_classes=4)
            self._ranked.rooms.inputs(rank)
            for stage in self._draft.workload.stages:
                first = (*stage.gathers, "")[0]
                if self._fixed(stage) and (first, rank) not in self._held:
                    self._held[first, rank] = replicas_of(self._draft, stage, rank, given=True)

    def _fixed(self, stage: StageWork) -> bool:
        """Whether a stage gathers inputs alone: their replicas never change."""
        inputs = self._draft.workload.inputs
        return stage.divisible and all(name in inputs for name in stage.gathers)

    # Stages that want all sources together

    @property
    def lane(self) -> Lane:
        return Lane.PEER if self._knobs.pipeline else Lane.COMPUTE

    def shown(self, name: str, rank: int) -> str:
        return self._ranked.rows[name, rank]

    def show(self, name: str, rank: int, buffer: str, num_bytes: int) -> str:
        return buffer

    def reads(self, rank: int, rows_of: tuple[int, ...], row_bytes: int) -> list[Work]:
        return self._draft.reads_of(rank, rows_of, row_bytes)

    def bring(self, stage: StageWork, op: Op) -> Gathered:
        return self._whole.bring(stage, op)

    def give_back(self, stage: StageWork, grads: Gathered) -> None:
        self._whole.give_back(stage, grads)

    # Sums

    def made(self, name: str) -> None:
        """The rest of a stage for the replicas whose sums were exchanged."""
        maker = next((s for s in self._draft.workload.stages if name in s.writes), None)
        if not self._summed or maker is None or name != maker.writes[-1]:
            return
        user = self._user(maker)
        assert user is not None
        for rank, sums in self._summed.items():
            self._update_replicas(maker, user, rank, sums)
        self._summed = {}

    def dropped(self, name: str, rank: int) -> None:
        """Replicas go when they have been read; nothing else is held."""

    def sums(self, stage: StageWork, op: Op) -> dict[int, list[str]]:
        rows = self._ranked.rows
        sources = {r: [rows[name, r] for name in stage.gathers] for r in self._ranked.ranks}
        return self._classes(stage, op, sources, self._ranked.rooms.sum_room)

    def scatter(self, stage: StageWork, grads: dict[int, str]) -> dict[int, list[str]]:
        sources = {rank: [buffer] for rank, buffer in grads.items()}
        return self._classes(stage, Op.BACKWARD, sources, self._ranked.rooms.grad_room)

    def _classes(
        self,
        stage: StageWork,
        op: Op,
        sources: dict[int, list[str]],
        room: Callable[[StageWork, int, int], str],
    ) -> dict[int, list[str]]:
        """The sums over all classes of sources, side by side."""
        knobs, ranks = self._knobs, self._ranked.ranks
        tag = f"s{stage.index}.{op.value.lower()}"
        alone = self._draft.num_ranks == 1
        met: dict[int, int] = {}
        if not alone:
            met = self._writer.meet(
                Op.BARRIER, f"{tag}.in", Lane.PEER, reads=sources, after=dict.fromkeys(ranks, ())
            )
        held = {rank: self._fresh(stage, rank, op, sources, met) for rank in ranks}
        fresh: dict[int, list[int]] = {rank: copies for rank, (_, copies) in held.items()}
        starts: dict[int, list[int]] = {rank: [] for rank in ranks}
        if not knobs.asynchronous and not alone:
            waits = self._writer.meet(Op.BARRIER, f"{tag}.fresh", Lane.PEER, after=fresh)
            starts = {rank: [index] for rank, index in waits.items()}
        sums: dict[int, list[str]] = {}
        read: dict[int, list[int]] = {}
        for rank in ranks:
            sums[rank], remote = self._by.sums(
                stage, op, rank, sources, held[rank][0], room, met, starts[rank]
            )
            read[rank] = [*remote, *fresh[rank]]
        if not alone:
            self._writer.meet(Op.BARRIER, f"{tag}.out", Lane.PEER, after=read)
        for rank in ranks:
            replicas = held[rank][0]
            if replicas.given or (op is Op.AGGREGATE and self._exchanges_sums(stage)):
                continue  # what updates replicas reads their rows once more
            self._forget(replicas, rank)
            if op is not Op.BACKWARD:
                self._held.pop((stage.gathers[0], rank), None)
        return sums

    def _forget(self, replicas: Replicas, rank: int) -> None:
        buffers = [b for b in (replicas.device, replicas.host) if b]
        if buffers:
            self._writer.release(rank, *buffers)

    # Replicas

    def _fresh(
        self,
        stage: StageWork,
        rank: int,
        op: Op,
        sources: dict[int, list[str]],
        met: dict[int, int],
    ) -> tuple[Replicas, list[int]]:
        """Replicas with their owners' present rows, and the actions that read those."""
        if op is not Op.BACKWARD and (stage.gathers[0], rank) in self._held:
            return self._held[stage.gathers[0], rank], []
        if self._knobs.managed:
            return Replicas(), []
        leaving = op is Op.BACKWARD
        held = replicas_of(self._draft, stage, rank, given=False, leaving=leaving)
        if op is not Op.BACKWARD:
            self._held[stage.gathers[0], rank] = held
        others = [name for r in sources if r != rank for name in sources[r]]
        shares, copies = self._by.shares(rank, leaving), []
        for buffer, rows, lane in (
            (held.device, shares.device_rows, Lane.PEER),
            (held.host, shares.host_rows, Lane.D2H),
        ):
            if buffer:
                row = self._by.stored(stage)
                work = self._draft.remote_reads(rank, row, rows, leaving=leaving)
                if lane is Lane.D2H:
                    size = rows * self._by.stored(stage)
                    work.append(Work(kind="move", amount=size, place=self._draft.link("d2h")))
                copies.append(
                    self._writer.add(
                        rank,
                        lane if self._knobs.pipeline else Lane.COMPUTE,
                        Op.COPY,
                        stage=stage.index,
                        part=rank,
                        reads=others,
                        writes=[buffer],
                        after=[met[rank]],
                        work=work,
                    )
                )
        return held, copies

    # Sums exchanged instead of rows

    def _user(self, maker: StageWork) -> StageWork | None:
        """The stage that gathers what a stage writes."""
        stages = self._draft.workload.stages
        return next((s for s in stages if s.divisible and s.gathers[0] in maker.writes), None)

    def _exchanges_sums(self, stage: StageWork) -> bool:
        """Whether replicas of what a stage writes are updated from its sums, not copied."""
        knobs, user = self._knobs, self._user(stage)
        if user is None or not stage.divisible or knobs.managed or self._draft.num_ranks == 1:
            return False
        if not knobs.device_cache_frac + knobs.host_cache_frac or knobs.exchange == "outputs":
            return False
        able = set(stage.reads) <= set(stage.gathers) and set(user.gathers) <= set(stage.writes)
        narrower = self._draft.sum_bytes(stage) < self._by.stored(user)
        return able and (knobs.exchange == "inputs" or narrower)

    def summed(self, stage: StageWork, sums: dict[int, list[str]]) -> None:
        """Exchange the sums of replicas, if those are what refreshes them."""
        if not self._exchanges_sums(stage) or (stage.gathers[0], 0) not in self._held_now(stage):
            return
        draft, ranks = self._draft, self._ranked.ranks
        for rank in ranks:
            first, *more = sums[rank]
            if more:
                size = draft.layout.parts[rank].rows * draft.sum_bytes(stage)
                self._writer.add(
                    rank,
                    Lane.COMPUTE,
                    Op.ACCUMULATE,
                    stage=stage.index,
                    part=rank,
                    reads=sums[rank],
                    writes=[first],
                    work=[Work(kind="stream", amount=(len(more) + 2) * size)],
                )
                self._writer.release(rank, *more)
                del sums[rank][1:]
        met = self._writer.meet(
            Op.BARRIER, f"s{stage.index}.sums.in", Lane.PEER,
            reads={r: sums[r] for r in ranks}, after=dict.fromkeys(ranks, ()),
        )  # fmt: skip
        copies = {}
        for rank in ranks:
            shares = self._by.shares(rank, False)
            rows = shares.device_rows + shares.host_rows
            self._summed[rank] = draft.take(
                f"sum.s{stage.index}.cache.p{rank}", "cache", rows * draft.sum_bytes(stage),
                rank=rank,
            )  # fmt: skip
            copies[rank] = [
                self._writer.add(
                    rank,
                    Lane.PEER if self._knobs.asynchronous else Lane.COMPUTE,
                    Op.COPY,
                    stage=stage.index,
                    part=rank,
                    reads=[name for r in ranks if r != rank for name in sums[r]],
                    writes=[self._summed[rank]],
                    after=[met[rank]],
                    work=self._draft.remote_reads(rank, self._by.stored(stage), rows),
                )
            ]
        self._writer.meet(Op.BARRIER, f"s{stage.index}.sums.out", Lane.PEER, after=copies)

    def _held_now(self, stage: StageWork) -> dict[tuple[str, int], Replicas]:
        return {key: held for key, held in self._held.items() if key[0] == stage.gathers[0]}

    def _update_replicas(self, maker: StageWork, user: StageWork, rank: int, sums: str) -> None:
        """The row-local rest of a stage once more, for the rows that this rank has replicas of."""
        draft, shares = self._draft, self._by.shares(rank, False)
        old = self._held[maker.gathers[0], rank]
        new = replicas_of(draft, user, rank, given=False)
        rows = shares.device_rows + shares.host_rows
        passing = ""
        if new.host:
            passing = draft.take(
                f"{user.gathers[0]}.chunk.p{rank}", "staging",
                shares.host_rows * draft.sum_bytes(user), rank=rank,
            )  # fmt: skip
        work = draft.works(maker.forward, draft.dense(rows), kinds=("matmul", "stream"))
        if old.host and maker.reads:
            moved = shares.host_rows * self._by.stored(maker)
            work.append(Work(kind="move", amount=moved, place=draft.link("h2d")))
        replicas = [b for b in (old.device, old.host) if b and maker.reads]
        parameters = [draft.own("parameters", rank)] if maker.parameter_bytes else []
        moments = self._ranked.moments[rank].of(maker)
        self._writer.add(
            rank,
            Lane.COMPUTE,
            Op.UPDATE,
            stage=maker.index,
            part=rank,
            slice=1,
            reads=[sums, *replicas, *parameters, *moments],
            writes=[b for b in (new.device, passing) if b],
            work=work,
        )
        self._writer.release(rank, sums)
        if new.host:
            self._writer.add(
                rank,
                Lane.D2H,
                Op.COPY,
                stage=maker.index,
                part=rank,
                reads=[passing],
                writes=[new.host],
                work=[
                    Work(
                        kind="move",
                        amount=shares.host_rows * self._by.stored(user),
                        place=draft.link("d2h"),
                    )
                ],
            )
            self._writer.release(rank, passing, lane=Lane.D2H)
        if not old.given:
            self._forget(self._held.pop((maker.gathers[0], rank)), rank)
        self._held[user.gathers[0], rank] = new
