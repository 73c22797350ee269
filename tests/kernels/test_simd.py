"""The vector loops against NumPy: lengths around a vector, nothing written behind the end."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from tiergnn.kernels import simd

LENGTHS = (0, 1, 7, 8, 9, 37)
DTYPES = (np.float32, np.float64)


@numba.njit(fastmath=simd.FASTMATH)
def run(acc, x, y, slope, count):
    """Each loop once, reading x from its column 1 and y from its column 0; acc has six rows."""
    one = acc[0]
    simd.axpy(one, 0, x, 1, x[0], count)
    simd.add(acc[1], 0, x, 1, y, 0, count)
    simd.leaky_axpy(acc[2], 0, x, 1, x[0], slope, count)
    simd.leaky_slopes(acc[3], 0, x, 1, y, 0, x[0], slope, count)
    acc[4, 0] = simd.dot(x, 1, y, 0, count)
    acc[5, 0] = simd.leaky_dot(x, 1, y, 0, slope, count)
    simd.prefetch(x, 1, count)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", LENGTHS)
def test_loops(dtype, count):
    rng = np.random.default_rng(count)
    x, y = rng.standard_normal(count + 1).astype(dtype), rng.standard_normal(count).astype(dtype)
    width = simd.padded(count) + simd.LANES
    acc = np.zeros((6, width), dtype)
    acc[0, :count] = 1
    slope = dtype(0.25)
    run(acc, x, y, slope, count)
    bent = np.where(x[1:] > 0, x[1:], slope * x[1:])
    want = [
        1 + x[0] * x[1:],
        x[1:] + y,
        x[0] * bent,
        x[0] * y * np.where(x[1:] > 0, 1, slope),
    ]
    np.testing.assert_allclose(acc[:4, :count], want, rtol=1e-6, atol=1e-6)
    assert not acc[:4, count:].any()
    np.testing.assert_allclose(acc[4, 0], x[1:] @ y, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(acc[5, 0], bent @ y, rtol=1e-5, atol=1e-5)


@numba.njit(fastmath=simd.FASTMATH)
def exponentials(x, out):
    for i in range(x.size):
        out[i] = simd.exp(x[i])


@pytest.mark.parametrize(("dtype", "bound"), [(np.float32, 2.4e-7), (np.float64, 4e-16)])
def test_exp(dtype, bound):
    x = np.linspace(-86.9, 0, 20_001).astype(dtype)
    out = np.empty_like(x)
    exponentials(x, out)
    assert np.abs(out / np.exp(x.astype(np.float64)) - 1).max() <= bound

    special = np.array([-np.inf, np.nan, -1e4, 0.0], dtype)
    out = np.empty_like(special)
    exponentials(special, out)
    np.testing.assert_array_equal(out, [0, np.nan, 0, 1])


def test_exp_is_for_compiled_code():
    with pytest.raises(NotImplementedError, match="compiled"):
        simd.exp(-1.0)
