"""Boundary rows by class: rows of one owner that the same other parts read.

What an exchange plans are classes, of which few are enough for millions of rows.

Legend: V nodes, E edges, K parts, N boundary rows, C classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numba
import numpy as np

from tiergnn.errors import ConfigError, GraphError
from tiergnn.graph.radix import sort_with_order

if TYPE_CHECKING:
    from tiergnn.graph.partition import Partition
    from tiergnn.graph.shape import GraphShape

MOST_PARTS = 64  # a set of parts is the bits of one word
_MOST_EXPECTED = 12  # 2^(K-1) sets of readers a part


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """So many rows of ``owner`` that each of ``readers`` reads; readers ascend."""

    owner: int
    readers: tuple[int, ...]
    rows: int

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.readers, self.readers[1:], strict=False))
        if not self.readers or not rising or self.owner in self.readers:
            raise ConfigError(
                f"readers ascend and the owner is none of them, had {self.readers} of {self.owner}"
            )
        if min(self.owner, *self.readers) < 0 or self.rows < 1:
            raise ConfigError(f"a demand is of rows of parts, had {self}")

    def __str__(self) -> str:
        return f"demand {self.owner} readers {','.join(map(str, self.readers))} rows {self.rows}"

    @classmethod
    def parse(cls, text: str) -> Demand:
        """Raises ConfigError for a line that is no demand."""
        words = text.split()
        if len(words) != 6 or words[::2] != ["demand", "readers", "rows"]:
            raise ConfigError(f"not a demand: {text!r}", hint="demand OWNER readers R,R rows N")
        try:
            readers = tuple(map(int, words[3].split(",")))
            return cls(owner=int(words[1]), readers=readers, rows=int(words[5]))
        except ValueError as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"not a demand: {text!r}") from error


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Boundary:
    """The boundary rows of all parts, by class; classes ascend by owner, then by set of readers.

    Rows of class c are ``row[ptr[c]:ptr[c+1]]``, each by its number among its owner's rows,
    ascending. A row stands once, but after ``within``: once for each group that reads it.
    """

    num_parts: int
    owner: np.ndarray  # int32 [C]
    readers: np.ndarray  # uint64 [C]: bit p for part p
    ptr: np.ndarray  # int64 [C+1]
    row: np.ndarray  # int32 or int64 [N]

    @property
    def num_classes(self) -> int:
        return self.owner.size

    @property
    def demands(self) -> tuple[Demand, ...]:
        """The classes as plain data, in order."""
        sets = self.readers.tolist()
        known = {bits: _members(bits) for bits in set(sets)}
        counts = np.diff(self.ptr).tolist()
        return tuple(
            Demand(owner=owner, readers=known[bits], rows=rows)
            for owner, bits, rows in zip(self.owner.tolist(), sets, counts, strict=True)
        )

    def within(self, most: int) -> Boundary:
        """At most ``most`` classes by cutting sets of readers; else as few as that gives.

        A class's readers are asked for by groups of 32, 16, ... 1 neighbouring parts, the widest
        that are few enough classes: each group is then served by itself.
        """
        fewest, width = self, 32
        while fewest.num_classes > most and width:
            found = self._cut(width)
            fewest = min(fewest, found, key=lambda boundary: boundary.num_classes)
            width //= 2
        return fewest

    def _cut(self, width: int) -> Boundary:
        owner = np.repeat(self.owner, np.diff(self.ptr))
        readers = np.repeat(self.readers, np.diff(self.ptr))
        owners, sets, rows = [], [], []
        for first in range(0, self.num_parts, width):
            group = readers & np.uint64(((1 << width) - 1) << first)
            held = group != 0
            owners.append(owner[held])
            sets.append(group[held])
            rows.append(self.row[held])
        owner, readers, row = (np.concatenate(each) for each in (owners, sets, rows))
        ascending = sort_with_order(row.astype(np.uint64))[1]  # classes that meet in one interleave
        return _grouped(self.num_parts, owner[ascending], readers[ascending], row[ascending])


def boundary_of(partition: Partition) -> Boundary:
    """One pass over the edges and a radix sort of the boundary rows; holds two numbers a node.

    Raises GraphError for more than 64 parts.
    """
    if partition.num_parts > MOST_PARTS:
        raise GraphError(
            f"readers of rows are told apart for {MOST_PARTS} parts, had {partition.num_parts}",
            hint="fewer parts, or an exchange that is not planned",
        )
    graph = partition.graph
    readers = np.zeros(graph.num_nodes, np.uint64)
    _readers(graph.rowptr, graph.col, partition.part_of, readers)
    readers = readers[partition.order]
    place = np.flatnonzero(readers)
    owner = partition.part_of[partition.order[place]]
    row = (place - partition.part_ptr[owner]).astype(partition.order.dtype)
    return _grouped(partition.num_parts, owner, readers[place], row)


def _grouped(num_parts: int, owner: np.ndarray, readers: np.ndarray, row: np.ndarray) -> Boundary:
    """Rows by (owner, readers), which keep their order within a class."""
    order = sort_with_order(readers.copy())[1]
    order = order[sort_with_order(owner[order].astype(np.uint64))[1]]
    owner, readers, row = owner[order], readers[order], row[order]
    fresh = np.ones(owner.size, bool)
    fresh[1:] = (owner[1:] != owner[:-1]) | (readers[1:] != readers[:-1])
    first = np.flatnonzero(fresh)
    return Boundary(
        num_parts=num_parts,
        owner=owner[first].astype(np.int32),
        readers=readers[first],
        ptr=np.append(first, owner.size).astype(np.int64),
        row=row,
    )


@numba.njit(cache=True, nogil=True)
def _readers(rowptr, col, part_of, readers):
    """Set in readers [V] the bit of each other part that reads a row."""
    for v in range(rowptr.size - 1):
        part = part_of[v]
        bit = np.uint64(1) << np.uint64(part)
        for e in range(rowptr[v], rowptr[v + 1]):
            if part_of[col[e]] != part:
                readers[col[e]] |= bit


def _members(bits: int) -> tuple[int, ...]:
    return tuple(part for part in range(bits.bit_length()) if bits >> part & 1)


def expected_demands(shape: GraphShape, num_parts: int) -> tuple[Demand, ...]:
    """The classes of equal parts drawn at random, on average and rounded, from degrees alone.

    A row with d destinations is read by n other parts with the chance that d draws of K parts hit
    n of them, a walk from d to d + 1; all sets of n are alike. Edges that repeat count as several.
    Raises ConfigError for more than 12 parts.
    """
    if not 1 <= num_parts <= _MOST_EXPECTED:
        raise ConfigError(
            f"expected classes are listed for 1 to {_MOST_EXPECTED} parts, had {num_parts}",
            hint="the classes of a partition",
        )
    others = num_parts - 1
    degrees = np.array(shape.out_degrees.degrees, np.float64)
    counts = np.array(shape.out_degrees.counts, np.float64)
    step = np.zeros((num_parts, num_parts))  # [from, to] numbers of other parts that were hit
    for hit in range(num_parts):
        step[hit, hit] = (1 + hit) / num_parts
        if hit < others:
            step[hit, hit + 1] = (others - hit) / num_parts
    rows = np.zeros(num_parts)
    power, chance, bits = step, np.zeros((degrees.size, num_parts)), degrees.astype(np.int64)
    chance[:, 0] = 1.0
    while bits.any():  # each degree's power of the step, by squares
        odd = (bits & 1).astype(bool)
        chance[odd] = chance[odd] @ power
        power, bits = power @ power, bits >> 1
    rows = counts @ chance
    demands = []
    for owner in range(num_parts):
        for code in range(1, 1 << others):
            hit = code.bit_count()
            share = rows[hit] / math.comb(others, hit) / num_parts
            low = code & ((1 << owner) - 1)  # the owner's own bit is left out of a code
            readers = _members(low | (code - low) << 1)
            if math.floor(share + 0.5):
                demands.append(Demand(owner=owner, readers=readers, rows=math.floor(share + 0.5)))
    return tuple(demands)
