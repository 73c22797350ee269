"""Rows that the graph and its features alone decide are inputs, made once; the numbers stay."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric import nn as pyg

from tests.models.nets import CLASSES
from tests.runtime.staging import random_graph
from tiergnn.kernels.block import Block
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
    out = program.run(inputs, block, (1, 2))
    rows = first.program.run(inputs, block)
    assert torch.equal(out, program.run({first.name: rows}, block, (1, 2)))
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
    monkeypatch.setattr("tiergnn.planner.strategies.resident.PREPARED_COLUMNS", 3)
    sliced = Resident(copy.deepcopy(model), GRAPH, dtype=torch.float64, prepare=True)
    torch.testing.assert_close(sliced.infer(), whole.infer(), rtol=1e-12, atol=1e-12)
