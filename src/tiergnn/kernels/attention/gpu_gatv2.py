"""GATv2 attention in Triton, forward: one gather of rows.

The logit of an edge is <att, leaky_relu(pre)>, pre = x_src + x_dst + edge_attr @ edge_weight.

Legend: P destinations, S sources, E edges, Q parts, K heads, F features, D edge features;
R ROWS, U UNROLL, L LANES (edges side by side in a warp), H HEADS, W WIDTH.
"""

# Triton types constants as constexpr, and gives no type to what a kernel is called with.
# pyright: reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl

from tiergnn.kernels.aggregate.gpu_kernels import open_tasks
from tiergnn.kernels.attention.gpu_gat import SCALARS
from tiergnn.kernels.attention.gpu_softmax import absorb, close_lanes, store_softmax
from tiergnn.kernels.attention.gpu_tile import (
    block_columns,
    edge_ids,
    keep_factors,
    leaky,
    load_rows,
    load_vector,
    loop_ids,
    open_columns,
    open_edges,
)


@triton.jit
def _pre(
    own_tile,
    there,
    attr,
    weight,
    spot,
    live,
    column,
    within,
    D: tl.constexpr,
    KF: tl.constexpr,
    HEADS: tl.constexpr,
):
    """The sum that leaky_relu bends, [R, U, L, H, W], for some columns."""
    pre = own_tile + there
    if D > 0:
        for d in range(D):
            value = tl.load(attr + spot * D + d, mask=live, other=0)
            factor = load_vector(weight + d * KF, column, within, HEADS)
            pre += value[:, :, :, None, None] * factor
    return pre


@triton.jit
def logits_of(
    own,
    rows,
    mine,
    own_tile,
    other,
    far,
    live,
    attr,
    weight,
    spot,
    att,
    first_head,
    column,
    within,
    K: tl.constexpr,
    F: tl.constexpr,
    D: tl.constexpr,
    SLOPE: tl.constexpr,
    SUM: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Logits of edges [R, U, L, H]; pre and the far ends' rows for this program's columns."""
    there = load_rows(other, far, live, column, within, K * F, SUM, HEADS)
    pre = _pre(own_tile, there, attr, weight, spot, live, column, within, D, K * F, HEADS)
    logit = tl.sum(leaky(pre, SLOPE) * load_vector(att, column, within, HEADS), 4)
    if F > WIDTH:
        logit *= 0
        for block in range(0, F, WIDTH):
            columns, inside = block_columns(first_head, block, K, F, HEADS, WIDTH)
            left = load_rows(own, rows, mine, columns, inside, K * F, SUM, HEADS)
            right = load_rows(other, far, live, columns, inside, K * F, SUM, HEADS)
            both = _pre(left, right, attr, weight, spot, live, columns, inside, D, K * F, HEADS)
            factor = load_vector(att, columns, inside, HEADS)
            logit += tl.sum(leaky(both, SLOPE) * factor, 4)
    return logit, pre, there


@triton.jit(do_not_specialize=SCALARS)
def forward_kernel(
    src,
    dst,
    att,
    edge,
    weight,
    loop,
    col,
    eid,
    gid,
    out,
    out_best,
    out_inverse,
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
    """Rows of out [P, K*F] and what backward wants of them, or parts (see store_softmax)."""
    STEP: tl.constexpr = UNROLL * LANES
    words = key
    if DROPOUT:
        words = tl.load(key)
    task, own, target, begin, num_edges = open_tasks(row, start, size, first, last, ROWS)
    first_head, head, column, in_head, within, first_columns = open_columns(K, F, HEADS, WIDTH)
    mine, rows = own[:, None, None], target[:, None, None]
    own_tile = load_rows(dst, rows, mine, column, within, K * F, SUM, HEADS)

    best = tl.full((ROWS, LANES, HEADS), float("-inf"), SUM)
    total = tl.zeros((ROWS, LANES, HEADS), SUM)
    acc = tl.zeros((ROWS, LANES, HEADS, WIDTH), SUM)
    if SELF_LOOP:  # the first lane of the task that begins a row starts with its loop
        begins = mine & (begin == tl.load(rowptr + target, mask=own, other=-1))[:, None, None]
        here = begins & (tl.arange(0, LANES) == 0)[None, None, :]
        loop_logit, _loop_unbent, loop_there = logits_of(
            dst, rows, mine, own_tile, src, rows, begins, loop, weight, rows, att,
            first_head, column, within, K, F, D, SLOPE, SUM, HEADS, WIDTH,
        )  # fmt: skip
        loop_logit = tl.where(here[:, :, :, None], loop_logit, float("-inf"))
        loop_factor = loop_logit
        if DROPOUT:
            loop_row_id = loop_ids(rows, begins, gid, num_graph_edges)
            loop_factor = keep_factors(
                loop_row_id, first_head, words, threshold, site, SCALE, SHIFT, HEADS, SUM
            )
        best, total, acc, _steep_total, _steep_acc = absorb(
            loop_logit, here, loop_factor, loop_there, best, total, acc, total, acc, DROPOUT, False
        )

    e, at, left = open_edges(begin, num_edges, UNROLL, LANES)
    source = tl.load(col + at, mask=e < left, other=0).to(tl.int64)
    for i in range(0, tl.max(num_edges, 0), STEP):
        live = i + e < left
        # The next sources are read while these rows are on their way.
        following = tl.load(col + at + (i + STEP), mask=i + STEP + e < left, other=0).to(tl.int64)
        if SELF_LOOP:
            live = live & (source != rows)
        logit, _unbent, there = logits_of(
            dst, rows, mine, own_tile, src, source, live, edge, weight, at + i, att,
            first_head, column, within, K, F, D, SLOPE, SUM, HEADS, WIDTH,
        )  # fmt: skip
        logit = tl.where(live[:, :, :, None], logit, float("-inf"))
        factor = logit
        if DROPOUT:
            row_id = edge_ids(at + i, live, eid)
            factor = keep_factors(
                row_id, first_head, words, threshold, site, SCALE, SHIFT, HEADS, SUM
            )
        best, total, acc, _steep_total, _steep_acc = absorb(
            logit, live, factor, there, best, total, acc, total, acc, DROPOUT, False
        )
        source = following
    highest, all_total, all_acc = close_lanes(best, total, acc)
    store_softmax(
        own & (task >= num_parts), own & (task < num_parts), task, target,
        highest, all_total, all_acc, all_total, all_acc,
        head, column, in_head & first_columns, within, (num_edges > 0) | SELF_LOOP, num_parts,
        out, out_best, out_inverse, None, None, part_best, part_total, part_acc, K, F, False,
    )  # fmt: skip
