"""Clusters of nodes that hang together, by label propagation.

Legend: n nodes of a level, m clusters.
"""

from __future__ import annotations

from collections.abc import Callable

import numba
import numpy as np

from tiergnn.graph.draws import draw, stream_key, stream_key_of
from tiergnn.graph.level import Level, chunk_count

_FIRST_LOOK = 8  # neighbours that are looked at while every node is a cluster of its own
_FEW_MOVES = 50  # nodes of which one must move in a round to make another worth its time
_MOST_NEIGHBOURS = 1 << 12  # of more, so many are looked at


def cluster(
    level: Level,
    size: np.ndarray,
    most: int,
    rounds: int,
    seed: int,
    tell: Callable[[], None],
) -> tuple[np.ndarray, int]:
    """Cluster of each node int32 [n], numbered by first node, and their number.

    size int32 [n]: no cluster of several nodes is larger than ``most``. Nodes go where most of
    their edges go (label propagation), chunk by chunk: all nodes of a chunk choose by what the
    chunks before left, then enter in order while there is room. Nodes that stay alone join others
    with the same favourite, and those without neighbours each other. Linear in edges.
    """
    num_nodes = level.num_nodes
    label = np.arange(num_nodes, dtype=np.int32)
    filled = size.copy()
    if level.is_small:
        edges = (level.rowptr, level.col, level.weight, *level.readers(0, num_nodes))
        count = _cluster(rounds, np.uint64(seed), level.shift, *edges, label, filled, size, most)
        tell()
        return label, count
    for turn in range(rounds):
        moved = 0
        for chunk, count in level.chunks():
            target = _favourites(level, chunk, count, label, filled, size, most, seed, turn)
            moved += _enter(chunk, level.shift, target, label, filled, size, most)
            tell()
        if moved * _FEW_MOVES < num_nodes:
            break
    waiting = np.full(num_nodes, -1, np.int32)
    for chunk, count in level.chunks():
        target = _favourites(level, chunk, count, label, filled, size, -1, seed, rounds)
        _pair(chunk, level.shift, target, label, filled, size, most, waiting)
    return label, _number(label, waiting)


def _favourites(
    level: Level,
    chunk: int,
    count: int,
    label: np.ndarray,
    filled: np.ndarray,
    size: np.ndarray,
    most: int,
    seed: int,
    turn: int,
) -> np.ndarray:
    """int32 [count]: the cluster that each node of a chunk would join, or its own; -1: no edges.

    With ``most`` -1 whether there is room or not, and of nodes that are alone only.
    """
    target = np.empty(count, np.int32)
    reader_ptr, reader = level.readers(chunk, count)
    key = stream_key(seed, turn)
    look = _look(turn, level.weight)
    given = (chunk, level.shift, level.rowptr, level.col, level.weight, reader_ptr, reader)
    level.spread(
        lambda first, last: _choose(
            first, last, *given, label, filled, size, most, look, key, target
        ),
        count,
    )
    return target


@numba.njit(cache=True, nogil=True)
def _cluster(
    rounds, seed, shift, rowptr, col, weight, reader_ptr, reader, label, filled, size, most
):  # fmt: skip
    """``cluster`` by one thread; returns how many clusters there are."""
    num_nodes = label.size
    waiting = np.full(num_nodes, -1, np.int32)
    target = np.empty((num_nodes >> shift) + 1, np.int32)
    turn = 0
    while True:
        pairing, moved = turn >= rounds, 0
        key, look = stream_key_of(seed, np.uint64(turn)), _look(turn, weight)
        for chunk in range(min(1 << shift, num_nodes)):
            count = chunk_count(num_nodes, chunk, shift)
            _choose(
                0, count, chunk, shift, rowptr, col, weight, reader_ptr, reader, label, filled,
                size, -1 if pairing else most, look, key, target,
            )  # fmt: skip
            if pairing:
                _pair(chunk, shift, target[:count], label, filled, size, most, waiting)
            else:
                moved += _enter(chunk, shift, target[:count], label, filled, size, most)
        if pairing:
            return _number(label, waiting)
        turn = turn + 1 if moved * _FEW_MOVES >= num_nodes else rounds


@numba.njit(cache=True, nogil=True)
def _look(turn, weight):
    """How many neighbours are looked at."""
    return _FIRST_LOOK if turn == 0 and weight.size == 0 else _MOST_NEIGHBOURS


