"""Even tasks from ragged rows: what the kernels on a GPU work through, a warp or so a task.

A row of more than ``most`` edges is cut into *parts* of nearly equal size, whose results a second
launch merges in a fixed order; every other row is one task. Tasks are a function of the row pointer
alone, so that the same graph gives the same sums, bit for bit.

Legend: P rows, E edges, T tasks, Q parts, R rows that are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import NamedTuple, TypeVar

import numba
import numpy as np
import torch
from torch import Tensor

from tiergnn.packed import DENSE_DEGREE, MOST, MOST_DENSE, MOST_MERGED, PACKED_BYTES, packed_bytes

_SHARES = 1024  # of a row that parts are ordered by
_INT32 = 2**31
Shape = TypeVar("Shape")


class Span(NamedTuple):
    """Tasks first..last-1, none of which has more than ``longest`` edges."""

    first: int
    last: int
    longest: int


class Tasks(NamedTuple):
    """Rows of a CSR as tasks of edges start..start+size-1: parts first, then whole rows.

    Task q < num_parts is part q. Parts stand by the share of their row that lies before them, so
    that those which run side by side read neighbouring sources (columns ascend); ``order`` lists
    them by row and edge, and the edges of ``merge`` are places in it. Whole rows stand by size,
    large ones first, rows without edges last. ``spans`` cover all tasks; those of one span are of
    similar sizes (the largest at most 1.5 times the smallest, or twice for parts), whole rows in
    the order of rows, which keeps the locality that the graph's own order has.
    """

    row: Tensor  # [T], int32 where rows fit
    start: Tensor  # [T], int32 where edges fit
    size: Tensor  # int32 [T]: edges
    order: Tensor  # int32 [Q]
    spans: tuple[Span, ...]
    merge: Tasks | None  # the rows that were cut
    kept: dict[tuple, list]  # what kernels made of the tasks, by what it depends on; no memory
    memory: Tensor | None = None  # uint8, where all of them lie in one piece: see ``packed``

    @property
    def num_tasks(self) -> int:
        return self.row.numel()

    @property
    def num_parts(self) -> int:
        return self.order.numel()


def cut_rows(rowptr: Tensor, *, most: int | None = None, names: Tensor | None = None) -> Tasks:
    """The tasks of the rows of ``rowptr`` int64 [P+1], on its device, for which it waits.

    No task has more than ``most`` edges, a power of two; None: by the mean degree, since small
    parts share caches better, but are more to merge. ``names`` [P] stands in ``row`` in the place
    of 0..P-1. Linear in P and Q. At most a GPU holds some 60 bytes a row, a CPU 16; 12 stay.
    """
    num_rows, num_edges = rowptr.numel() - 1, int(rowptr[-1])
    if most is None:
        most = MOST_DENSE if num_edges >= DENSE_DEGREE * num_rows else MOST
    row_type = torch.int32 if num_rows < _INT32 else torch.int64
    start_type = torch.int32 if num_edges < _INT32 else torch.int64
    if names is None:
        names = torch.arange(num_rows, dtype=row_type, device=rowptr.device)
    cut = torch.nonzero(rowptr.diff() > most).flatten()
    row, start, size, order, merge = _parts(rowptr, cut, most, names)
    count = order.numel()
    num_tasks = count + num_rows - cut.numel()
    made = [
        torch.empty(num_tasks, dtype=dtype, device=rowptr.device)
        for dtype in (names.dtype, start_type, torch.int32)
    ]
    for array, of_parts in zip(made, (row, start, size), strict=True):
        array[:count] = of_parts
    counts = _whole_rows(rowptr, most, names, [array[count:] for array in made])
    row, start, size = made
    spans = _spans(count, counts, most)
    return Tasks(row, start, size, order.to(torch.int32), spans, merge, {})


def _whole_rows(rowptr: Tensor, most: int, names: Tensor, out: list[Tensor]) -> list[int]:
    """Writes rows, starts and sizes of all that are not cut, large ones first. How many there are
    of each of ``_bounds``."""
    bounds = torch.tensor(_bounds(most), device=rowptr.device)
    by = _by_counting if rowptr.device.type == "cpu" else _by_sorting
    return by(rowptr, bounds, most, names, out).tolist()


def _by_sorting(
    rowptr: Tensor, bounds: Tensor, most: int, names: Tensor, out: list[Tensor]
) -> Tensor:
    degree = rowptr.diff()
    whole = torch.nonzero(degree <= most).flatten()
    kind = torch.bucketize(degree[whole], bounds).to(torch.int8)
    whole = whole[torch.sort(kind, descending=True, stable=True).indices]
    for array, values in zip(out, (names, rowptr, degree), strict=True):
        array.copy_(values[whole])
    return torch.bincount(kind, minlength=bounds.numel())


def _by_counting(
    rowptr: Tensor, bounds: Tensor, most: int, names: Tensor, out: list[Tensor]
) -> Tensor:
    """Without room for more, on a CPU."""
    counts = torch.zeros_like(bounds)
    _sort_rows(most, *(array.numpy() for array in (rowptr, bounds, names, counts, *out)))
    return counts


@numba.njit(cache=True, nogil=True)
def _sort_rows(most, rowptr, bounds, names, counts, out_row, out_start, out_size):
    for row in range(rowptr.size - 1):
        degree = rowptr[row + 1] - rowptr[row]
        if degree <= most:
            counts[np.searchsorted(bounds, degree)] += 1
    place = np.zeros_like(counts)
    for kind in range(counts.size - 2, -1, -1):
        place[kind] = place[kind + 1] + counts[kind + 1]
    for row in range(rowptr.size - 1):
        degree = rowptr[row + 1] - rowptr[row]
        if degree <= most:
            kind = np.searchsorted(bounds, degree)
            at = place[kind]
            place[kind] += 1
            out_row[at] = names[row]
            out_start[at] = rowptr[row]
            out_size[at] = degree


def _parts(
    rowptr: Tensor, cut: Tensor, most: int, names: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tasks | None]:
    """Row, start, size and order of the parts of rows ``cut``, and the tasks that merge them."""
    if not cut.numel():
        return names[:0], cut, cut, cut, None
    first = rowptr[cut]
    size = rowptr[cut + 1] - first
    pieces = (size + most - 1) // most
    part_ptr = torch.zeros(cut.numel() + 1, dtype=torch.int64, device=rowptr.device)
    torch.cumsum(pieces, 0, out=part_ptr[1:])
    num_parts = int(part_ptr[-1])
    owner = torch.arange(cut.numel(), device=rowptr.device)
    owner = torch.repeat_interleave(owner, pieces, output_size=num_parts)
    rank = torch.arange(num_parts, device=rowptr.device) - part_ptr[owner]
    by_share = torch.sort(_SHARES * rank // pieces[owner], stable=True).indices
    order = torch.empty_like(by_share)
    order[by_share] = torch.arange(num_parts, device=rowptr.device)
    owner, rank = owner[by_share], rank[by_share]
    size, pieces = size[owner], pieces[owner]
    begin, end = size * rank // pieces, size * (rank + 1) // pieces
    merge = cut_rows(part_ptr, most=MOST_MERGED, names=names[cut])
    return names[cut][owner], first[owner] + begin, end - begin, order, merge


def _bounds(most: int) -> list[int]:
    """The largest sizes of the spans: 0, 1, 2, 3, 4, 6, 8, 12 ... most."""
    bounds = [0, 1, 2, 3, 4]
    while bounds[-1] < most:
        bounds.append(2 * bounds[-2])
    return [bound for bound in bounds if bound <= most]


def _spans(first: int, counts: list[int], most: int) -> tuple[Span, ...]:
    spans = [Span(0, first, most)] if first else []
    for longest, count in reversed(list(zip(_bounds(most), counts, strict=True))):
        if count:
            spans.append(Span(first, first + count, longest))
            first += count
    return tuple(spans)


def launches(tasks: Tasks, shape_of: Callable[[int], Shape]) -> list[tuple[Span, Shape]]:
    """Tasks by launch: neighbouring spans whose ``shape_of(longest)`` is one become one."""
    found = []
    for shape, group in groupby(tasks.spans, key=lambda span: shape_of(span.longest)):
        spans = list(group)
        found.append((Span(spans[0].first, spans[-1].last, spans[0].longest), shape))
    return found


def packed(tasks: Tasks, num_rows: int, num_edges: int) -> Tasks:
    """The same in one piece of memory, to be copied in one go: ``packed.packed_bytes`` of it,
    which the degrees do not change."""
    memory = tasks.row.new_zeros(packed_bytes(num_rows, num_edges), dtype=torch.uint8)
    there = placed(tasks, memory)
    for own, place in zip(_arrays(tasks), _arrays(there), strict=True):
        place.copy_(own)
    return there


def placed(tasks: Tasks, memory: Tensor, at: int = 0) -> Tasks:
    """Those of packed tasks of which ``memory`` is a copy; they begin ``at`` a byte of it."""
    arrays = []
    for array in (tasks.row, tasks.start, tasks.size, tasks.order):
        num_bytes = array.numel() * array.element_size()
        arrays.append(memory[at : at + num_bytes].view(array.dtype))
        at += -(-num_bytes // PACKED_BYTES) * PACKED_BYTES
    merge = None if tasks.merge is None else placed(tasks.merge, memory, at)
    row, start, size, order = arrays
    return Tasks(row, start, size, order, tasks.spans, merge, {}, memory)


def _arrays(tasks: Tasks) -> Iterator[Tensor]:
    yield from (tasks.row, tasks.start, tasks.size, tasks.order)
    if tasks.merge is not None:
        yield from _arrays(tasks.merge)
