"""What the GPU's attention kernels share: columns, dropout, running softmaxes and their merging.

A program works on ROWS tasks (``kernels.tasks``), HEADS heads and WIDTH columns of each. Every lane
of a task keeps a softmax of its own over the edges that it sees; lanes are merged when the task is
done, and tasks that share a row in further launches, in float64 and in a fixed order. Sums are kept
twice, over all edges and over the *steep* ones (whose leaky_relu has slope 1), when TRAIN.

Legend: P destinations, Q parts, K heads, F features; R ROWS, U UNROLL, L LANES, H HEADS, W WIDTH.
"""

# Triton types constants as constexpr, and gives no type to what a kernel is called with.
# pyright: reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl

from tiergnn.kernels.aggregate.gpu_kernels import RANGES, open_tasks


@triton.jit
def block_columns(
    first_head, block, K: tl.constexpr, F: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr
):
    """Columns [H*W] of rows of K*F numbers, WIDTH of each head from ``block`` on; which exist."""
    c = tl.arange(0, HEADS * WIDTH)
    head = first_head + c // WIDTH
    feature = block + c % WIDTH
    return head * F + feature, (head < K) & (feature < F)


@triton.jit
def open_columns(K: tl.constexpr, F: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr):
    """This program's first head, heads [H] and columns [H*W], and which of both exist.

    The last result says whether it has the heads' first columns: one program writes what is one
    number a head.
    """
    blocks: tl.constexpr = (F + WIDTH - 1) // WIDTH
    first_head = tl.program_id(1) // blocks * HEADS
    block = tl.program_id(1) % blocks * WIDTH
    head = first_head + tl.arange(0, HEADS)
    column, within = block_columns(first_head, block, K, F, HEADS, WIDTH)
    return first_head, head, column, head < K, within, block == 0


@triton.jit
def open_edges(begin, num_edges, UNROLL: tl.constexpr, LANES: tl.constexpr):
    """Number of each edge in its task [1, U, L], its position [R, U, L], and the tasks' sizes."""
    e = (tl.arange(0, UNROLL)[:, None] * LANES + tl.arange(0, LANES)[None, :])[None, :, :]
    return e, begin[:, None, None] + e, num_edges[:, None, None]


@triton.jit
def load_heads(x, at, live, head, in_head, STRIDE: tl.constexpr):
    """x[at, head], [R, U, L, H]; rows of x have STRIDE numbers, ``at`` is int64 [R, U, L]."""
    size: tl.constexpr = at.shape[0] * at.shape[1] * at.shape[2]
    place = tl.reshape(at, (size,))[:, None] * STRIDE + head[None, :]
    mask = tl.reshape(live, (size,))[:, None] & in_head[None, :]
    found = tl.load(x + place, mask=mask, other=0)
    return tl.reshape(found, (at.shape[0], at.shape[1], at.shape[2], head.shape[0]))


@triton.jit
def load_rows(
    x, at, live, column, within, STRIDE: tl.constexpr, SUM: tl.constexpr, HEADS: tl.constexpr
):
    """x[at, column], [R, U, L, H, W] in the dtype that is computed in.

    Loaded as [edges, columns]: with more axes some versions of Triton deal the threads of a warp
    out to the wrong ones.
    """
    size: tl.constexpr = at.shape[0] * at.shape[1] * at.shape[2]
    width: tl.constexpr = column.shape[0] // HEADS
    place = tl.reshape(at, (size,))[:, None] * STRIDE + column[None, :]
    mask = tl.reshape(live, (size,))[:, None] & within[None, :]
    found = tl.load(x + place, mask=mask, other=0).to(SUM)
    return tl.reshape(found, (at.shape[0], at.shape[1], at.shape[2], HEADS, width))


