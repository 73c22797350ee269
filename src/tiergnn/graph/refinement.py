"""Refinement: moving nodes to where more of their edges lie, within the bounds of every load.

Legend: n nodes of a level, C criteria, K parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numba
import numpy as np

from tiergnn.graph.draws import draw, stream_key
from tiergnn.graph.level import Level, amount, chunk_count

_FEW_MOVES = 100  # nodes of which one must move in a round to make another worth its time


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
    state = (level.load, shares.part_of, shares.load, shares.bounds)
    key = stream_key(seed, 0)
    if level.is_small:
        edges = (level.rowptr, level.col, level.weight, *level.readers(0, level.num_nodes))
        _refine(rounds, key, level.shift, *edges, *state)
        tell()
        return
    # Where there is memory, only nodes whose neighbours have moved are looked at again.
    stale = np.ones(level.num_nodes if level.keep else 0, np.bool_)
    chosen: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for _ in range(rounds):
        num_moved = 0
        for chunk, count in level.chunks():
            target, gain = chosen.get(chunk) or (
                np.empty(count, np.int32),
                np.empty(count, np.int64),
            )
            if level.keep:
                chosen[chunk] = target, gain
            edges = (level.rowptr, level.col, level.weight, *level.readers(chunk, count))
            given = (chunk, level.shift, *edges, shares.part_of, shares.num_parts)
            level.spread(
                lambda first, last: _choose(first, last, *given, key, stale, target, gain),  # noqa: B023
                count,
            )
            movers = _worth_trying(target, gain, chunk, level.shift, *state)
            moved = _enter(movers, chunk, level.shift, target, gain, *state)
            if level.keep:
                _wake(moved, chunk, level.shift, *edges[:2], *edges[3:], stale)
            num_moved += moved.size
            tell()
        if num_moved * _FEW_MOVES < level.num_nodes:
            break


@numba.njit(cache=True, nogil=True)
def _refine(
    rounds, key, shift, rowptr, col, weight, reader_ptr, reader, load, part_of, part_load, bounds
):  # fmt: skip
    """``refine`` by one thread."""
    num_nodes, num_chunks = part_of.size, min(1 << shift, part_of.size)
    most = chunk_count(num_nodes, 0, shift)
    target, gain = np.empty((num_chunks, most), np.int32), np.empty((num_chunks, most), np.int64)
    stale = np.ones(num_nodes, np.bool_)
    for _ in range(rounds):
        num_moved = 0
        for chunk in range(num_chunks):
            count = chunk_count(num_nodes, chunk, shift)
            to, by = target[chunk, :count], gain[chunk, :count]
            _choose(
                0, count, chunk, shift, rowptr, col, weight, reader_ptr, reader, part_of,
                part_load.shape[1], key, stale, to, by,
            )  # fmt: skip
            movers = _worth_trying(to, by, chunk, shift, load, part_of, part_load, bounds)
            moved = _enter(movers, chunk, shift, to, by, load, part_of, part_load, bounds)
            _wake(moved, chunk, shift, rowptr, col, reader_ptr, reader, stale)
            num_moved += moved.size
        if num_moved * _FEW_MOVES < num_nodes:
            break


@numba.njit(cache=True, nogil=True)
def _wake(moved, chunk, shift, rowptr, col, reader_ptr, reader, stale):
    """What nodes that have moved and their neighbours chose holds no more."""
    for i in moved:
        v = chunk + (i << shift)
        stale[v] = True
        for e in range(rowptr[v], rowptr[v + 1]):
            stale[col[e]] = True
        if reader_ptr.size > 1:
            for e in range(reader_ptr[v], reader_ptr[v + 1]):
                stale[reader[e]] = True


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
    first, last, chunk, shift, rowptr, col, weight, reader_ptr, reader, part_of, num_parts, key,
    stale, target, gain,
):  # fmt: skip
    """Fill target and gain of nodes first..last of a chunk, or of those only that are stale."""
    whole = reader_ptr.size == rowptr.size
    tie = np.zeros(num_parts, np.int64)
    met = np.empty(num_parts, np.int32)
    for i in range(first, last):
        v = chunk + (np.int64(i) << shift)
        if stale.size:
            if not stale[v]:
                continue
            stale[v] = False
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
            row = v if whole else i
            for e in range(reader_ptr[row], reader_ptr[row + 1]):
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
        target[i] = best
        for j in range(num_met):
            tie[met[j]] = 0


@numba.njit(cache=True, nogil=True)
def _worth_trying(target, gain, chunk, shift, load, part_of, part_load, bounds):
    """Places in the chunk of nodes that may move, best gain first.

    Those that lose by it only where somebody would gain more by their place, for which there is no
    room, or their part is too full.
    """
    num_parts = part_load.shape[1]
    wanted = np.zeros(num_parts, np.int64)
    for i in range(target.size):
        if gain[i] > 0:
            wanted[target[i]] = max(wanted[target[i]], gain[i])
    for part in range(num_parts):
        for c in range(bounds.shape[0]):
            if part_load[c, part] > bounds[c, 1]:
                wanted[part] = 1 << 62
    movers, count = np.empty(target.size, np.int64), 0
    for i in range(target.size):
        v = chunk + (i << shift)
        tries = gain[i] > 0
        if not tries and gain[i] + wanted[part_of[v]] > 0:
            tries = not has_room(v, part_of[v], load, part_load, bounds)
        if tries:
            movers[count] = i
            count += 1
    movers = movers[:count]
    return movers[np.argsort(-gain[movers], kind="mergesort")]


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
    """Move ``movers`` in order of gain, while there is room; returns those that moved.

    Who finds no room waits at the door, and enters when somebody leaves who loses less by that.
    """
    num_parts = part_load.shape[1]
    head = np.full(num_parts, -1, np.int64)
    tail = np.full(num_parts, -1, np.int64)
    after = np.full(movers.size, -1, np.int64)
    moved, num_moved = np.empty(movers.size, np.int64), 0
    for j in range(movers.size):
        i = movers[j]
        v = chunk + (i << shift)
        source, part = part_of[v], target[i]
        if part < 0:
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
        moved[num_moved] = i
        num_moved += 1
        while head[source] >= 0:
            k = head[source]
            u = chunk + (movers[k] << shift)
            if not has_room(u, source, load, part_load, bounds):
                break
            head[source] = after[k]
            left = part_of[u]
            if may_leave(u, left, load, part_load, bounds):
                move(u, source, load, part_of, part_load)
                moved[num_moved] = movers[k]
                num_moved += 1
    return moved[:num_moved]
