"""Clusters of nodes that hang together, by label propagation, and the graph of clusters.

Legend: n nodes of a level, m clusters, C criteria.
"""

from __future__ import annotations

from collections.abc import Callable

import numba
import numpy as np

from tiergnn.graph.draws import draw, mix, stream_key
from tiergnn.graph.level import Level, Loads
from tiergnn.graph.parts import group

_MOST_LIGHT = 1 << 10  # weights that are told apart when the lightest edges are left out
_FIRST_LOOK = 8  # neighbours that are looked at while every node is a cluster of its own
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
    for turn in range(rounds):
        moved = 0
        for chunk, count in level.chunks():
            target = _favourites(level, chunk, count, label, filled, size, most, seed, turn)
            moved += _enter(chunk, level.shift, target, label, filled, size, most)
            tell()
        if moved * 50 < num_nodes:
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
    look = _FIRST_LOOK if turn == 0 and not level.weight.size else _MOST_NEIGHBOURS
    given = (chunk, level.shift, level.rowptr, level.col, level.weight, reader_ptr, reader)
    level.spread(
        lambda first, last: _choose(
            first, last, *given, label, filled, size, most, look, key, target
        ),
        count,
    )
    return target


@numba.njit(cache=True, nogil=True)
def _slot(names, used, name):
    """Where ``name`` stands, or may stand, in an open-addressing table."""
    mask = names.size - 1
    i = np.int64(mix(np.uint64(name)) & np.uint64(mask))
    while used[i] and names[i] != name:
        i = (i + 1) & mask
    return i


@numba.njit(cache=True, nogil=True)
def _choose(
    first, last, chunk, shift, rowptr, col, weight, reader_ptr, reader, label, filled, size, most,
    look, key, target,
):  # fmt: skip
    """The best cluster with room of nodes first..last of a chunk; equal ones by a draw."""
    room = 64
    for i in range(first, last):
        v = chunk + (np.int64(i) << shift)
        degree = rowptr[v + 1] - rowptr[v]
        if reader_ptr.size > 1:
            degree += reader_ptr[i + 1] - reader_ptr[i]
        while room < min(2 * degree, 4 * _MOST_NEIGHBOURS):
            room *= 2
    names = np.empty(room, np.int32)
    used = np.zeros(names.size, np.bool_)
    score = np.zeros(names.size, np.int64)
    slots = np.empty(names.size, np.int32)
    for i in range(first, last):
        v = chunk + (np.int64(i) << shift)
        own = label[v]
        if most < 0 and filled[own] > size[v]:
            target[i] = own
            continue
        met = 0
        start, end = rowptr[v], rowptr[v + 1]
        stride = 1 + (end - start) // look
        for e in range(start, end, stride):
            u = col[e]
            if u != v:
                s = _slot(names, used, label[u])
                if not used[s]:
                    used[s], names[s], score[s], slots[met] = True, label[u], 0, s
                    met += 1
                score[s] += weight[e] if weight.size else 1
        if reader_ptr.size > 1:
            start, end = reader_ptr[i], reader_ptr[i + 1]
            stride = 1 + (end - start) // look
            for e in range(start, end, stride):
                u = reader[e]
                if u != v:
                    s = _slot(names, used, label[u])
                    if not used[s]:
                        used[s], names[s], score[s], slots[met] = True, label[u], 0, s
                        met += 1
                    score[s] += 1
        best, best_score, best_draw = own, np.int64(0), np.uint64(0)
        if met == 0:
            best = np.int32(-1)
        for j in range(met):
            s = slots[j]
            name = names[s]
            if name == own or most < 0 or filled[name] + size[v] <= most:
                luck = draw(key, (np.uint64(v) << np.uint64(32)) + np.uint64(name))
                if score[s] > best_score or (score[s] == best_score and luck > best_draw):
                    best, best_score, best_draw = name, score[s], luck
            used[s] = False
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


