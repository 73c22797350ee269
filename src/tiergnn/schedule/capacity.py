"""Capacity: the most bytes that a schedule can hold at once, whatever the lanes' speeds.

The moments of a schedule are the sets of actions that may be done together with all that happens
before them. The fullest of them ends with some RESERVE e. Of any chain of reserves and releases,
each happening before the next, such a moment holds what stands before e at least, and nothing that
stands after it. So the sum over chains of the largest balance between those two is never below the
truth; where one rank's reserves and releases are one chain, and no other rank shares the tier, it
is the truth.

Legend: M reserves and releases of one chain, N reserves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tiergnn.schedule.actions import Buffer, Op
from tiergnn.schedule.order import Order
from tiergnn.schedule.schedule import Schedule

Longs = NDArray[np.int64]
Place = tuple[int, str]  # rank, tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Fullest:
    """The fullest moment of a tier: the RESERVE that ends it (-1: before the first action)."""

    num_bytes: int
    index: int
    buffers: tuple[Buffer, ...]

    @property
    def kinds(self) -> dict[str, int]:
        """kind -> bytes, the largest first.

        They add up to ``num_bytes``; to more where chains that cannot be so together are counted.
        """
        kinds: dict[str, int] = defaultdict(int)
        for buffer in self.buffers:
            kinds[buffer.kind] += buffer.num_bytes
        return dict(sorted(kinds.items(), key=lambda item: (-item[1], item[0])))


class Tables:
    """The chains of every rank and tier of a schedule whose lifetimes are sound."""

    def __init__(self, schedule: Schedule, order: Order):
        self._schedule, self._order = schedule, order
        self._given: dict[Place, list[Buffer]] = defaultdict(list)
        for buffer in schedule.buffers:
            if buffer.given:
                self._given[buffer.rank, buffer.tier].append(buffer)
        events: dict[Place, dict[int, int]] = defaultdict(dict)
        for i in order.walk:
            action = schedule.actions[i]
            if action.op in (Op.RESERVE, Op.RELEASE):
                sign = 1 if action.op == Op.RESERVE else -1
                for name in action.writes:
                    buffer = schedule.buffer_of[name]
                    held = events[buffer.rank, buffer.tier]
                    held[i] = held.get(i, 0) + sign * buffer.num_bytes
        self._events = events
        self._chains = {place: self._chained(tuple(held)) for place, held in events.items()}

    @property
    def places(self) -> tuple[Place, ...]:
        """(rank, tier) of all buffers, ascending."""
        return tuple(sorted({(buffer.rank, buffer.tier) for buffer in self._schedule.buffers}))

    def _chained(self, events: Sequence[int]) -> list[list[int]]:
        chains: list[list[int]] = []
        for i in events:
            chain = next((chain for chain in chains if self._order.before(chain[-1], i)), None)
            if chain is None:
                chains.append([i])
            else:
                chain.append(i)
        return chains

    def fullest(self, places: Sequence[Place]) -> Fullest:
        """The fullest moment of several ranks' shares of one tier, together."""
        order = self._order
        given = [buffer for place in places for buffer in self._given.get(place, ())]
        base = sum(buffer.num_bytes for buffer in given)
        reserves = np.array(
            [
                i
                for place in places
                for i in self._events.get(place, ())
                if self._schedule.actions[i].op == Op.RESERVE
            ],
            np.int64,
        )
        if not reserves.size:
            return Fullest(num_bytes=base, index=-1, buffers=tuple(given))
        totals = np.full(reserves.size, base, np.int64)
        windows = []
        for place in places:
            for chain in self._chains.get(place, ()):
                events = np.array(chain, np.int64)
                deltas = [self._events[place][i] for i in chain]
                balance = np.concatenate([[0], np.cumsum(np.array(deltas, np.int64))])
                low = _before(order, events, reserves)
                high = _not_after(order, events, reserves)
                totals += _largest(balance, low, high)
                windows.append((chain, balance, low, high))
        at = int(totals.argmax())
        if totals[at] <= base:
            return Fullest(num_bytes=base, index=-1, buffers=tuple(given))
        done: list[int] = []
        for chain, balance, low, high in windows:
            lowest = int(low[at])
            done += chain[: lowest + int(balance[lowest : int(high[at]) + 1].argmax())]
        return Fullest(
            num_bytes=int(totals[at]),
            index=int(reserves[at]),
            buffers=self._held(given, done, set(places)),
        )

    def _held(
        self, given: Sequence[Buffer], done: Sequence[int], places: set[Place]
    ) -> tuple[Buffer, ...]:
        count: dict[str, int] = defaultdict(int)
        for buffer in given:
            count[buffer.name] += 1
        for i in done:
            action = self._schedule.actions[i]
            for name in action.writes:
                count[name] += 1 if action.op == Op.RESERVE else -1
        buffers = (self._schedule.buffer_of[name] for name, held in count.items() if held > 0)
        return tuple(buffer for buffer in buffers if (buffer.rank, buffer.tier) in places)


def _before(order: Order, chain: Longs, reserves: Longs) -> Longs:
    """[N]: how many of a chain [M] are done when each reserve is, itself among them."""

    def done(k: Longs) -> NDArray[np.bool_]:
        event = chain[k]
        return order.done[reserves, order.chain[event]] >= order.place[event]

    return _count(done, chain.size, reserves.size)


def _not_after(order: Order, chain: Longs, reserves: Longs) -> Longs:
    """[N]: how many of a chain [M] may be done when nothing after each reserve is."""

    def free(k: Longs) -> NDArray[np.bool_]:
        event = chain[k]
        after = order.done[event, order.chain[reserves]] >= order.place[reserves]
        return ~after | (event == reserves)

    return _count(free, chain.size, reserves.size)


def _count(holds, length: int, num: int) -> Longs:
    """[N]: for each, how many of 0, 1, ... below ``length`` hold, where the first ones do."""
    low, high = np.zeros(num, np.int64), np.full(num, length, np.int64)
    while (low < high).any():
        middle = (low + high) // 2
        yes = holds(np.minimum(middle, length - 1)) & (low < high)
        low = np.where(yes, middle + 1, low)
        high = np.where(yes, high, np.minimum(high, middle))
    return low


def _largest(values: Longs, low: Longs, high: Longs) -> Longs:
    """[N]: the largest of values [low, high], both ends included: two overlapping powers of 2."""
    levels = [values]
    while 2 ** len(levels) <= values.size:
        half = 2 ** (len(levels) - 1)
        levels.append(np.maximum(levels[-1][:-half], levels[-1][half:]))
    level = np.frexp((high - low + 1).astype(np.float64))[1] - 1
    out = np.empty(low.size, np.int64)
    for k in range(len(levels)):
        here = level == k
        out[here] = np.maximum(levels[k][low[here]], levels[k][high[here] + 1 - 2**k])
    return out
