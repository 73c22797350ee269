"""Moments on the CPU: one pass over memory, chunk by chunk, and one back.

A chunk of rows is read from memory for its mean and found in the first cache for its deviations.
Chunks are merged in float64 in the order of the rows within a share, of which there are at most
_SHARES, whatever the number of threads; shares are merged in order, too.

Bytes: rows read once; backward reads them, and what it adds to, and writes as many.

Legend: P rows, D columns.
"""

# llvmlite's values and builders come without types.
# pyright: reportAttributeAccessIssue=false, reportReturnType=false

from __future__ import annotations

import numpy as np
import torch
from numba.core import types
from torch import Tensor

from tiergnn.kernels.aggregate.reference import wide
from tiergnn.kernels.lanes import (
    add,
    divide,
    load,
    load_as_is,
    multiply_add,
    store,
    subtract,
    zeros,
)
from tiergnn.kernels.memory import new_rows
from tiergnn.kernels.rows import Columns, dense, njit
from tiergnn.kernels.threads import spread
from tiergnn.kernels.tile import (
    BYTES,
    Tile,
    full_of,
    operation,
    pointer_to,
    splat,
    tiles,
    vector,
    whole_tiles,
)

_SHARES = 64  # of the rows, whose moments are kept apart
_CHUNK_BYTES = 16 * 2**10  # of a piece of rows, half of the first cache
_MOST, _LEAST = 128, 16  # rows of a chunk
_LANES = 64  # of a wide row in backward, which is passed from end to end


@operation
def merge(typing_context, tile, address, second, mean, once, twice, count, frac, weight):
    """Merge a chunk into the share's mean and squares, the tile's width of float64 at an address
    and ``second`` bytes on (Chan et al., 1979).

    once and twice: sums of the chunk's deviations from about its ``mean``, and of their squares.
    count: its rows; frac of those of the share so far with them; weight: frac times those before.
    """

    def emit(context, builder, signature, args):
        _, address, second, *lanes, count, frac, weight = args
        kind = vector("float64", tile.width)
        if mean.dtype != "float64":
            lanes = [builder.fpext(value, kind) for value in lanes]
        about, once, twice = lanes
        count, frac, weight = (splat(builder, n, tile.width) for n in (count, frac, weight))
        # What is left of the mean's rounding is told from the deviations' sum, and taken out.
        rest = builder.fdiv(once, count)
        squares = builder.fsub(twice, builder.fmul(once, rest))
        zero = full_of(0.0, kind)
        squares = builder.select(builder.fcmp_ordered("<", squares, zero), zero, squares)
        places = (address, builder.add(address, second))
        pointers = [pointer_to(builder, place, kind) for place in places]
        before, sum_before = (builder.load(pointer, align=8) for pointer in pointers)
        off = builder.fsub(builder.fadd(about, rest), before)
        moved = builder.fadd(before, builder.fmul(off, frac))
        between = builder.fmul(builder.fmul(off, weight), off)
        builder.store(moved, pointers[0], align=8)
        squares = builder.fadd(squares, between)
        builder.store(builder.fadd(sum_before, squares), pointers[1], align=8)
        return context.get_dummy_value()

    place, number = types.int64, types.float64
    return types.void(tile, place, place, mean, once, twice, number, number, number), emit


@njit
def _moments_kernel(
    first, last, step, num_rows, chunk, tile, count, x, x_stride, shares, shares_stride, second
):
    """Shares first..last-1 of one piece of the columns."""
    for share in range(first, last):
        start, end = share * step, min((share + 1) * step, num_rows)
        for begin in range(start, end, chunk):
            stop = min(begin + chunk, end)
            total = zeros(tile)
            for row in range(begin, stop):
                total = add(total, load(tile, x + x_stride * row, count))
            mean = divide(total, stop - begin)
            once, twice = zeros(tile), zeros(tile)
            for row in range(begin, stop):
                off = subtract(load(tile, x + x_stride * row, count), mean)
                once = add(once, off)
                twice = multiply_add(twice, off, off)
            rows, before = float(stop - begin), float(begin - start)
            frac = rows / (before + rows)
            to = shares + shares_stride * share
            merge(tile, to, second, mean, once, twice, rows, frac, before * frac)


