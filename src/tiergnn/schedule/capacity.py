"""Capacity: the most bytes that a schedule can hold at once, whatever the lanes' speeds.

The moments of a schedule are the sets of actions that may be done together with all that happens
before them. The fullest of them ends with some RESERVE e. Of any chain of reserves and releases,
each happening before the next, such a moment holds what stands before e at least, and nothing that
stands after it. So the sum over chains of the largest balance between those two is never below the
truth; where one rank's reserves and releases are one chain, and no other rank shares the tier, it
is the truth. So is the walk in order, where each RESERVE waits for all releases issued before it.

Legend: M reserves and releases of one chain, N reserves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

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
        self._chains: dict[Place, list[list[int]]] = {}

    @cached_property
    def _in_order(self) -> dict[Place, Fullest]:
        return held_in_order(self._schedule)

    def takes_turns(self, place: Place) -> bool:
        """Whether each RESERVE comes after every RELEASE that was issued before it.

        Then no moment holds more than the walk in order does right after the last issued of the
        reserves that are done by then: all releases before that one are done as well.
        """
        order, actions = self._order, self._schedule.actions
        events = np.array(sorted(self._events.get(place, ())), np.int64)
        gives = np.array([actions[i].op is Op.RELEASE for i in events], bool)
        reserves, releases = events[~gives], events[gives]
        for chain in np.unique(order.chain[releases]):
            own = releases[order.chain[releases] == chain]
            earlier = np.searchsorted(own, reserves)
            last = own[np.maximum(earlier - 1, 0)]
            if np.any((earlier > 0) & (order.done[reserves, chain] < order.place[last])):
                return False
        return True

    @property
    def places(self) -> tuple[Place, ...]:
        """(rank, tier) of all buffers, ascending."""
        return tuple(sorted({(buffer.rank, buffer.tier) for buffer in self._schedule.buffers}))

    def _chained(self, place: Place) -> list[list[int]]:
        if place in self._chains:
            return self._chains[place]
        chains = self._chains[place] = []
        for i in self._events.get(place, ()):
            chain = next((chain for chain in chains if self._order.before(chain[-1], i)), None)
            if chain is None:
                chains.append([i])
            else:
                chain.append(i)
        return chains

    def fullest(self, places: Sequence[Place]) -> Fullest:
        """The fullest moment of several ranks' shares of one tier, together."""
        if len(places) == 1 and self.takes_turns(places[0]):
            return self._in_order[places[0]]
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
            for chain in self._chained(place):
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


def held_in_order(schedule: Schedule) -> dict[Place, Fullest]:
    """(rank, tier) -> its fullest moment where actions are done one by one, in their order.

    No less is ever proven, as that is one of the interleavings. No more is of one rank's schedule
    that a Writer wrote, where reserves take turns (``Tables.takes_turns``).
    """
    held: dict[Place, int] = defaultdict(int)
    for buffer in schedule.buffers:
        held[buffer.rank, buffer.tier] += buffer.num_bytes if buffer.given else 0
    fullest = {place: (num_bytes, -1) for place, num_bytes in held.items()}
    changes: list[tuple[int, int, Buffer]] = []
    for action in schedule.actions:
        if action.op is not Op.RESERVE and action.op is not Op.RELEASE:
            continue
        sign = 1 if action.op is Op.RESERVE else -1
        for name in action.writes:
            buffer = schedule.buffer_of[name]
            place = (buffer.rank, buffer.tier)
            held[place] += sign * buffer.num_bytes
            changes.append((action.index, sign, buffer))
        for place in {(b.rank, b.tier) for b in map(schedule.buffer_of.__getitem__, action.writes)}:
            if held[place] > fullest[place][0]:
                fullest[place] = (held[place], action.index)
    count = {b.name: int(b.given) for b in schedule.buffers}
    for index, sign, buffer in changes:
        if index <= fullest[buffer.rank, buffer.tier][1]:
            count[buffer.name] += sign
    there: dict[Place, list[Buffer]] = defaultdict(list)
    for buffer in schedule.buffers:
        if count[buffer.name] > 0:
            there[buffer.rank, buffer.tier].append(buffer)
    return {
        place: Fullest(num_bytes=num_bytes, index=index, buffers=tuple(there[place]))
        for place, (num_bytes, index) in fullest.items()
    }


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
