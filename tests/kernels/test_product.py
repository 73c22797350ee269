"""Products of rows where no GPU multiplies them, and which GPUs do."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.kernels.blocks import rand
from tiergnn.kernels import backend, product
from tiergnn.kernels.product import linear_rows, unread_rows
from tiergnn.kernels.product.shapes import LEAST_ROWS
from tiergnn.models.sample_blocks import _COUNTS


@pytest.mark.parametrize("name", ["reference", "cpu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_products_of_the_cpu_are_torchs_to_the_bit(name, dtype):
    given = [rand(*shape).to(dtype).requires_grad_() for shape in ((5000, 37), (19, 37), (19,))]
    grad = rand(5000, 19, seed=3).to(dtype)
    results = []
    with backend.use(name):
        for call in (linear_rows, F.linear):
            out = call(*given)
            results.append([out, *torch.autograd.grad(out, given, grad)])
    for got, want in zip(*results, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("frozen", [None, 0, 1], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_product_that_nobody_reads_has_its_gradients_to_the_bit(dtype, frozen, bias):
    given = [rand(*shape).to(dtype) for shape in ((5000, 37), (19, 37), (19,))][: 3 if bias else 2]
    graded = [t.requires_grad_() for i, t in enumerate(given) if i != frozen]
    grad = rand(5000, 19, seed=3).to(dtype)
    out = unread_rows(*given)
    assert (out.shape, out.dtype) == ((5000, 19), dtype)
    assert out.untyped_storage().nbytes() == dtype.itemsize
    got = torch.autograd.grad(out, graded, grad)
    want = torch.autograd.grad(linear_rows(*given), graded, grad)
    for mine, other in zip(got, want, strict=True):
        assert torch.equal(mine, other)


def test_what_is_no_table_or_cast_on_its_way_is_multiplied_whoever_reads_it():
    x, weight = rand(2, 3, 5), rand(4, 5)
    assert torch.equal(unread_rows(x, weight), F.linear(x, weight))
    with torch.autocast("cpu"):
        assert torch.equal(unread_rows(x[0], weight), F.linear(x[0], weight))


def test_lists_of_rows_are_multiplied_as_well():
    x, weight = rand(2, 3, 5), rand(4, 5)
    assert torch.equal(linear_rows(x, weight), F.linear(x, weight))


@pytest.mark.parametrize(("version", "is_fast"), [((8, 0), True), ((8, 9), False), ((7, 5), False)])
def test_gpus_that_multiply_tf32_fast(monkeypatch, version, is_fast):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: version)
    assert product._is_fast(torch.device("cuda")) == is_fast


def test_stages_are_metered_on_rows_enough():
    assert min(rows for rows, *_ in _COUNTS) >= LEAST_ROWS
