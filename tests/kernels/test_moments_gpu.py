"""Moments in Triton against two passes in float64, on a GPU or interpreted."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.blocks import assert_close, rand
from tests.kernels.device import DEVICE, INTERPRETED, SUITE, on_gpu
from tests.kernels.test_moments import oracle, oracle_grad
from tiergnn.kernels import backend
from tiergnn.kernels.moments import gpu, moments, moments_beside, moments_grad
from tiergnn.models.moments import combine_moments

pytestmark = SUITE
WIDTHS = (1, 3, 37, 63, 256)
MOST = {1: 300, 3: 130, 37: 19, 63: 9, 256: 5} if INTERPRETED else dict.fromkeys(WIDTHS, 300_001)
ROWS = MOST[37]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """The interpreter walks programs and elements one by one; small tiles are several a program."""
    if INTERPRETED:
        monkeypatch.setattr(gpu, "PROGRAMS", 2)
        monkeypatch.setattr(gpu, "ELEMENTS", 128)


@pytest.fixture(autouse=True)
def on_triton():
    with backend.use("gpu"):
        yield


def of(x):
    return moments(x.to(DEVICE)).cpu()


@pytest.mark.parametrize("width", WIDTHS)
def test_values(width):
    for num_rows in (1, MOST[width]):
        x = rand(num_rows, width, seed=num_rows)
        assert_close(of(x), oracle(x), rel=1e-10, scale=oracle(x).abs() + 1)
        single = x.float()
        assert_close(of(single), oracle(single), rel=1e-5, scale=oracle(single).abs() + 1)
        far = (x + 1e4).float()
        assert_close(of(far), oracle(far), rel=1e-5)
        if num_rows > 1:
            assert_close(of(x + 1e4), oracle(x + 1e4), rel=1e-10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_short_floats_are_summed_in_float32(dtype):
    x = (rand(ROWS, 37) + 3).to(dtype)
    assert of(x).dtype == torch.float32
    assert_close(of(x), oracle(x), rel=1e-6)


@pytest.mark.parametrize("width", WIDTHS)
def test_gradients(width):
    # The interpreter cuts bfloat16 off where a GPU rounds.
    for dtype, rel in ((torch.float64, 1e-10), (torch.float32, 1e-5), (torch.bfloat16, 8e-3)):
        x, more = (rand(MOST[width], width, seed=seed).to(DEVICE, dtype) for seed in (1, 2))
        values = moments(x)
        grad = rand(3, width, seed=3).to(DEVICE, values.dtype)
        want = oracle_grad(x, values, grad)
        size = want.abs() + more.double().abs() + grad[2].double().abs()
        total = more.clone()
        assert_close(moments_grad(x, values, grad), want, rel=rel, scale=size)
        assert moments_grad(x, values, grad, add_to=total) is total
        assert_close(total, want + more.double(), rel=rel, scale=size)
        leaf = x.clone().requires_grad_()
        (beside,) = torch.autograd.grad(moments_beside(leaf), leaf, (grad, more))
        assert torch.equal(beside, total)


def test_a_step_in_a_column():
    x = rand(ROWS, 2)
    x[: ROWS // 2 + 1] += 1e6
    assert_close(of(x.float()), oracle(x.float()), rel=1e-6)


def test_a_constant_column_does_not_deviate():
    assert torch.equal(of(torch.full((ROWS, 3), 0.1))[2], torch.zeros(3))


def test_parts_give_the_whole():
    x = rand(40, 7) + 1e3
    parts = [of(part) for part in x.split([1, 0, 17, 22])]
    assert_close(combine_moments(parts), of(x), rel=1e-11)


def test_two_runs_give_the_same_bits():
    x = rand(ROWS, 37).float() + 5
    assert torch.equal(of(x), of(x))


def test_what_is_not_a_number_comes_through():
    for row in (0, ROWS - 1):
        x = rand(ROWS, 3).float()
        x[row, 1] = torch.nan
        assert of(x)[1:].isnan().tolist() == [[False, True, False]] * 2


def test_rows_of_another_table():
    table, sums = rand(40, 50).to(DEVICE), rand(40, 50, seed=1).to(DEVICE)
    x, grad = table[::2, 3:20], rand(3, 17, seed=2).to(DEVICE)
    values = moments(x)
    assert torch.equal(values, moments(x.contiguous()))
    want = sums.clone()
    want[1::2, 3:20] += oracle_grad(x, values, grad)
    moments_grad(x, values, grad, add_to=sums[1::2, 3:20])
    assert_close(sums, want, rel=1e-12, scale=want.abs() + 1)


def test_nothing_is_no_trouble():
    for shape in ((0, 3), (3, 0)):
        x = torch.ones(shape, device=DEVICE, requires_grad=True)
        values = moments(x)
        (grad,) = torch.autograd.grad(values.sum(), x)
        assert torch.equal(values, torch.zeros_like(values))
        assert grad.shape == shape


@on_gpu
def test_tables_of_more_than_2_31_elements():
    x = torch.ones(2**24 + 3, 129, dtype=torch.bfloat16, device=DEVICE)
    x[-2:] = 3
    values = moments(x)
    count = torch.full_like(values[0], x.shape[0])
    mean = 1 + 4 / count
    assert_close(values, torch.stack([count, mean, 8 - 16 / count]), rel=1e-6)
    grad = torch.ones_like(values)
    got = moments_grad(x, values, grad)
    assert_close(got[-5:], oracle_grad(x[-5:], values, grad), rel=4e-3)