def contract(level: Level, label: np.ndarray, load: Loads, most_bytes: int) -> Level:
    """The level whose m nodes are clusters, and load what those add.

    Edges between two clusters become one that weighs as much; those inside disappear. Where they
    take more than most_bytes, the lightest are left out. Linear in edges; holds one number a node
    and two a cluster and thread.
    """
    num_clusters = load.stored.shape[0]
    order = np.empty(level.num_nodes, np.int32)
    members = group(label, num_clusters, order)
    given = (level.rowptr, level.col, level.weight, label, order, members)
    weight_dtype = np.int32 if level.weight.dtype == np.int32 else np.int64
    if level.col.size >= 2**31:
        weight_dtype = np.int64
    none, no_weight = np.empty(0, np.int32), np.empty(0, weight_dtype)
    counts = np.zeros(num_clusters + 1, np.int64)
    pieces = level.num_pieces(4)
    seen = np.zeros((pieces, _MOST_LIGHT), np.int64)

    def join(least: int, ptr: np.ndarray, out: np.ndarray, out_weight: np.ndarray) -> None:
        def work(first: int, last: int) -> None:
            for piece in range(first, last):
                a, b = (i * num_clusters // pieces for i in (piece, piece + 1))
                _join(a, b, *given, least, ptr, seen[piece], out, out_weight)

        level.spread(work, pieces)

    join(0, counts, none, no_weight)
    edge_bytes = (4 + no_weight.itemsize) * (1 if level.two_way else 4)
    lighter = np.cumsum(seen.sum(axis=0))  # edges of weight 1, 2 ... at most
    least = int(np.searchsorted(lighter, lighter[-1] - most_bytes // edge_bytes))
    least = min(least + 1, _MOST_LIGHT - 1) if lighter[-1] * edge_bytes > most_bytes else 0
    if least:
        join(least, counts, none, no_weight)
    ptr = np.cumsum(counts)
    col, weight = np.empty(int(ptr[-1]), np.int32), np.empty(int(ptr[-1]), weight_dtype)
    if col.size:
        join(least, ptr, col, weight)
    if not level.two_way:
        ptr, col, weight = _both_ways(ptr, col, weight)
    return Level(
        rowptr=ptr,
        col=col,
        weight=weight,
        load=load,
        two_way=True,
        shift=3,
        num_threads=level.num_threads,
    )


@numba.njit(cache=True, nogil=True)
def _join(
    first, last, rowptr, col, weight, label, order, members, least, ptr, seen, out, out_weight
):  # fmt: skip
    """Merge the edges of clusters first..last, and keep those heavier than ``least``.

    Without room in out they are counted: into ptr [m+1] by cluster, all into seen by weight.
    """
    total = np.zeros(members.size - 1, np.int64)
    met = np.empty(members.size - 1, np.int32)
    for c in range(first, last):
        num_met = 0
        for i in range(members[c], members[c + 1]):
            v = order[i]
            for e in range(rowptr[v], rowptr[v + 1]):
                to = label[col[e]]
                if to != c:
                    if total[to] == 0:
                        met[num_met] = to
                        num_met += 1
                    total[to] += weight[e] if weight.size else 1
        n = ptr[c] if out.size else 0
        for i in range(num_met):
            heavy = total[met[i]] > least
            if out.size == 0:
                if least == 0:
                    seen[min(total[met[i]], seen.size) - 1] += 1
                n += heavy
            elif heavy:
                out[n], out_weight[n] = met[i], total[met[i]]
                n += 1
            total[met[i]] = 0
        if out.size == 0:
            ptr[c + 1] = n


@numba.njit(cache=True, nogil=True)
def _both_ways(ptr, col, weight):
    """Pointers, columns and weights with each edge added to its reverse."""
    num_nodes = ptr.size - 1
    back = np.zeros(num_nodes + 1, np.int64)
    for e in range(col.size):
        back[col[e] + 1] += 1
    for v in range(num_nodes):
        back[v + 1] += back[v]
    fill = back[:-1].copy()
    back_col, back_weight = np.empty_like(col), np.empty_like(weight)
    for v in range(num_nodes):
        for e in range(ptr[v], ptr[v + 1]):
            i = fill[col[e]]
            back_col[i], back_weight[i] = v, weight[e]
            fill[col[e]] += 1
    slot = np.full(num_nodes, -1, np.int64)
    out_ptr = np.zeros(num_nodes + 1, np.int64)
    out, out_weight = np.empty(2 * col.size, col.dtype), np.empty(2 * col.size, weight.dtype)
    n = 0
    for v in range(num_nodes):
        start = n
        for e in range(ptr[v], ptr[v + 1]):
            slot[col[e]], out[n], out_weight[n] = n, col[e], weight[e]
            n += 1
        for e in range(back[v], back[v + 1]):
            u = back_col[e]
            if slot[u] >= start:
                out_weight[slot[u]] += back_weight[e]
            else:
                out[n], out_weight[n] = u, back_weight[e]
                n += 1
        out_ptr[v + 1] = n
    return out_ptr, out[:n].copy(), out_weight[:n].copy()
