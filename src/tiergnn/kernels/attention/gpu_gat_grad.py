"""GAT attention in Triton, backward: one gather of the rows of the gradient over out-edges.

What an edge needs of its destination stands in one record of three numbers a head: score_dst, the
logarithm of the softmax's denominator, and <grad, out>; ``record_kernel`` writes it.

Legend: P destinations, S sources, E edges, Q parts, K heads, F features; R ROWS, U UNROLL, L LANES
(edges side by side in a warp), H HEADS, W WIDTH, V VECTOR, G groups of columns, H * W / V.
"""

# Triton types constants as constexpr, and gives no type to what a kernel is called with.
# pyright: reportArgumentType=false, reportAssignmentType=false

from __future__ import annotations

import triton
import triton.language as tl

from tiergnn.kernels.aggregate.gpu_kernels import open_tasks
from tiergnn.kernels.attention.gpu_gat import (
    SCALARS,
    factors_of,
    far_ends,
    logits_of,
    loop_spots,
)
from tiergnn.kernels.attention.gpu_tile import (
    by_edge,
    by_group,
    flat_edges,
    gather_rows,
    group_columns,
    leaky,
    leaky_slope,
    load_groups,
    load_rows,
    logit_grads,
    open_edges,
    open_groups,
    store_scores,
    store_sums,
)


@triton.jit(do_not_specialize=["num_dst"])
def record_kernel(
    dst,
    grad,
    out,
    best,
    inverse,
    steep,
    steep_total,
    record,
    spaced,
    grad_dst,
    num_dst,
    K: tl.constexpr,
    F: tl.constexpr,
    PITCH: tl.constexpr,
    RECORD: tl.constexpr,
    SLOPE: tl.constexpr,
    SUM: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Record [P, RECORD] and the gradient grad_dst [P, K] of every row's scores.

    ``spaced`` [P, K, PITCH], where given, becomes a copy of grad with zeros behind each head.
    Over all edges the gradients of the logits sum to zero, so that only steep edges count.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, HEADS * WIDTH)
    of_head = tl.program_id(1) * HEADS + c // WIDTH
    inner = tl.zeros((ROWS, HEADS), SUM)
    steep_inner = tl.zeros((ROWS, HEADS), SUM)
    for block in range(0, F, WIDTH):
        feature = block + c % WIDTH
        mine = (row < num_dst)[:, None] & (of_head < K)[None, :]
        within = mine & (feature < F)[None, :]
        place = row[:, None] * (K * F) + (of_head * F + feature)[None, :]
        found = tl.load(grad + place, mask=within, other=0)
        if spaced is not None:
            there = row[:, None] * (K * PITCH) + (of_head * PITCH + feature)[None, :]
            tl.store(spaced + there, found, mask=mine & (feature < PITCH)[None, :])
        g = found.to(SUM)
        product = g * tl.load(out + place, mask=within, other=0).to(SUM)
        inner += tl.sum(tl.reshape(product, (ROWS, HEADS, WIDTH)), 2)
        product = g * tl.load(steep + place, mask=within, other=0)
        steep_inner += tl.sum(tl.reshape(product, (ROWS, HEADS, WIDTH)), 2)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    mask = (row < num_dst)[:, None] & (head < K)[None, :]
    heads = row[:, None] * K + head[None, :]
    at = record + row[:, None] * RECORD + head[None, :]
    tl.store(at, tl.load(dst + heads, mask=mask), mask=mask)
    size = tl.load(inverse + heads, mask=mask, other=1)
    tl.store(at + K, tl.load(best + heads, mask=mask, other=0) - tl.log(size), mask=mask)
    tl.store(at + 2 * K, inner, mask=mask)
    share = tl.load(steep_total + heads, mask=mask, other=0)
    tl.store(grad_dst + heads, (steep_inner - inner * share) * (1.0 - SLOPE), mask=mask)


