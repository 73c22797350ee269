"""Aggregation in Triton against a float64 oracle: outputs and every gradient."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.blocks import BLOCKS, assert_close, oracle, ragged, rand
from tests.kernels.device import DEVICE, INTERPRETED, SUITE, on_gpu
from tests.kernels.test_aggregate import grads_of
from tiergnn.kernels import backend
from tiergnn.kernels.aggregate import REDUCTIONS, aggregate, gpu
from tiergnn.kernels.block import Block
from tiergnn.kernels.tasks import MOST, MOST_MERGED

pytestmark = SUITE
WIDTHS = (1, 37) if INTERPRETED else (1, 3, 37, 63, 128, 130)
# Rows around the size of a task and of a tile, hubs of several parts, empty rows between them.
HUBS = ragged([0, 1, 2, 31, 32, 33, 65, 0, MOST - 1, MOST, MOST + 1, 3 * MOST, 0, 7], 90)


@pytest.fixture(autouse=True)
def on_the_gpu(monkeypatch):
    with backend.use("gpu"):
        yield


@pytest.fixture
def large_tiles(monkeypatch):
    """Tiles that the interpreter gets through a graph with in a few steps."""
    if INTERPRETED:
        monkeypatch.setattr(gpu, "LOADS", 64)
        monkeypatch.setattr(gpu, "FEW_LOADS", 64)


def run(block, reduce, x, weight=None):
    """Output and gradients of x and weight, computed on DEVICE, as tensors on the CPU."""
    inputs = [t.detach().to(DEVICE).requires_grad_() for t in (x, weight) if t is not None]
    out = aggregate(
        block.to(DEVICE), inputs[0], reduce=reduce, weight_E=dict(enumerate(inputs)).get(1)
    )
    seed = rand(*out.shape, seed=9).to(DEVICE)
    grads = torch.autograd.grad((out.double() * seed).sum(), inputs)
    return [t.detach().cpu() for t in (out, *grads)]


def check(block, width, reduce, weighted, dtype, rel):
    """Errors are relative to the sums of sizes."""
    x = rand(block.num_src, width).to(dtype)
    weight = rand(block.num_edges, seed=1).to(dtype) if weighted else None
    got = run(block, reduce, x, weight)
    assert got[0].dtype == dtype
    wide = [t.double().requires_grad_() for t in (x, weight) if t is not None]
    want_out = oracle(block, wide[0], reduce, *wide[1:])
    want = [want_out, *grads_of(want_out, wide)]
    sizes = [t.detach().abs().requires_grad_() for t in wide]
    size_out = oracle(block, sizes[0], "sum" if reduce == "max" else reduce, *sizes[1:])
    scale = [size_out, *grads_of(size_out, sizes, torch.abs)]
    for got_part, want_part, size in zip(got, want, scale, strict=True):
        assert_close(got_part, want_part, rel=rel, scale=size)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("block", BLOCKS)
def test_oracle(block, reduce, weighted, large_tiles):
    check(block, 3, reduce, weighted, torch.float32, 1e-6)
    check(block, 2, reduce, weighted, torch.float64, 1e-14)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_rows_of_every_size(reduce, weighted, large_tiles):
    for width in WIDTHS:
        check(HUBS, width, reduce, weighted, torch.float32, 1e-6)
    check(HUBS, 4, reduce, weighted, torch.float64, 1e-14)


@pytest.mark.parametrize("width", [4, 16, 40, 63, 64, 130, 300])
def test_tiles_as_they_are_on_a_gpu(width):
    """Whole and partial lines, aligned and not, several blocks of columns."""
    block = ragged([5, 70, 0, 1, 33], 20)
    check(block, width, "sum", False, torch.float32, 1e-6)
    check(block, width, "mean", True, torch.float64, 1e-14)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves(dtype, reduce, large_tiles):
    """Storage rounds once; the interpreter cuts bfloat16 off where a GPU rounds it."""
    block = ragged([1, 0, 7, 300, 3], 400)
    x = rand(400, 37, dtype=dtype)
    out, grad = run(block, reduce, x)
    wide = x.double().requires_grad_()
    want = oracle(block, wide, reduce)
    (want_grad,) = grads_of(want, [wide])
    cut_off = INTERPRETED and dtype == torch.bfloat16
    unit = (2.02 if cut_off else 0.51) * torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), want, rtol=unit, atol=1e-5)
    # The gradient of the output is rounded, too, and summed over out-edges.
    torch.testing.assert_close(grad.double(), want_grad, rtol=8 * unit, atol=8 * unit)


def test_a13_sums_do_not_saturate(large_tiles):
    """The sum of a hub leaves the precision of its storage, and is merged over several levels."""
    degree = MOST * MOST_MERGED + 5
    hub = ragged([degree, *[0] * 300, 3], 302).to(DEVICE)
    tasks = hub.plan("aggregate", "gpu")
    assert tasks.merge.merge is not None
    ones = torch.ones(302, 2, dtype=torch.float16, device=DEVICE)
    mean = aggregate(hub, ones, reduce="mean")
    assert mean[:, 0].tolist() == [1, *[0] * 300, 1]
    total = aggregate(hub, ones.float())
    assert total[:, 1].tolist() == [degree, *[0] * 300, 3]


@on_gpu
def test_a13_sums_of_more_than_2_24_ones():
    count = 2**24 + 4098
    rowptr = torch.tensor([0, count])
    block = Block(rowptr=rowptr, col=torch.zeros(count, dtype=torch.int32), num_src=1).to(DEVICE)
    one = torch.ones(1, 1, device=DEVICE)
    assert aggregate(block, one).item() == count
    assert aggregate(block, one, reduce="mean").item() == 1
    tenth = aggregate(block, one * 0.1).item()
    assert tenth == pytest.approx(count * float(torch.tensor(0.1)), rel=1e-6)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_two_runs_give_the_same_bits(reduce, large_tiles):
    block = ragged([2, 0, 33, MOST + 1, 2 * MOST, 7], 90)
    x, weight = rand(90, 5).float(), rand(block.num_edges, seed=1).float()
    for first, second in zip(
        run(block, reduce, x, weight), run(block, reduce, x, weight), strict=True
    ):
        assert torch.equal(first, second)


def test_rows_in_any_layout():
    """Strided, transposed, expanded, offset and unaligned rows."""
    block = ragged([2, 0, 30, 1], 6).to(DEVICE)
    base = rand(40, 40).float().to(DEVICE)
    flat = base.flatten()
    layouts = {
        "columns of a wider table": base[:6, 3:10],
        "aligned columns of a wider table": base[:6, 4:12],
        "every other row": base[:12:2, :7],
        "transposed": base[:7, :6].t(),
        "every other column": base[:6, :14:2],
        "one row for all": base[:1, :7].expand(6, 7),
        "one number a row": base[:6, :1].expand(6, 7),
        "an odd address": flat[1:49].view(6, 8),
    }
    for x in layouts.values():
        for reduce in REDUCTIONS:
            got = aggregate(block, x, reduce=reduce)  # in tiles of another shape, another order
            want = aggregate(block, x.contiguous().clone(), reduce=reduce)
            torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_a04_and_a12_columns_of_either_width_in_any_order(reduce, large_tiles):
    """Weights follow their edges: a row's edges in another order, and columns of 64 bits."""
    block, x = ragged([3, 0, 5, 1], 6), rand(6, 3)
    weight = rand(block.num_edges, seed=1)
    want = run(block, reduce, x, weight)
    turned = torch.cat([torch.arange(3).flip(0), torch.arange(3, 8).flip(0), torch.tensor([8])])
    for index in (torch.int32, torch.int64):
        other = Block(rowptr=block.rowptr, col=block.col[turned].to(index), num_src=6)
        got = run(other, reduce, x, weight[turned])
        got[2] = got[2][turned]
        for one, right in zip(got, want, strict=True):
            torch.testing.assert_close(one, right, rtol=1e-12, atol=1e-12)


