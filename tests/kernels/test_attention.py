"""Attention against plain torch in float64: outputs and every gradient, on every backend."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.blocks import ragged
from tests.kernels.by_threads import assert_same_bits
from tests.odd import ODD_GRAPHS, edge_lists
from tiergnn.graph.generate import rmat, star
from tiergnn.kernels import backend
from tiergnn.kernels.attention import gat_attention, gatv2_attention
from tiergnn.kernels.block import Block
from tiergnn.kernels.dropout import step_key

FUSED = ("cpu",)
BACKENDS = ("reference", *FUSED)
SHAPES = ((1, 1), (3, 3), (8, 37), (1, 63))
KEY = step_key(7, 3)
ATTRS = 3


def gat_inputs(block: Block, heads: int, width: int, *, edges: bool, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    sources, rows = block.num_src, block.num_dst
    tensors = {
        "h_SKF": rand(sources, heads, width),
        "score_src_SK": rand(sources, heads),
        "score_dst_PK": rand(rows, heads),
    }
    if edges:
        tensors["score_edge_EK"] = rand(block.num_edges, heads)
    return tensors


def gatv2_inputs(block: Block, heads: int, width: int, *, edges: bool, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    tensors = {
        "x_src_SKF": rand(block.num_src, heads, width),
        "x_dst_PKF": rand(block.num_dst, heads, width),
        "att_KF": rand(heads, width),
    }
    if edges:
        tensors["edge_attr_ED"] = rand(block.num_edges, ATTRS)
        tensors["edge_weight_DKF"] = rand(ATTRS, heads, width)
    return tensors


OPS = {"gat": (gat_attention, gat_inputs), "gatv2": (gatv2_attention, gatv2_inputs)}


def run(name: str, op, block: Block, tensors: dict[str, Tensor], dtype, **options):
    """Output and the gradients of every tensor, in float64; the output is weighed unevenly.

    Runs on the block's device; tensors and results are on the CPU.
    """
    inputs = {k: t.to(block.device, dtype, copy=True) for k, t in tensors.items()}
    for tensor in inputs.values():
        tensor.requires_grad_()
    with backend.use(name):
        out = op(block, **inputs, **options)
    weight = torch.linspace(-1, 1.5, out.numel(), dtype=torch.float64).view_as(out)
    loss = (out.double() * weight.to(block.device)).sum()
    grads = torch.autograd.grad(loss, list(inputs.values()))
    assert out.dtype == dtype
    return [out.detach().double().cpu(), *(g.double().cpu() for g in grads)]


def assert_near(got: list[Tensor], want: list[Tensor], forward: float, backward: float) -> None:
    """Errors relative to the largest number of the output, and to that of all the gradients.

    A gradient may be a sum of large numbers that cancel: its own size says nothing of its error.
    """
    largest = [
        max([t.abs().max().item() for t in ts if t.numel()] + [1.0]) for ts in (want[:1], want[1:])
    ]
    for i, (got_one, want_one) in enumerate(zip(got, want, strict=True)):
        assert got_one.shape == want_one.shape
        assert got_one.isfinite().all()
        if want_one.numel():
            bound = backward * largest[1] if i else forward * largest[0]
            error = (got_one - want_one).abs().max().item()
            assert error <= bound, f"tensor {i}: off by {error:.3g}, allowed {bound:.3g}"


CASES = [("reference", torch.float32)] + [
    (name, dtype) for name in FUSED for dtype in (torch.float32, torch.float64)
]


@pytest.mark.parametrize(("name", "dtype"), CASES)
@pytest.mark.parametrize("kind", OPS)
@pytest.mark.parametrize("graph", ODD_GRAPHS)
def test_oracle(name, dtype, kind, graph):
    """Every odd graph, with and without loops, edge features and dropout; shapes take turns."""
    op, make = OPS[kind]
    block = Block.from_graph(graph)
    bounds = (1e-5, 1e-4) if dtype == torch.float32 else (1e-10, 1e-9)
    turn = 0
    for self_loop in (True, False):
        for edges in (False, True):
            for p in (0.0, 0.6):
                heads, width = SHAPES[turn % len(SHAPES)]
                turn += 1 if p else 3
                tensors = make(block, heads, width, edges=edges)
                tensors = {k: t.to(dtype).double() for k, t in tensors.items()}
                options = {"self_loop": self_loop, "p": p, "key": KEY, "site": 2}
                got = run(name, op, block, tensors, dtype, **options)
                want = run("reference", op, block, tensors, torch.float64, **options)
                assert_near(got, want, *bounds)


def of_heads(tensors: dict[str, Tensor], first: int, last: int) -> dict[str, Tensor]:
    """The tensors of a slice of heads; those without heads as they are."""
    places = {"edge_attr_ED": None, "att_KF": 0, "edge_weight_DKF": 1}
    return {
        k: t if (dim := places.get(k, 1)) is None else t.narrow(dim, first, last - first)
        for k, t in tensors.items()
    }


def check_slices_of_heads(name: str, kind: str, block: Block, heads: int, cuts: list[int]) -> None:
    """A slice of heads draws the words of its heads, and gives their columns of the whole."""
    op, make = OPS[kind]
    tensors = make(block, heads, 3, edges=True)
    options = {"p": 0.5, "key": KEY, "site": 2}
    want = run("reference", op, block, tensors, torch.float64, **options)[0]
    for first, last in pairwise(cuts):
        sliced = of_heads(tensors, first, last)
        got = run(name, op, block, sliced, torch.float64, head=first, **options)
        assert_near(got[:1], [want[:, first:last]], 1e-10, 1e-9)
        again = run("reference", op, block, sliced, torch.float64, head=first, **options)
        assert_near(got, again, 1e-10, 1e-9)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("kind", OPS)
def test_slices_of_heads(name, kind):
    check_slices_of_heads(name, kind, Block.from_graph(rmat(40, 200, seed=3)), 9, [0, 1, 4, 6, 9])


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("kind", OPS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(name, kind, dtype):
    op, make = OPS[kind]
    block = Block.from_graph(rmat(60, 500, seed=2))
    tensors = {k: t.to(dtype).double() for k, t in make(block, 3, 37, edges=True).items()}
    got = run(name, op, block, tensors, dtype, p=0.3, key=KEY)
    want = run("reference", op, block, tensors, torch.float64, p=0.3, key=KEY)
    unit = torch.finfo(dtype).eps
    assert_near(got, want, 2 * unit, 8 * unit)


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("kind", OPS)
@settings(max_examples=30, deadline=None)
@given(
    edge_list=edge_lists(min_nodes=1),
    shape=st.sampled_from(SHAPES),
    self_loop=st.booleans(),
    edges=st.booleans(),
    p=st.sampled_from([0.0, 0.5, 1.0]),
    slope=st.sampled_from([0.2, 0.0, -0.5, 1.0]),
)
def test_any_graph(name, kind, edge_list, shape, self_loop, edges, p, slope):
    op, make = OPS[kind]
    block = Block.from_graph(edge_list.graph())
    tensors = make(block, *shape, edges=edges)
    options = {"self_loop": self_loop, "p": p, "key": KEY, "negative_slope": slope}
    got = run(name, op, block, tensors, torch.float64, **options)
    want = run("reference", op, block, tensors, torch.float64, **options)
    assert_near(got, want, 1e-10, 1e-9)


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("kind", OPS)
def test_hubs_are_cut_and_joined(name, kind):
    """A destination of 9,000 in-edges and, transposed, a source of as many out-edges."""
    op, make = OPS[kind]
    block = Block.from_graph(star(9_000))
    flipped = Block(
        rowptr=block.transposed.rowptr_t, col=block.transposed.dst_t, num_src=block.num_src
    )
    for one in (block, flipped):
        tensors = {k: t.float().double() for k, t in make(one, 2, 5, edges=True).items()}
        for self_loop in (True, False):
            options = {"p": 0.4, "key": KEY, "self_loop": self_loop}
            got = run(name, op, one, tensors, torch.float32, **options)
            want = run("reference", op, one, tensors, torch.float64, **options)
            assert_near(got, want, 1e-5, 1e-4)


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("kind", OPS)
def test_same_bits_whatever_the_threads(name, kind):
    op, make = OPS[kind]
    block = Block.from_graph(rmat(3000, 60_000, seed=1))
    tensors = make(block, 4, 6, edges=True)
    assert_same_bits(lambda: run(name, op, block, tensors, torch.float32, p=0.5, key=KEY))


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str
)
def test_softmax_of_far_logits(name, dtype):
    """Case A14: {200, 199} and {-200, -201} both give {0.7311, 0.2689}."""
    block = Block(rowptr=torch.tensor([0, 2, 4]), col=torch.tensor([0, 1, 2, 3]), num_src=4)
    h = torch.tensor([[1.0, 0], [0, 1], [1, 0], [0, 1]], dtype=dtype)[:, None].requires_grad_()
    src = torch.tensor([200.0, 199, -200, -201], dtype=dtype)[:, None].requires_grad_()
    dst = torch.zeros(2, 1, dtype=dtype).requires_grad_()
    with backend.use(name):
        out = gat_attention(block, h, src, dst, negative_slope=1.0, self_loop=False)
    want = torch.tensor([0.7310586, 0.2689414], dtype=torch.float64).expand(2, 1, 2)
    torch.testing.assert_close(out.double(), want, rtol=torch.finfo(dtype).eps, atol=1e-7)
    for grad in torch.autograd.grad(out[..., 0].sum(), [h, src, dst]):
        assert grad.isfinite().all()
        assert grad is not None


def far_logits_of_hubs(name: str, kind: str, dtype: torch.dtype, degree: int, device: str = "cpu"):
    """(got, want) of rows that tasks share, whose logits lie 700 apart, or all near 200 or -200.

    Gradients too: of sums, which weigh every edge.
    """
    block = ragged([degree, 1, degree, 0, degree], 6)
    block = Block(rowptr=block.rowptr, col=torch.arange(block.num_edges), num_src=block.num_edges)
    op, make = OPS[kind]
    tensors = make(block, 2, 3, edges=False)
    far = torch.linspace(-3.5, 3.5, block.num_src, dtype=torch.float64)[:, None]
    far[block.edge_dst != 0] /= 100  # the first row alone has them far apart
    shift = torch.tensor([0.0, 0, 2, 0, -2], dtype=torch.float64)[:, None]
    if kind == "gat":
        tensors["score_src_SK"] = 100 * far.repeat(1, 2)
        tensors["score_dst_PK"] = 100 * shift.repeat(1, 2)
    else:
        tensors["x_src_SKF"][..., 0], tensors["x_dst_PKF"][..., 0] = far, shift
        tensors["att_KF"][:, 0] = 100
    tensors = {k: t.to(dtype).double() for k, t in tensors.items()}
    options = {"self_loop": False, "negative_slope": 1.0}
    got = run(name, op, block.to(device), tensors, dtype, **options)
    return got, run("reference", op, block, tensors, torch.float64, **options)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("kind", OPS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_far_logits_of_rows_that_tasks_share(name, kind, dtype):
    """Case A14: parts of a row are merged under the largest logit of all."""
    got, want = far_logits_of_hubs(name, kind, dtype, 9_000)
    unit = torch.finfo(dtype).eps
    # The last bit of a logit of 350 is 3e-5 in float32.
    bounds = {torch.float64: (1e-10, 1e-9), torch.float32: (5e-5, 2e-4)}
    assert_near(got, want, *bounds.get(dtype, (2 * unit, 8 * unit)))


def infinite_logits(name: str, dtype: torch.dtype, device: str = "cpu"):
    """out and gradients where logits are -inf: of none, one, the first 40, or all edges of a row.

    Rows of one tile, of several, and of several parts; head 1 of them has a finite logit or none.
    """
    degrees = [0, 1, 3, 3, 50, 600, 600, 4]
    block = ragged(degrees, sum(degrees))
    block = Block(rowptr=block.rowptr, col=torch.arange(sum(degrees)), num_src=sum(degrees))
    src = torch.zeros(block.num_src, 2, dtype=torch.float64)
    src[1:4] = src[57:1257] = -torch.inf  # all of rows 2, 5 and 6
    src[4] = src[7:47] = -torch.inf  # one of row 3, 40 of row 4
    src[657 + 300, 1] = 1  # but for one edge of row 6
    tensors = [
        torch.linspace(-1, 1, 6 * block.num_src, dtype=torch.float64).view(-1, 2, 3), src,
        torch.zeros(block.num_dst, 2, dtype=torch.float64),
    ]  # fmt: skip
    tensors = [t.to(device, dtype).requires_grad_() for t in tensors]
    with backend.use(name):
        out = gat_attention(block.to(device), *tensors, self_loop=False)
        grads = torch.autograd.grad(out.sum(), tensors)
    return [t.detach().double().cpu() for t in (out, *grads)]


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_logits_of_minus_infinity(name, dtype):
    """Case A14: a row whose logits are all -inf is NaN, as torch's softmax is; others are not."""
    want = infinite_logits("reference", torch.float64)
    nan = want[0].isnan().all(-1)
    assert nan.tolist() == [[False] * 2, [False] * 2, [True] * 2, [False] * 2, [False] * 2,
                            [True] * 2, [True, False], [False] * 2]  # fmt: skip
    unit = max(2 * torch.finfo(dtype).eps, 1e-5)
    for got, one in zip(infinite_logits(name, dtype), want, strict=True):
        torch.testing.assert_close(got, one, rtol=unit, atol=2 * unit, equal_nan=True)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("kind", OPS)
