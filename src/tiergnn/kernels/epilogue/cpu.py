"""The epilogue on the CPU: one pass over rows, from end to end, and one back, tile by tile.

Bytes: rows read (x, other) and written once; backward reads the gradient and the result and writes
the gradients. Sums of columns are kept by _SHARES equal shares of the rows, whatever the number of
threads: up to CHUNK rows in the dtype of the arithmetic, more in float64, in order.

Legend: P rows, D columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tiergnn.kernels.aggregate.cpu_sum import CHUNK
from tiergnn.kernels.aggregate.reference import wide
from tiergnn.kernels.dropout.cpu import draw, where_kept
from tiergnn.kernels.epilogue.cpu_elu import expm1_below
from tiergnn.kernels.epilogue.reference import ACTS, Grads, Options, Terms
from tiergnn.kernels.lanes import (
    add,
    add_to_double,
    full,
    larger,
    load,
    load_as_is,
    multiply,
    multiply_add,
    scale,
    store,
    subtract,
    where_above,
    zeros,
)
from tiergnn.kernels.memory import new_rows
from tiergnn.kernels.rows import Columns, dense, njit
from tiergnn.kernels.threads import spread
from tiergnn.kernels.tile import tiles, whole_tiles

RELU, LEAKY_RELU, ELU = (ACTS.index(name) for name in ("relu", "leaky_relu", "elu"))
_SHARES = 64  # of the rows, whose sums are kept apart
# Of a wide row, which is passed from end to end; with more, words of dropout leave it no registers.
_LANES = 64


@njit(inline="always")
def _at(numbers, row):
    """A number of a row, where all may share one."""
    return numbers[row if numbers.size > 1 else 0]


@njit(inline="always")
def _before_gain(tile, count, row, rows, numbers, columns):
    """scale * (x + loop * other) - shift: what the gain multiplies. Addresses of 0 are left out."""
    value = load(tile, rows.x + rows.x_stride * row, count)
    if rows.other != 0:
        other = load(tile, rows.other + rows.other_stride * row, count)
        value = multiply_add(value, other, _at(numbers.loop, row))
    value = scale(value, _at(numbers.scale, row))
    if columns.shift != 0:
        value = subtract(value, load_as_is(tile, columns.shift, count))
    return value


@njit(inline="always")
def _write(tile, count, quad, row, rows, numbers, columns, gid, options):
    """A piece of a row, whose words of dropout begin with those of ``quad``."""
    value = _before_gain(tile, count, row, rows, numbers, columns)
    if columns.gain != 0:
        value = multiply(value, load_as_is(tile, columns.gain, count))
    if columns.bias != 0:
        value = add(value, load_as_is(tile, columns.bias, count))
    if options.act == RELU:
        value = larger(zeros(tile), value)
    elif options.act == LEAKY_RELU:
        value = where_above(value, value, scale(value, options.slope))
    elif options.act == ELU:
        value = where_above(value, value, scale(expm1_below(value), options.slope))
    if options.threshold != 0:
        row_id = row if gid is None else gid[row]
        words = draw(tile, row_id, quad, options.key, options.site)
        value = where_kept(words, options.threshold, scale(value, options.factor))
    value = scale(value, _at(numbers.post, row))
    store(tile, rows.out + rows.out_stride * row, count, value)


@njit
def _narrow_kernel(first, last, tile, count, rows, numbers, columns, gid, options):
    """Rows first..last-1 of one tile: without the sums of the other, a sixth less time."""
    for row in range(first, last):
        _write(tile, count, 0, row, rows, numbers, columns, gid, options)


@njit
def _wide_kernel(
    first, last, tile, times, width, tail, count, rows, numbers, columns, gid, options
):
    """Rows first..last-1: ``times`` whole tiles of ``width`` columns, then those of the tail."""
    for row in range(first, last):
        for piece in range(times):
            at = piece * width
            _write(
                tile, width, at // 4, row, _rows_from(rows, at * options.stored_bytes), numbers,
                _columns_from(columns, at * options.wide_bytes), gid, options,
            )  # fmt: skip
        if count > 0:
            at = times * width
            _write(
                tail, count, at // 4, row, _rows_from(rows, at * options.stored_bytes), numbers,
                _columns_from(columns, at * options.wide_bytes), gid, options,
            )  # fmt: skip


@njit(inline="always")
def _from(address, num_bytes):
    """The address so many bytes on; 0 stays none."""
    return address + num_bytes if address != 0 else address


@njit(inline="always")
def _rows_from(rows, num_bytes):
    return _Rows(
        rows.x + num_bytes, rows.x_stride, _from(rows.other, num_bytes), rows.other_stride,
        rows.out + num_bytes, rows.out_stride,
    )  # fmt: skip


@njit(inline="always")
def _columns_from(columns, num_bytes):
    return _ByColumn(
        _from(columns.shift, num_bytes),
        _from(columns.gain, num_bytes),
        _from(columns.bias, num_bytes),
    )


@njit(inline="always")
def _before_act(tile, count, row, value, rows, post, options):
    """The gradient before the activation from that behind it, told from what the row became."""
    made = load(tile, rows.out + rows.out_stride * row, count)
    if post < 0:
        made = subtract(zeros(tile), made)
    less = zeros(tile)
    if options.act == LEAKY_RELU:
        less = scale(value, options.slope)
    elif options.act == ELU:
        after = abs(post) * options.factor  # nothing flows where it is 0
        past = scale(made, 1 / after if after > 0 else after)
        less = multiply(value, add(past, full(tile, options.slope)))
    return where_above(made, value, less)


@njit
def _epilogue_grad_kernel(
    first, last, step, num_rows, tile, count, quad, rows, grads, numbers, columns, gid, options
):
    """Shares first..last-1 of one piece of the columns."""
    for share in range(first, last):
        sums = grads.sums + grads.sums_stride * share
        end = min((share + 1) * step, num_rows)
        for begin in range(share * step, end, CHUNK):
            total, second = zeros(tile), zeros(tile)
            for row in range(begin, min(begin + CHUNK, end)):
                post = _at(numbers.post, row)
                value = scale(load(tile, grads.out + grads.out_stride * row, count), post)
                if options.threshold != 0:
                    value = scale(value, options.factor)
                    if options.act != RELU:
                        row_id = row if gid is None else gid[row]
                        words = draw(tile, row_id, quad, options.key, options.site)
                        value = where_kept(words, options.threshold, value)
                if options.act != 0:
                    value = _before_act(tile, count, row, value, rows, post, options)
                total = add(total, value)
                if rows.x != 0:
                    before = _before_gain(tile, count, row, rows, numbers, columns)
                    second = multiply_add(second, value, before)
                if columns.gain != 0:
                    value = multiply(value, load_as_is(tile, columns.gain, count))
                value = scale(value, _at(numbers.scale, row))
                if grads.x != 0:
                    store(tile, grads.x + grads.x_stride * row, count, value)
                if grads.other != 0:
                    value = scale(value, _at(numbers.loop, row))
                    store(tile, grads.other + grads.other_stride * row, count, value)
            add_to_double(tile, sums, total)
            add_to_double(tile, sums + grads.second, second)


class _Rows(NamedTuple):
    """Addresses of rows' pieces and bytes from row to row; an address of 0 is left out."""

    x: int
    x_stride: int
    other: int
    other_stride: int
    out: int
    out_stride: int


