"""The vector loops against NumPy: lengths around a vector, nothing written behind the end."""

from __future__ import annotations

import numba
import numpy as np
import pytest
import torch

from tiergnn.kernels import simd
from tiergnn.kernels.span import Span, number, rest

LENGTHS = (0, 1, 7, 8, 9, 37)
DTYPES = (torch.float32, torch.float64)


@numba.njit
def run(acc, x, y, width, count):
    """Each loop once, reading x from its column 1 and y from its column 0; acc has six rows."""
    slope = number(x, 0.25)
    simd.axpy(acc, 0, x, 1, x[0], count)
    simd.add(acc, width, x, 1, y, 0, count)
    simd.leaky_axpy(acc, 2 * width, rest(x, 1), 0, x[0], slope, count)
    simd.leaky_slopes(acc, 3 * width, x, 1, y, 0, x[0], slope, count)
    acc[4 * width] = simd.dot(x, 1, y, 0, count)
    acc[5 * width] = simd.leaky_dot(x, 1, y, 0, slope, count)
    simd.prefetch(x, 1, count)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", LENGTHS)
def test_loops(dtype, count):
    generator = torch.Generator().manual_seed(count)
    x = torch.randn(count + 1, dtype=dtype, generator=generator)
    y = torch.randn(count, dtype=dtype, generator=generator)
    width = simd.padded(count) + simd.LANES
    acc = torch.zeros(6, width, dtype=dtype)
    acc[0, :count] = 1
    run(Span(acc), Span(x), Span(y), width, count)
    bent = torch.where(x[1:] > 0, x[1:], 0.25 * x[1:])
    slopes = torch.where(x[1:] > 0, 1, 0.25).to(dtype)
    want = torch.stack([1 + x[0] * x[1:], x[1:] + y, x[0] * bent, x[0] * y * slopes])
    torch.testing.assert_close(acc[:4, :count], want)
    assert not acc[:4, count:].any()
    sums = torch.stack([x[1:] @ y, bent @ y])
    torch.testing.assert_close(acc[4:, 0], sums, rtol=1e-5, atol=1e-5)


@numba.njit
def exponentials(x, count, out):
    for i in range(count):
        out[i] = simd.exp(x[i])


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2.4e-7), (torch.float64, 4e-16)])
def test_exp(dtype, bound):
    x = torch.linspace(-86.9, 0, 20_001, dtype=dtype)
    out = torch.zeros_like(x)
    exponentials(Span(x), x.numel(), Span(out))
    assert (out.double() / x.double().exp() - 1).abs().max().item() <= bound

    special = torch.tensor([-np.inf, np.nan, -1e4, 0.0], dtype=dtype)
    out = torch.full_like(special, 7)
    exponentials(Span(special), 4, Span(out))
    want = torch.tensor([0, np.nan, 0, 1], dtype=dtype)
    torch.testing.assert_close(out, want, rtol=0, atol=0, equal_nan=True)


def test_exp_is_for_compiled_code():
    with pytest.raises(NotImplementedError, match="compiled"):
        simd.exp(-1.0)


@numba.njit
def counted(span, out):
    for i in range(3):
        out[i] = span[i]
        out[i] += number(out, 0.5)
    rest(out, 1)[1] = number(out, 9)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32, torch.float64])
def test_span_reads_and_writes(dtype):
    given, out = torch.tensor([3, -2, 7], dtype=dtype), torch.zeros(3, dtype=torch.float64)
    counted(Span(given), Span(out))
    assert out.tolist() == [3.5, -1.5, 9.0]


def test_a_span_needs_contiguous_memory():
    with pytest.raises(AssertionError):
        Span(torch.zeros(4, 4).t())
