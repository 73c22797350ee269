"""Reading: all sources of a part put together by copies of rows that lie where all ranks see them.

For graph operations that want their sources together. Their gradients lie where all see them, and
each owner reads, and adds, what others gave to its rows. Meetings stand before and after.

Legend: P rows of one part, H boundary rows that it reads, S = P + H.
"""

from __future__ import annotations

from typing import Protocol

from tiergnn.planner.strategies.ranked import Gathered, Ranked
from tiergnn.schedule.actions import Lane, Op, Work
from tiergnn.schedule.contents import Content, What
from tiergnn.workload import StageWork


class Shelf(Protocol):
    """Where rows lie that all ranks read."""

    @property
    def lane(self) -> Lane:
        """On which a rank copies rows of others."""
        ...

    def shown(self, name: str, rank: int) -> str:
        """A rank's rows of a tensor, for others to read."""
        ...

    def show(self, name: str, rank: int, buffer: str, num_bytes: int) -> str:
        """Gradients of sources, put where others read them."""
        ...

    def row_bytes(self, name: str) -> int:
        """Of a row of a tensor, where others read it."""
        ...

    def reads(self, rank: int, rows_of: tuple[int, ...], row_bytes: int) -> list[Work]:
        """What it takes to read so many rows of each rank."""
        ...


class Reading:
    def __init__(self, ranked: Ranked, shelf: Shelf) -> None:
        self._ranked, self._draft, self._writer = ranked, ranked.draft, ranked.writer
        self._shelf = shelf

    def bring(self, stage: StageWork, op: Op) -> Gathered:
        draft, ranks, rows = self._draft, self._ranked.ranks, self._ranked.rows
        tag = f"s{stage.index}.{op.value.lower()}"
        shown = {r: [self._shelf.shown(name, r) for name in stage.gathers] for r in ranks}
        met = self._meet(f"{tag}.in", reads=shown, after=dict.fromkeys(ranks, ()))
        brought: Gathered = {rank: {} for rank in ranks}
        copies: dict[int, list[int]] = {rank: [] for rank in ranks}
        for rank in ranks:
            for place, name in enumerate(stage.gathers):
                row = draft.row_bytes(name)
                brought[rank][name] = draft.take(
                    f"{name}.in.p{rank}", "cache", draft.extent(rank).sources * row, rank=rank,
                    lane=self._shelf.lane, holds=Content(What.SOURCES, name, rank),
                )  # fmt: skip
                others = [shown[r][place] for r in ranks if r != rank]
                halo_of = draft.layout.parts[rank].halo_of
                copies[rank].append(
                    self._writer.add(
                        rank,
                        self._shelf.lane,
                        Op.COPY,
                        stage=stage.index,
                        part=rank,
                        reads=[rows[name, rank], *others],
                        writes=[brought[rank][name]],
                        after=met[rank],
                        work=self._shelf.reads(rank, halo_of, self._shelf.row_bytes(name)),
                    )
                )
        self._meet(f"{tag}.out", after=copies)
        return brought

    def give_back(self, stage: StageWork, grads: Gathered) -> None:
        draft, ranks = self._draft, self._ranked.ranks
        tag = f"s{stage.index}.backward"
        shown = {
            rank: {
                name: self._shelf.show(
                    name, rank, buffer, draft.extent(rank).sources * draft.row_bytes(name)
                )
                for name, buffer in grads[rank].items()
            }
            for rank in ranks
        }
        given = {rank: list(shown[rank].values()) for rank in ranks}
        met = self._meet(f"{tag}.in", reads=given, after=dict.fromkeys(ranks, ()))
        added: dict[int, list[int]] = {rank: [] for rank in ranks}
        for rank in ranks:
            readers = tuple(part.halo_of[rank] for part in draft.layout.parts)
            for name, buffer in grads[rank].items():
                parts = [buffer, *(shown[r][name] for r in ranks if r != rank)]
                work = self._shelf.reads(rank, readers, draft.row_bytes(name))
                added[rank].append(
                    self._ranked.add_up(
                        stage, rank, name, parts, after=tuple(met[rank]), work=tuple(work)
                    )
                )
        self._meet(f"{tag}.out", after=added)
        for rank in ranks:
            for name, buffer in grads[rank].items():
                self._writer.release(rank, buffer)
                if shown[rank][name] != buffer:
                    self._writer.release(rank, shown[rank][name], lane=Lane.D2H)

    def _meet(self, tag: str, **options) -> dict[int, list[int]]:
        """A barrier of all ranks; one alone needs none."""
        if self._draft.num_ranks == 1:
            return {0: []}
        met = self._writer.meet(Op.BARRIER, tag, Lane.PEER, **options)
        return {rank: [index] for rank, index in met.items()}
