"""How layers are called: orders of edges, blocks, dtypes, options, dropout, cases A06 and A12."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric import EdgeIndex

from tests.models.graphs import assert_close, given, rows
from tiergnn.errors import ConfigError
from tiergnn.graph.odd import ODD
from tiergnn.kernels.block import Block
from tiergnn.models import layers
from tiergnn.models.edges import edges_of
from tiergnn.models.parts import part_of

MAKE = {
    "GCNConv": lambda: layers.GCNConv(5, 4),
    "SAGEConv": lambda: layers.SAGEConv(5, 4),
    "GINConv": lambda: layers.GINConv(nn.Linear(5, 4)),
    "GATConv": lambda: layers.GATConv(5, 4),
    "GATv2Conv": lambda: layers.GATv2Conv(5, 4),
    "SGConv": lambda: layers.SGConv(5, 4, K=2),
    "APPNP": lambda: layers.APPNP(3, 0.1),
}


def test_isolated_node_keeps_what_is_its_own():
    """A06: the highest node of ten is isolated; the node set is not the edges'."""
    data = given(ODD["isolated"]())
    x = rows(10, 5)
    gcn = layers.GCNConv(5, 4).double()
    nn.init.uniform_(gcn.bias)
    assert_close(gcn(x, data.edge_index)[9], gcn.lin.weight @ x[9] + gcn.bias, 1e-12)
    for out_channels in (3, 8):  # with the dense product on either side
        sage = layers.SAGEConv(5, out_channels, bias=False).double()
        assert_close(sage(x, data.edge_index)[9], sage.lin_r.weight @ x[9], 1e-12)
    for conv in (layers.GATConv, layers.GATv2Conv):
        gat = conv(5, 4, add_self_loops=False).double()
        nn.init.uniform_(gat.bias)
        out = gat(x, data.edge_index)
        assert out.shape == (10, 4)
        assert torch.equal(out[9], gat.bias)


@pytest.mark.parametrize("layer", MAKE)
def test_no_edges(layer):
    """A07: the neighbour term is exactly 0 and every gradient is finite."""
    conv = MAKE[layer]()
    x = torch.randn(4, 5, requires_grad=True)
    out = conv(x, torch.zeros(2, 0, dtype=torch.int64))
    out.sum().backward()
    assert torch.isfinite(x.grad).all()
    star = torch.tensor([[1, 2, 3], [0, 0, 0]])
    assert torch.equal(conv(x, star)[1:], out[1:])
    assert not torch.equal(conv(x, star)[0], out[0])


def forms(edge_index, weight):
    """A12: the same edges as users have them, and their weights in the same order."""
    order = torch.randperm(edge_index.shape[1])
    sorted_order = np.lexsort(edge_index.flip(0).numpy())
    wide = torch.zeros(2, 2 * edge_index.shape[1], dtype=torch.int64)
    wide[:, ::2] = edge_index
    return {
        "as given": (edge_index, weight),
        "sorted": (edge_index[:, sorted_order], weight[sorted_order]),
        "shuffled": (edge_index[:, order], weight[order]),
        "transposed view": (edge_index.t().contiguous().t(), weight),
        "strided": (wide[:, ::2], weight),
        "int32": (edge_index.int(), weight),
        "int16": (edge_index.short(), weight),
        "EdgeIndex": (EdgeIndex(edge_index), weight),
        "weights of a slice": (edge_index, torch.stack([weight, weight], 1)[:, 0]),
    }


@pytest.mark.parametrize("layer", ["GCNConv", "SGConv", "APPNP", "GATConv", "GATv2Conv"])
def test_edges_in_any_form(layer):
    data = given(ODD["random"]())
    src, dst = data.edge_index
    x = rows(data.num_nodes, 5)
    edge_dim = {"edge_dim": 1} if layer[:3] == "GAT" else {}
    conv = MAKE[layer]() if not edge_dim else getattr(layers, layer)(5, 4, **edge_dim)
    conv = conv.double()
    weight = (10 * src + dst).double() / 300 + 0.1
    duplicated = torch.cat([data.edge_index, data.edge_index[:, :5]], dim=1)
    weight = torch.cat([weight, weight[:5]])
    want = conv(x, duplicated, weight)
    for name, (edge_index, values) in forms(duplicated, weight).items():
        got = conv(x, edge_index, values)
        assert torch.allclose(got, want, rtol=1e-12, atol=1e-12), name