class _Grads(NamedTuple):
    """The same of gradients, and of sums of columns: the second sum is ``second`` bytes on."""

    out: int
    out_stride: int
    x: int
    x_stride: int
    other: int
    other_stride: int
    sums: int
    sums_stride: int
    second: int


class _Numbers(NamedTuple):
    """Numbers of rows, [P] or [1]: 1 where there is none."""

    loop: np.ndarray
    scale: np.ndarray
    post: np.ndarray


class _ByColumn(NamedTuple):
    """Addresses of numbers of columns, or 0."""

    shift: int
    gain: int
    bias: int


class _Scalars(NamedTuple):
    """``Options`` in the dtypes of compiled code; bytes of a number as stored, and as computed."""

    act: int
    slope: Any
    threshold: int
    factor: Any
    key: np.uint64
    site: int
    stored_bytes: int
    wide_bytes: int


def epilogue(x_PD: Tensor, terms: Terms, options: Options) -> Tensor:
    """As the reference."""
    x, other = dense(x_PD), _dense(terms.other)
    out = new_rows(x.shape[0], x.shape[1], x.dtype)
    if not out.numel():
        return out
    numbers, scalars, gid = _given(x.dtype, terms, options)
    held = _held(terms)
    rows = _Rows(*_piece(x, 0), *_piece(other, 0), *_piece(out, 0))
    given = rows, numbers, _by_column(held, 0), gid, scalars
    cut = whole_tiles(x.dtype, x.shape[1], _LANES)
    _, times, _, tail, count = cut

    def work(first: int, last: int) -> None:
        if times:
            _wide_kernel(first, last, *cut, *given)
        else:
            _narrow_kernel(first, last, tail, count, *given)

    spread(work, x.shape[0], 2 * out.nbytes)
    return out