@njit(inline="always")
def _write_grad(tile, count, x, adds, more, out, mean, slope, level):
    """A piece of a row, to which that at ``more`` is added if ``adds``."""
    off = subtract(load(tile, x, count), load_as_is(tile, mean, count))
    value = multiply_add(load_as_is(tile, level, count), off, load_as_is(tile, slope, count))
    if adds:
        value = add(value, load(tile, more, count))
    store(tile, out, count, value)


@njit
def _moments_grad_kernel(
    first, last, tile, times, width, tail, count, size, wide_size, rows, columns
):
    """Rows first..last-1: ``times`` whole tiles of ``width`` columns, then those of the tail;
    bytes of a number as stored, and of one of a column."""
    x, x_stride, more, more_stride, out, out_stride = rows
    mean, slope, level = columns
    adds = more != 0
    for row in range(first, last):
        from_x, to, also = x + x_stride * row, out + out_stride * row, more + more_stride * row
        for piece in range(times):
            at, of = piece * width * size, piece * width * wide_size
            _write_grad(
                tile, width, from_x + at, adds, also + at, to + at,
                mean + of, slope + of, level + of,
            )  # fmt: skip
        if count > 0:
            at, of = times * width * size, times * width * wide_size
            _write_grad(
                tail, count, from_x + at, adds, also + at, to + at,
                mean + of, slope + of, level + of,
            )  # fmt: skip


def moments(x_PD: Tensor) -> Tensor:
    """As the reference, as the head of this file says."""
    x = dense(x_PD)
    num_rows, columns = x.shape
    cut = tiles(x.dtype, columns)
    room = sum(tile.width for tile, _, _ in cut)
    shares = torch.zeros(_SHARES, 2, room, dtype=torch.float64)
    step = max(_MOST, -(-num_rows // _SHARES))
    pieces = [
        (_chunk(tile), tile, count, *Columns.of(x, at), shares.data_ptr() + at * 8)
        for tile, at, count in cut
    ]

    def work(first: int, last: int) -> None:
        for piece in pieces:
            _moments_kernel(first, last, step, num_rows, *piece, 2 * room * 8, room * 8)

    if x.numel():
        spread(work, -(-num_rows // step), x.nbytes)
    merged = _merged(shares[..., :columns].numpy(), num_rows, step)
    return torch.from_numpy(merged).to(wide(x.dtype))


def _chunk(tile: Tile) -> int:
    return min(max(_CHUNK_BYTES // (tile.width * BYTES[tile.element]), _LEAST), _MOST)


def _merged(shares: np.ndarray, num_rows: int, step: int) -> np.ndarray:
    """The moments of all rows from mean and squares of shares [_SHARES, 2, D], in order."""
    count = (num_rows - step * np.arange(_SHARES)).clip(0, step).astype(float)[:, None]
    mean, squares = shares[:, 0], shares[:, 1]
    whole = np.add.reduce(count * mean, axis=0) / max(1, num_rows)
    squares = np.add.reduce(squares + count * (mean - whole) ** 2, axis=0)
    return np.stack([np.full_like(whole, num_rows), whole, squares])


def moments_grad(
    x_PD: Tensor,
    values: Tensor,
    grad: Tensor,
    more_PD: Tensor | None = None,
    out_PD: Tensor | None = None,
) -> Tensor:
    """As the reference."""
    x, more = dense(x_PD), None if more_PD is None else dense(more_PD)
    out = new_rows(x.shape[0], x.shape[1], x.dtype) if out_PD is None else out_PD
    if not out.numel():
        return out
    by_column = values[1].contiguous(), 2 * grad[2], grad[1] / values[0].clamp(min=1)
    rows = (
        *Columns.of(x, 0), *((0, 0) if more is None else Columns.of(more, 0)), *Columns.of(out, 0),
    )  # fmt: skip
    columns = tuple(t.data_ptr() for t in by_column)
    given = (
        *whole_tiles(x.dtype, x.shape[1], _LANES), x.element_size(), by_column[0].element_size(),
        rows, columns,
    )  # fmt: skip

    def work(first: int, last: int) -> None:
        _moments_grad_kernel(first, last, *given)

    spread(work, x.shape[0], 2 * out.nbytes)
    return out