def test_edges_that_are_none():
    conv = layers.GCNConv(5, 4)
    x = torch.randn(6, 5)
    with pytest.raises(ConfigError, match=r"\[2, num_edges\], has \[8, 2\][\s\S]*edge_index.t\(\)"):
        conv(x, torch.zeros(8, 2, dtype=torch.int64))
    with pytest.raises(ConfigError, match=r"needs integers, has torch\.float32"):
        conv(x, torch.zeros(2, 8))
    with pytest.raises(ConfigError, match="sparse_csr"):
        conv(x, torch.eye(6).to_sparse_csr())
    with pytest.raises(ConfigError, match="had list"):
        conv(x, [[0, 1], [1, 0]])
    for bad, position in ((6, 2), (-1, 2)):
        edge_index = torch.tensor([[0, 1, 2], [1, 0, bad]])
        with pytest.raises(ValueError, match=f"destination {position} is {bad}; .*0..5"):
            conv(x, edge_index)
        with pytest.raises(ValueError, match=f"source {position} is {bad}"):
            conv(x, edge_index.flip(0))
    with pytest.raises(ConfigError, match="3 edges, their weights or features have 4 rows"):
        conv(x, torch.tensor([[0, 1, 2], [1, 0, 3]]), torch.ones(4))


def test_a_block_is_made_once_for_edges_that_do_not_change():
    edge_index = torch.tensor([[0, 1, 2], [1, 0, 3]])
    first = edges_of(edge_index, 4).block
    assert edges_of(edge_index, 4).block is first
    assert edges_of(edge_index, 5).block is not first
    edge_index[1, 2] = 0
    changed = edges_of(edge_index, 4).block
    assert changed is not first
    assert changed.in_degree.tolist() == [2, 1, 0, 0]


@pytest.mark.parametrize("layer", MAKE)
def test_blocks(layer):
    """A Block does as its edge_index; weights and features are then in the block's order."""
    graph = ODD["weighted"]()
    data = given(graph)
    block = edges_of(data.edge_index, data.num_nodes)
    conv = MAKE[layer]().double()
    x = rows(data.num_nodes, 5)
    assert torch.equal(conv(x, block.block), conv(x, data.edge_index))
    if layer in ("GCNConv", "SGConv", "APPNP"):
        got = conv(x, block.block, block.rows(data.weight))
        assert torch.equal(got, conv(x, data.edge_index, data.weight))
    assert torch.equal(conv(x, Block.from_graph(graph)), conv(x, block.block))


@pytest.mark.parametrize("layer", ["SAGEConv", "GINConv", "GATConv", "GATv2Conv"])
def test_part_of_a_block(layer):
    """Rows of a part are the whole's; layers that need degrees of sources say so."""
    data = given(ODD["random"]())
    block = edges_of(data.edge_index, data.num_nodes).block
    x = rows(data.num_nodes, 5)
    owned = torch.tensor([30, 2, 11, 3])
    part, sources, _ = part_of(block, owned)
    conv = MAKE[layer]().double()
    assert_close(conv(x[sources], part), conv(x, block)[owned], 1e-12)
    for other in ("GCNConv", "SGConv", "APPNP"):
        with pytest.raises(ConfigError, match="degrees of all"):
            MAKE[other]().double()(x[sources], part)


def test_parts_hold_every_edge_once():
    data = given(ODD["random"]())
    block = edges_of(data.edge_index, data.num_nodes).block
    rows_of_parts = torch.arange(data.num_nodes).split([5, 0, 20, 12])
    parts = [part_of(block, owned) for owned in rows_of_parts]
    assert torch.cat([p.edges for p in parts]).tolist() == list(range(block.num_edges))
    for owned, part in zip(rows_of_parts, parts, strict=True):
        assert torch.equal(part.sources[part.block.col.long()], block.col[part.edges].long())
        assert torch.equal(part.sources[: len(owned)], owned)
        assert torch.equal(part.block.eid, block.eid[part.edges])
        assert part.block.num_graph_edges == block.num_edges


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("layer", MAKE)
def test_dtypes(layer, dtype):
    """A22 and A13: 16-bit rows are summed in 32 bits, and a hub of 300 does not saturate."""
    data = given(ODD["hub"]())
    conv = MAKE[layer]().double()
    x = rows(data.num_nodes, 5).to(dtype)
    want = conv(x.double(), data.edge_index)
    got = copy.deepcopy(conv).to(dtype)(x, data.edge_index)
    assert got.dtype == dtype
    assert_close(got, want, 8 * torch.finfo(dtype).eps * 4)


