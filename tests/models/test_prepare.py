"""Rows that the graph and its features alone decide are inputs, made once; the numbers stay."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric import nn as pyg

from tests.models.nets import CLASSES
from tests.runtime.staging import random_graph
from tiergnn.graph.table import Table
from tiergnn.kernels.block import Block
from tiergnn.kernels.dropout import step_key
from tiergnn.models.meter import meter
from tiergnn.models.trace import trace
from tiergnn.runtime.executor import Resident


class Net(nn.Module):
    """Two layers, dropout between them, and before them where ``first``."""

    def __init__(self, one, two, first=0.0):
        super().__init__()
        self.one, self.two, self.first = one, two, first

    def forward(self, x, edge_index):
        return self.run(x, edge_index)

    def run(self, x, *edges):
        x = F.dropout(x, self.first, self.training) if self.first else x
        x = F.dropout(self.one(x, *edges).relu(), 0.5, self.training)
        return self.two(x, *edges)


class Weighted(Net):
    def forward(self, x, edge_index, edge_weight):
        return self.run(x, edge_index, edge_weight)


class Normed(nn.Module):
    """Statistics of the features come first: their running values move with every step."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.conv = nn.BatchNorm1d(width), pyg.GCNConv(width, CLASSES)

    def forward(self, x, edge_index):
        return self.conv(self.norm(x), edge_index)


class Hops(nn.Module):
    """Features of several hops side by side, as in SIGN."""

    def __init__(self, width):
        super().__init__()
        self.conv, self.lin = pyg.APPNP(1, 0.1), nn.Linear(3 * width, CLASSES)

    def forward(self, x, edge_index):
        one = self.conv(x, edge_index)
        return self.lin(torch.cat([x, one, self.conv(one, edge_index)], -1))


def nets(width):
    return {
        "gcn": Net(pyg.GCNConv(width, 16), pyg.GCNConv(16, CLASSES)),
        "narrowing gcn": Net(pyg.GCNConv(width, 4), pyg.GCNConv(4, CLASSES)),
        "weighted gcn": Weighted(pyg.GCNConv(width, 4), pyg.GCNConv(4, CLASSES)),
        "sage": Net(pyg.SAGEConv(width, 4), pyg.SAGEConv(4, CLASSES)),
        "sage max": Net(pyg.SAGEConv(width, 4, aggr="max"), pyg.SAGEConv(4, CLASSES)),
        "gin": Net(pyg.GINConv(nn.Linear(width, 4)), pyg.GINConv(nn.Linear(4, CLASSES))),
        "hops": Hops(width),
    }


NAMES = list(nets(2))
GRAPH = random_graph(60, 300, 0, edges=True)
WIDTH = GRAPH.x.width


def made(model, training=True):
    inputs = {"x": torch.ones(8, WIDTH, dtype=torch.float64)}
    inputs["edge_weight"] = torch.ones(8, dtype=torch.float64)
    return trace(model.double(), inputs, training=training, prepared=True)


