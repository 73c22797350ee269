"""Every layer and option against PyG's own layer and against dense float64: values, gradients."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
import torch_geometric.nn as pyg
from hypothesis import given as hypothesis_given
from hypothesis import settings
from torch import nn

from tests.models import dense
from tests.models.graphs import assert_close, given, rows
from tests.odd import ODD_GRAPHS, edge_lists
from tiergnn.models import layers

# name: (layer, arguments, options, what forward takes besides x and edge_index)
CASES = {
    "gcn": ("GCNConv", (5, 7), {}, ""),
    "gcn narrow": ("GCNConv", (7, 5), {}, ""),
    "gcn weights": ("GCNConv", (5, 7), {}, "weight"),
    "gcn improved": ("GCNConv", (7, 5), {"improved": True}, ""),
    "gcn improved weights": ("GCNConv", (7, 5), {"improved": True}, "weight"),
    "gcn no loops": ("GCNConv", (7, 5), {"add_self_loops": False, "bias": False}, ""),
    "gcn no loops weights": ("GCNConv", (5, 7), {"add_self_loops": False}, "weight"),
    "gcn plain": ("GCNConv", (5, 7), {"normalize": False}, ""),
    "gcn plain weights": ("GCNConv", (7, 5), {"normalize": False, "cached": True}, "weight"),
    "sage": ("SAGEConv", (5, 7), {}, ""),
    "sage narrow": ("SAGEConv", (7, 5), {}, ""),
    "sage sum": ("SAGEConv", (7, 5), {"aggr": "sum", "bias": False}, ""),
    "sage add": ("SAGEConv", (5, 7), {"aggr": "add"}, ""),
    "sage max": ("SAGEConv", (7, 5), {"aggr": "max"}, ""),
    "sage rootless": ("SAGEConv", (7, 5), {"root_weight": False}, ""),
    "sage project": ("SAGEConv", (7, 5), {"project": True, "normalize": True}, ""),
    "gat": ("GATConv", (5, 7), {}, ""),
    "gat heads": ("GATConv", (5, 3), {"heads": 3, "negative_slope": 0.4}, ""),
    "gat mean": ("GATConv", (5, 7), {"heads": 2, "concat": False, "bias": False}, ""),
    "gat no loops": ("GATConv", (5, 7), {"add_self_loops": False, "residual": True}, ""),
    "gat two lins": ("GATConv", ((5, 5), 4), {"heads": 2, "residual": True}, ""),
    "gat edges": ("GATConv", (5, 4), {"heads": 2, "edge_dim": 3}, "attr"),
    "gat edges no loops": ("GATConv", (5, 4), {"edge_dim": 3, "add_self_loops": False}, "attr"),
    "gat one feature": ("GATConv", (5, 4), {"edge_dim": 1}, "column"),
    "gat fill": ("GATConv", (5, 4), {"edge_dim": 3, "fill_value": 0.7}, "attr"),
    "gat fill row": (
        "GATConv",
        (5, 4),
        {"edge_dim": 3, "fill_value": torch.tensor([0.5, -1.0, 2.0])},
        "attr",
    ),
    "gat fill add": ("GATConv", (5, 4), {"edge_dim": 3, "fill_value": "add"}, "attr"),
    "gat fill max": ("GATConv", (5, 4), {"edge_dim": 3, "fill_value": "max"}, "attr"),
    "gat fill min": ("GATConv", (5, 4), {"edge_dim": 3, "fill_value": "min"}, "attr"),
    "gatv2": ("GATv2Conv", (5, 7), {}, ""),
    "gatv2 heads": ("GATv2Conv", (5, 3), {"heads": 3, "share_weights": True}, ""),
    "gatv2 mean": ("GATv2Conv", (5, 7), {"heads": 2, "concat": False, "residual": True}, ""),
    "gatv2 no loops": ("GATv2Conv", (5, 7), {"add_self_loops": False, "bias": False}, ""),
    "gatv2 edges": ("GATv2Conv", (5, 4), {"heads": 2, "edge_dim": 3}, "attr"),
    "gatv2 fill": ("GATv2Conv", (5, 4), {"edge_dim": 3, "fill_value": 0.7}, "attr"),
    "gatv2 fill max": ("GATv2Conv", (5, 4), {"edge_dim": 3, "fill_value": "max"}, "attr"),
    "sgc": ("SGConv", (7, 5), {"K": 3}, ""),
    "sgc wide": ("SGConv", (5, 7), {"K": 2, "bias": False}, "weight"),
    "sgc no loops": ("SGConv", (7, 5), {"K": 2, "add_self_loops": False, "cached": True}, ""),
    "appnp": ("APPNP", (4, 0.1), {}, ""),
    "appnp weights": ("APPNP", (3, 0.3), {"add_self_loops": False}, "weight"),
    "appnp plain": ("APPNP", (2, 0.3), {"normalize": False}, "weight"),
}


@cache
def pair(name):
    """PyG's layer, and ours with its state_dict loaded strictly."""
    layer, args, options, takes = CASES[name]
    torch.manual_seed(3)
    theirs = getattr(pyg, layer)(*args, **options)
    ours = getattr(layers, layer)(*args, **options)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    width = args[0] if isinstance(args[0], int) and layer != "APPNP" else 5
    return theirs.double(), ours.double(), width, takes


