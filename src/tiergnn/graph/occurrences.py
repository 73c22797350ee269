"""How often each node stands among the columns of edges, over threads.

Each thread has a range of nodes, reads all columns and counts its own: no two write to one place,
and nothing is held beside the counts. That pays where the counts are larger than a processor's
caches, and reading on is little beside finding a node's place.
"""

from __future__ import annotations

import numba
import numpy as np

from tiergnn.threads import num_processors, spread

_RANGE = 2**20  # nodes; the counts of fewer are in a cache, where a second thread gains nothing


def node_ranges(num_nodes: int, num_edges: int) -> int:
    """Into how many ranges of nodes, a thread each, to cut a pass over edges that reads all of
    them for each range; 1 of small graphs."""
    large = num_nodes >= 2 * _RANGE and num_edges >= num_nodes
    return min(num_processors(), num_nodes // _RANGE) if large else 1


def count_nodes(col: np.ndarray, counts: np.ndarray) -> None:
    """Add to counts int64 [V] how often each of 0..V-1 stands in col [E]. Linear in E."""
    ranges = node_ranges(counts.size, col.size)
    starts = np.linspace(0, counts.size, ranges + 1).astype(np.int64)
    if ranges == 1:
        _count_all(col, counts)
        return
    spread(lambda i, j: _count(col, starts[i], starts[j], counts), ranges, ranges)


@numba.njit(cache=True, nogil=True)
def _count_all(col, counts):
    for node in col:
        counts[node] += 1


@numba.njit(cache=True, nogil=True)
def _count(col, first, last, counts):
    size = np.uint64(last - first)
    for node in col:
        if np.uint64(node - first) < size:  # below 0 it is larger than any
            counts[node] += 1