@pytest.mark.parametrize("name", NAMES)
def test_the_numbers_are_those_without(name):
    torch.manual_seed(0)
    model = nets(WIDTH)[name]
    held = [
        Resident(copy.deepcopy(model), GRAPH, dtype=torch.float64, prepare=prepare)
        for prepare in (True, False)
    ]
    assert held[0].programs[True].prepared
    assert not held[1].programs[True].prepared
    y = torch.from_numpy(GRAPH.y)
    for step in range(2):
        losses = [one.train_step(lambda out: F.cross_entropy(out, y), step) for one in held]
        assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    for mine, other in zip(*(one.model.parameters() for one in held), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(held[0].infer(), held[1].infer(), rtol=1e-10, atol=1e-12)


def test_a_program_makes_the_rows_that_it_is_not_given():
    program = made(nets(WIDTH)["gcn"])
    block = Block.from_graph(GRAPH)
    x = torch.from_numpy(GRAPH.x.decode())
    (first,) = program.prepared
    inputs = {"x": x, "edge_weight": torch.ones(GRAPH.num_edges, dtype=torch.float64)}
    out = program.run(inputs, block, step_key(1, 2))
    rows = first.program.run(inputs, block)
    assert torch.equal(out, program.run({first.name: rows}, block, step_key(1, 2)))
    assert program.needs == ("p1",)
    assert program.inputs == ("x",)
    assert "p1" in str(program)
    assert "is prepared once" in str(program)


def test_a_stack_of_hops_is_one_product():
    program = made(pyg.SGConv(WIDTH, 3, K=3))
    assert [stage.kind for stage in program.stages] == ["rows"]
    assert len(program.prepared[0].program.stages) >= 3


@pytest.mark.parametrize(
    "model",
    [
        Net(pyg.GCNConv(WIDTH, 4), pyg.GCNConv(4, CLASSES), first=0.5),
        Net(pyg.GATConv(WIDTH, 4), pyg.GATConv(4, CLASSES)),
        Normed(WIDTH),
    ],
    ids=["dropout first", "attention", "statistics first"],
)
def test_what_parameters_keys_or_statistics_move_is_not_prepared(model):
    program = made(model)
    assert not program.prepared
    assert "x" in program.needs


def test_an_evaluation_prepares_what_training_does_or_nothing():
    """Without dropout in evaluation the first aggregation could be: it would be held for that."""
    net = Net(pyg.GCNConv(WIDTH, 4), pyg.GCNConv(4, CLASSES), first=0.5)
    assert made(net, training=False).prepared
    held = Resident(net, GRAPH, dtype=torch.float64, prepare=True)
    assert not held.programs[True].prepared
    assert not held.programs[False].prepared


def test_features_that_nothing_else_reads_are_let_go():
    y = torch.from_numpy(GRAPH.y)
    num_bytes = GRAPH.num_nodes * WIDTH * 8
    for name, left in (("gcn", 0), ("sage", num_bytes)):
        held = Resident(nets(WIDTH)[name], GRAPH, dtype=torch.float64, prepare=True)
        assert held.held_bytes["features"] == num_bytes
        held.train_step(lambda out: F.cross_entropy(out, y), 0)
        assert held.held_bytes["features"] == left
        assert held.held_bytes["prepared rows"] == num_bytes
        assert held.not_finite() is None


@pytest.mark.parametrize("name", ["gcn", "weighted gcn", "sage", "hops"])
def test_columns_are_prepared_some_at_a_time(name, monkeypatch):
    model = nets(WIDTH)[name]
    whole = Resident(copy.deepcopy(model), GRAPH, dtype=torch.float64, prepare=True)
    monkeypatch.setattr("tiergnn.models.stages.PREPARED_COLUMNS", 3)
    sliced = Resident(copy.deepcopy(model), GRAPH, dtype=torch.float64, prepare=True)
    torch.testing.assert_close(sliced.infer(), whole.infer(), rtol=1e-12, atol=1e-12)


class Of(nn.Module):
    """A function of features and hops."""

    def __init__(self, made, *layers):
        super().__init__()
        self.made, self.layers = made, nn.ModuleList(layers)

    def forward(self, x, edge_index):
        return self.made(*self.layers, x, edge_index)


def wide():
    graph = random_graph(40, 200, 1)
    values = np.random.default_rng(2).standard_normal((40, 200))
    return replace(graph, x=Table.from_array(values))


ROWS_OF_X = {
    "mean": lambda x: x - x.mean(1, keepdim=True),
    "column": lambda x: x + x[:, :1],
    "scale": lambda x: torch.mul(x, torch.rsqrt(x.var(-1, keepdim=True))),
    "norm": lambda x: F.normalize(x),
    "plain": lambda x: x * 2,
}


def agree(model, graph, steps=3):
    """Prepared or not, losses and gradients are those of one."""
    held = [
        Resident(copy.deepcopy(model), graph, dtype=torch.float64, prepare=prepare)
        for prepare in (True, False)
    ]
    y = torch.from_numpy(graph.y)
    for step in range(steps):
        losses = [one.train_step(lambda out: F.cross_entropy(out, y), step) for one in held]
        assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    for mine, other in zip(*(one.model.parameters() for one in held), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-10, atol=1e-12)
    return held[0]


@pytest.mark.parametrize("name", ROWS_OF_X)
def test_columns_that_depend_on_each_other_are_prepared_together(name):
    graph = wide()
    model = Of(lambda conv, x, e: conv(ROWS_OF_X[name](x), e), pyg.GCNConv(200, CLASSES))
    held = agree(model, graph)
    (made,) = held.programs[True].prepared
    assert made.columnwise == (name == "plain")


LINS = {
    "hook": lambda lin: lin.register_forward_hook(lambda m, given, out: out.relu()),
    "bias": lambda lin: lin.register_parameter("bias", nn.Parameter(torch.randn(CLASSES))),
}


# SAGE's and SGC's have a bias, which is added behind the sum.
@pytest.mark.parametrize(
    ("kind", "change"), [("gcn", "hook"), ("gcn", "bias"), ("sage", "hook"), ("sgc", "hook")]
)
def test_a_product_that_is_more_stays_where_pyg_has_it(kind, change):
    conv = {"gcn": pyg.GCNConv, "sage": pyg.SAGEConv, "sgc": pyg.SGConv}[kind](WIDTH, CLASSES)
    LINS[change](conv.lin_l if kind == "sage" else conv.lin)
    conv = conv.double()
    graph = random_graph(60, 300, 0)
    x = torch.from_numpy(graph.x.decode())
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.rowptr))
    edges = torch.from_numpy(np.stack([graph.col, dst]).astype(np.int64))
    want = conv(x, edges)
    for prepare in (True, False):
        held = Resident(copy.deepcopy(conv), graph, dtype=torch.float64, prepare=prepare)
        torch.testing.assert_close(held.infer(), want.detach(), rtol=1e-10, atol=1e-12)


