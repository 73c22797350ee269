"""PyG layers that we do not have run as they stand, where a part gives what the whole gives."""

from __future__ import annotations

import copy

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn
from torch.nn import functional as F

from tests.models.by_parts import run_by_parts
from tests.models.graphs import assert_close, given, rows
from tiergnn.errors import ConfigError
from tiergnn.graph.odd import ODD
from tiergnn.kernels import backend
from tiergnn.kernels.dropout import step_key
from tiergnn.models.edges import edges_of
from tiergnn.models.trace import trace

WIDTH = 6
DEGREES = torch.tensor([1, 5, 9, 3])


class Noisy(pyg.MessagePassing):
    """A user's layer with dropout of edges and of nodes inside, and parameters of its own."""

    def __init__(self):
        super().__init__(aggr="sum")
        self.lin = nn.Linear(WIDTH, 4)
        self.gate = nn.Parameter(torch.ones(4))
        self.drop = nn.Dropout(0.3)

    def forward(self, x, edge_index):
        x = self.drop(self.lin(x))
        return self.propagate(edge_index, x=x) + x * self.gate

    def message(self, x_i, x_j):
        return F.dropout((x_i - x_j).tanh(), p=0.4, training=self.training)


class Tutorial(pyg.MessagePassing):
    """The GCN layer of PyG's tutorial: it reads the degrees of sources."""

    def __init__(self):
        super().__init__(aggr="add")
        self.lin = nn.Linear(WIDTH, 4)

    def forward(self, x, edge_index):
        row, col = edge_index
        degree = torch.zeros(x.size(0), dtype=x.dtype).index_add(0, col, x.new_ones(col.numel()))
        norm = degree.clamp(min=1).pow(-0.5)
        return self.propagate(edge_index, x=self.lin(x), norm=norm[row] * norm[col])

    def message(self, x_j, norm):
        return norm.view(-1, 1) * x_j


class Caching(pyg.SimpleConv):
    def forward(self, x, edge_index):
        self.seen = x
        return super().forward(x, edge_index)


class Drawing(pyg.SimpleConv):
    def forward(self, x, edge_index):
        return super().forward(x, edge_index) * torch.rand(1, dtype=x.dtype)


def hooked():
    layer = pyg.GCNConv(WIDTH, 4)
    layer.register_forward_hook(lambda module, given, out: 2 * out)
    return layer


# name: (layer, what it takes of the edges, whether it takes pairs of rows)
RUN = {
    "graph": (lambda: pyg.GraphConv(WIDTH, 4), "weight"),
    "graph lazy": (lambda: pyg.GraphConv(-1, 4, aggr="max"), ""),
    "transformer": (lambda: pyg.TransformerConv(WIDTH, 4, 2, edge_dim=3, dropout=0.4), "attr"),
    "gated": (lambda: pyg.ResGatedGraphConv(WIDTH, 4), ""),
    "principal": (
        lambda: pyg.PNAConv(WIDTH, 4, ["mean", "max", "std"], ["identity", "linear"], DEGREES),
        "",
    ),
    "edge": (lambda: pyg.EdgeConv(nn.Linear(2 * WIDTH, 4)), ""),
    "crystal": (lambda: pyg.CGConv(WIDTH, 3), "attr"),
    "gine": (lambda: pyg.GINEConv(nn.Linear(WIDTH, 4), edge_dim=3), "attr"),
    "network": (lambda: pyg.NNConv(WIDTH, 4, nn.Linear(3, 4 * WIDTH)), "attr"),
    "film": (lambda: pyg.FiLMConv(WIDTH, 4), ""),
    "sage of several": (lambda: pyg.SAGEConv(WIDTH, 4, aggr=["mean", "min"]), ""),
    "gat of products": (lambda: pyg.GATConv(WIDTH, 4, edge_dim=3, fill_value="mul"), "attr"),
    "noisy": (Noisy, ""),
}
REFUSED = {
    "hops": (lambda: pyg.TAGConv(WIDTH, 4), "reads more than a node's in-edges"),
    "chebyshev": (lambda: pyg.ChebConv(WIDTH, 4, 3), "reads more than a node's in-edges"),
    "tutorial": (Tutorial, "reads more than a node's in-edges"),
    "subclass": (
        lambda: type("Mine", (pyg.GCNConv,), {})(WIDTH, 4),
        "reads more than a node's in-edges",
    ),
    "maximum": (lambda: pyg.GCNConv(WIDTH, 4, aggr="max"), "with aggr='max' gives other rows"),
    "batch norm inside": (lambda: pyg.CGConv(WIDTH, batch_norm=True), "as its BatchNorm"),
    "backwards": (lambda: pyg.GraphConv(WIDTH, 4, flow="target_to_source"), "flow backwards"),
    "backwards gcn": (lambda: pyg.GCNConv(WIDTH, 4, flow="target_to_source"), "with flow="),
    "hooked": (hooked, "GCNConv with forward hooks"),
    "negative samples": (lambda: pyg.SuperGATConv(WIDTH, 4), "draws its own random numbers"),
    "drawing": (Drawing, "draws its own random numbers"),
    "caching": (Caching, "keeps seen"),
    "broken": (lambda: pyg.EdgeConv(nn.Linear(3, 4)), "fails on a small graph"),
}