@triton.jit
def _inner_products(
    own_h,
    tile,
    h,
    rows,
    mine,
    grad,
    far,
    live,
    first_head,
    K: tl.constexpr,
    F: tl.constexpr,
    PITCH: tl.constexpr,
    SUM: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """<h[row, k], grad[far, k]>, [R, U, L, G]: whole heads, where these are wider than WIDTH too.

    own_h and tile [R, U, L, G, V] are this program's columns of the two; far and live [G, E].
    """
    GROUPS: tl.constexpr = HEADS * WIDTH // VECTOR
    c = tl.arange(0, HEADS * WIDTH)
    of_head = first_head + c // WIDTH
    inner = tl.sum(own_h * tile, 4)
    if F > WIDTH:
        inner *= 0
        for block in range(0, F, WIDTH):
            feature = block + c % WIDTH
            within = (of_head < K) & (feature < F)
            left = load_rows(h, rows, mine, of_head * F + feature, within, K * F, SUM, GROUPS)
            group = group_columns(first_head, K, PITCH, HEADS, WIDTH, VECTOR, block)
            right = gather_rows(grad, far, live, group, K * PITCH, VECTOR, SUM)
            inner += tl.sum(left * tl.reshape(right, tile.shape), 4)
    if GROUPS > HEADS:
        share: tl.constexpr = GROUPS // HEADS
        size: tl.constexpr = (inner.shape[0], inner.shape[1], inner.shape[2], HEADS, share)
        inner = tl.sum(tl.reshape(inner, size), 4)
        inner = by_group(inner, GROUPS)
    return inner


@triton.jit(do_not_specialize=[*SCALARS, "num_dst"])
def backward_kernel(
    h,
    src,
    edge,
    loop,
    grad,
    record,
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
    PITCH: tl.constexpr,
    RECORD: tl.constexpr,
    SLOPE: tl.constexpr,
    SCALE: tl.constexpr,
    SHIFT: tl.constexpr,
    DROPOUT: tl.constexpr,
    SELF_LOOP: tl.constexpr,
    SUM: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    VECTOR: tl.constexpr,
    ROWS: tl.constexpr,
    UNROLL: tl.constexpr,
    LANES: tl.constexpr,
):
    """Rows of grad_h [S, K*F] and grad_src [S, K], or their parts [Q, ...], from out-edges.

    col and position [E]: each out-edge's destination, and its place among the block's edges. Heads
    of grad stand PITCH numbers apart; those from F on are zero.
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
    own_column = of_head * F + feature
    own_within = (of_head < K) & (feature < F)
    group = group_columns(first_head, K, PITCH, HEADS, WIDTH, VECTOR, block)
    e, at, left = open_edges(begin, num_edges, UNROLL, LANES)
    place, number = flat_edges(at, UNROLL, LANES), flat_edges(e + left * 0, UNROLL, LANES)
    end, rows = flat_edges(num_edges, UNROLL, LANES), flat_edges(target, UNROLL, LANES)
    mine = flat_edges(own, UNROLL, LANES)
    own_score = load_groups(src, rows[None, :], mine[None, :], head, in_head, K)
    alone, own_rows = own[:, None, None], target[:, None, None]
    own_h = load_rows(h, own_rows, alone, own_column, own_within, K * F, SUM, GROUPS)

    acc = tl.zeros((ROWS, LANES, GROUPS, VECTOR), SUM)
    score = tl.zeros((ROWS, LANES, GROUPS), SUM)
    loop_at = num_edges
    if SELF_LOOP:
        loop_at = loop_spots(task, own, target, begin, num_edges, rowptr, num_parts, num_dst)
    last_edge = tl.max(tl.maximum(num_edges, loop_at + 1), 0) if SELF_LOOP else tl.max(num_edges, 0)
    loop_number = flat_edges(loop_at, UNROLL, LANES)
    beyond = tl.where(rows < num_dst, rows, 0)  # a row of grad: past a task's end all is read
    far = far_ends(col, place, number < end, beyond, GROUPS)
    for i in range(0, last_edge, STEP):
        inside = i + number < end
        loops = i + number == loop_number
        live = tl.broadcast_to(inside[None, :], far.shape)
        if SELF_LOOP:
            live = (live & (far != rows.to(far.dtype)[None, :])) | loops[None, :]
        tile = gather_rows(grad, far, live, group, K * PITCH, VECTOR, SUM)
        tile = tl.reshape(tile, (ROWS, UNROLL, LANES, GROUPS, VECTOR))
        spot = place + i
        if position is not None:
            spot = tl.load(position + spot, mask=inside, other=0).to(tl.int64)
        logit = logits_of(
            own_score, record, far, edge, spot, loop, rows, live, loops, head, in_head, K, RECORD
        )
        size_log = load_groups(record + K, far, live, head, in_head, RECORD)
        row_inner = load_groups(record + 2 * K, far, live, head, in_head, RECORD)
        following = far_ends(col, place + (i + STEP), i + STEP + number < end, beyond, GROUPS)
        inner = _inner_products(
            own_h,
            tile,
            h,
            own_rows,
            alone,
            grad,
            far,
            live,
            first_head,
            K,
            F,
            PITCH,
            SUM,
            HEADS,
            WIDTH,
            VECTOR,
        )
        alpha = tl.where(live, tl.exp(leaky(logit, SLOPE) - size_log), 0.0)
        alpha = by_edge(alpha, ROWS, UNROLL, LANES)
        weight = alpha
        if DROPOUT:
            factor = factors_of(
                tl.reshape(spot, (ROWS, UNROLL, LANES)),
                own_rows,
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
            weight *= factor
            inner *= factor
        acc += tl.sum(weight[:, :, :, :, None] * tile, 1)
        grads = logit_grads(alpha, inner, by_edge(row_inner, ROWS, UNROLL, LANES))
        grads *= by_edge(leaky_slope(logit, SLOPE), ROWS, UNROLL, LANES)
        score += tl.sum(grads, 1)
        written = in_head & leads
        if grad_edge is not None:
            stored = by_edge(live & ~loops[None, :] & written[:, None], ROWS, UNROLL, LANES)
            there = by_edge(spot[None, :] * K + head[:, None], ROWS, UNROLL, LANES)
            tl.store(grad_edge + there, grads, mask=stored)
        if grad_loop is not None:
            stored = by_edge(live & loops[None, :] & written[:, None], ROWS, UNROLL, LANES)
            there = by_edge(rows[None, :] * K + head[:, None], ROWS, UNROLL, LANES)
            tl.store(grad_loop + there, grads, mask=stored)
        far = following
    all_h = tl.sum(acc, 1)
    all_score = tl.sum(score, 1)
    whole = own & (task >= num_parts)
    split = own & (task < num_parts)
    store_sums(whole, target, all_h, grad_h, own_column, own_within, K * F)
    store_scores(whole, target, all_score, grad_src, head, in_head & leads, K)
    if part_h is not None:
        part = task.to(tl.int64)
        store_sums(split, part, all_h, part_h, own_column, own_within, K * F)
        store_scores(split, part, all_score, part_src, head, in_head & leads, K)
