"""Level: a graph as the switching partitioner walks it, whole or with its nodes merged.

Legend: V nodes, E edges, n nodes of a level, C criteria.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numba
import numpy as np

from tiergnn.graph.draws import draw, stream_key
from tiergnn.threads import spread

_SMALL = 1 << 20  # edges up to which handing out pieces takes longer than one thread's work
_SYMMETRY = 1 << 20  # the stream of random numbers that compare a graph with its reverse


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Level:
    """Edges of n nodes, and what each node adds to the loads of its part.

    col[rowptr[v]:rowptr[v+1]] are the nodes that v reads, weight [E] how often (empty: once
    each). load int32 or int64 [n, C]. Nodes are decided in 2**shift chunks, one after the other:
    v = chunk, chunk + 2**shift, ... ``two_way``: whoever is read reads as often, so that ``col``
    lists readers too; if not, those of one chunk at a time are listed.
    """

    rowptr: np.ndarray
    col: np.ndarray
    weight: np.ndarray
    load: np.ndarray
    two_way: bool
    shift: int
    num_threads: int

    @property
    def num_nodes(self) -> int:
        return self.rowptr.size - 1

    def spread(self, work: Callable[[int, int], None], num_tasks: int) -> None:
        """``threads.spread`` over the level's threads, or this one alone where it is small."""
        spread(work, num_tasks, self.num_threads if self.col.size > _SMALL else 1)

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Each chunk and how many nodes it has."""
        for chunk in range(min(1 << self.shift, self.num_nodes)):
            yield chunk, ((self.num_nodes - 1 - chunk) >> self.shift) + 1

    def readers(self, chunk: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Pointers [count+1] and the readers of the chunk's nodes, ascending; empty if two-way."""
        if self.two_way:
            return np.zeros(1, np.int64), self.col[:0]
        ptr = np.zeros(count + 1, np.int64)
        _count_readers(self.col, chunk, self.shift, ptr)
        out = np.empty(int(ptr[-1]), self.col.dtype)
        tasks = self.num_threads  # each reads all edges and keeps those of its own nodes
        spread(
            lambda first, last: _list_readers(
                first * count // tasks,
                last * count // tasks,
                chunk,
                self.shift,
                self.rowptr,
                self.col,
                ptr,
                out,
            ),
            tasks,
            tasks,
        )
        return ptr, out


def is_two_way(rowptr: np.ndarray, col: np.ndarray, num_threads: int) -> bool:
    """Whether every edge has its reverse, as often; loops aside. Holds nothing.

    Sums over all edges of a random number of (source, destination) less that of the reverse: of
    any graph that is not, it is zero with a chance of 2**-64.
    """
    num_nodes = rowptr.size - 1
    bounds = np.linspace(0, num_nodes, 257).astype(np.int64)
    sums = np.zeros(256, np.uint64)
    key = stream_key(0, _SYMMETRY)
    spread(
        lambda first, last: _asymmetry(first, last, key, bounds, rowptr, col, sums),
        256,
        num_threads,
    )
    return int(sums.sum(dtype=np.uint64)) == 0


@numba.njit(cache=True, nogil=True)
def _asymmetry(first, last, key, bounds, rowptr, col, sums):
    num_nodes = np.uint64(rowptr.size - 1)
    for piece in range(first, last):
        total = np.uint64(0)
        for v in range(bounds[piece], bounds[piece + 1]):
            here = np.uint64(v)
            for e in range(rowptr[v], rowptr[v + 1]):
                u = np.uint64(col[e])
                total += draw(key, u * num_nodes + here) - draw(key, here * num_nodes + u)
        sums[piece] = total


@numba.njit(cache=True, nogil=True)
def _count_readers(col, chunk, shift, ptr):
    mask = (1 << shift) - 1
    for e in range(col.size):
        u = col[e]
        if u & mask == chunk:
            ptr[(u >> shift) + 1] += 1
    for i in range(ptr.size - 1):
        ptr[i + 1] += ptr[i]


@numba.njit(cache=True, nogil=True)
def _list_readers(first, last, chunk, shift, rowptr, col, ptr, out):
    """Fill the readers of nodes first..last of a chunk."""
    mask = (1 << shift) - 1
    slot = ptr[first:last].copy()
    for v in range(rowptr.size - 1):
        for e in range(rowptr[v], rowptr[v + 1]):
            u = col[e]
            if u & mask == chunk:
                i = (u >> shift) - first
                if 0 <= i < slot.size:
                    out[slot[i]] = v
                    slot[i] += 1
