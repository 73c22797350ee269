"""Refinement: moving nodes to where more of their edges lie, within the bounds of every load.

Legend: n nodes of a level, C criteria, K parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numba
import numpy as np

from tiergnn.graph.draws import draw, stream_key
from tiergnn.graph.level import Level, amount

_ANY = -2  # a target: whichever part has most room


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shares:
    """Who owns what, changed in place: part_of int32 [n], and load int64 [C, K] of the parts.

    bounds int64 [C, 2]: the least and the most of each load that moves may leave behind.
    """

    level: Level
    part_of: np.ndarray
    load: np.ndarray
    bounds: np.ndarray

    @property
    def num_parts(self) -> int:
        return self.load.shape[1]

    @classmethod
    def of(cls, level: Level, part_of: np.ndarray, num_parts: int, bounds: np.ndarray) -> Shares:
        load = level.load.by_part(part_of, num_parts)
        return cls(level=level, part_of=part_of, load=load, bounds=bounds)


def refine(shares: Shares, rounds: int, seed: int, tell: Callable[[], None]) -> None:
    """Label propagation: nodes move to the part that has most of their edges, where it has room.

    All nodes of a chunk choose by what the chunks before left; then they enter in order of what
    they gain, so neither threads nor luck decide. Nodes of parts that are too full leave them
    with the least loss. Stops when a round moves few.
    """
    level = shares.level
    for turn in range(rounds):
        moved = 0
        for chunk, count in level.chunks():
            target, gain = np.empty(count, np.int32), np.empty(count, np.int64)
            reader_ptr, reader = level.readers(chunk, count)
            given = (chunk, level.shift, level.rowptr, level.col, level.weight, reader_ptr, reader)
            state = (level.load, shares.part_of, shares.load, shares.bounds)
            key = stream_key(seed, turn)
            level.spread(
                lambda first, last: _choose(first, last, *given, *state, key, target, gain),  # noqa: B023
                count,
            )
            movers = _worth_trying(target, gain, chunk, shares)
            moved += _enter(movers, chunk, level.shift, target, gain, *state)
            tell()
        if moved * 100 < level.num_nodes:
            break


@numba.njit(cache=True, nogil=True)
def has_room(v, part, load, part_load, bounds):
    for c in range(bounds.shape[0]):
        more = amount(load, v, c)
        if more and part_load[c, part] + more > bounds[c, 1]:
            return False
    return True


@numba.njit(cache=True, nogil=True)
def may_leave(v, part, load, part_load, bounds):
    for c in range(bounds.shape[0]):
        less = amount(load, v, c)
        if less and part_load[c, part] - less < bounds[c, 0]:
            return False
    return True


@numba.njit(cache=True, nogil=True)
def _too_full(v, part, load, part_load, bounds):
    too_full = False
    for c in range(bounds.shape[0]):
        too_full |= part_load[c, part] > bounds[c, 1] and amount(load, v, c) > 0
    return too_full


@numba.njit(cache=True, nogil=True)
def move(v, part, load, part_of, part_load):
    for c in range(part_load.shape[0]):
        part_load[c, part_of[v]] -= amount(load, v, c)
        part_load[c, part] += amount(load, v, c)
    part_of[v] = part


@numba.njit(cache=True, nogil=True)
def _choose(
    first, last, chunk, shift, rowptr, col, weight, reader_ptr, reader, load, part_of, part_load,
    bounds, key, target, gain,
):  # fmt: skip
    """Fill target (-1: stay) and gain of nodes first..last of a chunk."""
    num_parts = part_load.shape[1]
    tie = np.zeros(num_parts, np.int64)
    met = np.empty(num_parts, np.int32)
    for i in range(first, last):
        v = chunk + (np.int64(i) << shift)
        source = part_of[v]
        num_met = 0
        for e in range(rowptr[v], rowptr[v + 1]):
            u = col[e]
            if u != v:
                part = part_of[u]
                if tie[part] == 0:
                    met[num_met] = part
                    num_met += 1
                tie[part] += weight[e] if weight.size else 1
        if reader_ptr.size > 1:
            for e in range(reader_ptr[i], reader_ptr[i + 1]):
                u = reader[e]
                if u != v:
                    part = part_of[u]
                    if tie[part] == 0:
                        met[num_met] = part
                        num_met += 1
                    tie[part] += 1
        best, best_tie, best_draw = np.int32(-1), np.int64(-1), np.uint64(0)
        for j in range(num_met):
            part = met[j]
            if part != source and tie[part] >= best_tie:
                luck = draw(key, (np.uint64(v) << np.uint64(32)) + np.uint64(part))
                if tie[part] > best_tie or luck > best_draw:
                    best, best_tie, best_draw = part, tie[part], luck
        gain[i] = max(best_tie, 0) - tie[source]
        if best < 0:
            best = np.int32(_ANY)
        if gain[i] <= 0 and has_room(v, source, load, part_load, bounds):
            best = np.int32(-1)  # no other node waits for its place
        target[i] = best
        for j in range(num_met):
            tie[met[j]] = 0


def _worth_trying(target: np.ndarray, gain: np.ndarray, chunk: int, shares: Shares) -> np.ndarray:
    """Places in the chunk of nodes that may move, best gain first.

    Those that lose by it only where somebody would gain more by their place, or their part is too
    full.
    """
    movers = np.flatnonzero(target != -1)
    node = chunk + (movers << shares.level.shift)
    wanted = np.zeros(shares.num_parts, np.int64)
    gaining = gain[movers] > 0
    np.maximum.at(wanted, target[movers[gaining]], gain[movers[gaining]])
    wanted[(shares.load > shares.bounds[:, 1:]).any(axis=0)] = 1 << 62
    movers = movers[gaining | (gain[movers] + wanted[shares.part_of[node]] > 0)]
    return movers[np.argsort(-gain[movers], kind="stable")]


@numba.njit(cache=True, nogil=True)
def _roomiest(part_load, bounds):
    best, best_room = 0, np.int64(-(1 << 62))
    for part in range(part_load.shape[1]):
        room = bounds[0, 1] - part_load[0, part]
        if room > best_room:
            best, best_room = part, room
    return np.int32(best)


@numba.njit(cache=True, nogil=True)
def _fits_after(v, other, part, load, part_load, bounds):
    """Whether part has room for v once ``other`` has left it."""
    for c in range(bounds.shape[0]):
        more = amount(load, v, c)
        if more and part_load[c, part] + more - amount(load, other, c) > bounds[c, 1]:
            return False
    return True


@numba.njit(cache=True, nogil=True)
def _enter(movers, chunk, shift, target, gain, load, part_of, part_load, bounds):
    """Move ``movers`` in order of gain, while there is room; returns how many moved.

    Who finds no room waits at the door, and enters when somebody leaves who loses less by that.
    """
    num_parts = part_load.shape[1]
    head = np.full(num_parts, -1, np.int64)
    tail = np.full(num_parts, -1, np.int64)
    after = np.full(movers.size, -1, np.int64)
    moved = 0
    for j in range(movers.size):
        i = movers[j]
        v = chunk + (i << shift)
        source, part = part_of[v], target[i]
        if part == _ANY:
            part = _roomiest(part_load, bounds)
        if part == source or not may_leave(v, source, load, part_load, bounds):
            continue
        if not has_room(v, part, load, part_load, bounds):
            if gain[i] > 0:
                if head[part] < 0:
                    head[part] = j
                else:
                    after[tail[part]] = j
                tail[part] = j
            continue
        if gain[i] <= 0 and not _too_full(v, source, load, part_load, bounds):
            first = head[source]
            if first < 0 or gain[movers[first]] + gain[i] <= 0:
                continue
            u = chunk + (movers[first] << shift)
            if not _fits_after(u, v, source, load, part_load, bounds):
                continue
        move(v, part, load, part_of, part_load)
        moved += 1
        while head[source] >= 0:
            k = head[source]
            u = chunk + (movers[k] << shift)
            if not has_room(u, source, load, part_load, bounds):
                break
            head[source] = after[k]
            left = part_of[u]
            if may_leave(u, left, load, part_load, bounds):
                move(u, source, load, part_of, part_load)
                moved += 1
    return moved
