"""GAT attention in Triton: one gather of rows forward, one backward, nothing of edges x heads kept.

The same algebra as on the CPU (see cpu_gat): backward makes the coefficients again, and the
gradient of score_dst comes from the sums over steep edges that forward keeps.

Legend: P destinations, S sources, E edges, Q parts, K heads, F features; R ROWS, U UNROLL, L LANES
(edges side by side in a warp), H HEADS, W WIDTH.
"""

# Triton types constants as constexpr, and gives no type to what a kernel is called with.
# pyright: reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl

from tiergnn.kernels.aggregate.gpu_kernels import RANGES, open_tasks
from tiergnn.kernels.attention.gpu_softmax import absorb, close_lanes, store_softmax
from tiergnn.kernels.attention.gpu_tile import (
    edge_ids,
    inner_products,
    keep_factors,
    leaky,
    leaky_slope,
    load_heads,
    load_rows,
    loop_ids,
    open_columns,
    open_edges,
    store_scores,
    store_sums,
)

SCALARS = [*RANGES, "num_graph_edges", "key", "threshold", "site"]


@triton.jit
def _logits(
    own_score, other, far, terms, spot, live, head, in_head, K: tl.constexpr, STRIDE: tl.constexpr
):
    """Logits of edges before leaky_relu, [R, U, L, H].

    other [.., STRIDE] holds the far ends' scores, terms [.., K] those of edges (or virtual loops).
    """
    logit = own_score + load_heads(other, far, live, head, in_head, STRIDE)
    if terms is not None:
        logit += load_heads(terms, spot, live, head, in_head, K)
    return logit


@triton.jit(do_not_specialize=SCALARS)
def forward_kernel(
    h,
    src,
    dst,
    edge,
    loop,
    col,
    eid,
    gid,
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
    rowptr,
    first,
    last,
    num_parts,
    num_graph_edges,
    key,
    threshold,
    site,
    K: tl.constexpr,
    F: tl.constexpr,
    SLOPE: tl.constexpr,
    SCALE: tl.constexpr,
    SHIFT: tl.constexpr,
    DROPOUT: tl.constexpr,
    SELF_LOOP: tl.constexpr,
    TRAIN: tl.constexpr,
    SUM: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    UNROLL: tl.constexpr,
    LANES: tl.constexpr,
):
    """Rows of out [P, K*F] and what backward wants of them, or parts (see store_softmax)."""
    STEP: tl.constexpr = UNROLL * LANES
    task, own, target, begin, num_edges = open_tasks(row, start, size, first, last, ROWS)
    first_head, head, column, in_head, within, first_columns = open_columns(K, F, HEADS, WIDTH)
    mine, rows = own[:, None, None], target[:, None, None]
    own_score = load_heads(dst, rows, mine, head, in_head, K)

    best = tl.full((ROWS, LANES, HEADS), float("-inf"), SUM)
    total = tl.zeros((ROWS, LANES, HEADS), SUM)
    acc = tl.zeros((ROWS, LANES, HEADS, WIDTH), SUM)
    steep_total = tl.zeros((ROWS, LANES, HEADS), SUM)
    steep_acc = tl.zeros((ROWS, LANES, HEADS, WIDTH), SUM)
    if SELF_LOOP:  # the first lane of the task that begins a row starts with its loop
        begins = mine & (begin == tl.load(rowptr + target, mask=own, other=-1))[:, None, None]
        here = begins & (tl.arange(0, LANES) == 0)[None, None, :]
        loop_logit = _logits(own_score, src, rows, loop, rows, begins, head, in_head, K, K)
        loop_rises = loop_logit > 0
        loop_logit = tl.where(here[:, :, :, None], leaky(loop_logit, SLOPE), float("-inf"))
        loop_factor = loop_logit
        if DROPOUT:
            loop_row_id = loop_ids(rows, begins, gid, num_graph_edges)
            loop_factor = keep_factors(
                loop_row_id, first_head, key, threshold, site, SCALE, SHIFT, HEADS, SUM
            )
        loop_tile = load_rows(h, rows, begins, column, within, K * F, SUM, HEADS)
        best, total, acc, steep_total, steep_acc = absorb(
            loop_logit,
            loop_rises,
            loop_factor,
            loop_tile,
            best,
            total,
            acc,
            steep_total,
            steep_acc,
            DROPOUT,
            TRAIN,
        )

    e, at, left = open_edges(begin, num_edges, UNROLL, LANES)
    source = tl.load(col + at, mask=e < left, other=0).to(tl.int64)
    for i in range(0, tl.max(num_edges, 0), STEP):
        live = i + e < left
        # The next sources are read while these rows are on their way.
        following = tl.load(col + at + (i + STEP), mask=i + STEP + e < left, other=0).to(tl.int64)
        if SELF_LOOP:
            live = live & (source != rows)
        tile = load_rows(h, source, live, column, within, K * F, SUM, HEADS)
        logit = _logits(own_score, src, source, edge, at + i, live, head, in_head, K, K)
        rises = logit > 0
        logit = tl.where(live[:, :, :, None], leaky(logit, SLOPE), float("-inf"))
        factor = logit
        if DROPOUT:
            row_id = edge_ids(at + i, live, eid)
            factor = keep_factors(
                row_id, first_head, key, threshold, site, SCALE, SHIFT, HEADS, SUM
            )
        best, total, acc, steep_total, steep_acc = absorb(
            logit, rises, factor, tile, best, total, acc, steep_total, steep_acc, DROPOUT, TRAIN
        )
        source = following
    highest, all_total, all_acc = close_lanes(best, total, acc)
    highest, steep_total, steep_acc = close_lanes(best, steep_total, steep_acc)
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
        in_head,
        within,
        first_columns,
        (num_edges > 0) | SELF_LOOP,
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


