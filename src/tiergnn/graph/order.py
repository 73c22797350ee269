"""Stable counting sorts of edges: linear in edges, no comparison."""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=True, nogil=True)
def _count(key, num_keys):
    starts = np.zeros(num_keys + 1, np.int64)
    for i in range(key.size):
        starts[key[i] + 1] += 1
    for k in range(num_keys):
        starts[k + 1] += starts[k]
    return starts


@numba.njit(cache=True, nogil=True)
def _place(key, order, starts, out):
    """Stable: walks ``order`` and drops each of its items into the next slot of its key."""
    for i in range(order.size):
        k = key[order[i]]
        out[starts[k]] = order[i]
        starts[k] += 1


@numba.njit(cache=True, nogil=True)
def _place_all(key, starts, out):
    for i in range(key.size):
        out[starts[key[i]]] = i
        starts[key[i]] += 1


def csr_order(src: np.ndarray, dst: np.ndarray, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """The order that sorts edges by (dst, src, position), and the row pointer of the result.

    src and dst [E] hold ids in [0, num_nodes). Returns rowptr int64 [num_nodes+1] and a
    permutation [E] (int32 where positions fit). Holds two of each at its peak.
    """
    index = np.int32 if src.size < 2**31 else np.int64
    by_src = np.empty(src.size, index)
    _place_all(src, _count(src, num_nodes)[:-1].copy(), by_src)
    rowptr = _count(dst, num_nodes)
    order = np.empty(src.size, index)
    _place(dst, by_src, rowptr[:-1].copy(), order)
    return rowptr, order


@numba.njit(cache=True, nogil=True)
def first_fault(rowptr, col):
    """(row, edge) of the first source that is out of range or below its predecessor in its row;
    (row, -1) where rowptr runs backwards or past col, (-1, -1) where nothing is wrong."""
    num_nodes = rowptr.size - 1
    for v in range(num_nodes):
        if rowptr[v + 1] < rowptr[v] or rowptr[v + 1] > col.size:
            return v, -1
        last = 0
        for e in range(rowptr[v], rowptr[v + 1]):
            if col[e] < last or col[e] >= num_nodes:
                return v, e
            last = col[e]
    return -1, -1


@numba.njit(cache=True, nogil=True)
def missing_loops(src, dst, num_nodes):
    """The nodes without a self-loop, ascending, int64."""
    has = np.zeros(num_nodes, np.bool_)
    for i in range(src.size):
        if src[i] == dst[i]:
            has[src[i]] = True
    return np.flatnonzero(~has)


@numba.njit(cache=True, nogil=True)
def sum_runs(values, starts):
    """float64 [runs, D]: sums of values [G, D], one after the other, of each run of rows.

    Run r is rows starts[r] to starts[r+1] (the last one ends with values).
    """
    out = np.zeros((starts.size, values.shape[1]))
    for r in range(starts.size):
        end = starts[r + 1] if r + 1 < starts.size else values.shape[0]
        for d in range(values.shape[1]):
            out[r, d] = values[starts[r], d]  # not 0 + it: a run of one keeps its -0.0
        for i in range(starts[r] + 1, end):
            for d in range(values.shape[1]):
                out[r, d] += values[i, d]
    return out
