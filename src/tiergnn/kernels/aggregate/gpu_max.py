"""The Triton kernels of maxima, and of where their gradient goes: as those of sums.

Legend: P destinations, S sources, E edges, Q parts, D columns; R ROWS, U UNROLL, L LANES, W BLOCK.
"""

# Triton's annotations do not know what a kernel's numbers are.
# pyright: reportArgumentType=false, reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from tiergnn.kernels.aggregate.gpu_kernels import (
    RANGES,
    edges_of,
    open_tasks,
    reaches,
    round_to,
    times,
)
from tiergnn.kernels.gpu_rows import places_at


@triton.jit(do_not_specialize=RANGES)
def max_kernel(
    x,
    col,
    weight,
    count,
    out,
    ties,
    part_out,
    part_ties,
    row,
    start,
    size,
    first,
    last,
    num_parts,
    STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
    SHIFT: tl.constexpr,
    ELEMENT: tl.constexpr,
    VECTOR: tl.constexpr,
    HEADS: tl.constexpr,
    FEATURES: tl.constexpr,
    SUM: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    UNROLL: tl.constexpr,
    LANES: tl.constexpr,
):
    """The largest message weight * x[col] of each task [P, D] or [Q, D], and how many reach it.

    ``count`` [Q, D]: how many each row of x stands for (None: one). NaN is larger than any number.
    """
    STEP: tl.constexpr = UNROLL * LANES
    task, own, target, begin, num_edges = open_tasks(row, start, size, first, last, ROWS)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    within = d < WIDTH
    e = tl.arange(0, STEP)[None, :]
    best = tl.full((ROWS, STEP, BLOCK), float("-inf"), SUM)
    number = tl.zeros((ROWS, STEP, BLOCK), tl.int32)
    for i in range(0, tl.max(num_edges, 0), STEP):
        live = i + e < num_edges[:, None]
        at = begin[:, None] + i + e
        source, factor = edges_of(col, weight, None, at, live, SUM, HEADS)
        rows = places_at(x, source, live, STRIDE, SHIFT, ELEMENT, VECTOR)
        inside = live[:, :, None] & within[None, None, :]
        message = tl.load(rows[:, :, None] + d[None, None, :], mask=inside, other=0)
        if weight is not None:
            product = times(message.to(SUM), factor, weight, d, SUM, HEADS, FEATURES)
            message = product.to(message.dtype)
        message = message.to(SUM)
        more = tl.full((ROWS, STEP, BLOCK), 1, tl.int32)
        if count is not None:
            place = (source.to(tl.int64) * STRIDE)[:, :, None] + d[None, None, :]
            more = tl.load(count + place, mask=inside, other=0)
        larger = (message > best) | ((message != message) & (best == best))
        kept = tl.where(reaches(message, best), number + more, number)
        number = tl.where(inside, tl.where(larger, more, kept), number)
        best = tl.where(inside & larger, message, best)
    odd = best != best
    any_odd = tl.max(odd.to(tl.int32), 1) > 0
    largest = tl.max(tl.where(odd, float("-inf"), best), 1)
    largest = tl.where(any_odd, float("nan"), largest)
    number = tl.sum(tl.where(reaches(best, largest[:, None, :]), number, 0), 1)
    largest = tl.where((num_edges > 0)[:, None], largest, 0.0)

    if part_out is not None:
        place = task.to(tl.int64)[:, None] * WIDTH + d[None, :]
        mask = (own & (task < num_parts))[:, None] & within[None, :]
        tl.store(part_out + place, largest.to(part_out.dtype.element_ty), mask=mask)
        tl.store(part_ties + place, number, mask=mask)
    place = target[:, None] * WIDTH + d[None, :]
    mask = (own & (task >= num_parts))[:, None] & within[None, :]
    tl.store(out + place, largest.to(out.dtype.element_ty), mask=mask)
    tl.store(ties + place, number, mask=mask)


@triton.jit(do_not_specialize=RANGES)
def max_grad_kernel(
    share,
    best,
    x,
    dst,
    weight,
    edge,
    out,
    part,
    row,
    start,
    size,
    first,
    last,
    num_parts,
    STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    FEATURES: tl.constexpr,
    SUM: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    UNROLL: tl.constexpr,
    LANES: tl.constexpr,
):
    """out[row] [S, D] or part[task]: sum over out-edges of weight * share[dst] [P, D].

    Only those count whose message weight * x[row] is best[dst] [P, D].
    """
    STEP: tl.constexpr = UNROLL * LANES
    task, own, target, begin, num_edges = open_tasks(row, start, size, first, last, ROWS)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    within = d < WIDTH
    e = tl.arange(0, STEP)[None, :]
    inside = own[:, None] & within[None, :]
    mine = tl.load(x + target[:, None] * STRIDE + d[None, :], mask=inside, other=0)[:, None, :]
    acc = tl.zeros((ROWS, STEP, BLOCK), SUM)
    for i in range(0, tl.max(num_edges, 0), STEP):
        live = i + e < num_edges[:, None]
        at = begin[:, None] + i + e
        target_of, factor = edges_of(dst, weight, edge, at, live, SUM, HEADS)
        place = (target_of.to(tl.int64) * WIDTH)[:, :, None] + d[None, None, :]
        there = live[:, :, None] & within[None, None, :]
        limit = tl.load(best + place, mask=there, other=0)
        passed = tl.load(share + place, mask=there, other=0)
        message = mine
        if weight is not None:
            message = times(mine.to(SUM), factor, weight, d, SUM, HEADS, FEATURES).to(mine.dtype)
            passed = times(passed, factor, weight, d, SUM, HEADS, FEATURES)
        acc += tl.where(reaches(message, limit), passed, 0.0)
    total = tl.sum(acc, 1)
    if part is not None:
        place = part + task.to(tl.int64)[:, None] * WIDTH + d[None, :]
        split = (own & (task < num_parts))[:, None] & within[None, :]
        tl.store(place, round_to(total, part), mask=split)
    whole = (own & (task >= num_parts))[:, None] & within[None, :]
    place = out + target[:, None] * WIDTH + d[None, :]
    tl.store(place, round_to(total, out), mask=whole)
