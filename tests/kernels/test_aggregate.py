"""Aggregation against a float64 oracle: outputs and every gradient, on every backend."""

from __future__ import annotations

import itertools
import os
import select
import signal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.blocks import BACKENDS, BLOCKS, assert_close, oracle, ragged, rand
from tests.kernels.by_threads import assert_same_bits
from tests.odd import edge_lists
from tiergnn.errors import ConfigError
from tiergnn.graph.csr import from_edges
from tiergnn.kernels import backend
from tiergnn.kernels.aggregate import REDUCTIONS, aggregate
from tiergnn.kernels.aggregate.cpu_tasks import cut, even_tasks
from tiergnn.kernels.block import Block

WIDTHS = (1, 3, 37, 63)
# Rows around the length of a chunk, hubs that several tasks share, and empty rows between them.
HUBS = ragged([0, 511, 512, 513, 0, 1025, 1] + [0] * 9000 + [40_000, 2, 0, 20_000, 7], 9500)


def grads_of(out, inputs, of_factors=torch.clone):
    """Gradients of a weighted sum of the outputs, zeros where there is no path."""
    if not out.requires_grad:  # the oracle of a graph without edges reads nothing
        return [torch.zeros_like(x) for x in inputs]
    total = (out.double() * of_factors(rand(*out.shape, seed=9))).sum()
    found = torch.autograd.grad(total, inputs, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]


def compare(block, width, reduce, weighted, dtype, rel, make_oracle=oracle):
    """Forward and gradients against float64; errors are relative to the sums of sizes."""
    x = rand(block.num_src, width).to(dtype).requires_grad_()
    weight = rand(block.num_edges, seed=1).to(dtype).requires_grad_() if weighted else None
    inputs = [x] if weight is None else [x, weight]
    out = aggregate(block, x, reduce=reduce, weight_E=weight)
    assert out.dtype == dtype
    got = [out, *grads_of(out, inputs)]

    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    want_out = make_oracle(block, wide[0], reduce, *wide[1:])
    want = [want_out, *grads_of(want_out, wide)]
    sizes = [tensor.detach().abs().requires_grad_() for tensor in wide]
    size_out = make_oracle(block, sizes[0], "sum" if reduce == "max" else reduce, *sizes[1:])
    scale = [size_out, *grads_of(size_out, sizes, torch.abs)]
    for got_part, want_part, size in zip(got, want, scale, strict=True):
        assert_close(got_part, want_part, rel=rel, scale=size)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("block", BLOCKS)
def test_oracle(name, block, reduce, weighted):
    with backend.use(name):
        for width in WIDTHS:
            compare(block, width, reduce, weighted, torch.float32, 1e-6)
        compare(block, 3, reduce, weighted, torch.float64, 1e-14)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize(("heads", "width"), [(1, 3), (37, 1), (3, 21)])
def test_weights_of_columns_and_heads(name, reduce, heads, width):
    """Against as many aggregations, in float64, of one head's columns each."""
    hubs = ragged([0, 511, 513, 0, 1, 700, 2], 800)
    for block in (hubs, ragged([0, 0], 3)):
        x = rand(block.num_src, heads * width).float().requires_grad_()
        weight = rand(block.num_edges, heads, seed=1).float().requires_grad_()
        with backend.use(name):
            out = aggregate(block, x, reduce=reduce, weight_E=weight)
            got = [out, *grads_of(out, [x, weight])]
        x_64, weight_64 = (t.detach().double().requires_grad_() for t in (x, weight))
        parts = zip(x_64.split(width, 1), weight_64.unbind(1), strict=True)
        want = torch.cat([oracle(block, rows, reduce, numbers) for rows, numbers in parts], 1)
        wants = [want, *grads_of(want, [x_64, weight_64])]
        largest = max([1.0, *(t.abs().max().item() for t in wants if t.numel())])
        for one, right in zip(got, wants, strict=True):
            assert_close(one, right, rel=3e-6, scale=torch.full_like(right, largest))


@pytest.mark.parametrize("name", BACKENDS)
def test_weights_of_columns_are_differentiable_twice(name):
    block = ragged([3, 0, 5, 1, 2], 6)
    for heads in (2, 4):
        inputs = rand(6, 4).requires_grad_(), rand(11, heads, seed=1).requires_grad_()
        with backend.use(name):
            assert torch.autograd.gradgradcheck(
                lambda x, w: aggregate(block, x, reduce="mean", weight_E=w), inputs
            )


