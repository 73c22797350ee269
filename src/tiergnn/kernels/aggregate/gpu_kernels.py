"""The Triton kernels of aggregation: tiles of edges x columns, gathered and reduced in registers.

A program works on ROWS tasks (``kernels.tasks``) of similar size and BLOCK columns; where the grid
has a second axis it runs over blocks of columns, all tasks of one block before those of the next.
Loads of rows are as wide as the width and the alignment of the rows allow, at most 16 bytes.

Legend: P destinations, S sources, E edges, T tasks, Q parts, D columns; R ROWS, U UNROLL, L LANES
(edges side by side in a warp), W BLOCK.
"""

# Triton's annotations do not know what a kernel's numbers are.
# pyright: reportArgumentType=false, reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from tiergnn.kernels.gpu_rows import places_at

RANGES = ["first", "last", "num_parts"]  # not worth a compilation for every kind of number


@triton.jit
def open_tasks(row, start, size, first, last, ROWS: tl.constexpr):
    """Number, row, first edge and size of this program's tasks, [R] each; size 0 past the last."""
    return _tasks_of(tl.program_id(0), row, start, size, first, last, ROWS)


@triton.jit
def _tasks_of(program, row, start, size, first, last, ROWS: tl.constexpr):
    task = first + program * ROWS + tl.arange(0, ROWS)
    own = task < last
    begin = tl.load(start + task, mask=own, other=0).to(tl.int64)
    num_edges = tl.load(size + task, mask=own, other=0)
    target = tl.load(row + task, mask=own, other=0).to(tl.int64)
    return task, own, target, begin, num_edges


@triton.jit
def round_to(value, pointer):
    """The value in the dtype that the pointer's memory holds."""
    if pointer.dtype.element_ty != tl.float64:  # no direct way from float64 to 16 bits
        value = value.to(tl.float32)
    return value.to(pointer.dtype.element_ty)


@triton.jit
def edges_of(col, weight, edge, at, live, SUM: tl.constexpr, HEADS: tl.constexpr):
    """Source row and weight of the edges ``at``; -1 where they are not live.

    With HEADS weights an edge, which ``times`` reads, the edge in the place of its weight.
    """
    source = tl.load(col + at, mask=live, other=-1)
    if weight is None:
        factor = at
    else:
        if edge is not None:
            at = tl.load(edge + at, mask=live, other=0).to(tl.int64)
        if HEADS > 0:
            factor = tl.where(live, at, -1)
        else:
            factor = tl.load(weight + at, mask=live, other=0).to(SUM)
    return source, factor


@triton.jit
def times(tile, factor, weight, d, SUM: tl.constexpr, HEADS: tl.constexpr, FEATURES: tl.constexpr):
    """A tile [..., W] of SUM, times the weights of its edges [...] for columns d [W]."""
    along = tl.expand_dims(factor, -1)
    if HEADS > 0:
        head = d // FEATURES
        place = weight + along * HEADS + head
        times = tl.load(place, mask=(along >= 0) & (head < HEADS), other=0).to(SUM)
    else:
        times = along
    return tile * times


