"""The kernels of products in Triton. ``reference`` says what they compute.

A float32 number is the sum of two of tf32 (11 bits each), or of three of bfloat16 (8 bits each), up
to 2^-22 of its size. Tensor cores multiply the parts, and add in float32 all products but those of
the last parts, which are that small, too: 3 products of tf32, or 6 of bfloat16.

Tensor cores of sm_80 and sm_90 read the first 11 bits of a number as tf32, and leave the others:
its first part is the number itself. CUT says that the others must be cut off, as for the
interpreter.

Legend: P rows, K what is summed over, N columns of the result.
"""

# Triton's annotations do not know what a kernel's numbers are.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportIndexIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

_TF32 = tl.constexpr(-(2**13))  # bits of float32 that are also tf32's
_HALF = tl.constexpr(2**12)  # of the last of them


@triton.jit
def _cut(x):
    return (x.to(tl.int32, bitcast=True) & _TF32).to(tl.float32, bitcast=True)


@triton.jit
def _rounded(x):
    return ((x.to(tl.int32, bitcast=True) + _HALF) & _TF32).to(tl.float32, bitcast=True)


@triton.jit
def _rest(x, CUT: tl.constexpr):
    """What tf32 leaves of x, as tf32 once the tensor cores have cut it off."""
    rest = ((x - _cut(x)).to(tl.int32, bitcast=True) + _HALF).to(tl.float32, bitcast=True)
    return _cut(rest) if CUT else rest