def reference(block, x, reduce, weight=None):
    with backend.use("reference"):
        return aggregate(block, x, reduce=reduce, weight_E=weight)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_hubs(reduce, weighted):
    """Rows of several chunks and tasks; two tiles of columns, the second one masked."""
    with backend.use("cpu"):
        for width in (3, 130):
            compare(HUBS, width, reduce, weighted, torch.float32, 2e-6, reference)
        compare(HUBS, 5, reduce, weighted, torch.float64, 1e-14, reference)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", BACKENDS)
def test_halves(name, dtype, reduce):
    """Storage rounds once: half a unit in the last place of the result, and of each operand."""
    block = ragged([1, 0, 7, 600, 3], 700)
    x = rand(700, 37, dtype=dtype).requires_grad_()
    wide = x.detach().double().requires_grad_()
    with backend.use(name):
        out = aggregate(block, x, reduce=reduce)
        (grad,) = torch.autograd.grad(out, x, rand(5, 37, seed=2).to(dtype))
    want = oracle(block, wide, reduce)
    (want_grad,) = torch.autograd.grad(want, wide, rand(5, 37, seed=2).to(dtype).double())
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), want, rtol=0.51 * unit, atol=1e-5)
    torch.testing.assert_close(grad.double(), want_grad, rtol=0.51 * unit, atol=1e-5)


@pytest.mark.parametrize(("dtype", "total"), [(torch.float16, 7000), (torch.bfloat16, 7008)])
@pytest.mark.parametrize("name", BACKENDS)
def test_a13_halves_do_not_saturate(name, dtype, total):
    star = ragged([7000] + [0] * 6999, 7000)
    ones = torch.ones(7000, 5, dtype=dtype)
    with backend.use(name):
        assert aggregate(star, ones)[0].tolist() == [total] * 5
        assert aggregate(star, ones, reduce="mean")[0].tolist() == [1] * 5
        # The gradient of a mean over 70,000 does not vanish although float16 ends at 65,504.
        hub, x = ragged([70_000, 1], 2), torch.zeros(2, 1, dtype=dtype, requires_grad=True)
        aggregate(hub, x, reduce="mean")[0].sum().backward()
    counts = torch.bincount(hub.col[:-1], minlength=2) / 70_000
    torch.testing.assert_close(x.grad.flatten(), counts.to(dtype))


def test_a13_sums_of_more_than_2_24_ones():
    count = 2**24 + 4098
    rowptr = torch.tensor([0, count])
    block = Block(rowptr=rowptr, col=torch.zeros(count, dtype=torch.int32), num_src=1)
    with backend.use("cpu"):
        assert aggregate(block, torch.ones(1, 1)).item() == count
        assert aggregate(block, torch.ones(1, 1), reduce="mean").item() == 1
        tenth = aggregate(block, torch.full((1, 1), 0.1)).item()
    assert tenth == pytest.approx(count * float(torch.tensor(0.1)), rel=1e-5)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_same_bits_for_any_number_of_threads(reduce):
    x = rand(HUBS.num_src, 37).float().requires_grad_()
    weight = rand(HUBS.num_edges, seed=1).float().requires_grad_()

    def both():
        out = aggregate(HUBS, x, reduce=reduce, weight_E=weight)
        return [out, *torch.autograd.grad(out.sum(), [x, weight])]

    with backend.use("cpu"):
        assert_same_bits(both)


