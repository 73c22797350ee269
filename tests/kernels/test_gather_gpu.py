"""Rows moved by Triton against plain torch, and what compiles for GPUs that are not there."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.blocks import rand
from tests.kernels.device import DEVICE, SUITE, on_gpu
from tests.kernels.test_gather import PAIRS, WIDTHS, indices, tables_of
from tiergnn.kernels import backend
from tiergnn.kernels.gather import FLOATS, accumulate_rows, gather, gpu, scatter_rows
from tiergnn.kernels.table import RowTable

pytestmark = SUITE


@pytest.fixture(autouse=True)
def on_the_gpu():
    with backend.use("gpu"):
        yield


def same(got, want, dtype):
    """Equal; but the interpreter cuts bfloat16 off where a GPU rounds it."""
    unit = torch.finfo(dtype).eps if DEVICE == "cpu" and dtype == torch.bfloat16 else 0
    torch.testing.assert_close(got.cpu(), want, rtol=2 * unit, atol=0)


def test_gather_converts_between_widths():
    for turn, (dtype, to) in enumerate(PAIRS):
        width, index_type = WIDTHS[turn % 5], torch.int32 if turn % 2 else torch.int64
        x, index = rand(90, width, dtype=dtype), indices(50, 90, dtype=index_type)
        got = gather(x.to(DEVICE), index.to(DEVICE), dtype=to)
        same(got, x[index.long()].to(to), to)


@pytest.mark.parametrize("sizes", [(5,), (4, 0, 9, 1), (0, 7), (2, 0)], ids=str)
def test_gather_from_several_tables(sizes):
    for width, dtype in zip(WIDTHS, (*FLOATS, torch.float32), strict=True):
        table, index = tables_of(sizes, width, dtype, DEVICE), indices(50, sum(sizes)).to(DEVICE)
        assert torch.equal(gather(table, index), torch.cat(table.tables)[index])


def test_rows_beyond_a_link_are_moved_by_few_programs(monkeypatch):
    x, index = rand(900, 70).float().to(DEVICE), torch.arange(0, 900, 3, device=DEVICE)
    want, out = x[index], torch.zeros(300, 70, device=DEVICE)
    monkeypatch.setattr(gpu, "most_programs", lambda *_: 2)
    assert torch.equal(gather(x, index, out=out), want)


def test_scatter_and_accumulate():
    """Rows that come never, once and often; a hub; the last of those that come twice is written."""
    index = torch.cat([indices(60, 40), torch.full((300,), 41), torch.tensor([44])])
    for width, dtype in zip((1, 3, 37, 63), FLOATS, strict=True):
        rows, out = rand(361, width, dtype=dtype), rand(45, width, seed=1, dtype=dtype)
        want = out.double().index_add(0, index, rows.double())
        size = out.double().abs().index_add(0, index, rows.double().abs())
        got = accumulate_rows(rows.to(DEVICE), index.to(DEVICE), out.to(DEVICE, copy=True))
        again = accumulate_rows(rows.to(DEVICE), index.to(DEVICE), out.to(DEVICE, copy=True))
        assert torch.equal(got, again)
        unit = 2.02 * torch.finfo(dtype).eps if dtype.itemsize == 2 else 0
        assert bool(((got.cpu().double() - want).abs() <= unit * want.abs() + 1e-6 * size).all())
        written = scatter_rows(rows.to(DEVICE), index.to(DEVICE), out.to(DEVICE, copy=True)).cpu()
        last = torch.full((45,), -1)
        for m, place in enumerate(index.tolist()):
            last[place] = m
        assert torch.equal(written, torch.where((last >= 0)[:, None], rows[last], out))


@pytest.mark.parametrize("sizes", [(9,), (4, 0, 5)], ids=str)
def test_gradients(sizes):
    """Rows that come never, once and often, of each table."""
    index = torch.cat([indices(20, 7), torch.full((300,), 8)])
    tables = [t.requires_grad_() for t in tables_of(sizes, 37, torch.float32, DEVICE).tables]
    wide = [t.detach().cpu().double().requires_grad_() for t in tables]
    seed = rand(index.numel(), 37, seed=5).float()
    out = gather(RowTable(tables), index.to(DEVICE))
    got = torch.autograd.grad(out, tables, seed.to(DEVICE))
    want = torch.autograd.grad(torch.cat(wide)[index], wide, seed.double())
    for one, right in zip(got, want, strict=True):
        torch.testing.assert_close(one.cpu().double(), right, rtol=1e-6, atol=1e-5)


def test_nothing_is_no_trouble():
    none = torch.zeros(0, dtype=torch.int64, device=DEVICE)
    assert gather(torch.ones(3, 4, device=DEVICE), none).shape == (0, 4)
    accumulate_rows(torch.ones(0, 4, device=DEVICE), none, torch.ones(3, 4, device=DEVICE))


@on_gpu
def test_pinned_memory_is_read_and_written_in_place():
    host = rand(1000, 37).float().pin_memory()
    device = rand(50, 37, seed=1).float().to(DEVICE)
    index = indices(300, 1050).to(DEVICE)
    want = torch.cat([device.cpu(), host])[index.cpu()]
    assert torch.equal(gather(RowTable([device, host]), index).cpu(), want)
    assert torch.equal(gather(host, index % 1000).cpu(), host[index.cpu() % 1000])
    place = torch.arange(0, 900, 3, device=DEVICE)
    scatter_rows(device.repeat(6, 1), place, host)
    accumulate_rows(device.repeat(6, 1), place, host)
    torch.cuda.synchronize()
    assert torch.equal(host[:900:3], 2 * device.repeat(6, 1).cpu())
