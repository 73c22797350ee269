"""GATv2 attention in Triton, backward: over in-edges, and over out-edges.

pre and the logits are made again. Gradients that all edges add to, those of att and edge_weight,
are summed in float64 by a fixed number of programs, each on its own; their sums are added in order.

Legend: P destinations, S sources, E edges, Q parts, K heads, F features, D edge features;
R ROWS, U UNROLL, L LANES (edges side by side in a warp), H HEADS, W WIDTH.
"""

# Triton types constants as constexpr, and gives no type to what a kernel is called with.
# pyright: reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl

from tiergnn.kernels.aggregate.gpu_kernels import RANGES, open_tasks
from tiergnn.kernels.attention.gpu_gat import SCALARS
from tiergnn.kernels.attention.gpu_gatv2 import logits_of
from tiergnn.kernels.attention.gpu_tile import (
    edge_ids,
    inner_products,
    keep_factors,
    leaky,
    leaky_slope,
    load_heads,
    load_rows,
    load_vector,
    logit_grads,
    loop_ids,
    open_columns,
    open_edges,
    store_sums,
)


@triton.jit
def _coefficients(
    logit,
    inner,
    stats,
    stat_row,
    stat_live,
    live,
    row_id,
    first_head,
    head,
    in_head,
    key,
    threshold,
    site,
    K: tl.constexpr,
    SCALE: tl.constexpr,
    SHIFT: tl.constexpr,
    DROPOUT: tl.constexpr,
    SUM: tl.constexpr,
    HEADS: tl.constexpr,
):
    """Dropped-out coefficients of edges, and gradients of their logits, [R, U, L, H]."""
    best = load_heads(stats, stat_row, stat_live, head, in_head, 3 * K)
    inverse = load_heads(stats + K, stat_row, stat_live, head, in_head, 3 * K)
    alpha = tl.where(live[:, :, :, None], tl.exp(logit - best) * inverse, 0.0)
    weight = alpha
    if DROPOUT:
        factor = keep_factors(row_id, first_head, key, threshold, site, SCALE, SHIFT, HEADS, SUM)
        weight *= factor
        inner *= factor
    row_inner = load_heads(stats + 2 * K, stat_row, stat_live, head, in_head, 3 * K)
    return weight, logit_grads(alpha, inner, row_inner)


