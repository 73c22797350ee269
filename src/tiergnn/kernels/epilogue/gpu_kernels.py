"""The epilogue's kernels in Triton. ``reference`` says what they compute.

Legend: P rows, D columns.
"""

# Triton's annotations do not know what a kernel's numbers are.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportIndexIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

RELU = tl.constexpr(1)
LEAKY_RELU = tl.constexpr(2)
ELU = tl.constexpr(3)
_TERMS = tl.constexpr(14)  # of the series of exp(x) - 1 near 0


@triton.jit
def _rows_at(x, row, column, mask, STRIDE: tl.constexpr, SUM: tl.constexpr):
    return tl.load(x + row[:, None] * STRIDE + column[None, :], mask=mask, other=0).to(SUM)


@triton.jit
def _of_rows(numbers, row, own, STEP: tl.constexpr):
    """A number a row, as a column."""
    return tl.load(numbers + row * STEP, mask=own, other=0)[:, None]


@triton.jit
def _of_columns(numbers, column, COLUMNS: tl.constexpr):
    """A number a column, as a row."""
    return tl.load(numbers + column, mask=column < COLUMNS, other=0)[None, :]


@triton.jit
def _before_gain(
    x, other, loop, scale, shift, row, column, own, mask,
    X_STRIDE: tl.constexpr, OTHER_STRIDE: tl.constexpr, LOOP_STEP: tl.constexpr,
    SCALE_STEP: tl.constexpr, COLUMNS: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    """scale * (x + loop * other) - shift: what the gain multiplies."""
    value = _rows_at(x, row, column, mask, X_STRIDE, SUM)
    if other is not None:
        more = _rows_at(other, row, column, mask, OTHER_STRIDE, SUM)
        if loop is not None:
            more *= _of_rows(loop, row, own, LOOP_STEP)
        value += more
    if scale is not None:
        value *= _of_rows(scale, row, own, SCALE_STEP)
    if shift is not None:
        value -= _of_columns(shift, column, COLUMNS)
    return value


@triton.jit
def _expm1(value):
    """exp(value) - 1 for values up to 0, by its series where that is short."""
    near = tl.maximum(value, -0.35)
    series = near * 0 + 1.0
    for k in tl.static_range(_TERMS):
        series = series * near / (_TERMS + 1 - k) + 1.0
    return tl.where(value > -0.35, series * near, tl.exp(tl.minimum(value, 0.0)) - 1.0)


@triton.jit
def _kept(gid, row, own, threshold, key, site, first, ROWS: tl.constexpr, QUADS: tl.constexpr):
    """Which elements of a tile dropout keeps; its columns start at 4 * first."""
    if gid is None:
        row_id = row
    else:
        row_id = tl.load(gid + row, mask=own, other=0)
    zero = tl.zeros((ROWS, QUADS), tl.uint32)
    low = zero + (row_id & 0xFFFFFFFF).to(tl.uint32)[:, None]
    high = zero + ((row_id >> 32) & 0xFFFFFFFF).to(tl.uint32)[:, None]
    place = zero + (first + tl.arange(0, QUADS)).to(tl.uint32)[None, :]
    a, b, c, d = tl.philox(tl.load(key), low, high, place, zero + site.to(tl.uint32))
    word = tl.interleave(tl.interleave(a, c), tl.interleave(b, d))  # a b c d, a b c d ...
    return word.to(tl.int64) >= threshold


@triton.jit(do_not_specialize=["num_rows", "factor_bits", "threshold", "site"])
def epilogue_kernel(
    x,
    other,
    loop,
    scale,
    shift,
    gain,
    bias,
    post,
    gid,
    out,
    num_rows,
    factor_bits,
    threshold,
    key,
    site,
    ACT: tl.constexpr,
    SLOPE: tl.constexpr,
    DROPS: tl.constexpr,
    SUM: tl.constexpr,
    X_STRIDE: tl.constexpr,
    OTHER_STRIDE: tl.constexpr,
    LOOP_STEP: tl.constexpr,
    SCALE_STEP: tl.constexpr,
    POST_STEP: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    QUADS: tl.constexpr,
):
    """out [P, D], whose rows are contiguous. ``factor_bits`` are those of a float64."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    own = row < num_rows
    column = tl.program_id(1) * QUADS * 4 + tl.arange(0, QUADS * 4)
    mask = own[:, None] & (column < COLUMNS)[None, :]
    value = _before_gain(
        x, other, loop, scale, shift, row, column, own, mask,
        X_STRIDE, OTHER_STRIDE, LOOP_STEP, SCALE_STEP, COLUMNS, SUM,
    )  # fmt: skip
    if gain is not None:
        value *= _of_columns(gain, column, COLUMNS)
    if bias is not None:
        value += _of_columns(bias, column, COLUMNS)
    if ACT == RELU:
        value = tl.where(value <= 0, 0.0, value)  # which leaves NaN
    if ACT == LEAKY_RELU:
        value = tl.where(value > 0, value, value * SLOPE)
    if ACT == ELU:
        value = tl.where(value > 0, value, _expm1(value) * SLOPE)
    if DROPS:
        first = tl.program_id(1) * QUADS
        kept = _kept(gid, row, own, threshold, key, site, first, ROWS, QUADS)
        factor = factor_bits.to(tl.float64, bitcast=True).to(SUM)
        value = tl.where(kept, value * factor, 0.0)
    if post is not None:
        value *= _of_rows(post, row, own, POST_STEP)
    to = out + row[:, None] * COLUMNS + column[None, :]
    tl.store(to, value.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_rows", "factor_bits", "threshold", "site"])
def epilogue_grad_kernel(
    grad,
    out,
    x,
    other,
    loop,
    scale,
    shift,
    gain,
    post,
    gid,
    grad_x,
    grad_other,
    part,
    num_rows,
    factor_bits,
    threshold,
    key,
    site,
    ACT: tl.constexpr,
    SLOPE: tl.constexpr,
    DROPS: tl.constexpr,
    SUM: tl.constexpr,
    SUMS: tl.constexpr,
    GRAD_STRIDE: tl.constexpr,
    OUT_STRIDE: tl.constexpr,
    X_STRIDE: tl.constexpr,
    OTHER_STRIDE: tl.constexpr,
    LOOP_STEP: tl.constexpr,
    SCALE_STEP: tl.constexpr,
    POST_STEP: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    QUADS: tl.constexpr,
):
    """grad_x and grad_other [P, D] where they are given, and part [programs, SUMS, D] float64."""
    column = tl.program_id(1) * QUADS * 4 + tl.arange(0, QUADS * 4)
    total = tl.zeros((ROWS, QUADS * 4), tl.float64)
    second = tl.zeros((ROWS, QUADS * 4), tl.float64)
    begin = tl.program_id(0).to(tl.int64) * ROWS
    for start in range(begin, num_rows, tl.num_programs(0) * ROWS):
        row = (start + tl.arange(0, ROWS)).to(tl.int64)
        own = row < num_rows
        mask = own[:, None] & (column < COLUMNS)[None, :]
        value = _rows_at(grad, row, column, mask, GRAD_STRIDE, SUM)
        after = tl.full((ROWS, 1), 1.0, SUM)
        if post is not None:
            after = _of_rows(post, row, own, POST_STEP)
            value *= after
        if DROPS:
            factor = factor_bits.to(tl.float64, bitcast=True).to(SUM)
            value *= factor
            after *= factor
            if ACT != RELU:
                first = tl.program_id(1) * QUADS
                kept = _kept(gid, row, own, threshold, key, site, first, ROWS, QUADS)
                value = tl.where(kept, value, 0.0)
        if ACT != 0:
            made = _rows_at(out, row, column, mask, OUT_STRIDE, SUM)
            made = tl.where(after < 0, -made, made)
            less = value * 0.0
            if ACT == LEAKY_RELU:
                less = value * SLOPE
            if ACT == ELU:  # nothing flows where after is 0
                less = value * (made / tl.where(after == 0, 1.0, tl.abs(after)) + SLOPE)
            value = tl.where(made > 0, value, less)
        total += value.to(tl.float64)
        if SUMS == 2:
            before = _before_gain(
                x, other, loop, scale, shift, row, column, own, mask,
                X_STRIDE, OTHER_STRIDE, LOOP_STEP, SCALE_STEP, COLUMNS, SUM,
            )  # fmt: skip
            second += (value * before).to(tl.float64)
        if gain is not None:
            value *= _of_columns(gain, column, COLUMNS)
        if scale is not None:
            value *= _of_rows(scale, row, own, SCALE_STEP)
        to = row[:, None] * COLUMNS + column[None, :]
        if grad_x is not None:
            tl.store(grad_x + to, value.to(grad_x.dtype.element_ty), mask=mask)
        if grad_other is not None:
            if loop is not None:
                value *= _of_rows(loop, row, own, LOOP_STEP)
            tl.store(grad_other + to, value.to(grad_other.dtype.element_ty), mask=mask)
    at = part + tl.program_id(0).to(tl.int64) * SUMS * COLUMNS + column
    tl.store(at, tl.sum(total, 0), mask=column < COLUMNS)
    if SUMS == 2:
        tl.store(at + COLUMNS, tl.sum(second, 0), mask=column < COLUMNS)
