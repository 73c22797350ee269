"""The kernels of products in Triton. ``reference`` says what they compute.

A float32 number is the sum of two of tf32 (11 bits each), up to 2^-22 of its size. Tensor cores
multiply the parts, and add in float32 all products but that of the second parts, which is that
small, too.

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
def split_kernel(
    weight,
    out,
    N_STEP: tl.constexpr,
    K_STEP: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    N_PADDED: tl.constexpr,
    K_PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The parts [2, N_PADDED, K_PADDED] of a weight [N, K]; beyond it zeros."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n, k = at // K_PADDED, at % K_PADDED
    value = tl.load(weight + n * N_STEP + k * K_STEP, mask=(n < N) & (k < K), other=0)
    own = n < N_PADDED
    first = _rounded(value)
    tl.store(out + at, first, mask=own)
    tl.store(out + N_PADDED * K_PADDED + at, _rounded(value - first), mask=own)


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
    CUT: tl.constexpr,
):
    """out [P, N] = x [P, K] times the weight whose ``parts`` are [2, N_PADDED, K_PADDED].

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
        first, second = tl.load(at), tl.load(at + N_PADDED * K_PADDED)
        whole = _cut(a) if CUT else a
        # A sum of its own, which float32's addition rounds into the total: tensor cores cut off.
        found = tl.zeros((ROWS, COLUMNS), tl.float32)
        found = tl.dot(whole, second, found, input_precision="tf32")
        found = tl.dot(_rest(a, CUT), first, found, input_precision="tf32")
        total += tl.dot(whole, first, found, input_precision="tf32")
    if bias is not None:
        total += tl.load(bias + column, mask=column < N, other=0)[None, :]
    to = out + row[:, None] * N + column[None, :]
    tl.store(to, total, mask=own & (column < N)[None, :])