def epilogue_grad(
    grad_PD: Tensor,
    out_PD: Tensor | None,
    x_PD: Tensor | None,
    terms: Terms,
    options: Options,
    needs: tuple[bool, bool],
) -> Grads:
    """As the reference; sums as the head of this file says."""
    grad, out, x, other = dense(grad_PD), _dense(out_PD), _dense(x_PD), _dense(terms.other)
    num_rows, columns = grad.shape
    of_x, of_other = (new_rows(num_rows, columns, grad.dtype) if need else None for need in needs)
    cut = tiles(grad.dtype, columns)
    room = sum(tile.width for tile, _, _ in cut)
    sums = torch.zeros(_SHARES, 2, room, dtype=torch.float64)
    numbers, scalars, gid = _given(grad.dtype, terms, options)
    held = _held(terms)
    pieces = [
        (
            tile, count, at // 4,
            _Rows(*_piece(x, at), *_piece(other, at), *_piece(out, at)),
            _Grads(
                *_piece(grad, at), *_piece(of_x, at), *_piece(of_other, at),
                sums.data_ptr() + at * 8, 2 * room * 8, room * 8,
            ),
            numbers, _by_column(held, at), gid, scalars,
        )
        for tile, at, count in cut
    ]  # fmt: skip
    step = -(-num_rows // _SHARES)

    def work(first: int, last: int) -> None:
        for piece in pieces:
            _epilogue_grad_kernel(first, last, step, num_rows, *piece)

    if grad.numel():
        spread(work, _SHARES, 3 * grad.nbytes)
    total = torch.from_numpy(np.add.reduce(sums.numpy(), axis=0))[:, :columns]
    return Grads(of_x, of_other, total.to(wide(grad.dtype)))


def _dense(x: Tensor | None) -> Tensor | None:
    return None if x is None else dense(x)


def _piece(x: Tensor | None, at: int) -> tuple[int, int]:
    """Address and stride of the columns from ``at`` on; zeros for None."""
    if x is None:
        return 0, 0
    columns = Columns.of(x, at)
    assert isinstance(columns.address, int)
    return columns.address, columns.stride


def _held(terms: Terms) -> tuple[Tensor | None, ...]:
    """Numbers of columns, which must live while their addresses are used."""
    given = terms.shift, terms.gain, terms.bias
    return tuple(None if t is None else t.detach().contiguous() for t in given)


def _by_column(held: tuple[Tensor | None, ...], at: int) -> _ByColumn:
    return _ByColumn(*(0 if t is None else t.data_ptr() + at * t.element_size() for t in held))


def _given(
    dtype: torch.dtype, terms: Terms, options: Options
) -> tuple[_Numbers, _Scalars, np.ndarray | None]:
    """Numbers of rows, options and row ids as compiled code takes them."""
    real = np.float64 if dtype == torch.float64 else np.float32
    given = terms.loop, terms.scale, terms.post
    numbers = (np.ones(1, real) if t is None else t.detach().contiguous().numpy() for t in given)
    scalars = _Scalars(
        act=ACTS.index(options.act),
        slope=real(options.slope),
        threshold=options.threshold,
        factor=real(options.factor),
        key=np.uint64(0 if options.key is None else int(options.key) % 2**64),
        site=options.site,
        stored_bytes=dtype.itemsize,
        wide_bytes=np.dtype(real).itemsize,
    )
    gid = None if terms.gid is None else terms.gid.contiguous().numpy()
    return _Numbers(*numbers), scalars, gid
