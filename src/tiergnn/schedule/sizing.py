"""Sizing: what a schedule would hold, added up without writing it down: a tenth of the work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tiergnn.schedule.actions import Lane, Op
from tiergnn.schedule.capacity import Place
from tiergnn.schedule.contents import Content
from tiergnn.schedule.schedule import Writer


@dataclass(frozen=True, slots=True)
class Sized:
    """(rank, tier) -> the most bytes held where actions are done in their order, and of what kind
    they are: of one rank what ``check.peaks`` proves (``capacity.held_in_order``)."""

    strategy: str
    num_ranks: int
    held: Mapping[Place, tuple[int, Mapping[str, int]]]


class Sizer(Writer):
    """Takes what a Writer takes and keeps the bytes alone."""

    def __init__(self, strategy: str, num_ranks: int = 1):
        super().__init__(strategy, num_ranks)
        self._places: dict[str, tuple[Place, str, int]] = {}  # of buffers: place, kind, bytes
        self._kinds: dict[Place, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._held: dict[Place, int] = defaultdict(int)
        self._fullest: dict[Place, tuple[int, dict[str, int]]] = {}
        self._count = 0

    def buffer(
        self,
        name: str,
        rank: int,
        tier: str,
        kind: str,
        num_bytes: int,
        *,
        lasting: bool = False,
        own: bool = False,
        holds: Content | None = None,
    ) -> str:
        self._places[name] = (rank, tier), kind, num_bytes
        self._fullest.setdefault((rank, tier), (0, {}))
        return name

    def given(
        self,
        name: str,
        rank: int,
        tier: str,
        kind: str,
        num_bytes: int,
        *,
        lasting: bool = True,
        own: bool = False,
        holds: Content | None = None,
    ) -> str:
        self.buffer(name, rank, tier, kind, num_bytes)
        self._change((name,), 1)
        return name

    def add(self, rank: int, lane: Lane, op: Op, **_: object) -> int:
        self._count += 1
        return self._count - 1

    def reserve(self, rank: int, *names: str, lane: Lane = Lane.COMPUTE) -> int:
        self._change(names, 1)
        return self.add(rank, lane, Op.RESERVE)

    def release(self, rank: int, *names: str, lane: Lane = Lane.COMPUTE) -> int:
        self._change(names, -1)
        return self.add(rank, lane, Op.RELEASE)

    def _change(self, names: Iterable[str], sign: int) -> None:
        for name in names:
            place, kind, num_bytes = self._places[name]
            self._held[place] += sign * num_bytes
            self._kinds[place][kind] += sign * num_bytes
        if sign > 0:
            for place in {self._places[name][0] for name in names}:
                if self._held[place] > self._fullest[place][0]:
                    self._fullest[place] = self._held[place], dict(self._kinds[place])

    def sized(self) -> Sized:
        return Sized(self._strategy, self._num_ranks, dict(self._fullest))