class Net(nn.Module):
    def __init__(self, layer, takes=""):
        super().__init__()
        self.layer = layer
        self.takes = takes

    def forward(self, x, edge_index, edge_weight=None, edge_attr=None):
        if self.takes:
            edges = edge_weight if self.takes == "weight" else edge_attr
            return self.layer(x.relu(), edge_index, edges)
        return self.layer(x.relu(), edge_index)


@pytest.fixture(scope="module")
def data():
    return given(ODD["weighted"]())


def inputs_of(takes, data, edges):
    inputs = {"x": rows(data.num_nodes, WIDTH)}
    if takes == "weight":
        inputs["edge_weight"] = edges.rows(data.weight)
    if takes == "attr":
        inputs["edge_attr"] = edges.rows(data.attr)
    return inputs


def gradients(net, out):
    net.zero_grad()
    (out * torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view(out.shape)).sum().backward()
    return [p.grad for p in net.parameters()]


@pytest.mark.parametrize("name", RUN)
def test_runs_as_it_stands(name, data):
    make, takes = RUN[name]
    edges = edges_of(data.edge_index, data.num_nodes)
    inputs = inputs_of(takes, data, edges)
    torch.manual_seed(0)
    net = Net(make(), takes).double()
    program = trace(net, inputs, training=False)
    (stage,) = (s for s in program.stages if s.kind == "graph")
    assert stage.op.endswith("as it stands")
    got = program.run(inputs, edges.block)
    grads = gradients(net, got)
    theirs = copy.deepcopy(net).eval()
    extra = {"edge_weight": data.weight} if takes == "weight" else {"edge_attr": data.attr}
    want = theirs(inputs["x"], data.edge_index, **extra)
    assert_close(got, want, 1e-10)
    for grad, other in zip(grads, gradients(theirs, want), strict=True):
        assert_close(grad, other, 1e-10)


@pytest.mark.parametrize("name", RUN)
def test_parts_equal_the_whole(name, data):
    """With the layer's own dropout on, by the ids of edges and nodes."""
    make, takes = RUN[name]
    edges = edges_of(data.edge_index, data.num_nodes)
    inputs = inputs_of(takes, data, edges)
    torch.manual_seed(0)
    net = Net(make(), takes).double()
    program = trace(net, inputs, training=True)
    with backend.use("reference"):
        whole = program.run(inputs, edges.block, step_key(1, 2))
        grads = gradients(net, whole)
        parts = run_by_parts(program, inputs, edges.block, step_key(1, 2), num_parts=4)
    assert_close(parts, whole, 1e-10)
    for grad, other in zip(gradients(net, parts), grads, strict=True):
        assert_close(grad, other, 1e-10)
    drops = name in ("noisy", "transformer")
    assert any(stage.random for stage in program.stages) == drops
    if drops:
        assert not torch.allclose(whole, program.run(inputs, edges.block, step_key(1, 3)))


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    make, message = REFUSED[name]
    net = Net(make().double())
    state = {n: b.clone() for n, b in net.named_buffers()}
    attributes = dict(vars(net.layer))
    with pytest.raises(ConfigError, match=message) as caught:
        trace(net, {"x": rows(9, WIDTH)}, training=True)
    assert "test_unmapped.py" in (caught.value.culprit or "")
    if "flow" not in message:
        assert "GCNConv, SAGEConv, GINConv" in (caught.value.hint or "")
    assert all(torch.equal(b, state[n]) for n, b in net.named_buffers())
    assert vars(net.layer).keys() == attributes.keys()


