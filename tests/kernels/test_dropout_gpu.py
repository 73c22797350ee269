"""Dropout in Triton: the reference's bits."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.kernels.blocks import rand
from tests.kernels.device import DEVICE, INTERPRETED, SUITE, on_gpu
from tiergnn.kernels import backend
from tiergnn.kernels.dropout import dropout, make_key, step_key

pytestmark = SUITE
KEY = step_key(2**63 + 12345678901, 7)
WIDTHS = (3, 37, 300) if INTERPRETED else (1, 3, 37, 64, 300)


def both(x, p, gid=None, key=KEY):
    """By the reference on the CPU, and by the kernel on DEVICE."""
    with backend.use("reference"):
        want = dropout(x, p, key, 5, gid)
    with backend.use("gpu"):
        got = dropout(x.to(DEVICE), p, key, 5, None if gid is None else gid.to(DEVICE))
    return got.cpu(), want


@pytest.mark.parametrize("p", [1e-9, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_bits(dtype, p):
    ids = torch.randint(0, 2**40, (29,), generator=torch.Generator().manual_seed(0))
    for width, gid in itertools.product(WIDTHS, (None, ids)):
        got, want = both(rand(29, width).to(dtype), p, gid)
        assert torch.equal(got == 0, want == 0)
        if INTERPRETED and dtype == torch.bfloat16:  # which it cuts off where a GPU rounds
            torch.testing.assert_close(got, want, rtol=2**-7, atol=0)
        else:
            assert torch.equal(got, want)


@pytest.mark.parametrize("key", [(0, 0), (0xFFFFFFFF, 0xFFFFFFFF), (0x80000000, 0)])
def test_every_key_is_used_whole(key):
    got, want = both(rand(64, 8), 0.5, key=make_key(*key))
    assert torch.equal(got, want)


def test_rows_of_another_table():
    got, want = both(rand(40, 40)[::2, 3:20], 0.5)
    assert torch.equal(got, want)


def test_the_gradient_has_the_mask():
    x = rand(30, 7).to(DEVICE).requires_grad_()
    with backend.use("gpu"):
        out = dropout(x, 0.4, KEY, 2)
        (grad,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(grad, (out != 0).double() / 0.6)


def test_nothing_is_no_trouble():
    with backend.use("gpu"):
        for shape in ((0, 3), (3, 0)):
            assert dropout(torch.ones(shape, device=DEVICE), 0.5, KEY, 0).shape == shape


@on_gpu
def test_tables_of_more_than_2_31_elements():
    x = torch.ones(2**24 + 3, 129, dtype=torch.bfloat16, device=DEVICE)
    gid = torch.arange(x.shape[0], device=DEVICE)
    with backend.use("gpu"):
        out = dropout(x, 0.5, KEY, 0)
        tail = dropout(x[-5:], 0.5, KEY, 0, gid[-5:])
    assert torch.equal(out[-5:], tail)
    assert 0 < (tail == 0).sum() < tail.numel()
