"""The kernels of moments in Triton. ``reference`` says what they compute.

Legend: P rows, D columns.
"""

# Triton's annotations do not know what a kernel's numbers are.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportIndexIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _two_sums(a, b, c, d):
    return a + c, b + d


@triton.jit(do_not_specialize=["num_rows", "share"])
def moments_kernel(
    x,
    part,
    num_rows,
    share,
    SUM: tl.constexpr,
    X_STRIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """part [programs, 2, D] float64: mean and squared deviations of ``share`` rows a program.

    A tile's deviations are taken from its own mean, in registers; tiles are merged in order (Chan
    et al., 1979). What rounding left of a tile's mean is told from the sum of its deviations.
    """
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    begin = tl.program_id(0).to(tl.int64) * share
    end = tl.minimum(begin + share, num_rows)
    mean = tl.zeros((WIDTH,), tl.float64)
    squares = tl.zeros((WIDTH,), tl.float64)
    for start in range(begin, end, ROWS):
        row = start + tl.arange(0, ROWS)
        mask = (row < end)[:, None] & (column < COLUMNS)[None, :]
        at = x + row[:, None] * X_STRIDE + column[None, :]
        value = tl.load(at, mask=mask, other=0).to(SUM)
        rows = tl.minimum(end - start, ROWS)
        about = tl.sum(value, 0) / rows.to(SUM)
        off = tl.where(mask, value - about[None, :], 0.0)
        once, twice = tl.reduce((off, off * off), 0, _two_sums)
        once = once.to(tl.float64)
        count = rows.to(tl.float64)
        before = (start - begin).to(tl.float64)
        frac = count / (before + count)
        rest = once / count
        own = twice.to(tl.float64) - once * rest
        own = tl.where(own < 0, 0.0, own)  # which leaves NaN
        apart = about.to(tl.float64) + rest - mean
        mean += apart * frac
        squares += own + apart * (before * frac) * apart
    to = part + tl.program_id(0).to(tl.int64) * 2 * COLUMNS + column
    tl.store(to, mean, mask=column < COLUMNS)
    tl.store(to + COLUMNS, squares, mask=column < COLUMNS)


@triton.jit(do_not_specialize=["num_rows", "share"])
def merge_kernel(
    part,
    values,
    num_rows,
    share,
    COLUMNS: tl.constexpr,
    PROGRAMS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """values [3, D] from part [PROGRAMS, 2, D], some of which are of no rows."""
    program = tl.arange(0, PROGRAMS)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    own = column < COLUMNS
    rows = tl.minimum(tl.maximum(num_rows - program.to(tl.int64) * share, 0), share)
    count = rows.to(tl.float64)[:, None]
    at = part + program[:, None] * 2 * COLUMNS + column[None, :]
    mean = tl.load(at, mask=own[None, :], other=0)
    squares = tl.load(at + COLUMNS, mask=own[None, :], other=0)
    total = num_rows.to(tl.float64)
    whole = tl.sum(count * mean, 0) / total
    off = mean - whole[None, :]
    kind = values.dtype.element_ty
    tl.store(values + column, (whole * 0 + total).to(kind), mask=own)
    tl.store(values + COLUMNS + column, whole.to(kind), mask=own)
    total_squares = tl.sum(squares + count * off * off, 0)
    tl.store(values + 2 * COLUMNS + column, total_squares.to(kind), mask=own)


@triton.jit(do_not_specialize=["num_rows"])
def moments_grad_kernel(
    x,
    more,
    values,
    grad,
    out,
    num_rows,
    SUM: tl.constexpr,
    X_STRIDE: tl.constexpr,
    MORE_STRIDE: tl.constexpr,
    OUT_STRIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """out [P, D], which may be ``more``; values and grad are [3, D]."""
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    own = column < COLUMNS
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    mask = (row < num_rows)[:, None] & own[None, :]
    mean = tl.load(values + COLUMNS + column, mask=own, other=0)
    count = tl.maximum(tl.load(values + column, mask=own, other=1), 1.0)
    level = tl.load(grad + COLUMNS + column, mask=own, other=0) / count
    slope = tl.load(grad + 2 * COLUMNS + column, mask=own, other=0) * 2
    value = tl.load(x + row[:, None] * X_STRIDE + column[None, :], mask=mask, other=0).to(SUM)
    value = (value - mean[None, :]) * slope[None, :] + level[None, :]
    if more is not None:
        at = more + row[:, None] * MORE_STRIDE + column[None, :]
        value += tl.load(at, mask=mask, other=0).to(SUM)
    to = out + row[:, None] * OUT_STRIDE + column[None, :]
    tl.store(to, value.to(out.dtype.element_ty), mask=mask)
