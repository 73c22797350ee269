"""Rows read from several tables, and weights an edge and head, in Triton."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.blocks import ragged, rand
from tests.kernels.device import DEVICE, INTERPRETED, SUITE, on_gpu
from tests.kernels.test_table import compare
from tiergnn.kernels import backend, gpu_rows
from tiergnn.kernels.aggregate import REDUCTIONS, aggregate, gpu
from tiergnn.kernels.table import RowTable

pytestmark = SUITE
# Empty and short rows, and one that is cut into parts.
BLOCK = ragged([3, 0, 5, 1, *[0] * 20, 260, 2], 60)


@pytest.fixture(autouse=True)
def on_the_gpu(monkeypatch):
    if INTERPRETED:
        monkeypatch.setattr(gpu, "LOADS", 64)
        monkeypatch.setattr(gpu, "FEW_LOADS", 64)
    with backend.use("gpu"):
        yield


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_several_tables_are_one(reduce):
    # Rows that were copied to be aligned are summed in other tiles.
    compare(BLOCK, [50, 0, 9, 1], 3, reduce, torch.float32, 0, DEVICE, rel=1e-5)
    compare(BLOCK, [50, 10], 64, reduce, torch.float32, 2, DEVICE, rel=1e-5)


@pytest.mark.parametrize("reduce", ["mean", "max"])
@pytest.mark.parametrize(("heads", "width"), [(3, 37), (37, 1)])
def test_weights_of_heads(reduce, heads, width):
    x = rand(60, heads * width).float().to(DEVICE).requires_grad_()
    weight = rand(BLOCK.num_edges, heads, seed=1).float().to(DEVICE).requires_grad_()
    wide = [t.detach().cpu().double().requires_grad_() for t in (x, weight)]
    runs = []
    for _ in range(2):
        out = aggregate(BLOCK.to(DEVICE), x, reduce=reduce, weight_E=weight)
        factors = rand(*out.shape, seed=9)
        grads = torch.autograd.grad(out, [x, weight], factors.float().to(DEVICE))
        runs.append([t.detach().cpu() for t in (out, *grads)])
    with backend.use("reference"):
        want = aggregate(BLOCK, wide[0], reduce=reduce, weight_E=wide[1])
        wants = [want.detach(), *torch.autograd.grad(want, wide, factors)]
    for got, again, one in zip(*runs, wants, strict=True):
        assert torch.equal(got, again)
        torch.testing.assert_close(got.double(), one, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("width", [3, 40])
def test_rows_beyond_a_link_are_summed_by_few_programs(width, monkeypatch):
    """To the bit: each task is done as before, only in turns."""
    block, x = ragged([*range(40), 600, *[9] * 80], 700).to(DEVICE), rand(700, width).float()
    table = RowTable([x[:600].to(DEVICE), x[600:].to(DEVICE)])
    want = aggregate(block, table)
    monkeypatch.setattr(gpu, "most_programs", lambda *_: 4)
    assert torch.equal(aggregate(block, table), want)


@on_gpu
def test_pinned_memory_is_read_in_place():
    x = rand(60, 40).float()
    table = RowTable([x[:50].to(DEVICE), x[50:].clone().pin_memory()])
    for reduce in REDUCTIONS:
        got = aggregate(BLOCK.to(DEVICE), table, reduce=reduce)
        want = aggregate(BLOCK.to(DEVICE), x.to(DEVICE), reduce=reduce)
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-5)


def test_how_many_programs_read_beyond_a_link():
    here = torch.device(DEVICE, 0) if DEVICE == "cuda" else torch.device("cpu")
    near, none = torch.ones(3, 4, device=here), torch.empty(0, 4, device="meta")
    assert gpu_rows.most_programs((near, none), here, 4) is None
    assert gpu_rows.beside((99, 2), None) == (99, 2)
    far = torch.ones(3, 4, device="meta")
    most = gpu_rows.most_programs((near, far), here, 4)
    assert most is not None
    assert gpu_rows.beside((10**9, 2), most) == (most // 2, 2)
    assert gpu_rows.beside((3, 2), most) == (3, 2)
    assert gpu_rows.beside((9, 5), 1) == (1, 5)