def run(layer, x, data, takes, dtype):
    """Outputs and gradients of parameters, x and the rows of edges, by name."""
    layer = layer if dtype == torch.float64 else copy.deepcopy(layer).to(dtype)
    layer.zero_grad(set_to_none=True)
    layer._cached_x = layer._cached_edge_index = None  # PyG's, of another graph
    x = x.detach().clone().to(dtype).requires_grad_()
    extra = {"weight": data.weight, "attr": data.attr, "column": data.attr[:, 0]}.get(takes)
    edges = () if extra is None else (extra.detach().clone().to(dtype).requires_grad_(),)
    out = layer(x, data.edge_index, *edges)
    weights = torch.linspace(-1, 2, out.numel(), dtype=torch.float64).view(out.shape).to(dtype)
    (out * weights).sum().backward()
    found = {"out": out, "x": x.grad}
    found |= {n: p.grad for n, p in layer.named_parameters() if p.grad is not None}
    if edges and edges[0].grad is not None:
        found["edges"] = edges[0].grad
    return found


def compare(name, data, *bounds):
    """Against PyG in float64, for each of (dtype, bound)."""
    theirs, ours, width, takes = pair(name)
    x = rows(data.num_nodes, width)
    want = run(theirs, x, data, takes, torch.float64)
    if data.has_double_loops:
        # PyG sends a gradient to loops that it overwrites; ours is checked against dense below.
        want.pop("edges", None)
    for dtype, rel in bounds:
        got = run(ours, x, data, takes, dtype)
        for key in want:
            assert_close(got.get(key, torch.zeros_like(want[key])), want[key], rel)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("graph", ODD_GRAPHS)
def test_equals_pyg(name, graph):
    data = given(graph)
    if data.num_nodes == 0:
        _, ours, width, takes = pair(name)
        assert run(ours, rows(0, width), data, takes, torch.float64)["out"].shape[0] == 0
        return
    compare(name, data, (torch.float64, 1e-10), (torch.float32, 1e-5))


@hypothesis_given(edge_list=edge_lists(min_nodes=1))
@settings(max_examples=25, deadline=None)
def test_equals_pyg_on_any_graph(edge_list):
    data = given(edge_list.graph(), seed=len(edge_list.src))
    for name in ("gcn weights", "sage max", "gat edges", "gatv2 edges", "sgc", "appnp"):
        compare(name, data, (torch.float64, 1e-10))


DENSE = {
    "gcn": (lambda s, x, d: dense.gcn(s, x, d.edge_index), ""),
    "gcn weights": (lambda s, x, d: dense.gcn(s, x, d.edge_index, d.weight), "weight"),
    "gcn improved weights": (
        lambda s, x, d: dense.gcn(s, x, d.edge_index, d.weight, fill=2.0),
        "weight",
    ),
    "gcn no loops weights": (
        lambda s, x, d: dense.gcn(s, x, d.edge_index, d.weight, self_loops=False),
        "weight",
    ),
    "sage": (lambda s, x, d: dense.sage(s, x, d.edge_index), ""),
    "sage narrow": (lambda s, x, d: dense.sage(s, x, d.edge_index), ""),
    "sage add": (lambda s, x, d: dense.sage(s, x, d.edge_index, "sum"), ""),
    "sage max": (lambda s, x, d: dense.sage(s, x, d.edge_index, "max"), ""),
    "gat": (lambda s, x, d: dense.gat(s, x, d.edge_index, 1), ""),
    "gatv2": (lambda s, x, d: dense.gatv2(s, x, d.edge_index, 1), ""),
    "sgc": (lambda s, x, d: dense.sgc(s, x, d.edge_index, K=3), ""),
    "appnp": (lambda s, x, d: dense.appnp(s, x, d.edge_index, K=4), ""),
}


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("graph", ODD_GRAPHS)
def test_equals_dense(name, graph):
    oracle, takes = DENSE[name]
    data = given(graph)
    _, ours, width, _ = pair(name)
    x = rows(data.num_nodes, width)
    got = run(ours, x, data, takes, torch.float64)
    state = {n: p.detach().clone().requires_grad_() for n, p in ours.named_parameters()}
    x = x.requires_grad_()
    data = data._replace(weight=data.weight.requires_grad_())
    out = oracle(state, x, data)
    weights = torch.linspace(-1, 2, out.numel(), dtype=torch.float64).view(out.shape)
    (out * weights).sum().backward()
    want = {"out": out, "x": x.grad} | {n: p.grad for n, p in state.items()}
    if takes:
        want["edges"] = data.weight.grad
    for key, value in want.items():
        assert_close(got[key], value, 1e-10)


