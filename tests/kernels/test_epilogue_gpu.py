"""Epilogues in Triton against the oracle in float64, and their masks against the reference's."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.blocks import assert_close, rand
from tests.kernels.device import DEVICE, INTERPRETED, SUITE, on_gpu
from tests.kernels.epilogues import CASES, FLOWING, KEY, SITE, oracle
from tiergnn.kernels import backend
from tiergnn.kernels.dropout import dropout
from tiergnn.kernels.epilogue import epilogue, gpu

pytestmark = SUITE
SHAPES = ((29, 37), (9, 300)) if INTERPRETED else ((29, 37), (3, 1), (70, 300), (5000, 64))


@pytest.fixture(autouse=True)
def few_programs(monkeypatch):
    """The interpreter walks 1024 programs one by one."""
    if INTERPRETED:
        monkeypatch.setattr(gpu, "PROGRAMS", 3)


def results(x, grad, case, terms, device, call):
    """[result, gradients], on the CPU in float64."""
    x = x.to(device).requires_grad_()
    terms = {n: t.to(device).requires_grad_(n in FLOWING) for n, t in terms.items()}
    out = call(x, terms)
    leaves = [x, *(terms[n] for n in FLOWING if n in terms)]
    grads = torch.autograd.grad(out, leaves, grad.to(device))
    return [t.detach().cpu().double() for t in (out, *grads)]


def both(case, num_rows, width, dtype):
    terms = case.terms(num_rows, width)
    gid = terms.pop("gid", None)
    x, grad = rand(num_rows, width, seed=9).to(dtype), rand(num_rows, width).to(dtype)
    terms = {n: t.to(dtype) if n in FLOWING else t for n, t in terms.items()}
    on_device = None if gid is None else gid.to(DEVICE)
    with backend.use("gpu"):
        got = results(
            x, grad, case, terms, DEVICE,
            lambda x, terms: epilogue(x, **terms, gid=on_device, **case.options),
        )  # fmt: skip
    wide = {n: t.double() for n, t in terms.items()}
    want = results(
        x.double(), grad.double(), case, wide, "cpu",
        lambda x, terms: oracle(x, case, gid=gid, **terms),
    )  # fmt: skip
    return got, want


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients(case, dtype):
    if INTERPRETED and dtype == torch.float16 and case.p == 0:
        pytest.skip("float16 is interpreted with dropout alone: bfloat16 has every case here")
    # The interpreter cuts bfloat16 off where a GPU rounds.
    rel = {torch.float64: 1e-14, torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 4e-2}
    for num_rows, width in SHAPES if dtype == torch.float32 else SHAPES[:1]:
        got, want = both(case, num_rows, width, dtype)
        for g, w in zip(got, want, strict=True):
            assert_close(g, w, rel=rel[dtype], scale=w.abs().max().clamp(min=1e-3).expand_as(w))


def test_masks_are_those_of_dropout():
    x, gid = rand(40, 33).float().to(DEVICE), (torch.arange(40) * 2**31).to(DEVICE)
    with backend.use("gpu"):
        got = epilogue(x, act="relu", p=0.3, key=KEY, site=SITE, gid=gid)
        assert torch.equal(got, dropout(x.relu(), 0.3, KEY, SITE, gid))


def test_two_runs_give_the_same_bits():
    case = next(case for case in CASES if "shift gain bias post" in case.parts)
    first, second = (both(case, 50, 37, torch.float32)[0] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_rows_of_another_table():
    table = rand(40, 40).float().to(DEVICE)
    with backend.use("gpu"):
        got = epilogue(table[::2, 3:20], other=table[1::2, 4:21], act="relu")
    assert torch.equal(got, (table[::2, 3:20] + table[1::2, 4:21]).relu())


def test_nothing_is_no_trouble():
    with backend.use("gpu"):
        for shape in ((0, 3), (3, 0)):
            x = torch.ones(shape, device=DEVICE, requires_grad=True)
            out = epilogue(x, act="relu")
            (grad,) = torch.autograd.grad(out.sum(), x)
            assert out.shape == grad.shape == shape


@on_gpu
def test_tables_of_more_than_2_31_elements():
    x = torch.ones(2**24 + 3, 129, dtype=torch.bfloat16, device=DEVICE, requires_grad=True)
    bias = torch.zeros(129, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    gid = torch.arange(x.shape[0], device=DEVICE)
    with backend.use("gpu"):
        out = epilogue(x, bias=bias, act="relu", p=0.5, key=KEY)
        tail = epilogue(x[-5:], bias=bias, act="relu", p=0.5, key=KEY, gid=gid[-5:])
        of_x, of_bias = torch.autograd.grad(out, (x, bias), torch.ones_like(out))
    assert torch.equal(out[-5:], tail)
    assert torch.equal(of_x, out)
    assert_close(of_bias, out.double().sum(0), rel=1e-2)
