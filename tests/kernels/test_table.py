"""Rows read from several tables: the numbers, and the bits, of one table that holds them all."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.blocks import BACKENDS, BLOCKS, ragged, rand
from tiergnn.errors import ConfigError
from tiergnn.kernels import backend
from tiergnn.kernels.aggregate import REDUCTIONS, aggregate
from tiergnn.kernels.block import Block
from tiergnn.kernels.table import RowTable, places_of

HUBS = ragged([0, 511, 513, 0, 1] + [0] * 9000 + [20_000, 2, 0, 7], 9500)


def cut(x, sizes):
    """Tables apart from each other, the last one after the end of the rows of a wider one."""
    return [part.clone().requires_grad_() for part in x.split(list(sizes))]


def cuts(num_src):
    """One table of nothing in the middle, one of a single row at the end."""
    first = num_src // 2
    return [first, 0, max(0, num_src - first - 1), min(1, num_src - first)]


def compare(block, sizes, width, reduce, dtype, heads=None, device="cpu", rel=None):
    """Forward bit for bit that of the joined rows; gradients to a few roundings."""
    x = rand(block.num_src, width).to(device, dtype)
    tables, whole = cut(x, sizes), x.clone().requires_grad_()
    shape = (block.num_edges,) if heads == 0 else (block.num_edges, heads or 1)
    weights = [rand(*shape, seed=1).to(device, dtype).requires_grad_() for _ in range(2)]
    if heads is None:
        weights = [None, None]
    block = block.to(device)
    got = aggregate(block, RowTable(tables), reduce=reduce, weight_E=weights[0])
    want = aggregate(block, whole, reduce=reduce, weight_E=weights[1])
    torch.testing.assert_close(got, want, rtol=rel or 0, atol=rel or 0)
    factors = rand(*got.shape, seed=9).to(device, dtype)
    inputs, one = [*tables], [whole]
    if heads is not None:
        inputs, one = [*inputs, weights[0]], [*one, weights[1]]
    grads = torch.autograd.grad(got, inputs, factors)
    wants = torch.autograd.grad(want, one, factors)
    unit = 8 * torch.finfo(dtype).eps
    joined = torch.cat(grads[: len(sizes)])
    scale = wants[0].abs().max().item() if wants[0].numel() else 0
    torch.testing.assert_close(joined, wants[0], rtol=unit, atol=unit * scale)
    if heads is not None:
        torch.testing.assert_close(grads[-1], wants[1], rtol=unit, atol=unit)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("block", BLOCKS)
def test_several_tables_are_one(name, block, reduce):
    with backend.use(name):
        compare(block, cuts(block.num_src), 3, reduce, torch.float32, 0)
        compare(block, cuts(block.num_src), 5, reduce, torch.float32)


def test_hubs_and_widths():
    with backend.use("cpu"):
        compare(HUBS, [9000, 0, 499, 1], 130, "sum", torch.float64)
        compare(HUBS, [9000, 500], 37, "max", torch.bfloat16)
        compare(ragged([3, 0, 5, 1], 9, index=torch.int64), [4, 5], 63, "mean", torch.float16, 63)


@pytest.mark.parametrize("name", BACKENDS)
def test_only_the_gradients_that_are_needed(name):
    """Own rows and a halo, of which the halo's gradient is to be sent away; replicas need none."""
    block, x = ragged([3, 0, 5, 1], 9), rand(9, 4)
    own, replicas, halo = x[:4].clone(), x[4:6].clone(), x[6:].clone()
    own.requires_grad_()
    halo.requires_grad_()
    whole = x.clone().requires_grad_()
    with backend.use(name):
        aggregate(block, RowTable([own, replicas, halo])).sum().backward()
        aggregate(block, whole).sum().backward()
    torch.testing.assert_close(own.grad, whole.grad[:4])
    torch.testing.assert_close(halo.grad, whole.grad[6:])
    assert replicas.grad is None


def test_rows_in_memory_of_other_processes_and_columns_of_wider_rows():
    block, x = ragged([3, 0, 5, 1], 9), rand(9, 8).float()
    shared, base = x[4:].clone().share_memory_(), rand(4, 8)
    wide = torch.zeros(9, 8)
    wide[:, 2:5] = x[:, :3]
    with backend.use("cpu"):
        want = aggregate(block, x)
        assert torch.equal(aggregate(block, RowTable([x[:4], shared])), want)
        slices = RowTable([wide[:4, 2:5], wide[4:, 2:5]])
        assert torch.equal(aggregate(block, slices), aggregate(block, x[:, :3].contiguous()))
        with pytest.raises(ConfigError, match="equally far apart"):
            aggregate(block, RowTable([x[:4, :3], x[4:, :3].contiguous()]))
        with pytest.raises(ConfigError, match=r"x needs shape \[9, D\]"):
            aggregate(block, RowTable([base, base]))


@given(st.lists(st.integers(0, 6), min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_places_name_the_row(sizes):
    num_rows = sum(sizes)
    at, shift = places_of(torch.arange(num_rows), tuple(sizes))
    want = [(b, row) for b, size in enumerate(sizes) for row in range(size)]
    assert [(p >> shift, p & ((1 << shift) - 1)) for p in at.tolist()] == want
    assert at.dtype == torch.int32


def test_places_of_huge_tables_have_64_bits():
    sizes = (2**30, 2**30 + 5, 3)
    rows = torch.tensor([0, 2**30 - 1, 2**30, 2**31 + 4, 2**31 + 5, 2**31 + 7])
    at, shift = places_of(rows, sizes)
    assert at.dtype == torch.int64
    assert [(p >> shift, p & ((1 << shift) - 1)) for p in at.tolist()] == [
        (0, 0), (0, 2**30 - 1), (1, 0), (1, 2**30 + 4), (2, 0), (2, 2),
    ]  # fmt: skip


@pytest.mark.parametrize("name", BACKENDS)
def test_gradcheck(name):
    block = ragged([3, 0, 5, 1, 2], 6)
    tables = [rand(5, 4).requires_grad_(), rand(1, 4, seed=3).requires_grad_()]
    weight = rand(11, 2, seed=1).requires_grad_()
    with backend.use(name):
        for reduce in REDUCTIONS:
            assert torch.autograd.gradcheck(
                lambda a, b, w, r=reduce: aggregate(block, RowTable([a, b]), reduce=r, weight_E=w),
                [*tables, weight],
            )


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_torch_checks_the_op(reduce):
    block = ragged([3, 0, 5, 1, 2], 6)
    tables = [rand(5, 4).requires_grad_(), rand(1, 4, seed=3).requires_grad_()]
    arguments = block.handle, reduce, tables, rand(11, seed=1).requires_grad_(), "cpu"
    torch.library.opcheck(
        torch.ops.tiergnn.aggregate_tables.default, arguments,
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )  # fmt: skip


def test_a_second_gradient_is_refused():
    x = [rand(4, 3).requires_grad_(), rand(5, 3).requires_grad_()]
    out = aggregate(ragged([3, 0, 5, 1], 9), RowTable(x))
    (grad,) = torch.autograd.grad(out.square().sum(), x[0], create_graph=True)
    with pytest.raises(ConfigError, match="differentiable once"):
        grad.sum().backward()


def test_places_are_translated_once():
    block = Block(rowptr=torch.tensor([0, 2]), col=torch.tensor([0, 2]), num_src=3)
    first = block.places((1, 2))
    assert block.places((1, 2)) is first
    assert block.places((2, 1)) is not first