def test_gradcheck():
    block = ragged([3, 0, 4, 1], 5).to(DEVICE)
    inputs = [rand(5, 2).to(DEVICE), rand(8, seed=1).to(DEVICE)]
    for tensor in inputs:
        tensor.requires_grad_()
    for reduce in REDUCTIONS:
        assert torch.autograd.gradcheck(
            lambda x, w, r=reduce: aggregate(block, x, reduce=r, weight_E=w), inputs
        )


def test_ties_share_the_gradient(large_tiles):
    """Equal neighbours within a row and across its parts; one edge twice."""
    count = 2 * MOST + 4
    col = torch.zeros(count, dtype=torch.int64)
    col[-1] = 1
    block = Block(rowptr=torch.tensor([0, count, count]), col=col, num_src=3)
    out, grad = run(block, "max", torch.tensor([[1.0], [1.0], [2.0]]))
    assert out.flatten().tolist() == [1, 0]
    seed = rand(2, 1, seed=9)[0].item()
    torch.testing.assert_close(
        grad.flatten(), torch.tensor([seed * (count - 1) / count, seed / count, 0.0])
    )


def test_infinities_and_nan_go_where_they_belong():
    nan, inf = float("nan"), float("inf")
    rowptr = torch.tensor([0, 2, 4, 6, 8, 9])
    col = torch.tensor([0, 1, 1, 2, 1, 3, 0, 2, 3])
    block = Block(rowptr=rowptr, col=col, num_src=5).to(DEVICE)
    x = torch.tensor([[nan], [1.0], [inf], [-inf], [0.0]], device=DEVICE, requires_grad=True)
    out = aggregate(block, x).cpu()
    torch.testing.assert_close(
        out.flatten(), torch.tensor([nan, inf, -inf, nan, -inf]), equal_nan=True
    )
    out = aggregate(block, x, reduce="max")
    torch.testing.assert_close(
        out.flatten().cpu(), torch.tensor([nan, inf, 1, nan, -inf]), equal_nan=True
    )
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.flatten().tolist() == [2, 1, 1, 1, 0]


def test_nothing_is_no_trouble():
    for block, width in ((ragged([2, 0, 3], 6), 0), (BLOCKS[-1].values[0], 4)):
        for reduce in REDUCTIONS:
            weight = torch.ones(block.num_edges)
            out, grad, grad_weight = run(block, reduce, torch.ones(block.num_src, width), weight)
            assert out.shape == (block.num_dst, width)
            assert torch.equal(grad, torch.zeros(block.num_src, width))
            assert torch.equal(grad_weight, torch.zeros(block.num_edges))


@on_gpu
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_tables_of_more_than_2_31_elements(index):
    """The last rows of a table of 4.3 GB, and positions of edges beyond 2**31 bytes."""
    num_src, width = 2**24 + 3, 129
    x = torch.empty(num_src, width, dtype=torch.bfloat16, device=DEVICE).zero_()
    x[-3:] = torch.arange(3, device=DEVICE)[:, None]
    col = torch.tensor([num_src - 1, num_src - 2, 0, num_src - 1], dtype=index)
    block = Block(rowptr=torch.tensor([0, 2, 4, 4]), col=col, num_src=num_src).to(DEVICE)
    assert aggregate(block, x)[:, 128].tolist() == [3, 2, 0]
    assert aggregate(block, x, reduce="max")[:, 128].tolist() == [2, 2, 0]
