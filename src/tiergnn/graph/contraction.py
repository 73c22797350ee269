"""Contraction: the graph of clusters.

Legend: n nodes of a level, m clusters, C criteria.
"""

from __future__ import annotations

import numba
import numpy as np

from tiergnn.graph.level import Level, Loads
from tiergnn.graph.parts import group

_MOST_LIGHT = 1 << 10  # weights that are told apart when the lightest edges are left out


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
    edge_bytes = (4 + no_weight.itemsize) * (1 if level.two_way else 4)
    if level.is_small and level.col.size * edge_bytes <= most_bytes:
        return _coarse(level, load, *_join_once(*given, no_weight))
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
    lighter = np.cumsum(seen.sum(axis=0))  # edges of weight 1, 2 ... at most
    least = int(np.searchsorted(lighter, lighter[-1] - most_bytes // edge_bytes))
    least = min(least + 1, _MOST_LIGHT - 1) if lighter[-1] * edge_bytes > most_bytes else 0
    if least:
        join(least, counts, none, no_weight)
    ptr = np.cumsum(counts)
    col, weight = np.empty(int(ptr[-1]), np.int32), np.empty(int(ptr[-1]), weight_dtype)
    if col.size:
        join(least, ptr, col, weight)
    return _coarse(level, load, ptr, col, weight)


def _coarse(
    level: Level, load: Loads, ptr: np.ndarray, col: np.ndarray, weight: np.ndarray
) -> Level:
    """The level of clusters, whose edges ``level`` has one way or both."""
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
        keep=level.keep,
    )


@numba.njit(cache=True, nogil=True)
def _join_once(rowptr, col, weight, label, order, members, no_weight):
    """``_join`` of all clusters, with room for every edge: pointers, columns and weights."""
    num_clusters = members.size - 1
    slot = np.full(num_clusters, -1, np.int64)
    ptr = np.zeros(num_clusters + 1, np.int64)
    out, out_weight = np.empty(col.size, np.int32), np.empty(col.size, no_weight.dtype)
    n = 0
    for c in range(num_clusters):
        start = n
        for i in range(members[c], members[c + 1]):
            v = order[i]
            for e in range(rowptr[v], rowptr[v + 1]):
                to = label[col[e]]
                if to != c:
                    more = weight[e] if weight.size else 1
                    if slot[to] >= start:
                        out_weight[slot[to]] += more
                    else:
                        slot[to], out[n], out_weight[n] = n, to, more
                        n += 1
        ptr[c + 1] = n
    return ptr, out[:n].copy(), out_weight[:n].copy()


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