@pytest.mark.parametrize("name", BACKENDS)
def test_rows_in_any_layout(name):
    """Strided, transposed, expanded and offset rows; expanded and transposed gradients."""
    block = ragged([2, 0, 3, 1], 6)
    base = rand(40, 40)
    layouts = {
        "columns of a wider table": base[:6, 3:10],
        "every other row": base[:12:2, :7],
        "transposed": base[:7, :6].t(),
        "every other column": base[:6, :14:2],
        "one row for all": base[:1, :7].expand(6, 7),
        "one number a row": base[:6, :1].expand(6, 7),
    }
    with backend.use(name):
        for x in layouts.values():
            for reduce in REDUCTIONS:
                leaf = x.clone().requires_grad_()
                want = aggregate(block, leaf, reduce=reduce)
                assert torch.equal(aggregate(block, x, reduce=reduce), want)
                (want_grad,) = torch.autograd.grad(want, leaf, torch.ones(4, 7).double())
                out = aggregate(block, leaf, reduce=reduce)
                (grad,) = torch.autograd.grad(out, leaf, torch.ones(7, 4).double().t())
                assert torch.equal(grad, want_grad)
                out = aggregate(block, leaf, reduce=reduce).sum()  # an expanded gradient
                assert torch.equal(torch.autograd.grad(out, leaf)[0], want_grad)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("name", BACKENDS)
def test_nothing_is_no_trouble(name, reduce):
    with backend.use(name):
        for block, width in ((ragged([2, 0, 3], 6), 0), (BLOCKS[-1].values[0], 4)):
            x = torch.ones(block.num_src, width, requires_grad=True)
            weight = torch.ones(block.num_edges, requires_grad=True)
            out = aggregate(block, x, reduce=reduce, weight_E=weight)
            assert out.shape == (block.num_dst, width)
            out.sum().backward()
            assert torch.equal(x.grad, torch.zeros_like(x))
            assert torch.equal(weight.grad, torch.zeros_like(weight))


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("name", BACKENDS)
def test_gradcheck(name, reduce):
    block = ragged([3, 0, 5, 1, 2], 6)
    inputs = rand(6, 3).requires_grad_(), rand(11, seed=1).requires_grad_()

    def run(x, weight):
        return aggregate(block, x, reduce=reduce, weight_E=weight)

    with backend.use(name):
        assert torch.autograd.gradcheck(run, inputs)
        if reduce != "max":
            assert torch.autograd.gradgradcheck(run, inputs)


@pytest.mark.parametrize("name", BACKENDS)
def test_ties_share_the_gradient(name):
    """Four equal neighbours, one edge twice: each edge gets a quarter, as amax gives it."""
    block = Block(rowptr=torch.tensor([0, 5]), col=torch.tensor([0, 0, 1, 2, 3]), num_src=4)
    x = torch.tensor([[1.0], [1.0], [1.0], [0.0]], requires_grad=True)
    with backend.use(name):
        aggregate(block, x, reduce="max").backward()
    assert x.grad.flatten().tolist() == [0.5, 0.25, 0.25, 0]


@pytest.mark.parametrize("name", BACKENDS)
def test_infinities_and_nan_go_where_they_belong(name):
    nan, inf = float("nan"), float("inf")
    rowptr = torch.tensor([0, 2, 4, 6, 8, 9])
    col = torch.tensor([0, 1, 1, 2, 1, 3, 0, 2, 3])
    block = Block(rowptr=rowptr, col=col, num_src=5)
    x = torch.tensor([[nan], [1.0], [inf], [-inf], [0.0]], requires_grad=True)
    with backend.use(name):
        out = aggregate(block, x)
        torch.testing.assert_close(
            out.flatten(), torch.tensor([nan, inf, -inf, nan, -inf]), equal_nan=True
        )
        out = aggregate(block, x, reduce="max")
        torch.testing.assert_close(
            out.flatten(), torch.tensor([nan, inf, 1, nan, -inf]), equal_nan=True
        )
        out.sum().backward()
    assert x.grad.flatten().tolist() == [2, 1, 1, 1, 0]


@pytest.mark.parametrize("name", BACKENDS)
def test_a04_and_a12_one_answer_for_every_index_type_and_order(name):
    """Six nodes; weight 10 * src + dst follows its edge from any order of the input."""
    src, dst = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2], [1, 1, 0, 2, 2, 4, 4, 5]])
    x = rand(6, 3)
    results = []
    for seed in range(3):
        order = torch.randperm(8, generator=torch.Generator().manual_seed(seed))
        s, d = src[order].numpy(), dst[order].numpy()
        for index in ("int64", "int32", "int16"):
            graph = from_edges(
                s.astype(index), d.astype(index), 6, edge_weight=(10.0 * s + d).astype("float64")
            )
            block = Block.from_graph(graph)
            for col in (block.col.int(), block.col.long()):
                same = Block(rowptr=block.rowptr, col=col, num_src=6)
                leaf = x.clone().requires_grad_()
                with backend.use(name):
                    out = aggregate(same, leaf, weight_E=block.edge_weight)
                results.append([out.detach(), torch.autograd.grad(out.square().sum(), leaf)[0]])
    dense = torch.zeros(6, 6, dtype=torch.float64)
    dense.index_put_((dst, src), (10 * src + dst).double(), accumulate=True)
    want = dense @ x
    for out, grad in results:
        torch.testing.assert_close(out, want, rtol=1e-14, atol=1e-14)
        torch.testing.assert_close(grad, 2 * dense.t() @ want, rtol=1e-13, atol=1e-13)