def test_weights_of_another_dtype_follow_the_rows():
    """A graph stores float32 weights; a float64 model computes in float64."""
    data = given(ODD["random"]())
    weight = data.weight.float()
    x = rows(data.num_nodes, 5)
    for layer in ("GCNConv", "SGConv", "APPNP"):
        conv = MAKE[layer]().double()
        got = conv(x, data.edge_index, weight)
        assert got.dtype == torch.float64
        assert_close(got, conv(x, data.edge_index, weight.double()), 1e-12)
    for conv in (layers.GATConv(5, 4, edge_dim=3), layers.GATv2Conv(5, 4, edge_dim=3)):
        attr = data.attr.float()
        got = conv.float()(x.float(), data.edge_index, attr)
        assert torch.isfinite(got).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: layers.GCNConv(5, 4, aggr="max"), "aggr='add' only, had 'max'"),
        (lambda: layers.GCNConv(5, 4, flow="target_to_source"), "flow='source_to_target' only"),
        (lambda: layers.GCNConv(5, 4, normalise=False), "unknown option of GCNConv 'normalise'"),
        (lambda: layers.GCNConv(5, 4, add_self_loops=True, normalize=False), "normalises"),
        (lambda: layers.SAGEConv(5, 4, aggr="lstm"), "unknown aggr of SAGEConv 'lstm'"),
        (lambda: layers.SAGEConv(-1, 4, project=True), "in_channels"),
        (lambda: layers.GATConv(5, 4, fill_value="mul"), "unknown fill_value 'mul'"),
        (lambda: layers.GATv2Conv(5, 4, node_dim=1), "node_dim"),
        (lambda: layers.GINConv(nn.Linear(5, 4), decomposed_layers=2), "decomposed_layers"),
        (lambda: layers.APPNP(2, 0.1, aggr="mean"), "APPNP has aggr"),
        (lambda: layers.Linear(5, -4), "widths of 0 or more"),
        (lambda: layers.Linear(5, 4, weight_initializer="he"), "unknown weight_initializer"),
    ],
)
def test_options_that_are_not_here(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_calls_that_are_not_here():
    x = torch.randn(3, 5)
    edge_index = torch.tensor([[0, 1], [1, 2]])
    for conv in (layers.GATConv(5, 4), layers.GATv2Conv(5, 4)):
        with pytest.raises(ConfigError, match="never holds its attention weights"):
            conv(x, edge_index, return_attention_weights=True)
    for layer in ("GCNConv", "SGConv", "APPNP"):
        with pytest.raises(ConfigError, match="one set of nodes"):
            MAKE[layer]()((x, x), edge_index)
    with pytest.raises(ConfigError, match="edge_dim"):
        layers.GATv2Conv(5, 4)(x, edge_index, torch.randn(2, 3))
    with pytest.raises(ConfigError, match="needs features of destinations"):
        layers.GATv2Conv(5, 4)((x, None), edge_index)
    with pytest.warns(UserWarning, match="does not use edge_attr"):
        layers.GATConv(5, 4)(x, edge_index, torch.randn(2, 3))
    with pytest.raises(ConfigError, match="there are none"):
        layers.APPNP(2, 0.1, dropout=0.5, normalize=False)(x, edge_index)
    with pytest.raises(ConfigError, match="size"):
        layers.SAGEConv(5, 4)(x, edge_index, size=(3, 2))


@pytest.mark.parametrize(
    "make",
    [
        lambda: layers.GATConv(5, 4, heads=2, dropout=0.5),
        lambda: layers.GATv2Conv(5, 4, heads=2, dropout=0.5),
        lambda: layers.APPNP(1, 0.1, dropout=0.5),
    ],
)
def test_dropout_outside_of_a_trace(make):
    """Drawn under torch's seed, in training only; the mean over many draws is the undropped."""
    conv = make().double()
    data = given(ODD["random"]())
    x = rows(data.num_nodes, 5)
    with torch.no_grad():
        want = conv.eval()(x, data.edge_index)
        conv.train()
        torch.manual_seed(4)
        first = conv(x, data.edge_index)
        assert not torch.equal(conv(x, data.edge_index), first)
        torch.manual_seed(4)
        assert torch.equal(conv(x, data.edge_index), first)
        draws = torch.stack([conv(x, data.edge_index) for _ in range(600)])
    error = (draws.mean(0) - want).abs().max()
    assert error < 6 * float(draws.std(0).max()) / 600**0.5


def test_degree_of_nothing_has_a_gradient():
    """Weights that sum to 0 give rows of 0 and finite gradients, where 0 ** -0.5 would not."""
    edge_index = torch.tensor([[0, 1, 2], [1, 1, 0]])
    weight = torch.tensor([0.0, 0.0, 1.0], requires_grad=True)
    conv = layers.GCNConv(5, 4, add_self_loops=False, bias=False)
    out = conv(torch.randn(3, 5), edge_index, weight)
    out.sum().backward()
    assert torch.equal(out[1], torch.zeros(4))
    assert torch.isfinite(weight.grad).all()


@pytest.mark.parametrize("kind", [layers.GATConv, layers.GATv2Conv])
def test_more_than_a_product_of_edges_is_refused(kind):
    """Hooks of lin_edge were passed over without a word."""
    conv = kind(5, 4, edge_dim=3)
    conv.lin_edge.register_forward_hook(lambda m, given, out: out + 1)
    edges = torch.tensor([[0, 1], [1, 0]])
    with pytest.raises(ConfigError, match="is more than a product"):
        conv(torch.ones(2, 5), edges, torch.ones(2, 3))
