"""What a program of the GPU's attention kernels reads and writes: edges by heads and columns.

A program works on ROWS tasks (``kernels.tasks``), HEADS heads and WIDTH columns of each.

Legend: K heads, F features; R ROWS, U UNROLL, L LANES (edges side by side in a warp), H HEADS,
W WIDTH.
"""

# Triton types constants as constexpr, and gives no type to what a kernel is called with.
# pyright: reportArgumentType=false, reportAssignmentType=false

from __future__ import annotations

import triton
import triton.language as tl


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
def open_groups(
    K: tl.constexpr, F: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, VECTOR: tl.constexpr
):
    """As ``open_columns`` for groups of VECTOR columns of one head, G = H*W / V of them.

    First head and feature; the head [G] of each group; feature and head [H*W] of each column; which
    groups have a head [G], and which of them are the first of theirs.
    """
    blocks: tl.constexpr = (F + WIDTH - 1) // WIDTH
    share: tl.constexpr = WIDTH // VECTOR
    first_head = tl.program_id(1) // blocks * HEADS
    block = tl.program_id(1) % blocks * WIDTH
    g = tl.arange(0, HEADS * share)
    c = tl.arange(0, HEADS * WIDTH)
    head = first_head + g // share
    leads = (g % share == 0) & (block == 0)
    return first_head, block, head, block + c % WIDTH, first_head + c // WIDTH, head < K, leads


@triton.jit
def group_columns(
    first_head,
    K: tl.constexpr,
    PITCH: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    VECTOR: tl.constexpr,
    block,
):
    """First columns [G] of this block's groups, in rows whose heads stand PITCH numbers apart.

    0 for groups that are not there.
    """
    share: tl.constexpr = WIDTH // VECTOR
    g = tl.arange(0, HEADS * share)
    head, feature = first_head + g // share, block + g % share * VECTOR
    return tl.where((head < K) & (feature < PITCH), head * PITCH + feature, 0)


@triton.jit
def by_group(x, GROUPS: tl.constexpr):
    """x [R, U, L, H] for every group of columns of its heads, [R, U, L, G]."""
    share: tl.constexpr = GROUPS // x.shape[3]
    size: tl.constexpr = (x.shape[0], x.shape[1], x.shape[2], x.shape[3], share)
    wide = tl.broadcast_to(x[:, :, :, :, None], size)
    return tl.reshape(wide, (x.shape[0], x.shape[1], x.shape[2], GROUPS))


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
def flat_edges(x, UNROLL: tl.constexpr, LANES: tl.constexpr):
    """x [R, U, L], or [R] for every edge of its task, as [R*U*L]."""
    size: tl.constexpr = x.shape[0] * UNROLL * LANES
    if len(x.shape) == 1:
        x = tl.broadcast_to(x[:, None, None], (x.shape[0], UNROLL, LANES))
    return tl.reshape(x, (size,))


@triton.jit
def by_edge(x, ROWS: tl.constexpr, UNROLL: tl.constexpr, LANES: tl.constexpr):
    """x [G, R*U*L] as [R, U, L, G]."""
    return tl.reshape(tl.trans(x), (ROWS, UNROLL, LANES, x.shape[0]))


@triton.jit
def load_groups(x, at, live, head, in_head, STRIDE: tl.constexpr):
    """x[at, head], [G, E], for every group of columns; at [G, E], or [1, E] where int64.

    Groups come first: of two axes along neither of which addresses follow each other, Triton deals
    neighbouring threads to the first, and groups stand side by side in the rows of a tile.
    """
    place = at.to(tl.int64) * STRIDE + head[:, None]
    return tl.load(x + place, mask=live & in_head[:, None], other=0)


@triton.jit
def gather_rows(x, at, live, group, STRIDE: tl.constexpr, VECTOR: tl.constexpr, SUM: tl.constexpr):
    """x[at, group .. group + VECTOR - 1], [E, G, V], and 0 where not ``live``; at and live [G, E].

    Everything is read, live or not: rows ``at`` and columns ``group`` [G] exist. (A mask that is
    made of these tensors would have every number loaded alone.)
    """
    size: tl.constexpr = at.shape[1]
    groups: tl.constexpr = at.shape[0]
    first = tl.trans(at.to(tl.int64) * STRIDE + group[:, None])
    place = first[:, :, None] + tl.arange(0, VECTOR)[None, None, :]
    place = tl.reshape(place, (size, groups * VECTOR))
    place = tl.max_contiguous(tl.multiple_of(place, (1, VECTOR)), (1, VECTOR))
    tile = tl.reshape(tl.load(x + place), (size, groups, VECTOR)).to(SUM)
    return tl.where(tl.trans(live)[:, :, None], tile, 0.0)


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
    place = tl.reshape(at, (size,)).to(tl.int64)[:, None] * STRIDE + column[None, :]
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
def logit_grads(alpha, inner, row_inner):
    """Gradients of logits, from an edge's <grad, d h> and its row's <grad, out>.

    An edge with all the weight of its row has none: the difference of two products that are equal
    but for rounding would add up over many such rows. Its weight is 1 but for the rounding of a
    logit that is made once more.
    """
    rounding: tl.constexpr = 2**-47 if alpha.dtype == tl.float64 else 2**-18
    others = tl.full(alpha.shape, 1.0, alpha.dtype) - alpha
    return tl.where(others < rounding, 0.0, alpha * (inner - row_inner))


@triton.jit
def keep_factors(
    row_id,
    first_head,
    key,
    threshold,
    site,
    SCALE: tl.constexpr,
    SHIFT: tl.constexpr,
    HEADS: tl.constexpr,
    SUM: tl.constexpr,
):
    """What dropout multiplies coefficients by, [R, U, L, H]; row_id int64 [R, U, L].

    One Philox counter serves four heads, counted from SHIFT.
    """
    low = row_id.to(tl.uint32)[:, :, :, None]
    high = (row_id >> 32).to(tl.uint32)[:, :, :, None]
    zero = tl.zeros_like(low)
    fourth = zero + site.to(tl.uint32)
    if HEADS % 4 == 0 and SHIFT % 4 == 0:
        quad = ((first_head + SHIFT) // 4 + tl.arange(0, HEADS // 4))[None, None, None, :].to(
            tl.uint32
        )
        w0, w1, w2, w3 = tl.philox(key, low + zero, high + zero, zero + quad, fourth)
        word = tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))
    else:
        head = (first_head + SHIFT + tl.arange(0, HEADS))[None, None, None, :]
        quad = (head // 4).to(tl.uint32)
        w0, w1, w2, w3 = tl.philox(key, low + zero, high + zero, zero + quad, fourth)
        even = tl.where(head % 4 == 0, w0, w2)
        odd = tl.where(head % 4 == 1, w1, w3)
        word = tl.where(head % 2 == 0, even, odd)
    return tl.where(word.to(tl.int64) >= threshold, tl.full(word.shape, SCALE, SUM), 0.0)


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
