"""GAT attention in Triton, forward: one gather of rows, nothing of edges x heads kept.

The same algebra as on the CPU (see cpu_gat): backward (gpu_gat_grad) makes the coefficients again,
and the gradient of score_dst comes from the sums over steep edges that forward keeps.

A thread holds whole *groups* of columns of one head, VECTOR of them, and works out its edges'
coefficients itself: they cost less than passing them on. The virtual self-loop is one more edge,
after the row's last.

Legend: P destinations, S sources, E edges, Q parts, K heads, F features; R ROWS, U UNROLL, L LANES
(edges side by side in a warp), H HEADS, W WIDTH, V VECTOR, G groups of columns, H * W / V.
"""

# Triton types constants as constexpr, and gives no type to what a kernel is called with.
# pyright: reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl

from tiergnn.kernels.aggregate.gpu_kernels import RANGES, open_tasks
from tiergnn.kernels.attention.gpu_softmax import absorb, close_lanes, store_softmax
from tiergnn.kernels.attention.gpu_tile import (
    by_group,
    edge_ids,
    keep_factors,
    leaky,
    load_groups,
    load_rows,
    loop_ids,
    open_edges,
    open_groups,
)

SCALARS = [*RANGES, "num_graph_edges", "key", "threshold", "site"]


@triton.jit
def far_ends(col, at, e, left, rows):
    """The far ends of edges [R, U, L], and the row itself past a task's last edge, as in col."""
    beyond = (tl.zeros_like(at) + rows).to(col.dtype.element_ty)
    return tl.load(col + at, mask=e < left, other=beyond)


@triton.jit
def loop_spots(task, own, target, begin, num_edges, rowptr, num_parts, num_rows):
    """Where in its task a row's virtual loop stands, [R]: after the row's last edge, else -1.

    Rows from ``num_rows`` on have none (None: all have one).
    """
    split = own & (task < num_parts)
    end = tl.load(rowptr + target + 1, mask=split, other=0)
    has = own & ((task >= num_parts) | (begin + num_edges == end))
    if num_rows is not None:
        has = has & (target < num_rows)
    return tl.where(has, num_edges, -1)


@triton.jit
def logits_of(
    own_score,
    other,
    far,
    edge,
    spot,
    loop,
    rows,
    live,
    loops,
    head,
    in_head,
    K: tl.constexpr,
    STRIDE: tl.constexpr,
):
    """Logits of edges before leaky_relu, [R, U, L, G].

    other [.., STRIDE] holds the far ends' scores, edge and loop [.., K] those of edges and of
    virtual ``loops``.
    """
    logit = own_score + load_groups(other, far, live, head, in_head, STRIDE)
    if edge is not None:
        logit += load_groups(edge, spot, live & ~loops, head, in_head, K)
    if loop is not None:
        at = tl.zeros_like(spot) + rows
        logit += load_groups(loop, at, live & loops, head, in_head, K)
    return logit


@triton.jit
def factors_of(
    spot,
    rows,
    live,
    loops,
    eid,
    gid,
    num_graph_edges,
    first_head,
    key,
    threshold,
    site,
    SCALE: tl.constexpr,
    SHIFT: tl.constexpr,
    SELF_LOOP: tl.constexpr,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    SUM: tl.constexpr,
):
    """What dropout multiplies the coefficients of edges and virtual loops by, [R, U, L, G]."""
    row_id = edge_ids(spot, live & ~loops, eid)
    if SELF_LOOP:
        row_id = tl.where(loops, loop_ids(rows, live & loops, gid, num_graph_edges), row_id)
    factor = keep_factors(row_id, first_head, key, threshold, site, SCALE, SHIFT, HEADS, SUM)
    return by_group(factor, GROUPS)


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
    PITCH: tl.constexpr,
    SLOPE: tl.constexpr,
    SCALE: tl.constexpr,
    SHIFT: tl.constexpr,
    DROPOUT: tl.constexpr,
    SELF_LOOP: tl.constexpr,
    TRAIN: tl.constexpr,
    SUM: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    VECTOR: tl.constexpr,
    ROWS: tl.constexpr,
    UNROLL: tl.constexpr,
    LANES: tl.constexpr,
):
    """Rows of out [P, K*F] and what backward wants of them, or parts (see store_softmax).

    Heads of h stand PITCH numbers apart; those from F on are read, and come to nothing.
    """
    STEP: tl.constexpr = UNROLL * LANES
    GROUPS: tl.constexpr = HEADS * WIDTH // VECTOR
    task, own, target, begin, num_edges = open_tasks(row, start, size, first, last, ROWS)
    first_head, head, feature, of_head, in_head, leads = open_groups(K, PITCH, HEADS, WIDTH, VECTOR)
    column = of_head * PITCH + feature
    within = (of_head < K) & (feature < PITCH)
    mine, rows = own[:, None, None], target[:, None, None]
    own_score = load_groups(dst, rows, mine, head, in_head, K)

    best = tl.full((ROWS, LANES, GROUPS), float("-inf"), SUM)
    total = tl.zeros((ROWS, LANES, GROUPS), SUM)
    acc = tl.zeros((ROWS, LANES, GROUPS, VECTOR), SUM)
    steep_total = tl.zeros((ROWS, LANES, GROUPS), SUM)
    steep_acc = tl.zeros((ROWS, LANES, GROUPS, VECTOR), SUM)
    e, at, left = open_edges(begin, num_edges, UNROLL, LANES)
    own_name = rows.to(col.dtype.element_ty)
    longest = tl.max(num_edges, 0)
    loop_at = left
    if SELF_LOOP:
        spots = loop_spots(task, own, target, begin, num_edges, rowptr, num_parts, None)
        loop_at = spots[:, None, None]
        longest = tl.max(tl.maximum(num_edges, spots + 1), 0)
    source = far_ends(col, at, e, left, rows)
    for i in range(0, longest, STEP):
        live = i + e < left
        loops = i + e == loop_at
        if SELF_LOOP:
            live = (source != own_name) | loops
        tile = load_rows(h, source, live, column, within, K * PITCH, SUM, GROUPS)
        logit = logits_of(
            own_score, src, source, edge, at + i, loop, rows, live, loops, head, in_head, K, K
        )
        # The next sources are read while these rows are on their way.
        source = far_ends(col, at + (i + STEP), i + STEP + e, left, rows)
        rises = logit > 0
        logit = tl.where(live[:, :, :, None], leaky(logit, SLOPE), float("-inf"))
        factor = logit
        if DROPOUT:
            factor = factors_of(
                at + i,
                rows,
                live,
                loops,
                eid,
                gid,
                num_graph_edges,
                first_head,
                key,
                threshold,
                site,
                SCALE,
                SHIFT,
                SELF_LOOP,
                HEADS,
                GROUPS,
                SUM,
            )
        best, total, acc, steep_total, steep_acc = absorb(
            logit, rises, factor, tile, best, total, acc, steep_total, steep_acc, DROPOUT, TRAIN
        )
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
        of_head * F + feature,
        in_head & leads,
        (of_head < K) & (feature < F),
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
