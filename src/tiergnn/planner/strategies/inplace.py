"""InPlace: rows of other ranks read where they lie, or from replicas on the device and the host.

Sums are over classes of sources (``classes``). Backward goes over the transposed graph
(``Layout.leaving``).

Legend: P rows of one part, V nodes of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from tiergnn.planner.strategies.classes import Classes
from tiergnn.planner.strategies.pieces import ahead
from tiergnn.planner.strategies.ranked import Gathered, Ranked
from tiergnn.planner.strategies.reading import Reading
from tiergnn.planner.strategies.refreshing import Held, Refreshing
from tiergnn.planner.strategies.shares import Piece, Replicas, forget, replicas_of
from tiergnn.schedule.actions import Lane, Op, Work
from tiergnn.schedule.contents import What
from tiergnn.workload import StageWork


class InPlace:
    """The sources of ``mgg`` and ``leo``."""

    def __init__(self, ranked: Ranked) -> None:
        self._ranked, self._draft, self._writer = ranked, ranked.draft, ranked.writer
        self._knobs = ranked.draft.knobs
        self._held: Held = {}
        self._whole = Reading(ranked, self)
        self._by = Classes(ranked)
        self._refreshing = Refreshing(ranked, self._by, self._held)

    def give(self) -> None:
        for rank in self._ranked.ranks:
            more = self._by.more_pieces(rank, False), self._by.more_pieces(rank, True)
            self._ranked.rooms.topology(rank, num_classes=4, pieces=more)
            self._ranked.rooms.inputs(rank)
            for stage in self._draft.workload.stages:
                first = (*stage.gathers, "")[0]
                if self._fixed(stage) and (first, rank) not in self._held:
                    self._held[first, rank] = replicas_of(
                        self._draft, stage, rank, self._by.pieces(False), given=True
                    )
        self._refreshing.give()

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

    def row_bytes(self, name: str) -> int:
        return self._draft.row_bytes(name)

    def reads(self, rank: int, rows_of: tuple[int, ...], row_bytes: int) -> list[Work]:
        return self._draft.reads_of(rank, rows_of, row_bytes)

    def bring(self, stage: StageWork, op: Op) -> Gathered:
        return self._whole.bring(stage, op)

    def give_back(self, stage: StageWork, grads: Gathered) -> None:
        self._whole.give_back(stage, grads)

    # Sums

    def made(self, name: str) -> None:
        self._refreshing.made(name)

    def dropped(self, name: str, rank: int) -> None:
        """Replicas go when they have been read; nothing else is held."""

    def summed(self, stage: StageWork, sums: dict[int, list[str]]) -> None:
        if self._refreshing.begins(stage):
            self._refreshing.exchange(stage, sums)

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
        held = {rank: self._replicas(stage, rank, op) for rank in ranks}
        fresh: dict[int, list[int]] = {rank: [] for rank in ranks}  # what fills them
        filled: dict[int, Iterable[Piece]] = {rank: held[rank][0].host for rank in ranks}
        for rank in ranks:
            replicas, there = held[rank]
            if not there:
                pull = partial(self._pull, stage, rank, op, sources, met, fresh[rank])
                for piece in replicas.device:
                    pull(piece, piece.buffer)
                filled[rank] = self._pass_on(stage, rank, op, replicas.host, pull, fresh[rank])
        starts: dict[int, list[int]] = {rank: [] for rank in ranks}
        if not knobs.asynchronous and not alone:
            filled = {rank: tuple(filled[rank]) for rank in ranks}
            waits = self._writer.meet(Op.BARRIER, f"{tag}.fresh", Lane.PEER, after=fresh)
            starts = {rank: [index] for rank, index in waits.items()}
        sums: dict[int, list[str]] = {}
        read: dict[int, list[int]] = {}
        for rank in ranks:
            sums[rank], remote = self._by.sums(
                stage, op, rank, sources, held[rank][0], room, met, starts[rank], filled[rank]
            )
            read[rank] = [*remote, *fresh[rank]]
        if not alone:
            self._writer.meet(Op.BARRIER, f"{tag}.out", Lane.PEER, after=read)
        for rank in ranks:
            replicas = held[rank][0]
            if replicas.given or (op is Op.AGGREGATE and self._refreshing.begins(stage)):
                continue  # what comes of them may read them once more
            forget(self._writer, rank, replicas)
            if op is not Op.BACKWARD:
                self._held.pop((stage.gathers[0], rank), None)
        return sums

    # Replicas

    def _replicas(self, stage: StageWork, rank: int, op: Op) -> tuple[Replicas, bool]:
        """The replicas that a pass reads, and whether they are filled."""
        leaving, key = op is Op.BACKWARD, (stage.gathers[0], rank)
        if not leaving and key in self._held:
            return self._held[key], True
        if self._knobs.managed:
            return Replicas(), True
        pieces = self._by.pieces(leaving)
        held = replicas_of(self._draft, stage, rank, pieces, given=False, leaving=leaving)
        if not leaving:
            self._held[key] = held
        return held, False

    def _pull(
        self,
        stage: StageWork,
        rank: int,
        op: Op,
        sources: dict[int, list[str]],
        met: dict[int, int],
        copies: list[int],
        piece: Piece,
        buffer: str,
    ) -> None:
        """A piece of others' present rows, from their owners."""
        row, leaving = self._draft.sum_bytes(stage), op is Op.BACKWARD
        copies.append(
            self._writer.add(
                rank,
                self.lane,
                Op.COPY,
                stage=stage.index,
                part=rank,
                reads=[name for r in sources if r != rank for name in sources[r]],
                writes=[buffer],
                after=[met[rank]],
                work=self._draft.remote_reads(rank, row, piece.num_rows, leaving=leaving),
            )
        )

    def _pass_on(
        self,
        stage: StageWork,
        rank: int,
        op: Op,
        pieces: tuple[Piece, ...],
        pull: Callable[[Piece, str], None],
        copies: list[int],
    ) -> Iterator[Piece]:
        """Pieces over the device to host memory, one by one as they come there."""
        what = What.GRAD_REPLICAS if op is Op.BACKWARD else What.REPLICAS

        def come(piece: Piece) -> str:
            chunk = self._by.chunk(stage, rank, piece, what, self.lane)
            pull(piece, chunk)
            return chunk

        for piece, chunk in ahead(pieces, come):
            copies.append(self._by.to_host(stage, rank, chunk, piece, stage.index))
            yield piece