@settings(max_examples=50, deadline=None)
@given(degrees=st.lists(st.integers(0, 30), max_size=20), num_tasks=st.integers(1, 40))
def test_tasks_share_out_every_edge_and_row_end_once(degrees, num_tasks):
    rowptr = np.concatenate([[0], np.cumsum(degrees, dtype=np.int64)]).astype(np.int64)
    total = len(degrees) + int(rowptr[-1])
    step = max(1, -(-total // num_tasks))
    starts = [cut(rowptr, step, task) for task in range(num_tasks + 1)]
    assert starts[0] == (0, 0)
    assert starts[-1] == (len(degrees), int(rowptr[-1]))
    for (row_0, edge_0), (row_1, edge_1) in itertools.pairwise(starts):
        assert rowptr[row_0] <= edge_0 <= rowptr[min(row_0 + 1, len(degrees))]
        assert 0 <= (row_1 - row_0) + (edge_1 - edge_0) <= step


def test_a04_offsets_beyond_2_31():
    """Offsets alone, without the edges: degrees and tasks of 2**33 edges are exact."""
    rowptr = np.array([0, 2**31 - 1, 2**31 - 1, 2**31 + 7, 2**33])
    num_tasks, step = even_tasks(4, int(rowptr[-1]))
    assert num_tasks * step >= 2**33 + 4
    assert cut(rowptr, step, num_tasks) == (4, 2**33)
    assert cut(rowptr, 2**31, 1) == (1, 2**31 - 1)
    block = Block(rowptr=torch.from_numpy(rowptr), col=torch.zeros(0).int(), num_src=4)
    assert block.in_degree.tolist() == [2**31 - 1, 0, 8, 2**33 - 2**31 - 7]


@settings(max_examples=30, deadline=None)
@given(edges=edge_lists(min_nodes=1), reduce=st.sampled_from(REDUCTIONS), weighted=st.booleans())
def test_any_graph(edges, reduce, weighted):
    block = Block.from_graph(edges.graph())
    with backend.use("cpu"):
        compare(block, 3, reduce, weighted, torch.float64, 1e-14)


def test_a_block_first_used_in_a_forked_process():
    """Which has none of its parent's threads: nothing here waits for them."""
    degrees = [30] * 3000
    rows = rand(3000, 5).float()  # few enough that torch fills them without threads
    with backend.use("cpu"):
        want = aggregate(ragged(degrees, 3000), rows)
    block = ragged(degrees, 3000)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        with backend.use("cpu"):
            same = np.array_equal(aggregate(block, rows).numpy(), want.numpy())
        os.write(write, b"+" if same else b"-")
        os._exit(0)
    try:
        assert select.select([read], [], [], 60)[0], "the child hangs"
        assert os.read(read, 1) == b"+"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_what_does_not_fit_is_refused():
    block = ragged([2, 1], 3)
    x = torch.ones(3, 2)
    with pytest.raises(ConfigError, match="unknown reduce 'min'"):
        aggregate(block, x, reduce="min")
    with pytest.raises(ConfigError, match=r"x needs shape \[3, D\], has \[2, 2\]"):
        aggregate(block, x[:2])
    with pytest.raises(ConfigError, match="float rows"):
        aggregate(block, x.int())
    with pytest.raises(ConfigError, match=r"edge weights need shape \[3\] or .* have \[2\]"):
        aggregate(block, x, weight_E=torch.ones(2))
    with pytest.raises(ConfigError, match="the graph is on cpu, x on meta"):
        aggregate(block, x.to("meta"))
