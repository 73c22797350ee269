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
    permutation [E] (int32 where positions fit). Holds two permutations and two pointers at its peak.
    """
    index = np.int32 if src.size < 2**31 else np.int64
    by_src = np.empty(src.size, index)
    _place_all(src, _count(src, num_nodes)[:-1].copy(), by_src)
    rowptr = _count(dst, num_nodes)
    order = np.empty(src.size, index)
    _place(dst, by_src, rowptr[:-1].copy(), order)
    return rowptr, order