@triton.jit
def _thirds(x):
    first = x.to(tl.bfloat16)
    rest = x - first.to(tl.float32)
    second = rest.to(tl.bfloat16)
    return first, second, (rest - second.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def split_kernel(
    weight,
    out,
    N_STEP: tl.constexpr,
    K_STEP: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    N_PADDED: tl.constexpr,
    K_PADDED: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The parts [PARTS, N_PADDED, K_PADDED] of a weight [N, K]; beyond it zeros."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n, k = at // K_PADDED, at % K_PADDED
    value = tl.load(weight + n * N_STEP + k * K_STEP, mask=(n < N) & (k < K), other=0)
    own = n < N_PADDED
    if PARTS == 2:
        first = _rounded(value)
        tl.store(out + at, first, mask=own)
        tl.store(out + N_PADDED * K_PADDED + at, _rounded(value - first), mask=own)
    else:
        first, second, third = _thirds(value)
        tl.store(out + at, first, mask=own)
        tl.store(out + N_PADDED * K_PADDED + at, second, mask=own)
        tl.store(out + 2 * N_PADDED * K_PADDED + at, third, mask=own)


@triton.jit(do_not_specialize=["num_rows"])
def rows_kernel(
    x,
    parts,
    bias,
    out,
    num_rows,
    X_STRIDE: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
    K_PADDED: tl.constexpr,
    N_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PARTS: tl.constexpr,
    APART: tl.constexpr,
    CUT: tl.constexpr,
):
    """out [P, N] = x [P, K] times the weight whose ``parts`` are [PARTS, N_PADDED, K_PADDED].

    Programs of the same rows follow each other, so that the cache has what the next reads.
    """
    tiles: tl.constexpr = N_PADDED // COLUMNS
    row = (tl.program_id(0) // tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) % tiles * COLUMNS + tl.arange(0, COLUMNS)
    own = (row < num_rows)[:, None]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, K, DEPTH):
        k = start + tl.arange(0, DEPTH)
        a = tl.load(x + row[:, None] * X_STRIDE + k[None, :], mask=own & (k < K)[None, :], other=0)
        at = parts + k[:, None] + column[None, :] * K_PADDED
        if APART:
            found = tl.zeros((ROWS, COLUMNS), tl.float32)
        else:
            found = total
        if PARTS == 2:
            first, second = tl.load(at), tl.load(at + N_PADDED * K_PADDED)
            whole = _cut(a) if CUT else a
            found = tl.dot(whole, second, found, input_precision="tf32")
            found = tl.dot(_rest(a, CUT), first, found, input_precision="tf32")
            found = tl.dot(whole, first, found, input_precision="tf32")
        else:
            first, second = tl.load(at), tl.load(at + N_PADDED * K_PADDED)
            third = tl.load(at + 2 * N_PADDED * K_PADDED)
            found = _six(_thirds(a), (first, second, third), found, CUT)
        if APART:
            total += found
        else:
            total = found
    if bias is not None:
        total += tl.load(bias + column, mask=column < N, other=0)[None, :]
    to = out + row[:, None] * N + column[None, :]
    tl.store(to, total, mask=own & (column < N)[None, :])


@triton.jit
def _product(a, b, total, CUT: tl.constexpr):
    """total + a b. The interpreter does not multiply bfloat16."""
    if CUT:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, total)


@triton.jit
def _six(a, b, total, CUT: tl.constexpr):
    """The products of thirds, the small ones first."""
    total = _product(a[2], b[0], total, CUT)
    total = _product(a[0], b[2], total, CUT)
    total = _product(a[1], b[1], total, CUT)
    total = _product(a[1], b[0], total, CUT)
    total = _product(a[0], b[1], total, CUT)
    return _product(a[0], b[0], total, CUT)


@triton.jit(do_not_specialize=["num_rows", "share"])
def weight_kernel(
    left,
    right,
    part,
    sums,
    num_rows,
    share,
    LEFT_STRIDE: tl.constexpr,
    RIGHT_STRIDE: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    SUMS_LEFT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PARTS: tl.constexpr,
    APART: tl.constexpr,
    CUT: tl.constexpr,
):
    """part [shares, LEFT, RIGHT]: of left [P, LEFT] transposed times right [P, RIGHT].

    Each share is of ``share`` rows, a multiple of DEPTH. Where sums is given it gets, a share, the
    sums of the columns of left (SUMS_LEFT) or of right.
    """
    tiles: tl.constexpr = (RIGHT + COLUMNS - 1) // COLUMNS
    of_left, of_right = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    n, m = of_left * ROWS + tl.arange(0, ROWS), of_right * COLUMNS + tl.arange(0, COLUMNS)
    begin = tl.program_id(1).to(tl.int64) * share
    end = tl.minimum(begin + share, num_rows)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    added = tl.zeros((DEPTH, ROWS if SUMS_LEFT else COLUMNS), tl.float32)
    for start in range(begin, end, DEPTH):
        row = start + tl.arange(0, DEPTH)
        own = (row < end)[:, None]
        a = tl.load(left + row[:, None] * LEFT_STRIDE + n, mask=own & (n < LEFT)[None, :], other=0)
        b = tl.load(
            right + row[:, None] * RIGHT_STRIDE + m, mask=own & (m < RIGHT)[None, :], other=0
        )
        if APART:
            found = tl.zeros((ROWS, COLUMNS), tl.float32)
        else:
            found = total
        if PARTS == 2:
            whole = _cut(a) if CUT else a
            other = _cut(b) if CUT else b
            found = tl.dot(_rest(a, CUT).T, other, found, input_precision="tf32")
            found = tl.dot(whole.T, _rest(b, CUT), found, input_precision="tf32")
            found = tl.dot(whole.T, other, found, input_precision="tf32")
        else:
            first, second, third = _thirds(a)
            found = _six((first.T, second.T, third.T), _thirds(b), found, CUT)
        if APART:
            total += found
        else:
            total = found
        if sums is not None:
            added += a if SUMS_LEFT else b
    place = tl.program_id(1).to(tl.int64)
    to = part + place * LEFT * RIGHT + n[:, None] * RIGHT + m[None, :]
    tl.store(to, total, mask=(n < LEFT)[:, None] & (m < RIGHT)[None, :])
    if sums is not None:
        if SUMS_LEFT:
            if of_right == 0:
                tl.store(sums + place * LEFT + n, tl.sum(added, 0), mask=n < LEFT)
        else:
            if of_left == 0:
                tl.store(sums + place * RIGHT + m, tl.sum(added, 0), mask=m < RIGHT)