class Changing(pyg.MessagePassing):
    def forward(self, x, edge_index):
        x = x.relu_()
        return self.propagate(edge_index, x=x)


def test_layers_that_change_what_they_are_given_get_copies():
    def forward(hop, conv, lin, other, x, edge_index):
        h = hop(x, edge_index)
        return lin(h) + other(conv(h, edge_index))

    hop = pyg.APPNP(1, 0.1)
    lins = nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, CLASSES)
    before = GRAPH.x.decode().copy()
    agree(Of(forward, hop, Changing(), *lins), GRAPH)
    agree(Of(lambda conv, lin, x, e: lin(conv(x, e)), Changing(), lins[0]), GRAPH)
    assert np.array_equal(GRAPH.x.decode(), before)


def test_what_is_not_read_is_not_prepared():
    def forward(dead, conv, x, edge_index):
        dead(x, edge_index)
        return conv(x, edge_index)

    model = Of(forward, pyg.GCNConv(WIDTH, 4), pyg.GCNConv(WIDTH, CLASSES))
    held = agree(model, GRAPH)
    assert [made.name for made in held.programs[True].prepared] == ["p1"]
    assert held.held_bytes["features"] == 0
    assert meter(model.double(), inputs_of(), prepared=True).prepared == ("p1",)


def inputs_of():
    return {"x": torch.ones(8, WIDTH, dtype=torch.float64)}


def test_variants_of_the_same_rows_are_held_once():
    def several(hop, one, two, x, edge_index):
        h = hop(x, edge_index)
        return one(h.relu()) + two(h * 2)

    def widened(hop, lin, x, edge_index):
        h = hop(x, edge_index)
        return lin(torch.cat([h * k for k in range(4)], 1))

    def twice(hop, one, two, x, edge_index):
        return one(hop(x, edge_index)) + two(hop(x, edge_index))

    hop = pyg.APPNP(1, 0.1)
    lins = nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, CLASSES)
    for model in (
        Of(several, hop, *lins),
        Of(twice, hop, *lins),
        Of(widened, hop, nn.Linear(4 * WIDTH, CLASSES)),
    ):
        held = agree(model, GRAPH)
        assert held.held_bytes["prepared rows"] == GRAPH.num_nodes * WIDTH * 8


def test_where_there_is_no_room_nothing_is_prepared(caplog):
    caplog.set_level("INFO")
    model = Net(pyg.SAGEConv(200, 4), pyg.SAGEConv(4, CLASSES))
    graph = wide()
    held = Resident(model, graph, dtype=torch.float64, prepare=None)
    assert held.prepares
    tight = Resident(model, graph, dtype=torch.float64, prepare=None, budget_bytes=80_000)
    assert not tight.prepares
    assert "nothing is prepared" in caplog.text


def test_rows_prepared_under_inference_mode_are_trained_on():
    held = Resident(nets(WIDTH)["sage"], GRAPH, dtype=torch.float64, prepare=True)
    with torch.inference_mode():
        held.infer()
    y = torch.from_numpy(GRAPH.y)
    assert held.train_step(lambda out: F.cross_entropy(out, y), 0) > 0


def test_a_scaling_does_not_pass_a_product_with_a_hook():
    """That of the second layer would be joined to what stands before its product."""
    two = pyg.GCNConv(16, CLASSES)
    two.lin.register_forward_hook(lambda m, given, out: out + 1)
    model = Net(pyg.GCNConv(WIDTH, 16), two).double().eval()
    graph = random_graph(60, 300, 0)
    x = torch.from_numpy(graph.x.decode())
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.rowptr))
    want = model(x, torch.from_numpy(np.stack([graph.col, dst]).astype(np.int64)))
    held = Resident(copy.deepcopy(model), graph, dtype=torch.float64)
    torch.testing.assert_close(held.infer(), want.detach(), rtol=1e-10, atol=1e-12)
