"""Level: a graph as the switching partitioner walks it, whole or with its nodes merged.

Legend: V nodes, E edges, n nodes of a level, C criteria.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numba
import numpy as np

from tiergnn.graph.draws import draw, stream_key
from tiergnn.threads import spread

_SMALL = 1 << 20  # edges up to which handing out pieces takes longer than one thread's work
_SYMMETRY = 1 << 20  # the stream of random numbers that compare a graph with its reverse
ONE, DEGREE = -1, -2  # columns of loads that nobody stores: one a node, and its in-edges


class Loads(NamedTuple):
    """What each of n nodes adds to the C loads of its part; ``amount`` reads one.

    column int64 [C] says where each stands: a column of ``stored`` (whole numbers [n, S]), ONE,
    or DEGREE, which is read off rowptr int64 [n+1]. So that nodes and edges are held level takes
    no memory.
    """

    column: np.ndarray
    stored: np.ndarray
    rowptr: np.ndarray

    @classmethod
    def of(cls, stored: np.ndarray) -> Loads:
        """Loads that are all stored, [n, C]."""
        return cls(np.arange(stored.shape[1]), stored, np.empty(0, np.int64))

    def by_part(self, part_of: np.ndarray, num_parts: int) -> np.ndarray:
        """int64 [C, num_parts]: what the nodes of each part add up to; part_of int32 [n]."""
        out = np.zeros((self.column.size, num_parts), np.int64)
        _add_up(part_of, self, out)
        return out


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Level:
    """Edges of n nodes, and what each node adds to the loads of its part.

    col[rowptr[v]:rowptr[v+1]] are the nodes that v reads, weight [E] how often (empty: once
    each). Nodes are decided in 2**shift chunks, one after the other: v = chunk,
    chunk + 2**shift, ... ``two_way``: whoever is read reads as often, so that ``col`` lists
    readers too; if not, those of one chunk at a time are listed, or all once where ``keep`` says
    so, and other numbers a node may be held.
    """

    rowptr: np.ndarray
    col: np.ndarray
    weight: np.ndarray
    load: Loads
    two_way: bool
    shift: int
    num_threads: int
    keep: bool = False
    _kept: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list, init=False)

    @property
    def num_nodes(self) -> int:
        return self.rowptr.size - 1

    @property
    def is_small(self) -> bool:
        """Whether one thread does all of a pass over the level, in one compiled call."""
        return self.col.size <= _SMALL and (self.two_way or self.keep)

    @property
    def num_steps(self) -> int:
        """How many steps of progress a pass over the level is."""
        return 1 if self.is_small else 1 << self.shift

    def num_pieces(self, each: int = 1) -> int:
        """Into how many pieces work is cut: so many for each thread, one where it is little."""
        return each * self.num_threads if self.col.size > _SMALL else 1

    def spread(self, work: Callable[[int, int], None], num_tasks: int) -> None:
        """``threads.spread`` over the level's threads, or this one alone where it is small."""
        spread(work, num_tasks, self.num_pieces())

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Each chunk and how many nodes it has."""
        for chunk in range(min(1 << self.shift, self.num_nodes)):
            yield chunk, ((self.num_nodes - 1 - chunk) >> self.shift) + 1

    def readers(self, chunk: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Pointers [count+1] and the readers of the chunk's nodes, ascending.

        Of all nodes, [n+1], where they are kept; of none, [1], where the level is two-way.
        """
        if self.two_way:
            return np.zeros(1, np.int64), self.col[:0]
        if not self.keep:
            return self._listed(chunk, count, self.shift)
        if not self._kept:
            self._kept.append(self._listed(0, self.num_nodes, 0))
        return self._kept[0]

    def _listed(self, chunk: int, count: int, shift: int) -> tuple[np.ndarray, np.ndarray]:
        pieces = self.num_pieces()
        rows = np.arange(pieces + 1) * self.num_nodes // pieces
        slot = np.zeros((pieces, count), np.int64)  # where each piece of rows writes next
        given = (rows, chunk, shift, self.rowptr, self.col, slot)
        self.spread(lambda first, last: _count_readers(first, last, *given), pieces)
        ptr = _place_readers(slot)
        out = np.empty(int(ptr[-1]), self.col.dtype)
        self.spread(lambda first, last: _list_readers(first, last, *given, out), pieces)
        return ptr, out


def is_two_way(rowptr: np.ndarray, col: np.ndarray, num_threads: int) -> bool:
    """Whether every edge has its reverse, as often; loops aside. Holds nothing.

    Sums over all edges of a random number of (source, destination) less that of the reverse: of
    any graph that is not, it is zero with a chance of 2**-64.
    """
    num_nodes = rowptr.size - 1
    pieces = 256 if col.size > _SMALL else 1
    bounds = np.arange(pieces + 1) * num_nodes // pieces
    sums = np.zeros(pieces, np.uint64)
    key = stream_key(0, _SYMMETRY)
    spread(
        lambda first, last: _asymmetry(first, last, key, bounds, rowptr, col, sums),
        pieces,
        num_threads,
    )
    return int(sums.sum(dtype=np.uint64)) == 0


@numba.njit(cache=True, nogil=True, inline="always")
def chunk_count(num_nodes, chunk, shift):
    """How many nodes a chunk has."""
    return ((num_nodes - 1 - chunk) >> shift) + 1


@numba.njit(cache=True, nogil=True)
def amount(load, v, c):
    """What node v adds to load c of its part."""
    column = load.column[c]
    if column >= 0:
        return np.int64(load.stored[v, column])
    return np.int64(1) if column == ONE else load.rowptr[v + 1] - load.rowptr[v]


@numba.njit(cache=True, nogil=True)
def _add_up(part_of, load, out):
    for v in range(part_of.size):
        for c in range(load.column.size):
            out[c, part_of[v]] += amount(load, v, c)


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
def _count_readers(first, last, rows, chunk, shift, rowptr, col, slot):
    """Count into slot [pieces, count] the readers of a chunk's nodes in each piece of rows."""
    mask = (1 << shift) - 1
    for piece in range(first, last):
        for e in range(rowptr[rows[piece]], rowptr[rows[piece + 1]]):
            if col[e] & mask == chunk:
                slot[piece, col[e] >> shift] += 1


@numba.njit(cache=True, nogil=True)
def _place_readers(slot):
    """Turn counts into where each piece begins to write; returns pointers [count+1]."""
    ptr = np.zeros(slot.shape[1] + 1, np.int64)
    n = 0
    for i in range(slot.shape[1]):
        for piece in range(slot.shape[0]):
            count = slot[piece, i]
            slot[piece, i] = n
            n += count
        ptr[i + 1] = n
    return ptr


@numba.njit(cache=True, nogil=True)
def _list_readers(first, last, rows, chunk, shift, rowptr, col, slot, out):
    mask = (1 << shift) - 1
    for piece in range(first, last):
        for v in range(rows[piece], rows[piece + 1]):
            for e in range(rowptr[v], rowptr[v + 1]):
                u = col[e]
                if u & mask == chunk:
                    out[slot[piece, u >> shift]] = v
                    slot[piece, u >> shift] += 1
