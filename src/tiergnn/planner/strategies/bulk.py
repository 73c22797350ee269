"""Bulk: rows of others that a rank reads brought by one EXCHANGE, their gradients by another.

So a rank has all sources of its part together, for graph operations that want them so.

Legend: P rows of one part, H boundary rows that it reads, S = P + H.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiergnn.planner.strategies.ranked import Gathered, Ranked
from tiergnn.schedule.actions import Lane, Op, Work
from tiergnn.schedule.contents import Content, What
from tiergnn.workload import StageWork


class Bulk:
    def __init__(self, ranked: Ranked) -> None:
        self._ranked, self._draft, self._writer = ranked, ranked.draft, ranked.writer

    def bring(self, stage: StageWork, op: Op) -> Gathered:
        """Own rows and, behind them, those of others; what is kept is there."""
        ranks, rows = self._ranked.ranks, self._ranked.rows
        brought = {
            rank: {name: self._sources(name, rank) for name in stage.gathers} for rank in ranks
        }
        kept = self._ranked.rooms.kept.values()
        names = [name for name in stage.gathers if brought[0][name] not in kept]
        if names:
            own = {rank: [rows[name, rank] for name in names] for rank in ranks}
            targets = {rank: [brought[rank][name] for name in names] for rank in ranks}
            tag = f"s{stage.index}.{op.value.lower()}"
            self.exchange(tag, names, own, targets, back=False)
        return brought

    def _sources(self, name: str, rank: int) -> str:
        """Room for all that a part reads of a tensor, or where it is kept."""
        holds = Content(What.SOURCES, name, rank)
        if holds in self._ranked.rooms.kept:
            return self._ranked.rooms.kept[holds]
        num_bytes = self._draft.extent(rank).sources * self._draft.row_bytes(name)
        label = f"{name}.in.p{rank}"
        return self._draft.take(label, "cache", num_bytes, rank=rank, holds=holds)

    def give_back(self, stage: StageWork, grads: Gathered) -> None:
        ranks = self._ranked.ranks
        returned = {
            rank: {name: self.returned(name, rank) for name in grads[rank]} for rank in ranks
        }
        own = {rank: list(grads[rank].values()) for rank in ranks}
        targets = {rank: list(returned[rank].values()) for rank in ranks}
        self.exchange(f"s{stage.index}.backward", list(grads[0]), own, targets, back=True)
        for rank in ranks:
            for name, buffer in grads[rank].items():
                self._ranked.add_up(stage, rank, name, [buffer, returned[rank][name]])
                self._writer.release(rank, buffer, returned[rank][name])

    def returned(self, name: str, rank: int) -> str:
        """Room for what readers give back of a rank's rows, a row for each reader of it."""
        num_bytes = self._sent_rows(rank) * self._draft.row_bytes(name)
        return self._draft.take(
            f"{name}.grad.returned.p{rank}", "gradients", num_bytes, rank=rank,
            holds=Content(What.RETURNED, name, rank),
        )  # fmt: skip

    def _sent_rows(self, rank: int) -> int:
        """Rows of a rank that others read, once for each of them."""
        return sum(part.halo_of[rank] for part in self._draft.layout.parts)

    def exchange(
        self,
        tag: str,
        names: Sequence[str],
        sources: dict[int, list[str]],
        targets: dict[int, list[str]],
        *,
        back: bool,
    ) -> None:
        """Boundary rows of these tensors from owners to readers, or ``back``; the work of each rank
        is what it sends. What is sent is put together, or narrowed, in a workspace first, into
        which also comes what comes narrowed."""
        draft, ranks = self._draft, self._ranked.ranks
        row, full = self._ranked.rooms.sent_bytes(names), sum(map(draft.row_bytes, names))
        work: dict[int, list[Work]] = {}
        staging: dict[int, str] = {}
        for rank in ranks:
            by_link: dict[str, int] = {}
            for other in ranks:
                parts = draft.layout.parts
                rows = parts[rank].halo_of[other] if back else parts[other].halo_of[rank]
                if rows and other != rank:
                    link = draft.peer(rank, other, bulk=True)
                    by_link[link] = by_link.get(link, 0) + rows
            work[rank] = [
                Work(kind="move", amount=rows * row, place=link) for link, rows in by_link.items()
            ]
            halo, sent = draft.layout.parts[rank].halo, self._sent_rows(rank)
            staged = (halo + sent if row < full else 0) if back else sent
            staged += halo if row < full and not back else 0
            label = f"{names[0]}.sent.p{rank}"
            staging[rank] = draft.take(label, "workspace", staged * row, rank=rank, lane=Lane.PEER)
        self._writer.meet(
            Op.EXCHANGE,
            tag,
            Lane.PEER,
            reads=sources,
            writes={rank: [*targets[rank], staging[rank]] for rank in ranks},
            after=dict.fromkeys(ranks, ()),
            work=work,
        )
        for rank in ranks:
            self._writer.release(rank, staging[rank], lane=Lane.PEER)
