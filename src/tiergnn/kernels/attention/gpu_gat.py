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
    by_edge,
    by_group,
    edge_ids,
    flat_edges,
    gather_rows,
    group_columns,
    keep_factors,
    leaky,
    load_groups,
    loop_ids,
    open_edges,
    open_groups,
)

SCALARS = [*RANGES, "num_graph_edges", "threshold", "site"]


@triton.jit
def far_ends(col, at, inside, beyond, GROUPS: tl.constexpr):
    """The far ends of edges [E] for every group of columns, [G, E], and ``beyond`` [E] elsewhere.

    As many loads of one number as threads hold: passing it on would take more than the cache does.
    """
    place = at[None, :] + tl.zeros((GROUPS, 1), tl.int64)
    other = tl.broadcast_to(beyond.to(col.dtype.element_ty)[None, :], place.shape)
    mask = tl.broadcast_to(inside[None, :], place.shape)
    return tl.load(col + place, mask=mask, other=other)


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
    """Logits of edges before leaky_relu, [G, E].

    own_score [G, E]; other [.., STRIDE] holds the scores of far ends [G, E]; edge [.., K] those of
    edges ``spot`` [E], and loop those of the virtual ``loops`` [E] of rows [E].
    """
    logit = own_score + load_groups(other, far, live, head, in_head, STRIDE)
    if edge is not None:
        stored = live & ~loops[None, :]
        logit += load_groups(edge, spot[None, :], stored, head, in_head, K)
    if loop is not None:
        logit += load_groups(loop, rows[None, :], live & loops[None, :], head, in_head, K)
    return logit


@triton.jit
def factors_of(
    spot,
    rows,
    inside,
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
    """What dropout multiplies the coefficients of edges and virtual loops by, [R, U, L, G].

    spot, inside and loops [R, U, L]; rows [R, 1, 1].
    """
    row_id = edge_ids(spot, inside, eid)
    if SELF_LOOP:
        row_id = tl.where(loops, loop_ids(rows, loops, gid, num_graph_edges), row_id)
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
    words = key
    if DROPOUT:
        words = tl.load(key)
    GROUPS: tl.constexpr = HEADS * WIDTH // VECTOR
    task, own, target, begin, num_edges = open_tasks(row, start, size, first, last, ROWS)
    first_head, block, head, feature, of_head, in_head, leads = open_groups(
        K, PITCH, HEADS, WIDTH, VECTOR
    )
    group = group_columns(first_head, K, PITCH, HEADS, WIDTH, VECTOR, block)
    e, at, left = open_edges(begin, num_edges, UNROLL, LANES)
    place, number = flat_edges(at, UNROLL, LANES), flat_edges(e + left * 0, UNROLL, LANES)
    end, rows = flat_edges(num_edges, UNROLL, LANES), flat_edges(target, UNROLL, LANES)
    mine = flat_edges(own, UNROLL, LANES)
    own_score = load_groups(dst, rows[None, :], mine[None, :], head, in_head, K)

    best = tl.full((ROWS, LANES, GROUPS), float("-inf"), SUM)
    total = tl.zeros((ROWS, LANES, GROUPS), SUM)
    acc = tl.zeros((ROWS, LANES, GROUPS, VECTOR), SUM)
    steep_total = tl.zeros((ROWS, LANES, GROUPS), SUM)
    steep_acc = tl.zeros((ROWS, LANES, GROUPS, VECTOR), SUM)
    loop_at = num_edges
    if SELF_LOOP:
        loop_at = loop_spots(task, own, target, begin, num_edges, rowptr, num_parts, None)
    last_edge = tl.max(tl.maximum(num_edges, loop_at + 1), 0) if SELF_LOOP else tl.max(num_edges, 0)
    loop_number = flat_edges(loop_at, UNROLL, LANES)
    # Past a task's end stands the row itself, which is no edge.
    far = far_ends(col, place, number < end, rows, GROUPS)
    for i in range(0, last_edge, STEP):
        loops = i + number == loop_number
        if SELF_LOOP:
            live = (far != rows.to(far.dtype)[None, :]) | loops[None, :]
        else:
            live = tl.broadcast_to((i + number < end)[None, :], far.shape)
        tile = gather_rows(h, far, live, group, K * PITCH, VECTOR, SUM)
        tile = tl.reshape(tile, (ROWS, UNROLL, LANES, GROUPS, VECTOR))
        logit = logits_of(
            own_score, src, far, edge, place + i, loop, rows, live, loops, head, in_head, K, K
        )
        # The next sources are read while these rows are on their way.
        far = far_ends(col, place + (i + STEP), i + STEP + number < end, rows, GROUPS)
        rises = by_edge(logit > 0, ROWS, UNROLL, LANES)
        logit = tl.where(live, leaky(logit, SLOPE), float("-inf"))
        logit = by_edge(logit, ROWS, UNROLL, LANES)
        factor = logit
        if DROPOUT:
            factor = factors_of(
                at + i,
                target[:, None, None],
                i + e < left,
                i + e == loop_at[:, None, None],
                eid,
                gid,
                num_graph_edges,
                first_head,
                words,
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