@numba.njit(cache=True, nogil=True)
def _slot(names, score, mask, name):
    """Where ``name`` stands, or may stand, in an open-addressing table; a score of 0 is a gap."""
    i = np.int64(name) & mask
    while score[i] and names[i] != name:
        i = (i + 1) & mask
    return i


@numba.njit(cache=True, nogil=True)
def _degree(v, i, whole, rowptr, reader_ptr):
    degree = rowptr[v + 1] - rowptr[v]
    if reader_ptr.size > 1:
        row = v if whole else i
        degree += reader_ptr[row + 1] - reader_ptr[row]
    return degree


@numba.njit(cache=True, nogil=True)
def _room(degree):
    """Places of a table for the clusters of so many neighbours, a power of two."""
    room = 16
    while room < min(2 * degree, 4 * _MOST_NEIGHBOURS):
        room *= 2
    return room


@numba.njit(cache=True, nogil=True)
def _choose(
    first, last, chunk, shift, rowptr, col, weight, reader_ptr, reader, label, filled, size, most,
    look, key, target,
):  # fmt: skip
    """The best cluster with room of nodes first..last of a chunk; equal ones by a draw."""
    whole, most_met = reader_ptr.size == rowptr.size, 0
    for i in range(first, last):
        most_met = max(
            most_met, _degree(chunk + (np.int64(i) << shift), i, whole, rowptr, reader_ptr)
        )
    names = np.empty(_room(most_met), np.int32)
    score = np.zeros(names.size, np.int64)
    slots = np.empty(names.size, np.int32)
    for i in range(first, last):
        v = chunk + (np.int64(i) << shift)
        own = label[v]
        if most < 0 and filled[own] > size[v]:
            target[i] = own
            continue
        met = 0
        mask = _room(_degree(v, i, whole, rowptr, reader_ptr)) - 1  # few lines of a large table
        start, end = rowptr[v], rowptr[v + 1]
        stride = 1 + (end - start) // look
        for e in range(start, end, stride):
            u = col[e]
            if u != v:
                s = _slot(names, score, mask, label[u])
                if score[s] == 0:
                    names[s], slots[met] = label[u], s
                    met += 1
                score[s] += weight[e] if weight.size else 1
        if reader_ptr.size > 1:
            row = v if whole else i
            start, end = reader_ptr[row], reader_ptr[row + 1]
            stride = 1 + (end - start) // look
            for e in range(start, end, stride):
                u = reader[e]
                if u != v:
                    s = _slot(names, score, mask, label[u])
                    if score[s] == 0:
                        names[s], slots[met] = label[u], s
                        met += 1
                    score[s] += 1
        best, best_score, best_draw = own, np.int64(0), np.uint64(0)
        if met == 0:
            best = np.int32(-1)
        for j in range(met):
            s = slots[j]
            name, found = names[s], score[s]
            score[s] = 0
            if found >= best_score and (name == own or most < 0 or filled[name] + size[v] <= most):
                luck = draw(key, (np.uint64(v) << np.uint64(32)) + np.uint64(name))
                if found > best_score or luck > best_draw:
                    best, best_score, best_draw = name, found, luck
        target[i] = best


@numba.njit(cache=True, nogil=True)
def _enter(chunk, shift, target, label, filled, size, most):
    """Move nodes to their targets, in order, while there is room; returns how many moved."""
    moved = 0
    for i in range(target.size):
        v = chunk + (i << shift)
        to = target[i]
        if to >= 0 and to != label[v] and filled[to] + size[v] <= most:
            filled[label[v]] -= size[v]
            filled[to] += size[v]
            label[v] = to
            moved += 1
    return moved


@numba.njit(cache=True, nogil=True)
def _pair(chunk, shift, target, label, filled, size, most, waiting):
    """Let nodes that are alone join the last one with the same favourite; -1 is one, too."""
    for i in range(target.size):
        v = chunk + (i << shift)
        own = label[v]
        if filled[own] == size[v]:
            favourite = max(target[i], 0)
            other = waiting[favourite]
            if other >= 0 and other != own and filled[other] + size[v] <= most:
                filled[own] -= size[v]
                filled[other] += size[v]
                label[v] = other
            elif other < 0 or filled[other] > filled[own]:
                waiting[favourite] = own


@numba.njit(cache=True, nogil=True)
def _number(label, number):
    """Rename clusters 0, 1, ... by their first node, in place; returns how many there are."""
    number[:] = -1
    count = 0
    for v in range(label.size):
        if number[label[v]] < 0:
            number[label[v]] = count
            count += 1
        label[v] = number[label[v]]
    return count
