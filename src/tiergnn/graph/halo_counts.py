"""Counts of parts, taken edge by edge: degrees, halo rows by owner, how many edges each serves.

Legend: V nodes, E edges, K parts.
"""

from __future__ import annotations

import numba
import numpy as np

from tiergnn.graph.occurrences import count_nodes
from tiergnn.threads import num_processors, spread

# A row that serves n edges of a part falls in bucket n below _FINE; above, each doubling of n is
# cut into _STEPS buckets, so that a curve over all buckets has at most some 900 points.
_FINE = 256
_STEPS = 16
_BUCKETS = _FINE + (63 - 8) * _STEPS


def degrees_of(rowptr: np.ndarray, col: np.ndarray) -> tuple[np.ndarray, int]:
    """Out-degree int64 [V], loops and repeats among the edges counted; and how many are loops."""
    out_degree = np.zeros(rowptr.size - 1, np.int64)
    count_nodes(col, out_degree)
    return out_degree, int(_count_loops(rowptr, col))


@numba.njit(cache=True, nogil=True)
def _count_loops(rowptr, col):
    loops = 0
    for v in range(rowptr.size - 1):
        for e in range(rowptr[v], rowptr[v + 1]):
            loops += col[e] == v
    return loops


@numba.njit(cache=True, nogil=True)
def _bucket(count):
    if count < _FINE:
        return count
    doublings, rest = 0, count
    while rest >= 2 * _FINE:
        rest >>= 1
        doublings += 1
    return _FINE + doublings * _STEPS + (rest - _FINE) * _STEPS // _FINE


@numba.njit(cache=True, nogil=True)
def _count_part(rowptr, col, part_of, own, part, serves, halo_of, rows, edges):
    """Fill halo_of [K] and rows, edges [buckets]; gives the local edges, and how many are loops.
    serves [V] stays 0."""
    local, loops = 0, 0
    for i in range(own.size):
        for e in range(rowptr[own[i]], rowptr[own[i] + 1]):
            if part_of[col[e]] == part:
                local += 1
                loops += col[e] == own[i]
            else:
                serves[col[e]] += 1
    for i in range(own.size):
        for e in range(rowptr[own[i]], rowptr[own[i] + 1]):
            u = col[e]
            if serves[u] > 0:
                bucket = _bucket(serves[u])
                rows[bucket] += 1
                edges[bucket] += serves[u]
                halo_of[part_of[u]] += 1
                serves[u] = 0
    return local, loops


def count_parts(
    rowptr: np.ndarray,
    col: np.ndarray,
    part_of: np.ndarray,
    order: np.ndarray,
    part_ptr: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[tuple[tuple[int, int], ...]]]:
    """Local edges int64 [K], loops among them int64 [K], halo rows by part and owner int64 [K, K],
    and each part's hotness.

    The hotness is the (rows, edges) points of ``shape.PartShape.served``, exact at every point.
    """
    num_parts = part_ptr.size - 1
    local, loops = np.zeros((2, num_parts), np.int64)
    halo_of = np.zeros((num_parts, num_parts), np.int64)
    rows, edges = np.zeros((2, num_parts, _BUCKETS), np.int64)
    dtype = np.int32 if col.size < 2**31 else np.int64
    # A thread has a number a node of its own; all together half of what the columns take.
    room = col.nbytes // (2 * part_of.size * np.dtype(dtype).itemsize + 1)
    num_threads = max(1, min(num_processors(), room, num_parts))
    idle = [np.zeros(part_of.size, dtype) for _ in range(num_threads)]

    def count(first: int, last: int) -> None:
        serves = idle.pop()
        for part in range(first, last):
            own = order[part_ptr[part] : part_ptr[part + 1]]
            local[part], loops[part] = _count_part(
                rowptr, col, part_of, own, part, serves, halo_of[part], rows[part], edges[part]
            )
        idle.append(serves)

    spread(count, num_parts, num_threads)
    return local, loops, halo_of, [_curve(*of) for of in zip(rows, edges, strict=True)]


def curve_of(serves: np.ndarray) -> tuple[tuple[int, int], ...]:
    """The hotness of a halo whose rows serve so many edges each, int64 [H]."""
    rows, edges = np.zeros(_BUCKETS, np.int64), np.zeros(_BUCKETS, np.int64)
    _pile(serves, rows, edges)
    return _curve(rows, edges)


@numba.njit(cache=True, nogil=True)
def _pile(serves, rows, edges):
    for count in serves:
        bucket = _bucket(count)
        rows[bucket] += 1
        edges[bucket] += count


def _curve(rows: np.ndarray, edges: np.ndarray) -> tuple[tuple[int, int], ...]:
    held = np.flatnonzero(rows)[::-1]  # hottest first
    points = zip(np.cumsum(rows[held]).tolist(), np.cumsum(edges[held]).tolist(), strict=True)
    return ((0, 0), *points)
