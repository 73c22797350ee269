"""Sizing: what a schedule would hold and do, without writing it down: a tenth of the work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tiergnn.schedule.actions import Done, Lane, Op, Work
from tiergnn.schedule.capacity import Place
from tiergnn.schedule.contents import Content
from tiergnn.schedule.schedule import Writer


@dataclass(frozen=True, slots=True)
class Sized:
    """(rank, tier) -> the most bytes held where actions are done in their order, and of what kind
    they are: of one rank what ``check.peaks`` proves (``capacity.held_in_order``). ``done`` are its
    actions that take time, or some of them."""

    strategy: str
    num_ranks: int
    held: Mapping[Place, tuple[int, Mapping[str, int]]]
    done: Sequence[Done] = ()


@dataclass(slots=True)
class _Held:
    """What a tier of a rank holds, and held when it was fullest."""

    num_bytes: int = 0
    kinds: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    fullest: tuple[int, dict[str, int]] = (0, {})


class Sizer(Writer):
    """Takes what a Writer takes and keeps bytes and works alone."""

    def __init__(self, strategy: str, num_ranks: int = 1):
        super().__init__(strategy, num_ranks)
        self._places: dict[Place, _Held] = defaultdict(_Held)
        self._of: dict[str, tuple[_Held, str, int]] = {}  # of buffers: where, kind, bytes
        self._done: list[Done] = []
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
        self._of[name] = self._places[rank, tier], kind, num_bytes
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

    def add(self, rank: int, lane: Lane, op: Op, *, work: Iterable[Work] = (), **_: object) -> int:
        if work:
            self._done.append(Done(rank, lane, op, tuple(work)))
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
            place, kind, num_bytes = self._of[name]
            place.num_bytes += sign * num_bytes
            place.kinds[kind] += sign * num_bytes
            if place.num_bytes > place.fullest[0]:
                place.fullest = place.num_bytes, dict(place.kinds)

    def sized(self) -> Sized:
        held = {place: there.fullest for place, there in self._places.items()}
        return Sized(self._strategy, self._num_ranks, held, self._done)