@triton.jit
def load_vector(x, column, within, HEADS: tl.constexpr):
    """x[column], [1, 1, 1, H, W]: the same for all edges."""
    found = tl.load(x + column, mask=within, other=0)
    return tl.reshape(found, (1, 1, 1, HEADS, column.shape[0] // HEADS))


@triton.jit
def inner_products(
    x,
    x_at,
    x_live,
    x_tile,
    y,
    y_at,
    y_live,
    y_tile,
    first_head,
    K: tl.constexpr,
    F: tl.constexpr,
    SUM: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """<x[x_at, k], y[y_at, k]> for every head, [R, U, L, H].

    The tiles are this program's columns of the rows: whole heads unless these are wider than WIDTH.
    """
    out = tl.sum(x_tile * y_tile, 4)
    if F > WIDTH:
        out *= 0
        for block in range(0, F, WIDTH):
            column, within = block_columns(first_head, block, K, F, HEADS, WIDTH)
            left = load_rows(x, x_at, x_live, column, within, K * F, SUM, HEADS)
            right = load_rows(y, y_at, y_live, column, within, K * F, SUM, HEADS)
            out += tl.sum(left * right, 4)
    return out


@triton.jit
def edge_ids(at, live, eid):
    """The ids by which the edges at positions ``at`` of the block are dropped, int64."""
    if eid is None:
        out = at.to(tl.int64)
    else:
        out = tl.load(eid + at, mask=live, other=0)
    return out


@triton.jit
def loop_ids(target, live, gid, num_graph_edges):
    """The ids by which the virtual loops of rows [R, 1, 1] are dropped, int64."""
    if gid is None:
        out = num_graph_edges + target
    else:
        out = num_graph_edges + tl.load(gid + target, mask=live, other=0)
    return out


@triton.jit
def leaky(x, SLOPE: tl.constexpr):
    return tl.where(x > 0, x, x * SLOPE)


@triton.jit
def leaky_slope(x, SLOPE: tl.constexpr):
    """The derivative of leaky_relu, in the dtype of x: bare numbers would be float32."""
    one = tl.full(x.shape, 1.0, x.dtype)
    return tl.where(x > 0, one, tl.full(x.shape, SLOPE, x.dtype))


@triton.jit
def finite(best):
    """The maximum, or 0 where nothing was seen: exp(-inf - 0) is 0."""
    return tl.where(best == float("-inf"), 0.0, best)


@triton.jit
def keep_factors(
    row_id,
    first_head,
    key,
    threshold,
    site,
    SCALE: tl.constexpr,
    HEADS: tl.constexpr,
    SUM: tl.constexpr,
):
    """What dropout multiplies coefficients by, [R, U, L, H]; row_id int64 [R, U, L].

    One Philox counter serves four heads.
    """
    low = row_id.to(tl.uint32)[:, :, :, None]
    high = (row_id >> 32).to(tl.uint32)[:, :, :, None]
    zero = tl.zeros_like(low)
    fourth = zero + site.to(tl.uint32)
    if HEADS % 4 == 0:
        quad = (first_head // 4 + tl.arange(0, HEADS // 4))[None, None, None, :].to(tl.uint32)
        w0, w1, w2, w3 = tl.philox(key, low + zero, high + zero, zero + quad, fourth)
        word = tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))
    else:
        head = (first_head + tl.arange(0, HEADS))[None, None, None, :]
        quad = (head // 4).to(tl.uint32)
        w0, w1, w2, w3 = tl.philox(key, low + zero, high + zero, zero + quad, fourth)
        even = tl.where(head % 4 == 0, w0, w2)
        odd = tl.where(head % 4 == 1, w1, w3)
        word = tl.where(head % 2 == 0, even, odd)
    return tl.where(word.to(tl.int64) >= threshold, tl.full(word.shape, SCALE, SUM), 0.0)


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
def round_to(value, pointer):
    """The value in the dtype that the pointer's memory holds."""
    if pointer.dtype.element_ty != tl.float64:  # no direct way from float64 to 16 bits
        value = value.to(tl.float32)
    return value.to(pointer.dtype.element_ty)


@triton.jit
def store_sums(kept, row, sums, out, column, within, STRIDE: tl.constexpr):
    """out[row, column] = sums [R, H, W] where ``kept`` [R]."""
    place = row[:, None] * STRIDE + column[None, :]
    flat = tl.reshape(sums, (row.shape[0], column.shape[0]))
    tl.store(out + place, round_to(flat, out), mask=kept[:, None] & within[None, :])


@triton.jit
def store_scores(kept, row, scores, out, head, in_head, STRIDE: tl.constexpr):
    """out[row, head] = scores [R, H] where ``kept`` [R]."""
    place = row[:, None] * STRIDE + head[None, :]
    tl.store(out + place, round_to(scores, out), mask=kept[:, None] & in_head[None, :])


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
    in_head,
    within,
    first_columns,
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
    all edges, then those over steep ones.
    """
    inverse = 1.0 / (total + 1e-16)
    scored = in_head & first_columns
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
        in_head,
        within,
        first_columns,
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
