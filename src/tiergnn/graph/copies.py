"""Copies: moving nodes to where fewer rows of other parts must be read in all.

Legend: n nodes, C criteria, K parts, W words of 32 parts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numba
import numpy as np

from tiergnn.graph.level import chunk_count
from tiergnn.graph.refinement import Shares, has_room, may_leave, move

_PARTS_A_WORD = 32
_WORTH = 50  # nodes for which one spared copy makes another round worth its time
_MOST_PLANES = 32  # bits of a count of rows, of which there are fewer than 2**31
# The place of a single bit: the top five bits of the bit times this de Bruijn sequence name it.
_DE_BRUIJN = np.uint32(0x077CB531)
_PLACES = np.empty(32, np.int32)
_PLACES[(np.uint32(_DE_BRUIJN) * (np.uint32(1) << np.arange(32, dtype=np.uint32))) >> 27] = (
    np.arange(32)
)


def copy_bytes(num_nodes: int, num_parts: int) -> int:
    """What ``spare_copies`` holds."""
    return 2 * 4 * num_nodes * -(-num_parts // _PARTS_A_WORD)


def spare_copies(shares: Shares, rounds: int, tell: Callable[[], None]) -> None:
    """Move nodes while that lowers the number of halo rows of all parts.

    A row is copied to each part that reads it and does not own it. Of each node two bits a part
    are held: whether one node of the part reads it, and whether more do. So a move's effect on
    all copies follows from the node's own edges. All nodes of a chunk choose, then they move in
    order of what they save, each judged again by then. Level must be the graph itself.
    """
    level = shares.level
    num_nodes = level.num_nodes
    state = (level.load, shares.part_of, shares.load, shares.bounds)
    words = -(-shares.num_parts // _PARTS_A_WORD)
    bits = np.zeros((num_nodes, 2 * words), np.uint32)  # W for one reader or more, W for several
    if level.is_small:
        _spare(rounds, level.shift, level.two_way, level.rowptr, level.col, *state, bits)
        tell()
        return
    for _ in range(rounds):
        for chunk, count in level.chunks():
            _mark_chunk(shares, chunk, count, bits)
            tell()
        spared = 0
        for chunk, count in level.chunks():
            target, gain = np.empty(count, np.int32), np.empty(count, np.int32)
            given = (chunk, level.shift, level.two_way, level.rowptr, level.col, *state, bits)
            level.spread(partial(_choose_all, given, target, gain), count)
            spared += _enter(_by_gain(target, gain), *given)
            tell()
        if spared * _WORTH < num_nodes:
            break


@numba.njit(cache=True, nogil=True)
def _spare(turns, shift, two_way, rowptr, col, load, part_of, part_load, bounds, bits):
    """``spare_copies`` by one thread."""
    num_nodes = part_of.size
    most = (num_nodes >> shift) + 1
    target, gain = np.empty(most, np.int32), np.empty(most, np.int32)
    for _ in range(turns):
        if two_way:
            _mark(0, num_nodes, 0, 0, rowptr, col, part_of, bits)
        else:
            _mark_all(rowptr, col, part_of, bits)
        spared = 0
        for chunk in range(min(1 << shift, num_nodes)):
            count = chunk_count(num_nodes, chunk, shift)
            _choose(
                0, count, target, gain, chunk, shift, two_way, rowptr, col, load, part_of,
                part_load, bounds, bits,
            )  # fmt: skip
            spared += _enter(
                _by_gain(target[:count], gain), chunk, shift, two_way, rowptr, col, load, part_of,
                part_load, bounds, bits,
            )  # fmt: skip
        if spared * _WORTH < num_nodes:
            break


@numba.njit(cache=True, nogil=True)
def _by_gain(target, gain):
    """Places in the chunk of nodes that would move, best gain first."""
    movers = np.flatnonzero(target >= 0)
    return movers[np.argsort(-gain[movers], kind="mergesort")]


@numba.njit(cache=True, nogil=True)
def _mark_all(rowptr, col, part_of, bits):
    """Set the bits of all nodes, from the rows of those that read them."""
    words = bits.shape[1] // 2
    bits[:] = 0
    for v in range(part_of.size):
        word, bit = part_of[v] >> 5, np.uint32(1) << np.uint32(part_of[v] & 31)
        before = np.int64(-1)
        for e in range(rowptr[v], rowptr[v + 1]):
            u = np.int64(col[e])
            if u != v and u != before:
                bits[u, words + word] |= bits[u, word] & bit
                bits[u, word] |= bit
            before = u


def _choose_all(
    given: tuple[Any, ...], target: np.ndarray, gain: np.ndarray, first: int, last: int
) -> None:
    _choose(first, last, target, gain, *given)


def _mark_chunk(shares: Shares, chunk: int, count: int, bits: np.ndarray) -> None:
    level = shares.level
    ptr, reader = (level.rowptr, level.col) if level.two_way else level.readers(chunk, count)
    given = (chunk, level.shift, ptr, reader, shares.part_of, bits)
    level.spread(lambda first, last: _mark(first, last, *given), count)


@numba.njit(cache=True, nogil=True)
def _mark(first, last, chunk, shift, ptr, reader, part_of, bits):
    """Set the bits of nodes first..last of a chunk."""
    words, whole = bits.shape[1] // 2, ptr.size == part_of.size + 1
    for i in range(first, last):
        v = chunk + (np.int64(i) << shift)
        row = v if whole else i
        bits[v, :] = 0
        before = np.int64(-1)
        for e in range(ptr[row], ptr[row + 1]):
            u = np.int64(reader[e])
            if u != v and u != before:
                word, bit = part_of[u] >> 5, np.uint32(1) << np.uint32(part_of[u] & 31)
                if bits[v, word] & bit:
                    bits[v, words + word] |= bit
                bits[v, word] |= bit
            before = u


@numba.njit(cache=True, nogil=True)
def _read(bits, v, part):
    """Whether a node of part reads v."""
    return (bits[v, part >> 5] >> np.uint32(part & 31)) & np.uint32(1) != 0


@numba.njit(cache=True, nogil=True)
def _read_more(bits, v, part):
    """Whether several nodes of part read v."""
    word = bits.shape[1] // 2 + (part >> 5)
    return (bits[v, word] >> np.uint32(part & 31)) & np.uint32(1) != 0


@numba.njit(cache=True, nogil=True)
def _read_elsewhere(bits, v, part):
    """Whether a node of another part reads v."""
    found = np.uint32(0)
    for word in range(bits.shape[1] // 2):
        found |= bits[v, word]
        if word == part >> 5:
            found &= ~(np.uint32(1) << np.uint32(part & 31))
    return found != 0


@numba.njit(cache=True, nogil=True)
def _may_spare(v, rowptr, col, part_of, bits):
    """Whether any move of v could spare copies: a bound that needs no count by parts.

    Rows that only v's own part has must be copied to wherever it goes.
    """
    source = part_of[v]
    spared = int(_read_elsewhere(bits, v, source)) - int(_read(bits, v, source))
    needed = 0
    before = np.int64(-1)
    for e in range(rowptr[v], rowptr[v + 1]):
        u = np.int64(col[e])
        if u != v and u != before:
            if part_of[u] != source:
                spared += not _read_more(bits, u, source)
            else:
                needed += not _read_elsewhere(bits, u, source)
        before = u
    return spared > needed


@numba.njit(cache=True, nogil=True)
def _count(v, source, rowptr, col, part_of, bits, planes):
    """Count, for all parts at once, the rows that v reads and each part has anyway.

    planes [L, W]: bit i of a part's count is the part's bit of planes[i]; a row is added to all
    of them as a word is, with carries. Returns the planes in use, how many rows v reads, and those
    that its own part would need no more without it.
    """
    words = bits.shape[1] // 2
    depth, num_read, spared = 0, 0, 0
    before = np.int64(-1)
    for e in range(rowptr[v], rowptr[v + 1]):
        u = np.int64(col[e])
        if u != v and u != before:
            num_read += 1
            owner = part_of[u]
            if owner != source and not _read_more(bits, u, source):
                spared += 1
            for word in range(words):
                carry = bits[u, word]
                if word == owner >> 5:
                    carry |= np.uint32(1) << np.uint32(owner & 31)
                i = 0
                while carry:
                    if i == depth:
                        planes[i, :] = 0
                        depth += 1
                    held = planes[i, word]
                    planes[i, word] = held ^ carry
                    carry &= held
                    i += 1
        before = u
    return depth, num_read, spared


@numba.njit(cache=True, nogil=True)
def _best(v, rowptr, col, load, part_of, part_load, bounds, bits, planes):
    """The part with room to which v's move spares most copies, and how many; -1 and 0: none."""
    source = part_of[v]
    depth, num_read, spared = _count(v, source, rowptr, col, part_of, bits, planes)
    best, best_gain = np.int32(-1), 0
    for word in range(bits.shape[1] // 2):
        met = np.uint32(0)
        for i in range(depth):
            met |= planes[i, word]
        if word == source >> 5:
            met &= ~(np.uint32(1) << np.uint32(source & 31))
        while met:
            lowest = met & (~met + np.uint32(1))
            met ^= lowest
            have = 0
            for i in range(depth):
                have += int(planes[i, word] & lowest != 0) << i
            part = np.int32(word * 32) + _PLACES[np.uint32(lowest * _DE_BRUIJN) >> np.uint32(27)]
            gain = spared - (num_read - have)
            gain += bits[v, word] & lowest != 0
            gain -= _read(bits, v, source)
            if gain > best_gain and has_room(v, part, load, part_load, bounds):
                best, best_gain = part, gain  # of equal ones the first
    if best >= 0 and not may_leave(v, source, load, part_load, bounds):
        best, best_gain = np.int32(-1), 0
    return best, best_gain


@numba.njit(cache=True, nogil=True)
def _choose(
    first, last, target, gain, chunk, shift, two_way, rowptr, col, load, part_of, part_load, bounds,
    bits,
):  # fmt: skip
    planes = np.empty((_MOST_PLANES, bits.shape[1] // 2), np.uint32)
    for i in range(first, last):
        v = chunk + (np.int64(i) << shift)
        target[i], gain[i] = -1, 0
        # Whoever is read by its own part alone reads that part alone, where edges go both ways.
        inside = two_way and not _read_elsewhere(bits, v, part_of[v])
        if not inside and _may_spare(v, rowptr, col, part_of, bits):
            target[i], gain[i] = _best(
                v, rowptr, col, load, part_of, part_load, bounds, bits, planes
            )


@numba.njit(cache=True, nogil=True)
def _enter(
    movers, chunk, shift, two_way, rowptr, col, load, part_of, part_load, bounds, bits
):  # fmt: skip
    """Make the moves that still spare copies, in order; returns how many are spared.

    A part with several readers keeps its bit when they leave, until bits are set anew.
    """
    planes = np.empty((_MOST_PLANES, bits.shape[1] // 2), np.uint32)
    words = bits.shape[1] // 2
    spared = 0
    for j in range(movers.size):
        v = chunk + (movers[j] << shift)
        source = part_of[v]
        part, gain = _best(v, rowptr, col, load, part_of, part_load, bounds, bits, planes)
        if part < 0:
            continue
        spared += gain
        move(v, part, load, part_of, part_load)
        before = np.int64(-1)
        for e in range(rowptr[v], rowptr[v + 1]):
            u = np.int64(col[e])
            if u != v and u != before:
                bit = np.uint32(1) << np.uint32(source & 31)
                if not bits[u, words + (source >> 5)] & bit:
                    bits[u, source >> 5] &= ~bit
                bit = np.uint32(1) << np.uint32(part & 31)
                if bits[u, part >> 5] & bit:
                    bits[u, words + (part >> 5)] |= bit
                bits[u, part >> 5] |= bit
            before = u
    return spared