@pytest.mark.parametrize("train_eps", [False, True])
@pytest.mark.parametrize("graph", ODD_GRAPHS)
def test_gin(train_eps, graph):
    data = given(graph)
    torch.manual_seed(0)
    theirs = pyg.GINConv(nn.Linear(5, 4), eps=0.3, train_eps=train_eps).double()
    ours = layers.GINConv(nn.Linear(5, 4), eps=0.1, train_eps=train_eps).double()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    x = rows(data.num_nodes, 5)
    want = run(theirs, x, data, "", torch.float64)
    got = run(ours, x, data, "", torch.float64)
    state = dict(theirs.named_parameters())
    eps = theirs.eps.detach()  # 0.3 in float32
    assert_close(got["out"], dense.gin(state, x, data.edge_index, eps), 1e-10)
    assert want.keys() == got.keys()
    assert ("eps" in got) == train_eps
    for key, value in want.items():
        assert_close(got[key], value, 1e-10)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6)], ids=["more sources", "more destinations"])
@pytest.mark.parametrize(
    ("layer", "args", "options"),
    [
        ("SAGEConv", ((5, 7), 3), {}),
        ("SAGEConv", ((5, 7), 8), {"aggr": "max"}),
        ("GATConv", ((5, 7), 3), {"heads": 2, "add_self_loops": False, "residual": True}),
        ("GATConv", ((5, 7), 3), {"heads": 2}),
        ("GATv2Conv", ((5, 7), 3), {"heads": 2, "add_self_loops": False}),
        ("GATv2Conv", ((5, 7), 3), {"heads": 2, "residual": True}),
    ],
)
def test_pairs(layer, args, options, shape):
    """Bipartite graphs as PyG takes them: sources and destinations are nodes of their own."""
    num_src, num_dst = shape
    torch.manual_seed(0)
    theirs = getattr(pyg, layer)(*args, **options).double()
    ours = getattr(layers, layer)(*args, **options).double()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    edge_index = torch.stack([torch.randint(num_src, (15,)), torch.randint(num_dst, (15,))])
    x = rows(num_src, 5), rows(num_dst, 7, seed=2)
    if options.get("add_self_loops", layer[0] == "G") and num_src < num_dst:
        with pytest.raises(ValueError, match="add_self_loops=False"):
            ours(x, edge_index)
        return
    assert_close(ours(x, edge_index), theirs(x, edge_index), 1e-12)
    if layer == "SAGEConv":
        size = {"size": shape}
        assert_close(
            ours((x[0], None), edge_index, **size), theirs((x[0], None), edge_index, **size), 1e-12
        )
        with pytest.raises(ValueError, match="size"):
            ours(x, edge_index, size=(9, 9))


@pytest.mark.parametrize("layer", ["GCNConv", "SAGEConv", "GATConv", "GATv2Conv", "SGConv"])
@pytest.mark.parametrize("out_channels", [2, 9])
def test_lazy_width(layer, out_channels):
    """in_channels=-1 takes the width of the first input, or of a state_dict."""
    make = getattr(layers, layer)
    lazy, full = make(-1, out_channels), make(5, out_channels)
    edge_index = torch.tensor([[0, 1, 2], [1, 2, 0]])
    assert lazy(torch.randn(3, 5), edge_index).shape == (3, out_channels)
    fresh = make(-1, out_channels)
    fresh.load_state_dict(full.state_dict(), strict=True)
    x = torch.randn(3, 5)
    assert_close(fresh(x, edge_index), full(x, edge_index), 1e-6)
    assert torch.isfinite(next(lazy.parameters())).all()


@pytest.mark.parametrize(
    ("layer", "args"),
    [
        ("GCNConv", (40, 30)),
        ("SAGEConv", (40, 30)),
        ("GATConv", (40, 30, 3)),
        ("GATv2Conv", (40, 30, 3)),
        ("SGConv", (40, 30)),
    ],
)
def test_first_values_are_distributed_as_pygs(layer, args):
    """The same bounds of the same uniform distributions, zeros where PyG has zeros."""
    torch.manual_seed(1)
    theirs, ours = getattr(pyg, layer)(*args), getattr(layers, layer)(*args)
    assert theirs.state_dict().keys() == ours.state_dict().keys()
    for name, value in theirs.state_dict().items():
        got = ours.state_dict()[name]
        assert got.shape == value.shape
        if value.numel() > 25:
            assert float(got.abs().max()) == pytest.approx(float(value.abs().max()), rel=0.15)
            assert float(got.std()) == pytest.approx(float(value.std()), rel=0.25, abs=1e-9)
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    ours.reset_parameters()
    for name, value in theirs.state_dict().items():
        same = torch.equal(ours.state_dict()[name], before[name])
        assert same == bool((value == 0).all())