@triton.jit
def _add_tile(
    acc,
    tile,
    factor,
    weight,
    d,
    SUM: tl.constexpr,
    HEADS: tl.constexpr,
    FEATURES: tl.constexpr,
    ROWS: tl.constexpr,
    UNROLL: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """acc [R, L, W] plus a tile [R*U*L, W]: every thread adds up what it loaded itself."""
    tile = tile.to(SUM)
    if weight is not None:
        tile = times(tile, factor, weight, d, SUM, HEADS, FEATURES)
    return acc + tl.sum(tl.reshape(tile, (ROWS, UNROLL, LANES, BLOCK)), 1)


@triton.jit
def _sum_tasks(
    program,
    x,
    col,
    weight,
    edge,
    out,
    part,
    row,
    start,
    size,
    rowptr,
    first,
    last,
    num_parts,
    STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    MEAN: tl.constexpr,
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
    """out[row] [P, D] or part[task] [Q, WIDTH] = sum over a task's edges of weight * x[col].

    Rows of x have WIDTH columns, of which out gets the first COLUMNS. The edges of a step are read
    while the rows of the step before are on their way. Tiles are [edges, columns]: with more axes
    some versions of Triton deal lanes out to the wrong one.
    """
    STEP: tl.constexpr = UNROLL * LANES
    task, own, target, begin, num_edges = _tasks_of(program, row, start, size, first, last, ROWS)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    within = (d < WIDTH)[None, :]
    e = tl.arange(0, STEP)[None, :]
    at = tl.reshape(begin[:, None] + e, (ROWS * STEP,))
    left = tl.reshape(num_edges[:, None] - e, (ROWS * STEP,))
    full = tl.min(num_edges, 0) // STEP * STEP
    acc = tl.zeros((ROWS, LANES, BLOCK), SUM)
    source, factor = edges_of(col, weight, edge, at, left > 0, SUM, HEADS)
    for i in range(0, full, STEP):
        rows = places_at(x, source, source >= 0, STRIDE, SHIFT, ELEMENT, VECTOR)
        place = rows[:, None] + d[None, :]
        if WIDTH % BLOCK == 0:
            tile = tl.load(place)
        else:
            tile = tl.load(place, mask=within, other=0)
        before = factor
        next_at = i + STEP
        source, factor = edges_of(col, weight, edge, at + next_at, left > next_at, SUM, HEADS)
        acc = _add_tile(
            acc, tile, before, weight, d, SUM, HEADS, FEATURES, ROWS, UNROLL, LANES, BLOCK
        )
    for i in range(full, tl.max(num_edges, 0), STEP):
        rows = places_at(x, source, source >= 0, STRIDE, SHIFT, ELEMENT, VECTOR)
        place = rows[:, None] + d[None, :]
        tile = tl.load(place, mask=(source >= 0)[:, None] & within, other=0)
        before = factor
        next_at = i + STEP
        source, factor = edges_of(col, weight, edge, at + next_at, left > next_at, SUM, HEADS)
        acc = _add_tile(
            acc, tile, before, weight, d, SUM, HEADS, FEATURES, ROWS, UNROLL, LANES, BLOCK
        )
    total = tl.sum(acc, 1)

    split = own & (task < num_parts)
    if part is not None:
        place = part + task.to(tl.int64)[:, None] * WIDTH + d[None, :]
        tl.store(place, round_to(total, part), mask=split[:, None] & within)
    whole = own & (task >= num_parts)
    if MEAN:
        degree = num_edges
        if rowptr is not None:  # the edges of this task are parts of a row
            above = tl.load(rowptr + target + 1, mask=whole, other=0)
            degree = above - tl.load(rowptr + target, mask=whole, other=0)
        total /= tl.maximum(degree, 1).to(SUM)[:, None]
    place = out + target[:, None] * COLUMNS + d[None, :]
    tl.store(place, round_to(total, out), mask=whole[:, None] & (d < COLUMNS)[None, :])


@triton.jit(do_not_specialize=RANGES)
def sum_kernel(
    x,
    col,
    weight,
    edge,
    out,
    part,
    row,
    start,
    size,
    rowptr,
    first,
    last,
    num_parts,
    STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    MEAN: tl.constexpr,
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
    FAR: tl.constexpr,
):
    """All tasks; with FAR by programs that are fewer, in turns, which leave room beside them."""
    if FAR:
        for program in range(tl.program_id(0), tl.cdiv(last - first, ROWS), tl.num_programs(0)):
            _sum_tasks(
                program, x, col, weight, edge, out, part, row, start, size, rowptr, first, last,
                num_parts, STRIDE, WIDTH, COLUMNS, MEAN, SHIFT, ELEMENT, VECTOR, HEADS, FEATURES,
                SUM, BLOCK, ROWS, UNROLL, LANES,
            )  # fmt: skip
    else:
        _sum_tasks(
            tl.program_id(0), x, col, weight, edge, out, part, row, start, size, rowptr, first,
            last, num_parts, STRIDE, WIDTH, COLUMNS, MEAN, SHIFT, ELEMENT, VECTOR, HEADS, FEATURES,
            SUM, BLOCK, ROWS, UNROLL, LANES,
        )  # fmt: skip


@triton.jit(do_not_specialize=RANGES[:2])
def edge_kernel(
    g,
    x,
    col,
    weight,
    best,
    out,
    row,
    start,
    size,
    first,
    last,
    G_STRIDE: tl.constexpr,
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
    """out[e] [E] = the dot product of g[row] and x[col] over the columns, or [E, HEADS] by head.

    The second axis of the grid is the head, or, where heads have one column, a block of them.
    With ``best`` [P, D] only columns count whose message weight * x[col] is best[row].
    """
    STEP: tl.constexpr = UNROLL * LANES
    _, own, target, begin, num_edges = open_tasks(row, start, size, first, last, ROWS)
    e = tl.arange(0, STEP)[None, :]
    for i in range(0, tl.max(num_edges, 0), STEP):
        live = i + e < num_edges[:, None]
        at = begin[:, None] + i + e
        source = tl.load(col + at, mask=live, other=0)
        rows = places_at(x, source, live, STRIDE, SHIFT, ELEMENT, VECTOR)
        acc = tl.zeros((ROWS, STEP), SUM)
        begin_column, end_column, stop = 0, WIDTH, WIDTH
        if HEADS > 0:
            begin_column = tl.program_id(1) * (BLOCK if FEATURES == 1 else FEATURES)
            end_column = begin_column + FEATURES
            stop = WIDTH if FEATURES == 1 else end_column
        for first_column in range(begin_column, end_column, BLOCK):
            d = first_column + tl.arange(0, BLOCK)
            inside = own[:, None] & (d < stop)[None, :]
            within = live[:, :, None] & (d < stop)[None, None, :]
            other = tl.load(g + target[:, None] * G_STRIDE + d[None, :], mask=inside, other=0)
            place = rows[:, :, None] + d[None, None, :]
            tile = tl.load(place, mask=within, other=0)
            product = tile.to(SUM) * other.to(SUM)[:, None, :]
            if best is not None:
                if HEADS > 0:
                    factor = tl.where(live, at, -1)
                else:
                    factor = tl.load(weight + at, mask=live, other=0).to(SUM)
                limit = tl.load(best + target[:, None] * WIDTH + d[None, :], mask=inside, other=0)
                message = times(tile.to(SUM), factor, weight, d, SUM, HEADS, FEATURES)
                message = message.to(tile.dtype)
                product = tl.where(reaches(message, limit[:, None, :]), product, 0.0)
            if FEATURES == 1 and HEADS > 0:
                tl.store(out + at[:, :, None] * HEADS + d[None, None, :], product, mask=within)
            else:
                acc += tl.sum(product, 2)
        if HEADS == 0:
            tl.store(out + at, acc, mask=live)
        elif FEATURES > 1:
            tl.store(out + at * HEADS + tl.program_id(1), acc, mask=live)


@triton.jit
def reaches(message, best):
    """Whether a message is the maximum; NaN is NaN's equal."""
    return (message == best) | ((message != message) & (best != best))
