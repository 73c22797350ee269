"""Even tasks from ragged rows: what the kernels on a GPU work through, a warp or so a task.

A row of more than ``most`` edges is cut into *parts* of nearly equal size, whose results a second
launch merges in a fixed order; every other row is one task. Tasks are a function of the row pointer
alone, so that the same graph gives the same sums, bit for bit.

Legend: P rows, E edges, T tasks, Q parts, R rows that are cut.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

DENSE_DEGREE = 128  # the mean in-degree from which on tasks are large
MOST, MOST_DENSE = 256, 1024  # edges of a task
MOST_MERGED = 128  # parts that one task merges
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
    kept: dict[tuple, list]  # what kernels made of the tasks, by what it depends on

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
    of 0..P-1. Linear in P and Q.
    """
    degree, num_edges = rowptr.diff(), int(rowptr[-1])
    if most is None:
        most = MOST_DENSE if num_edges >= DENSE_DEGREE * degree.numel() else MOST
    row_type = torch.int32 if degree.numel() < _INT32 else torch.int64
    start_type = torch.int32 if num_edges < _INT32 else torch.int64
    if names is None:
        names = torch.arange(degree.numel(), dtype=row_type, device=rowptr.device)
    long = degree > most
    parts = torch.nonzero(long).flatten()
    row, start, size, order, merge = _parts(rowptr, degree, parts, most, names)

    whole = torch.nonzero(~long).flatten()
    bounds = torch.tensor(_bounds(most), device=rowptr.device)
    kind = torch.bucketize(degree[whole], bounds).to(torch.int8)
    whole = whole[torch.sort(kind, descending=True, stable=True).indices]
    counts = torch.bincount(kind, minlength=bounds.numel()).tolist()
    return Tasks(
        row=torch.cat([row, names[whole]]),
        start=torch.cat([start.to(start_type), rowptr[whole].to(start_type)]),
        size=torch.cat([size.to(torch.int32), degree[whole].to(torch.int32)]),
        order=order.to(torch.int32),
        spans=_spans(order.numel(), counts, most),
        merge=merge,
        kept={},
    )


def _parts(
    rowptr: Tensor, degree: Tensor, cut: Tensor, most: int, names: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tasks | None]:
    """Row, start, size and order of the parts of rows ``cut``, and the tasks that merge them."""
    if not cut.numel():
        return names[:0], cut, cut, cut, None
    size, first = degree[cut], rowptr[cut]
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
    return bounds


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