class Relations(nn.Module):
    """The type of an edge is one of its features."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, edge_index, edge_attr):
        return self.layer(x, edge_index, edge_attr.long().view(-1) % 4)


class Choosing(pyg.RGCNConv):
    """Notes what it chose, in itself and in a part of it, on a lazy module of its own."""

    def __init__(self):
        super().__init__(WIDTH, 4, 4)
        self.lin = pyg.Linear(-1, 4)
        self.choice = None

    def forward(self, x, edge_index, edge_type):
        self.choice = edge_index.size(1) > 10
        self.lin.calls = getattr(self.lin, "calls", 0) + 1
        x = x[0] if isinstance(x, tuple) else x
        return super().forward(x, edge_index, edge_type) + self.lin(x)


RELATIONS = {
    "relations": lambda: pyg.RGCNConv(WIDTH, 4, 4),
    "relations of blocks": lambda: pyg.RGCNConv(WIDTH, 4, 4, num_blocks=2),
    "relations, fast": lambda: pyg.FastRGCNConv(WIDTH, 4, 4, num_bases=2),
    "choosing": Choosing,
}


@pytest.mark.parametrize("name", RELATIONS)
def test_a_layer_as_it_stands_may_note_what_it_chose(name, data):
    edges = edges_of(data.edge_index, data.num_nodes)
    kinds = (torch.arange(data.edge_index.shape[1]) * 5 % 7).double().view(-1, 1)
    inputs = {"x": rows(data.num_nodes, WIDTH), "edge_attr": edges.rows(kinds)}
    torch.manual_seed(0)
    net = Relations(RELATIONS[name]()).double()
    before = {n: v for n, v in vars(net.layer).items() if not n.startswith("_par")}
    program = trace(net, inputs, training=True)
    if name != "choosing":  # which took its width
        assert {n: vars(net.layer).get(n) for n in before} == before
    got = program.run(inputs, edges.block)
    grads = gradients(net, got)
    theirs = copy.deepcopy(net)
    want = theirs(inputs["x"], data.edge_index, kinds)
    assert_close(got, want, 1e-10)
    for grad, other in zip(grads, gradients(theirs, want), strict=True):
        assert_close(grad, other, 1e-10)


def test_own_and_gathered_rows_may_differ(data):
    """conv((x, y), edge_index): x is gathered, y is read by the destination itself."""

    class Pairs(nn.Module):
        def __init__(self):
            super().__init__()
            self.ours = pyg.SAGEConv((WIDTH, 3), 4)
            self.theirs = pyg.GraphConv((WIDTH, 4), 4)

        def forward(self, x, edge_index):
            y = self.ours((x, x[:, :3]), edge_index)
            return self.theirs((x.sin(), y), edge_index)

    net = Pairs().double()
    edges = edges_of(data.edge_index, data.num_nodes)
    x = rows(data.num_nodes, WIDTH)
    program = trace(net, {"x": x}, training=False)
    first, second = (s for s in program.stages if s.kind == "graph")
    assert (first.gathers, first.reads) == (("h0",), ("x",))
    assert set(second.gathers).isdisjoint(second.reads)
    want = net(x, data.edge_index)
    assert_close(program.run({"x": x}, edges.block), want, 1e-12)
    assert_close(run_by_parts(program, {"x": x}, edges.block), want, 1e-12)


def test_odd_arguments():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = pyg.GraphConv(WIDTH, 4)
            self.choice = 0

        def forward(self, x, edge_index):
            if self.choice == 0:
                return self.conv(x, edge_index, self.conv.lin_root.weight)
            if self.choice == 1:
                return self.conv(x, edge_index, nothing=3)
            return self.conv(self.conv.lin_root.weight, edge_index)

    for choice, message in ((0, "neither rows, edges nor"), (1, "nothing"), (2, "neither rows")):
        net = Odd()
        net.choice = choice
        with pytest.raises(ConfigError, match=message):
            trace(net, {"x": torch.randn(9, WIDTH)}, training=True)


PNA = {"aggregators": ["mean", "max"], "scalers": ["identity"], "deg": DEGREES}
READY = {
    "gat": lambda **o: pyg.GAT(WIDTH, 4, 2, **o),
    "gat v2": lambda **o: pyg.GAT(WIDTH, 4, 2, v2=True, **o),
    "pna": lambda **o: pyg.PNA(WIDTH, 4, 2, **PNA, **o),
    "gcn": lambda **o: pyg.GCN(WIDTH, 4, 2),
}


@pytest.mark.parametrize("edge_dim", [None, 3])
@pytest.mark.parametrize("name", READY)
def test_ready_models_get_the_edge_features_that_they_can_take(name, edge_dim, data):
    edges = edges_of(data.edge_index, data.num_nodes)
    x, attr, weight = rows(data.num_nodes, WIDTH), edges.rows(data.attr), edges.rows(data.weight)
    inputs = {"x": x, "edge_attr": attr, "edge_weight": weight}
    torch.manual_seed(0)
    net = READY[name](**({} if edge_dim is None else {"edge_dim": edge_dim})).double()
    program = trace(net, inputs, training=False)
    takes = {"edge_weight": data.weight} if name == "gcn" else {"edge_attr": data.attr}
    takes = {} if edge_dim is None and name != "gcn" else takes
    assert set(program.needs) == {"x", *takes}
    got = program.run({n: inputs[n] for n in program.needs}, edges.block)
    grads = gradients(net, got)
    theirs = copy.deepcopy(net).eval()
    want = theirs(x, data.edge_index, **takes)
    assert_close(got, want, 1e-10)
    for grad, other in zip(grads, gradients(theirs, want), strict=True):
        assert_close(grad, other, 1e-10)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: pyg.GATv2Conv(WIDTH, 4),
        lambda: pyg.PNAConv(WIDTH, 4, ["mean"], ["identity"], DEGREES),
        lambda: pyg.ResGatedGraphConv(WIDTH, 4),
    ],
)
def test_a_layer_without_edge_dim_that_is_handed_edge_attr(layer, data):
    inputs = {"x": rows(9, WIDTH), "edge_attr": rows(5, 3)}
    with pytest.raises(ConfigError, match="gets edge_attr and was made without edge_dim") as caught:
        trace(Net(layer().double(), "attr"), inputs, training=False)
    assert "edge_dim=" in (caught.value.hint or "")
