"""Running softmaxes in Triton: absorbing edges, and merging what parts of rows come to.

Every lane of a task keeps a softmax of its own over the edges that it sees; lanes are merged when
the task is done, and tasks that share a row in further launches, in float64 and in a fixed order.
Sums are kept twice, over all edges and over the *steep* ones (whose leaky_relu has slope 1), when
TRAIN.

Legend: P destinations, Q parts, K heads, F features; R ROWS, U UNROLL, L LANES, H HEADS, W WIDTH.
"""

# Triton types constants as constexpr, and gives no type to what a kernel is called with.
# pyright: reportArgumentType=false, reportAssignmentType=false

from __future__ import annotations

import triton
import triton.language as tl

from tiergnn.kernels.aggregate.gpu_kernels import RANGES, open_tasks
from tiergnn.kernels.attention.gpu_tile import (
    load_heads,
    load_rows,
    open_columns,
    open_edges,
    store_scores,
    store_sums,
)


@triton.jit
def finite(best):
    """The maximum, or 0 where nothing was seen: exp(-inf - 0) is 0."""
    return tl.where(best == float("-inf"), 0.0, best)


@triton.jit
def absorb(
    logit,
    rises,
    factor,
    tile,
    best,
    total,
    acc,
    steep_total,
    steep_acc,
    DROPOUT: tl.constexpr,
    TRAIN: tl.constexpr,
):
    """The lanes' softmaxes with one more step of edges: logits [R, U, L, H], rows [R, U, L, H, W].

    ``factor`` multiplies the coefficients in the sum of rows; ``rises`` says which edges are steep.
    """
    highest = tl.maximum(best, tl.max(logit, 1))
    shrink = tl.exp(best - finite(highest))
    weight = tl.exp(logit - finite(highest)[:, None, :, :])
    total = total * shrink + tl.sum(weight, 1)
    if TRAIN:
        steep_total = steep_total * shrink + tl.sum(tl.where(rises, weight, 0.0), 1)
    if DROPOUT:
        weight *= factor
    shrink = shrink[:, :, :, None]
    acc = acc * shrink + tl.sum(weight[:, :, :, :, None] * tile, 1)
    if TRAIN:
        weight = tl.where(rises, weight, 0.0)
        steep_acc = steep_acc * shrink + tl.sum(weight[:, :, :, :, None] * tile, 1)
    return highest, total, acc, steep_total, steep_acc


@triton.jit
def close_lanes(best, total, acc):
    """One softmax of those of a task's lanes: [R, L, H] and [R, L, H, W] over axis 1."""
    highest = tl.max(best, 1)
    shrink = tl.exp(best - finite(highest)[:, None, :])
    return highest, tl.sum(total * shrink, 1), tl.sum(acc * shrink[:, :, :, None], 1)


@triton.jit
def store_softmax(
    whole,
    split,
    task,
    target,
    best,
    total,
    acc,
    steep_total,
    steep_acc,
    head,
    column,
    scored,
    within,
    has_edges,
    num_parts,
    out,
    out_best,
    out_inverse,
    out_steep,
    out_steep_total,
    part_best,
    part_total,
    part_acc,
    K: tl.constexpr,
    F: tl.constexpr,
    TRAIN: tl.constexpr,
):
    """Write finished rows [P, ...] where ``whole`` [R], unfinished parts [Q, ...] where ``split``.

    total [R, H], acc [R, H, W]. part_total [2, Q, K] and part_acc [2, Q, K*F] hold the sums over
    all edges, then those over steep ones; a head's numbers are written where ``scored`` [H]. A row
    that ``has_edges`` [R], all with logits of -inf, is NaN: so is torch's softmax.
    """
    inverse = 1.0 / (total + 1e-16)
    inverse = tl.where((best == float("-inf")) & has_edges[:, None], float("nan"), inverse)
    store_sums(whole, target, acc * inverse[:, :, None], out, column, within, K * F)
    if out_best is not None:
        store_scores(whole, target, best, out_best, head, scored, K)
        store_scores(whole, target, inverse, out_inverse, head, scored, K)
        if TRAIN:
            steep = steep_acc * inverse[:, :, None]
            store_sums(whole, target, steep, out_steep, column, within, K * F)
            store_scores(whole, target, steep_total * inverse, out_steep_total, head, scored, K)
    if part_best is not None:
        part = task.to(tl.int64)
        store_scores(split, part, best, part_best, head, scored, K)
        store_scores(split, part, total, part_total, head, scored, K)
        store_sums(split, part, acc, part_acc, column, within, K * F)
        if TRAIN:
            part += num_parts
            store_scores(split, part, steep_total, part_total, head, scored, K)
            store_sums(split, part, steep_acc, part_acc, column, within, K * F)


