"""Which entry leaves a cache that is full: index logic alone, with nothing in it.

A cache tells its policy of every access, asks it whether a new entry is worth its room, and for the
entry to give up. Entries are numbers from 0 on (parts, slices, blocks of rows).
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tiergnn.errors import PlanError

_NEVER = np.iinfo(np.int64).max


class Policy(ABC):
    """Keeps the entries that may leave; O(log n) a call, for n of them."""

    @abstractmethod
    def access(self, entry: int) -> None:
        """``entry`` is used now, whether or not it is in the cache."""

    @abstractmethod
    def admits(self, entry: int) -> bool:
        """Whether ``entry``, used now, is worth more than ``victim``; asked where there is one."""

    @abstractmethod
    def insert(self, entry: int) -> None:
        """``entry`` is in the cache and may leave."""

    @abstractmethod
    def remove(self, entry: int) -> None:
        """``entry`` left the cache, or may not leave for now."""

    @abstractmethod
    def victim(self) -> int | None:
        """The entry that is worth the least of those that may leave; None where none may."""


class Lru(Policy):
    """The entry that was not used for longest leaves."""

    def __init__(self) -> None:
        self._order: OrderedDict[int, None] = OrderedDict()

    def access(self, entry: int) -> None:
        if entry in self._order:
            self._order.move_to_end(entry)

    def admits(self, entry: int) -> bool:
        return True

    def insert(self, entry: int) -> None:
        self._order[entry] = None

    def remove(self, entry: int) -> None:
        del self._order[entry]

    def victim(self) -> int | None:
        return next(iter(self._order), None)


class _Ranked(Policy):
    """The entry of the highest rank leaves; ranks may change while entries are in the cache."""

    def __init__(self) -> None:
        self._rank: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []  # (-rank, entry), perhaps of an old rank

    def _set(self, entry: int, rank: int) -> None:
        self._rank[entry] = rank
        if len(self._heap) > 2 * len(self._rank) + 64:
            self._heap = [(-rank, entry) for entry, rank in self._rank.items()]
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, (-rank, entry))

    def remove(self, entry: int) -> None:
        del self._rank[entry]

    def victim(self) -> int | None:
        while self._heap:
            rank, entry = self._heap[0]
            if self._rank.get(entry) == -rank:
                return entry
            heapq.heappop(self._heap)
        return None


class Hotness(_Ranked):
    """The entries that are used most stay; ``counts[entry]`` says how often, from the start."""

    def __init__(self, counts: Sequence[int] | np.ndarray) -> None:
        super().__init__()
        self._place = np.empty(len(counts), np.int64)
        self._place[np.argsort(-np.asarray(counts), kind="stable")] = np.arange(len(counts))

    def access(self, entry: int) -> None:
        pass

    def admits(self, entry: int) -> bool:
        victim = self.victim()
        return victim is None or self._place[entry] < self._place[victim]

    def insert(self, entry: int) -> None:
        self._set(entry, int(self._place[entry]))


class Belady(_Ranked):
    """The entry that is read again last leaves (Belady, 1966): no choice has fewer misses.

    ``trace`` are all entries in the order of their use, ``overwrites`` which of these uses write
    the whole entry: what is overwritten before it is read is as good as never used again. ``cycle``
    says that the trace starts anew when it ends, as the steps of a run do.
    Raises PlanError when an access is not the one that the trace has next.
    """

    def __init__(
        self,
        trace: Sequence[int] | np.ndarray,
        overwrites: Sequence[bool] | np.ndarray | None = None,
        *,
        cycle: bool = False,
    ) -> None:
        super().__init__()
        self._trace = np.asarray(trace, np.int64)
        self._next = next_uses(self._trace, overwrites, cycle=cycle)
        self._cycle = cycle
        self._time = -1
        self._used: dict[int, int] = {}  # entry -> when it is read again

    def access(self, entry: int) -> None:
        self._time += 1
        place = self._time % max(1, self._trace.size) if self._cycle else self._time
        wanted = int(self._trace[place]) if place < self._trace.size else None
        if entry != wanted:
            raise PlanError(
                f"access {self._time} is of entry {entry}, the trace says "
                f"{'that there is none' if wanted is None else wanted}"
            )
        ahead = int(self._next[place])
        again = _NEVER if ahead == _NEVER else self._time - place + ahead
        self._used[entry] = again
        if entry in self._rank:
            self._set(entry, again)

    def admits(self, entry: int) -> bool:
        victim = self.victim()
        again = self._used[entry]
        return again < _NEVER and (victim is None or again < self._rank[victim])

    def insert(self, entry: int) -> None:
        self._set(entry, self._used.get(entry, _NEVER))


def next_uses(
    trace: np.ndarray, overwrites: Sequence[bool] | np.ndarray | None = None, *, cycle: bool = False
) -> np.ndarray:
    """int64, for each access of a trace: when its entry is read next, or the largest number.

    In a cycle times go on past its end. A sort, then whole arrays.
    """
    count = trace.size
    over = np.zeros(count, np.bool_) if overwrites is None else np.asarray(overwrites, np.bool_)
    out = np.full(count, _NEVER)
    if count == 0:
        return out
    order = np.argsort(trace, kind="stable")
    same = np.append(trace[order[1:]] == trace[order[:-1]], False)
    follower = np.append(order[1:], 0)
    out[order[same]] = follower[same]
    lost = np.zeros(count, np.bool_)
    lost[order[same]] = over[follower[same]]
    if cycle:
        first = np.searchsorted(trace[order], trace[order[~same]])
        out[order[~same]] = order[first] + count
        lost[order[~same]] = over[order[first]]
    out[lost] = _NEVER
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """Accesses that found their entry in the cache, entries read from below, written to below."""

    hits: int
    reads: int
    writes: int


def simulate(
    policy: Policy,
    trace: Sequence[int] | np.ndarray,
    capacity: int,
    overwrites: Sequence[bool] | np.ndarray | None = None,
) -> Simulated:
    """What a cache of ``capacity`` entries moves over a trace: the very choices of ``BlockCache``.

    A read of an entry that is not there reads it from below. An overwrite reads nothing; what it
    made is written when it leaves, or at the end.
    """
    uses = np.asarray(trace, np.int64).tolist()
    over = [False] * len(uses) if overwrites is None else np.asarray(overwrites).tolist()
    held: dict[int, bool] = {}  # entry -> whether below lacks it
    hits = reads = writes = 0
    for entry, writing in zip(uses, over, strict=True):
        policy.access(entry)
        if entry in held:
            hits += 1
            held[entry] |= writing
            continue
        reads += not writing
        if len(held) >= capacity:
            victim = policy.victim()
            if victim is None or not policy.admits(entry):
                writes += writing
                continue
            policy.remove(victim)
            writes += held.pop(victim)
        held[entry] = writing
        policy.insert(entry)
    return Simulated(hits=hits, reads=reads, writes=writes + sum(held.values()))
