"""Attention means exactly what PyG's GATConv and GATv2Conv mean, loops and fill values included.

Only what the op does is compared: the layers' own Linear products are taken from PyG's parameters.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tiergnn.kernels import backend
from tiergnn.kernels.attention import edge_mean, gat_attention, gatv2_attention
from tiergnn.kernels.block import Block

nn = pytest.importorskip("torch_geometric.nn")
BACKENDS = ("reference", "cpu")
FEATURES, HEADS, WIDTH, ATTRS = 5, 3, 7, 4


def looped_graph() -> tuple[Tensor, Tensor, int]:
    """Duplicates, loops (one of them twice), a node with a loop only and isolated nodes."""
    src = torch.tensor([0, 1, 2, 2, 2, 3, 3, 4, 5, 5, 0, 1, 1, 6])
    dst = torch.tensor([1, 0, 2, 2, 0, 0, 1, 4, 0, 0, 5, 5, 3, 3])
    return src, dst, 9


def as_block(src: Tensor, dst: Tensor, num_nodes: int, attr: Tensor | None = None):
    order = torch.argsort(dst * num_nodes + src, stable=True)
    counts = torch.bincount(dst, minlength=num_nodes)
    rowptr = torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)])
    block = Block(rowptr=rowptr, col=src[order].int(), num_src=num_nodes)
    return block, None if attr is None else attr[order]


def gat(conv, block: Block, x: Tensor, attr: Tensor | None) -> Tensor:
    """GATConv's forward around our op."""
    h = conv.lin(x).view(-1, HEADS, WIDTH)
    edges = {}
    if attr is not None:

        def score(attr_ND: Tensor) -> Tensor:
            return (conv.lin_edge(attr_ND).view(-1, HEADS, WIDTH) * conv.att_edge).sum(-1)

        edges["score_edge_EK"] = score(attr)
        if conv.add_self_loops and conv.fill_value != "mean":
            loop_attr = attr.new_full((block.num_dst, ATTRS), conv.fill_value)
            edges["score_loop_PK"] = score(loop_attr)
    out = gat_attention(
        block,
        h,
        (h * conv.att_src).sum(-1),
        (h * conv.att_dst).sum(-1),
        negative_slope=conv.negative_slope,
        self_loop=conv.add_self_loops,
        **edges,
    )
    return out.flatten(1) + conv.bias


def gatv2(conv, block: Block, x: Tensor, attr: Tensor | None) -> Tensor:
    """GATv2Conv's forward around our op."""
    edges = {}
    if attr is not None:
        edges["edge_attr_ED"] = attr
        edges["edge_weight_DKF"] = conv.lin_edge.weight.t().reshape(ATTRS, HEADS, WIDTH)
        if conv.add_self_loops and conv.fill_value != "mean":
            edges["loop_attr_PD"] = attr.new_full((block.num_dst, ATTRS), conv.fill_value)
    out = gatv2_attention(
        block,
        conv.lin_l(x).view(-1, HEADS, WIDTH),
        conv.lin_r(x).view(-1, HEADS, WIDTH),
        conv.att[0],
        negative_slope=conv.negative_slope,
        self_loop=conv.add_self_loops,
        **edges,
    )
    return out.flatten(1) + conv.bias


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize(("conv_class", "ours"), [(nn.GATConv, gat), (nn.GATv2Conv, gatv2)])
@pytest.mark.parametrize("self_loops", [True, False])
@pytest.mark.parametrize("fill", [None, "mean", 0.5])
def test_equals_pyg(name, conv_class, ours, self_loops, fill):
    generator = torch.Generator().manual_seed(0)
    src, dst, num_nodes = looped_graph()
    x = torch.randn(num_nodes, FEATURES, dtype=torch.float64, generator=generator)
    attr = None
    options = {}
    if fill is not None:
        attr = torch.randn(src.numel(), ATTRS, dtype=torch.float64, generator=generator)
        options = {"edge_dim": ATTRS, "fill_value": fill}
    torch.manual_seed(1)
    conv = conv_class(
        FEATURES, WIDTH, heads=HEADS, add_self_loops=self_loops, negative_slope=0.3, **options
    ).double()
    block, attr_E = as_block(src, dst, num_nodes, attr)
    weight = torch.randn(num_nodes, HEADS * WIDTH, dtype=torch.float64, generator=generator)

    want_x = x.clone().requires_grad_()
    want = conv(want_x, torch.stack([src, dst]), attr)
    want_grads = torch.autograd.grad((want * weight).sum(), [want_x, *conv.parameters()])
    got_x = x.clone().requires_grad_()
    with backend.use(name):
        got = ours(conv, block, got_x, attr_E)
    got_grads = torch.autograd.grad((got * weight).sum(), [got_x, *conv.parameters()])

    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-11)
    for got_grad, want_grad in zip(got_grads, want_grads, strict=True):
        torch.testing.assert_close(got_grad, want_grad, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", BACKENDS)
def test_edge_mean_leaves_loops_out(name):
    src, dst, num_nodes = looped_graph()
    value = torch.arange(src.numel(), dtype=torch.float64)[:, None] * torch.tensor([1.0, -2.0])
    block, value_E = as_block(src, dst, num_nodes, value)
    value_E.requires_grad_()
    with backend.use(name):
        got = edge_mean(block, value_E)
    want = torch.zeros(num_nodes, 2, dtype=torch.float64)
    for v in range(num_nodes):
        chosen = value[(dst == v) & (src != v)]
        want[v] = chosen.mean(0) if chosen.numel() else 0.0
    torch.testing.assert_close(got, want)
    got[:, 0].sum().backward()
    loops = block.col == block.edge_dst
    assert value_E.grad is not None
    assert value_E.grad[loops].eq(0).all()
    assert value_E.grad[:, 1].eq(0).all()
    assert value_E.grad[:, 0].sum().item() == pytest.approx((want[:, 0] != 0).sum().item())