@triton.jit(do_not_specialize=[*SCALARS, "num_dst"])
def source_kernel(
    src,
    dst,
    att,
    edge,
    weight,
    loop,
    grad,
    stats,
    col,
    position,
    eid,
    gid,
    grad_src,
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
    D: tl.constexpr,
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
    """Rows of grad_src [S, K*F], or their parts, from out-edges: as values and in the logits.

    stats [P, 3K]: maximum, inverse, <grad, out>; position [E]: an out-edge's place in the block.
    """
    STEP: tl.constexpr = UNROLL * LANES
    words = key
    if DROPOUT:
        words = tl.load(key)
    task, own, target, begin, num_edges = open_tasks(row, start, size, first, last, ROWS)
    first_head, head, column, in_head, within, _first_columns = open_columns(K, F, HEADS, WIDTH)
    mine, rows = own[:, None, None], target[:, None, None]
    own_tile = load_rows(src, rows, mine, column, within, K * F, SUM, HEADS)
    factor = load_vector(att, column, within, HEADS)

    acc = tl.zeros((ROWS, LANES, HEADS, WIDTH), SUM)
    e, at, left = open_edges(begin, num_edges, UNROLL, LANES)
    far = tl.load(col + at, mask=e < left, other=0).to(tl.int64)
    for i in range(0, tl.max(num_edges, 0), STEP):
        live = i + e < left
        following = tl.load(col + at + (i + STEP), mask=i + STEP + e < left, other=0).to(tl.int64)
        if SELF_LOOP:
            live = live & (far != rows)
        spot = at + i
        if position is not None:
            spot = tl.load(position + spot, mask=live, other=0).to(tl.int64)
        tile = load_rows(grad, far, live, column, within, K * F, SUM, HEADS)
        logit, pre, _there = logits_of(
            src, rows, mine, own_tile, dst, far, live, edge, weight, spot, att,
            first_head, column, within, K, F, D, SLOPE, SUM, HEADS, WIDTH,
        )  # fmt: skip
        inner = inner_products(
            src, rows, mine, own_tile, grad, far, live, tile, first_head, K, F, SUM, HEADS, WIDTH
        )
        row_id = spot
        if DROPOUT:
            row_id = edge_ids(spot, live, eid)
        value, bent = _coefficients(
            logit, inner, stats, far, live, live, row_id, first_head, head, in_head,
            words, threshold, site, K, SCALE, SHIFT, DROPOUT, SUM, HEADS,
        )  # fmt: skip
        tile = value[:, :, :, :, None] * tile
        tile += bent[:, :, :, :, None] * factor * leaky_slope(pre, SLOPE)
        acc += tl.sum(tile, 1)
        far = following
    sums = tl.sum(acc, 1)
    if SELF_LOOP:
        begins = own & (target < num_dst)
        begins = begins & (begin == tl.load(rowptr + target, mask=own, other=-1))
        live = begins[:, None, None]
        tile = load_rows(grad, rows, live, column, within, K * F, SUM, HEADS)
        logit, pre, _there = logits_of(
            src, rows, mine, own_tile, dst, rows, live, loop, weight, rows, att,
            first_head, column, within, K, F, D, SLOPE, SUM, HEADS, WIDTH,
        )  # fmt: skip
        inner = inner_products(
            src, rows, mine, own_tile, grad, rows, live, tile, first_head, K, F, SUM, HEADS, WIDTH
        )
        row_id = rows
        if DROPOUT:
            row_id = loop_ids(rows, live, gid, num_graph_edges)
        value, bent = _coefficients(
            logit, inner, stats, rows, live, live, row_id, first_head, head, in_head,
            words, threshold, site, K, SCALE, SHIFT, DROPOUT, SUM, HEADS,
        )  # fmt: skip
        tile = value[:, :, :, :, None] * tile
        tile += bent[:, :, :, :, None] * factor * leaky_slope(pre, SLOPE)
        sums += tl.reshape(tile, (ROWS, HEADS, WIDTH))
    store_sums(own & (task >= num_parts), target, sums, grad_src, column, within, K * F)
    if part_src is not None:
        split = own & (task < num_parts)
        store_sums(split, task.to(tl.int64), sums, part_src, column, within, K * F)


@triton.jit
def _edge_grads(
    step,
    attr,
    weight,
    grad_attr,
    shared,
    spot,
    live,
    column,
    within,
    D: tl.constexpr,
    KF: tl.constexpr,
    HEADS: tl.constexpr,
):
    """What ``step``, gradients of pre, adds to edge features' and to their weight's gradients.

    shared [D, K*F] is this program's own. grad_attr [.., D, heads' blocks] takes each program's
    columns' share.
    """
    for d in range(D):
        value = tl.load(attr + spot * D + d, mask=live, other=0)
        part = tl.sum(tl.sum(tl.sum(value[:, :, :, None, None] * step, 0), 0), 0)
        place = shared + d * KF + column
        so_far = tl.load(place, mask=within, other=0)
        part = tl.reshape(part, (column.shape[0],)).to(tl.float64)
        tl.store(place, so_far + part, mask=within)
        tl.debug_barrier()  # the next step may read it by other threads
        if grad_attr is not None:
            factor = load_vector(weight + d * KF, column, within, HEADS)
            share = tl.sum(tl.sum(step * factor, 4), 3)
            place = (spot * D + d) * tl.num_programs(1) + tl.program_id(1)
            tl.store(grad_attr + place, share, mask=live)


@triton.jit(do_not_specialize=[*RANGES, "num_graph_edges", "threshold", "site"])
def destination_kernel(
    src,
    dst,
    att,
    edge,
    weight,
    loop,
    grad,
    stats,
    col,
    eid,
    gid,
    grad_dst,
    part_dst,
    grad_edge,
    grad_loop,
    shared,
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
    D: tl.constexpr,
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
    """Rows of grad_dst [P, K*F], or their parts, and gradients of edges, from in-edges.

    shared [programs, 1 + D, K*F]: this program adds its edges' gradients of att, then of weight.
    grad_edge [E, D, B] and grad_loop [P, D, B]: the shares of the B blocks of columns.
    """
    STEP: tl.constexpr = UNROLL * LANES
    words = key
    if DROPOUT:
        words = tl.load(key)
    first_head, head, column, in_head, within, _first_columns = open_columns(K, F, HEADS, WIDTH)
    factor = load_vector(att, column, within, HEADS)
    shared += tl.program_id(0).to(tl.int64) * ((1 + D) * K * F)
    att_sum = tl.load(shared + column, mask=within, other=0)
    for group in range(first + tl.program_id(0) * ROWS, last, tl.num_programs(0) * ROWS):
        task = group + tl.arange(0, ROWS)
        own = task < last
        begin = tl.load(start + task, mask=own, other=0).to(tl.int64)
        num_edges = tl.load(size + task, mask=own, other=0)
        target = tl.load(row + task, mask=own, other=0).to(tl.int64)
        mine, rows = own[:, None, None], target[:, None, None]
        own_tile = load_rows(dst, rows, mine, column, within, K * F, SUM, HEADS)
        own_grad = load_rows(grad, rows, mine, column, within, K * F, SUM, HEADS)
        acc = tl.zeros((ROWS, LANES, HEADS, WIDTH), SUM)
        att_acc = tl.zeros((HEADS, WIDTH), SUM)
        e, at, left = open_edges(begin, num_edges, UNROLL, LANES)
        source = tl.load(col + at, mask=e < left, other=0).to(tl.int64)
        for i in range(0, tl.max(num_edges, 0), STEP):
            live = i + e < left
            ahead = i + STEP + e < left
            following = tl.load(col + at + (i + STEP), mask=ahead, other=0).to(tl.int64)
            if SELF_LOOP:
                live = live & (source != rows)
            spot = at + i
            logit, pre, there = logits_of(
                dst, rows, mine, own_tile, src, source, live, edge, weight, spot, att,
                first_head, column, within, K, F, D, SLOPE, SUM, HEADS, WIDTH,
            )  # fmt: skip
            inner = inner_products(
                grad, rows, mine, own_grad, src, source, live, there,
                first_head, K, F, SUM, HEADS, WIDTH,
            )  # fmt: skip
            row_id = spot
            if DROPOUT:
                row_id = edge_ids(spot, live, eid)
            _value, bent = _coefficients(
                logit, inner, stats, rows, mine, live, row_id, first_head, head, in_head,
                words, threshold, site, K, SCALE, SHIFT, DROPOUT, SUM, HEADS,
            )  # fmt: skip
            bent = bent[:, :, :, :, None]
            att_acc += tl.sum(tl.sum(tl.sum(bent * leaky(pre, SLOPE), 0), 0), 0)
            step = bent * factor * leaky_slope(pre, SLOPE)
            acc += tl.sum(step, 1)
            if D > 0:
                _edge_grads(
                    step, edge, weight, grad_edge, shared + K * F, spot, live, column, within,
                    D, K * F, HEADS,
                )  # fmt: skip
            source = following
        sums = tl.sum(acc, 1)
        if SELF_LOOP:
            begins = own & (begin == tl.load(rowptr + target, mask=own, other=-1))
            live = begins[:, None, None]
            logit, pre, there = logits_of(
                dst, rows, mine, own_tile, src, rows, live, loop, weight, rows, att,
                first_head, column, within, K, F, D, SLOPE, SUM, HEADS, WIDTH,
            )  # fmt: skip
            inner = inner_products(
                grad, rows, mine, own_grad, src, rows, live, there,
                first_head, K, F, SUM, HEADS, WIDTH,
            )  # fmt: skip
            row_id = rows
            if DROPOUT:
                row_id = loop_ids(rows, live, gid, num_graph_edges)
            _value, bent = _coefficients(
                logit, inner, stats, rows, live, live, row_id, first_head, head, in_head,
                words, threshold, site, K, SCALE, SHIFT, DROPOUT, SUM, HEADS,
            )  # fmt: skip
            bent = bent[:, :, :, :, None]
            att_acc += tl.sum(tl.sum(tl.sum(bent * leaky(pre, SLOPE), 0), 0), 0)
            step = bent * factor * leaky_slope(pre, SLOPE)
            sums += tl.reshape(step, (ROWS, HEADS, WIDTH))
            if D > 0:
                _edge_grads(
                    step, loop, weight, grad_loop, shared + K * F, rows, live, column, within,
                    D, K * F, HEADS,
                )  # fmt: skip
        att_sum += tl.reshape(att_acc, (HEADS * WIDTH,)).to(tl.float64)
        store_sums(own & (task >= num_parts), target, sums, grad_dst, column, within, K * F)
        if part_dst is not None:
            split = own & (task < num_parts)
            store_sums(split, task.to(tl.int64), sums, part_dst, column, within, K * F)
    tl.store(shared + column, att_sum, mask=within)


@triton.jit(do_not_specialize=["num_dst"])
def rows_kernel(
    grad,
    out,
    best,
    inverse,
    stats,
    num_dst,
    K: tl.constexpr,
    F: tl.constexpr,
    SUM: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    """What GATv2's backward needs of rows, stats [P, 3K]: maximum, inverse and <grad, out>."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    mask = (row < num_dst)[:, None] & (head < K)[None, :]
    inner = tl.zeros((ROWS, HEADS), SUM)
    for block in range(0, F, WIDTH):
        feature = block + tl.arange(0, WIDTH)
        columns = (head * F)[None, :, None] + feature[None, None, :]
        places = row[:, None, None] * (K * F) + columns
        within = mask[:, :, None] & (feature < F)[None, None, :]
        g = tl.load(grad + places, mask=within, other=0).to(SUM)
        inner += tl.sum(g * tl.load(out + places, mask=within, other=0).to(SUM), 2)
    heads = row[:, None] * K + head[None, :]
    stat = stats + row[:, None] * (3 * K) + head[None, :]
    tl.store(stat, tl.load(best + heads, mask=mask), mask=mask)
    tl.store(stat + K, tl.load(inverse + heads, mask=mask), mask=mask)
    tl.store(stat + 2 * K, inner, mask=mask)