@triton.jit(do_not_specialize=[*RANGES, "num_before"])
def merge_kernel(
    best,
    total,
    acc,
    order,
    out,
    out_best,
    out_inverse,
    out_steep,
    out_steep_total,
    part_best,
    part_total,
    part_acc,
    row,
    start,
    size,
    first,
    last,
    num_parts,
    num_before,
    K: tl.constexpr,
    F: tl.constexpr,
    TRAIN: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    UNROLL: tl.constexpr,
    LANES: tl.constexpr,
):
    """Merge softmaxes best [Q, K], total [2, Q, K], acc [2, Q, K*F]; num_before is their Q.

    order [Q]: the parts by row and edge, as the tasks name them.
    """
    STEP: tl.constexpr = UNROLL * LANES
    task, own, target, begin, num_edges = open_tasks(row, start, size, first, last, ROWS)
    _first_head, head, column, in_head, within, first_columns = open_columns(K, F, HEADS, WIDTH)
    e, at, left = open_edges(begin, num_edges, UNROLL, LANES)
    run_best = tl.full((ROWS, LANES, HEADS), float("-inf"), tl.float64)
    run_total = tl.zeros((ROWS, LANES, HEADS), tl.float64)
    run_acc = tl.zeros((ROWS, LANES, HEADS, WIDTH), tl.float64)
    run_steep_total = tl.zeros((ROWS, LANES, HEADS), tl.float64)
    run_steep_acc = tl.zeros((ROWS, LANES, HEADS, WIDTH), tl.float64)
    for i in range(0, tl.max(num_edges, 0), STEP):
        live = i + e < left
        place = tl.load(order + at + i, mask=live, other=0).to(tl.int64)
        new_best = load_heads(best, place, live, head, in_head, K).to(tl.float64)
        new_best = tl.where(live[:, :, :, None], new_best, float("-inf"))
        highest = tl.maximum(run_best, tl.max(new_best, 1))
        old = tl.exp(run_best - finite(highest))
        new = tl.exp(new_best - finite(highest)[:, None, :, :])
        run_best = highest
        more = load_heads(total, place, live, head, in_head, K).to(tl.float64)
        run_total = run_total * old + tl.sum(more * new, 1)
        tile = load_rows(acc, place, live, column, within, K * F, tl.float64, HEADS)
        run_acc = run_acc * old[:, :, :, None] + tl.sum(tile * new[:, :, :, :, None], 1)
        if TRAIN:
            place += num_before
            more = load_heads(total, place, live, head, in_head, K).to(tl.float64)
            run_steep_total = run_steep_total * old + tl.sum(more * new, 1)
            tile = load_rows(acc, place, live, column, within, K * F, tl.float64, HEADS)
            more = tl.sum(tile * new[:, :, :, :, None], 1)
            run_steep_acc = run_steep_acc * old[:, :, :, None] + more
    highest, all_total, all_acc = close_lanes(run_best, run_total, run_acc)
    highest, steep_total, steep_acc = close_lanes(run_best, run_steep_total, run_steep_acc)
    store_softmax(
        own & (task >= num_parts),
        own & (task < num_parts),
        task,
        target,
        highest,
        all_total,
        all_acc,
        steep_total,
        steep_acc,
        head,
        column,
        in_head & first_columns,
        within,
        num_edges > 0,
        num_parts,
        out,
        out_best,
        out_inverse,
        out_steep,
        out_steep_total,
        part_best,
        part_total,
        part_acc,
        K,
        F,
        TRAIN,
    )