@triton.jit
def _edge_grads(
    own_score,
    own_h,
    h,
    rows,
    mine,
    far,
    live,
    stats,
    grad,
    terms,
    spot,
    row_id,
    first_head,
    head,
    column,
    in_head,
    within,
    key,
    threshold,
    site,
    K: tl.constexpr,
    F: tl.constexpr,
    SLOPE: tl.constexpr,
    SCALE: tl.constexpr,
    SHIFT: tl.constexpr,
    DROPOUT: tl.constexpr,
    SUM: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """What out-edges add to grad_h [R, U, L, H, W], and gradients of their scores [R, U, L, H]."""
    tile = load_rows(grad, far, live, column, within, K * F, SUM, HEADS)
    logit = _logits(own_score, stats + 3 * K, far, terms, spot, live, head, in_head, K, 4 * K)
    best = load_heads(stats, far, live, head, in_head, 4 * K)
    inverse = load_heads(stats + K, far, live, head, in_head, 4 * K)
    alpha = tl.where(live[:, :, :, None], tl.exp(leaky(logit, SLOPE) - best) * inverse, 0.0)
    inner = inner_products(
        h, rows, mine, own_h, grad, far, live, tile, first_head, K, F, SUM, HEADS, WIDTH
    )
    weight = alpha
    if DROPOUT:
        factor = keep_factors(row_id, first_head, key, threshold, site, SCALE, SHIFT, HEADS, SUM)
        weight *= factor
        inner *= factor
    inner -= load_heads(stats + 2 * K, far, live, head, in_head, 4 * K)
    return weight[:, :, :, :, None] * tile, alpha * inner * leaky_slope(logit, SLOPE)


@triton.jit(do_not_specialize=[*SCALARS, "num_dst"])
def backward_kernel(
    h,
    src,
    edge,
    loop,
    grad,
    stats,
    col,
    position,
    eid,
    gid,
    grad_h,
    grad_src,
    grad_edge,
    grad_loop,
    part_h,
    part_src,
    row,
    start,
    size,
    rowptr,
    first,
    last,
    num_parts,
    num_dst,
    num_graph_edges,
    key,
    threshold,
    site,
    K: tl.constexpr,
    F: tl.constexpr,
    SLOPE: tl.constexpr,
    SCALE: tl.constexpr,
    SHIFT: tl.constexpr,
    DROPOUT: tl.constexpr,
    SELF_LOOP: tl.constexpr,
    SUM: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    UNROLL: tl.constexpr,
    LANES: tl.constexpr,
):
    """Rows of grad_h [S, K*F] and grad_src [S, K], or their parts [Q, ...], from out-edges.

    col and position [E]: each out-edge's destination, and its place among the block's edges.
    """
    STEP: tl.constexpr = UNROLL * LANES
    task, own, target, begin, num_edges = open_tasks(row, start, size, first, last, ROWS)
    first_head, head, column, in_head, within, first_columns = open_columns(K, F, HEADS, WIDTH)
    mine, rows = own[:, None, None], target[:, None, None]
    own_score = load_heads(src, rows, mine, head, in_head, K)
    own_h = load_rows(h, rows, mine, column, within, K * F, SUM, HEADS)

    acc = tl.zeros((ROWS, LANES, HEADS, WIDTH), SUM)
    score = tl.zeros((ROWS, LANES, HEADS), SUM)
    e, at, left = open_edges(begin, num_edges, UNROLL, LANES)
    far = tl.load(col + at, mask=e < left, other=0).to(tl.int64)
    for i in range(0, tl.max(num_edges, 0), STEP):
        live = i + e < left
        following = tl.load(col + at + (i + STEP), mask=i + STEP + e < left, other=0).to(tl.int64)
        if SELF_LOOP:
            live = live & (far != rows)
        spot = at + i
        row_id = spot
        if position is not None:
            spot = tl.load(position + spot, mask=live, other=0).to(tl.int64)
        if DROPOUT:
            row_id = edge_ids(spot, live, eid)
        more_h, more_score = _edge_grads(
            own_score,
            own_h,
            h,
            rows,
            mine,
            far,
            live,
            stats,
            grad,
            edge,
            spot,
            row_id,
            first_head,
            head,
            column,
            in_head,
            within,
            key,
            threshold,
            site,
            K,
            F,
            SLOPE,
            SCALE,
            SHIFT,
            DROPOUT,
            SUM,
            HEADS,
            WIDTH,
        )
        acc += tl.sum(more_h, 1)
        score += tl.sum(more_score, 1)
        if grad_edge is not None:
            place = spot[:, :, :, None] * K + head[None, None, None, :]
            mask = live[:, :, :, None] & in_head[None, None, None, :] & first_columns
            tl.store(grad_edge + place, more_score, mask=mask)
        far = following
    all_h = tl.sum(acc, 1)
    all_score = tl.sum(score, 1)
    if SELF_LOOP:
        begins = own & (target < num_dst)
        begins = begins & (begin == tl.load(rowptr + target, mask=own, other=-1))
        live = begins[:, None, None]
        row_id = rows
        if DROPOUT:
            row_id = loop_ids(rows, live, gid, num_graph_edges)
        more_h, more_score = _edge_grads(
            own_score,
            own_h,
            h,
            rows,
            mine,
            rows,
            live,
            stats,
            grad,
            loop,
            rows,
            row_id,
            first_head,
            head,
            column,
            in_head,
            within,
            key,
            threshold,
            site,
            K,
            F,
            SLOPE,
            SCALE,
            SHIFT,
            DROPOUT,
            SUM,
            HEADS,
            WIDTH,
        )
        more_score = tl.reshape(more_score, (ROWS, HEADS))
        all_h += tl.reshape(more_h, (ROWS, HEADS, WIDTH))
        all_score += more_score
        if grad_loop is not None:
            mask = begins[:, None] & in_head[None, :] & first_columns
            tl.store(grad_loop + target[:, None] * K + head[None, :], more_score, mask=mask)

    whole = own & (task >= num_parts)
    split = own & (task < num_parts)
    store_sums(whole, target, all_h, grad_h, column, within, K * F)
    store_scores(whole, target, all_score, grad_src, head, in_head & first_columns, K)
    if part_h is not None:
        part = task.to(tl.int64)
        store_sums(split, part, all_h, part_h, column, within, K * F)
        store_scores(split, part, all_score, part_src, head, in_head & first_columns, K)
