"""Attention in Triton against plain torch in float64: outputs and every gradient."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from tests.kernels.blocks import ragged
from tests.kernels.device import DEVICE, INTERPRETED, SUITE, on_gpu
from tests.kernels.test_attention import (
    KEY,
    OPS,
    SHAPES,
    assert_near,
    check_slices_of_heads,
    far_logits_of_hubs,
    gat_inputs,
    infinite_logits,
    run,
)
from tests.kernels.test_attention_ops import largest_tensor
from tests.odd import ODD_GRAPHS
from tiergnn.graph.generate import rmat, star
from tiergnn.kernels import backend, tasks
from tiergnn.kernels.attention import edge_mean, gat_attention, gpu, gpu_launch
from tiergnn.kernels.block import Block

pytestmark = SUITE
BOUNDS = {torch.float32: (1e-5, 1e-4), torch.float64: (1e-10, 1e-9)}


@pytest.fixture(autouse=True)
def large_tiles(monkeypatch):
    """Tiles that the interpreter gets through a graph with in a few steps."""
    if INTERPRETED:
        monkeypatch.setattr(gpu_launch, "LOADS", 64)


def check(kind: str, block: Block, heads: int, width: int, dtype, edges=True, **options) -> None:
    """Our kernels on DEVICE against the reference in float64 on the CPU."""
    op, make = OPS[kind]
    tensors = make(block, heads, width, edges=edges)
    tensors = {k: t.to(dtype).double() for k, t in tensors.items()}
    got = run("gpu", op, block.to(DEVICE), tensors, dtype, **options)
    want = run("reference", op, block, tensors, torch.float64, **options)
    unit = torch.finfo(dtype).eps
    assert_near(got, want, *BOUNDS.get(dtype, (2 * unit, 8 * unit)))


WAYS = list(product((True, False), (False, True), (0.0, 0.6)))  # self_loop, edges, p
# Every way is compiled for itself, which takes a GPU longer than to run it on every graph.
FEW_WAYS = [(True, True, 0.6), (False, False, 0.0), (True, False, 0.0)]
# The interpreter, which takes long, has every odd graph under one kind, in turns.
TURNS = [
    (kind, turn)
    for (i, kind), turn in product(enumerate(OPS), range(len(ODD_GRAPHS)))
    if not INTERPRETED or i == turn % len(OPS)
]


@pytest.mark.parametrize(("kind", "turn"), TURNS)
def test_oracle(kind, turn):
    """Every odd graph; the interpreter tries one way each, in turns."""
    block = Block.from_graph(ODD_GRAPHS[turn].values[0])
    ways = [WAYS[turn // len(OPS) % len(WAYS)]] if INTERPRETED else FEW_WAYS
    for self_loop, edges, p in ways:
        options = {"self_loop": self_loop, "p": p, "key": KEY, "site": 2}
        check(kind, block, 3, 5, torch.float32, edges, **options)


@pytest.mark.parametrize("kind", OPS)
@pytest.mark.parametrize(("self_loop", "edges", "p"), WAYS)
def test_every_way(kind, self_loop, edges, p):
    block = Block.from_graph(rmat(11, 50, seed=7))
    options = {"self_loop": self_loop, "p": p, "key": KEY, "site": 2}
    check(kind, block, 3, 5, torch.float32, edges, **options)


@pytest.mark.parametrize("kind", OPS)
@pytest.mark.parametrize("cuts", [[1, 3], [4, 8]], ids=str)
def test_slices_of_heads(kind, cuts):
    block = Block.from_graph(rmat(9, 40, seed=5))
    check_slices_of_heads("gpu", kind, block.to(DEVICE), 8, cuts)


@pytest.mark.parametrize("kind", OPS)
@pytest.mark.parametrize(("heads", "width"), SHAPES)
def test_shapes(kind, heads, width):
    check(kind, Block.from_graph(rmat(9, 40, seed=5)), heads, width, torch.float64, False)


@pytest.mark.parametrize("kind", OPS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(kind, dtype):
    check(kind, Block.from_graph(rmat(12, 60, seed=2)), 3, 5, dtype, p=0.3, key=KEY)


@pytest.mark.parametrize("kind", OPS)
@pytest.mark.parametrize("self_loop", [True, False])
def test_rows_that_many_tasks_share(kind, self_loop, monkeypatch):
    """Parts of four edges, merged two by two, over in-edges and over out-edges."""
    monkeypatch.setattr(tasks, "MOST_MERGED", 2)
    block = Block.from_graph(star(30))
    rowptr_t, dst_t, _ = block.transposed
    flipped = Block(rowptr=rowptr_t, col=dst_t, num_src=block.num_src)
    for one in (block, flipped):
        there = one.to(DEVICE)
        for transposed, rowptr in ((False, there.rowptr), (True, there.transposed.rowptr_t)):
            cut = tasks.cut_rows(rowptr, most=4)
            rows = 0, there.num_src
            there.plans["aggregate", "gpu", transposed, rows] = cut
        assert any(cut.merge is not None for cut in there.plans.values())
        check(kind, there, 2, 3, torch.float64, p=0.4, key=KEY, self_loop=self_loop)


@on_gpu
@pytest.mark.parametrize("kind", OPS)
@pytest.mark.parametrize("self_loop", [True, False])
def test_hubs(kind, self_loop):
    """A destination of 200,000 in-edges and, transposed, a source of as many out-edges."""
    block = Block.from_graph(star(200_000))
    rowptr_t, dst_t, _ = block.transposed
    flipped = Block(rowptr=rowptr_t, col=dst_t, num_src=block.num_src)
    for one in (block, flipped):
        check(kind, one, 4, 8, torch.float32, p=0.4, key=KEY, self_loop=self_loop)


@pytest.mark.parametrize("kind", OPS)
@pytest.mark.parametrize(("heads", "width"), [(3, 7), (2, 9)])
def test_rows_wider_than_a_tile(kind, heads, width, monkeypatch):
    """Heads in groups, and heads in blocks of columns."""
    monkeypatch.setattr(gpu_launch, "WIDEST", 4)
    block = Block.from_graph(rmat(5, 14, seed=1))
    check(kind, block, heads, width, torch.float64, p=0.4, key=KEY)


@pytest.mark.parametrize("edges", [True, False])
def test_few_programs_share_the_gradients_of_all_edges(edges, monkeypatch):
    """Each takes many tasks in turn, of several launches, and adds to its own sums."""
    monkeypatch.setattr(gpu, "PROGRAMS", 2)
    monkeypatch.setattr(gpu_launch, "LOADS", 2)
    degrees = [1, 2, 0, 30, 1, 3, 2, 2, 1, 40]
    check("gatv2", ragged(degrees, 12), 2, 4, torch.float64, edges)


@on_gpu
@pytest.mark.parametrize("kind", OPS)
@pytest.mark.parametrize(
    ("heads", "width", "dtype"),
    [(8, 8, torch.float32), (8, 32, torch.bfloat16), (2, 300, torch.float32)],
    ids=str,
)
def test_power_law(kind, heads, width, dtype):
    block = Block.from_graph(rmat(3_000, 60_000, seed=1))
    check(kind, block, heads, width, dtype, p=0.5, key=KEY)


@pytest.mark.parametrize("kind", OPS)
def test_two_runs_give_the_same_bits(kind):
    op, make = OPS[kind]
    size = (30, 150) if INTERPRETED else (20_000, 1_000_000)
    block = Block.from_graph(rmat(*size, seed=1)).to(DEVICE)
    tensors = make(block, *((2, 3) if INTERPRETED else (8, 8)), edges=True)
    first, *others = (
        run("gpu", op, block, tensors, torch.float32, p=0.5, key=KEY) for _ in range(3)
    )
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@on_gpu
@pytest.mark.parametrize("kind", OPS)
def test_nothing_grows_with_edges_times_heads(kind):
    heads, width = 8, 8
    block = Block.from_graph(rmat(2_000, 2_000_000, seed=1)).to(DEVICE)
    torch.cuda.synchronize()
    largest = largest_tensor("gpu", kind, block, heads, width)
    assert block.num_dst * heads * width <= largest < block.num_edges * heads / 4


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_logits_of_minus_infinity(dtype):
    """Case A14: as the reference, NaN where every logit of a row is -inf."""
    want = infinite_logits("reference", torch.float64)
    unit = max(torch.finfo(dtype).eps, 1e-5)
    for got, one in zip(infinite_logits("gpu", dtype, DEVICE), want, strict=True):
        torch.testing.assert_close(got, one, rtol=unit, atol=unit, equal_nan=True)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str
)
def test_softmax_of_far_logits(dtype):
    """Case A14: {200, 199} and {-200, -201} both give {0.7311, 0.2689}."""
    block = Block(rowptr=torch.tensor([0, 2, 4]), col=torch.tensor([0, 1, 2, 3]), num_src=4)
    block = block.to(DEVICE)
    h = torch.tensor([[1.0, 0], [0, 1], [1, 0], [0, 1]], dtype=dtype, device=DEVICE)[:, None]
    src = torch.tensor([200.0, 199, -200, -201], dtype=dtype, device=DEVICE)[:, None]
    inputs = [h.requires_grad_(), src.requires_grad_(), torch.zeros_like(src[:2]).requires_grad_()]
    with backend.use("gpu"):
        out = gat_attention(block, *inputs, negative_slope=1.0, self_loop=False)
    want = torch.tensor([0.7310586, 0.2689414], dtype=torch.float64).expand(2, 1, 2)
    rtol = max(torch.finfo(dtype).eps, 1e-7)
    torch.testing.assert_close(out.double().cpu(), want, rtol=rtol, atol=1e-7)
    for grad in torch.autograd.grad(out[..., 0].sum(), inputs):
        assert grad.isfinite().all()


@pytest.mark.parametrize("kind", OPS)
def test_far_logits_of_rows_that_tasks_share(kind, monkeypatch):
    """Case A14: parts of a row are merged under the largest logit of all."""
    if INTERPRETED:
        monkeypatch.setattr(tasks, "MOST", 16)
    got, want = far_logits_of_hubs("gpu", kind, torch.float32, 40 if INTERPRETED else 9_000, DEVICE)
    assert_near(got, want, 5e-5, 2e-4)  # the last bit of a logit of 350 is 3e-5


@pytest.mark.parametrize("kind", OPS)
def test_a04_columns_of_either_width(kind):
    op, make = OPS[kind]
    block = ragged([3, 0, 5, 1], 6)
    wide = Block(rowptr=block.rowptr, col=block.col.long(), num_src=6)
    tensors = make(block, 2, 3, edges=True)
    results = [
        run("gpu", op, one.to(DEVICE), tensors, torch.float64, p=0.5, key=KEY)
        for one in (block, wide)
    ]
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("kind", OPS)
def test_ids_of_the_whole_graph(kind):
    """A block whose rows and edges stand elsewhere in the graph drops what they drop there."""
    block = Block(
        rowptr=torch.tensor([0, 2, 5]),
        col=torch.tensor([1, 2, 0, 1, 3]),
        num_src=4,
        dst_gid=torch.tensor([2**33 + 5, 7]),
        src_gid=torch.tensor([2**33 + 5, 7, 1, 0]),
        eid=torch.tensor([2**40, 3, 2**33, 11, 5]),
        num_graph_nodes=2**34,
        num_graph_edges=2**41,
    )
    for heads in (2, 8):
        check(kind, block, heads, 2, torch.float64, p=0.5, key=KEY)


@pytest.mark.parametrize("kind", OPS)
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_an_edge_alone_in_its_row_has_no_gradient_of_its_score(kind, dtype):
    """Exactly: what rounding leaves of it would add up over the rows of a large graph."""
    num_rows = 200
    edges = torch.arange(num_rows)
    block = Block(rowptr=torch.arange(num_rows + 1), col=edges.flip(0).int(), num_src=num_rows)
    op, make = OPS[kind]
    tensors = make(block, 2, 5, edges=True)
    options = {"p": 0.3, "key": KEY, "self_loop": False}
    grads = run("gpu", op, block.to(DEVICE), tensors, dtype, **options)[1:]
    assert grads[0].ne(0).any()
    assert all(grad.eq(0).all() for grad in grads[1:])


def test_rows_without_edges():
    """Case A07: exactly 0 without loops, the row itself with them, finite gradients."""
    block = Block(rowptr=torch.zeros(5, dtype=torch.long), col=torch.zeros(0).int(), num_src=4)
    block = block.to(DEVICE)
    for op, make in OPS.values():
        tensors = make(block, 2, 3, edges=True)
        alone = run("gpu", op, block, tensors, torch.float32, self_loop=False)
        assert all(t.eq(0).all() for t in alone)
        looped = run("gpu", op, block, tensors, torch.float32)
        torch.testing.assert_close(looped[0], next(iter(tensors.values())), rtol=1e-6, atol=1e-6)
        assert all(t.isfinite().all() for t in looped)


def test_edge_mean():
    block = Block.from_graph(rmat(10, 60, seed=3))
    value = torch.randn(60, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with backend.use("gpu"):
        got = edge_mean(block.to(DEVICE), value.to(DEVICE))
    with backend.use("reference"):
        want = edge_mean(block, value)
    torch.testing.assert_close(got.cpu(), want, rtol=1e-12, atol=1e-12)


@on_gpu
def test_a_row_table_of_more_than_two_to_the_31_numbers():
    """Case A04: rows whose offsets do not fit 32 bits, at the end of a table of 4.3 GB."""
    num_nodes, heads, width = 2**25 + 3, 2, 32
    last = torch.arange(num_nodes - 4, num_nodes, device=DEVICE)
    rowptr = torch.zeros(num_nodes + 1, dtype=torch.long, device=DEVICE)
    rowptr[-1] = 4
    block = Block(rowptr=rowptr, col=last.int(), num_src=num_nodes)
    h = torch.zeros(num_nodes, heads, width, dtype=torch.bfloat16, device=DEVICE)
    h[-4:] = torch.tensor([1.0, 2, 3, 6], device=DEVICE)[:, None, None]
    score = torch.zeros(num_nodes, heads, device=DEVICE)
    with backend.use("gpu"):
        out = gat_attention(block, h, score, score, self_loop=False)
    assert out[-1].eq(3).all()
    assert out[:-1].eq(0).all()


def test_the_suite_runs_where_it_says():
    block = Block.from_graph(rmat(4, 9, seed=0)).to(DEVICE)
    tensors = {k: t.to(DEVICE) for k, t in gat_inputs(block, 1, 2, edges=False).items()}
    with backend.use("gpu"):
        assert gat_attention(block, **tensors).device.type == DEVICE