def test_a_part_of_the_graph_gives_its_rows_of_the_whole(name, kind):
    """Rows cut out, in another order, attend and drop as in the whole graph: by its ids."""
    op, make = OPS[kind]
    whole = Block.from_graph(rmat(40, 300, seed=3))
    heads, width = 5, 4
    tensors = make(whole, heads, width, edges=True)
    rows = torch.randperm(40, generator=torch.Generator().manual_seed(0))[:13]
    others = torch.tensor([v for v in range(40) if v not in rows.tolist()])
    sources = torch.cat([rows, others])
    slot_of = torch.empty(40, dtype=torch.long)
    slot_of[sources] = torch.arange(40)
    edges = torch.cat([torch.arange(whole.rowptr[v], whole.rowptr[v + 1]) for v in rows])
    counts = whole.in_degree[rows]
    part = Block(
        rowptr=torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)]),
        col=slot_of[whole.col.long()[edges]],
        num_src=40,
        dst_gid=rows,
        src_gid=sources,
        eid=edges,
        num_graph_nodes=40,
        num_graph_edges=whole.num_edges,
    )
    chosen = {"S": sources, "P": rows, "E": edges}
    part_tensors = {}
    for key, tensor in tensors.items():
        axis = key.rsplit("_", 1)[1][0]
        part_tensors[key] = tensor[chosen[axis]] if axis in chosen else tensor
    for self_loop in (True, False):
        options = {"p": 0.5, "key": KEY, "self_loop": self_loop}
        with backend.use(name):
            got = op(part, **part_tensors, **options)
            want = op(whole, **tensors, **options)
        torch.testing.assert_close(got, want[rows], rtol=1e-10, atol=1e-12)
        assert (want[rows] != op(whole, **tensors, self_loop=self_loop)[rows]).any()


@pytest.mark.parametrize("name", BACKENDS)
def test_rows_without_edges(name):
    """Case A07: exactly 0 without loops, the row itself with them, finite gradients."""
    block = Block(rowptr=torch.zeros(5, dtype=torch.long), col=torch.zeros(0).int(), num_src=4)
    for op, make in OPS.values():
        tensors = make(block, 2, 3, edges=True)
        alone = run(name, op, block, tensors, torch.float32, self_loop=False)
        assert all(t.eq(0).all() for t in alone)
        looped = run(name, op, block, tensors, torch.float32)
        torch.testing.assert_close(looped[0], next(iter(tensors.values())), rtol=1e-6, atol=1e-6)
        assert all(t.isfinite().all() for t in looped)
