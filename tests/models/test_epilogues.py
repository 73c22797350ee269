"""Row-local operations in a row become one pass: which do, which do not, and the same numbers."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn
from torch.nn import functional as F

from tests.models import nets
from tests.models.graphs import rows
from tiergnn.kernels.dropout import dropout, step_key
from tiergnn.models.edges import edges_of
from tiergnn.models.trace import trace

WIDTH = nets.WIDTH


class Rows(nn.Module):
    """``function`` of the rows that a sum over in-edges gives, with a conv and parameters."""

    def __init__(self, function, conv=None):
        super().__init__()
        self.function = function
        self.conv = conv or pyg.SimpleConv(aggr="sum")
        self.bias = nn.Parameter(torch.randn(WIDTH))
        self.eps = nn.Parameter(torch.full((1,), 0.3))
        self.lin = nn.Linear(WIDTH, WIDTH)
        self.act = nn.ELU(0.5)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x, edge_index):
        return self.function(self, self.conv(x, edge_index), x)


def code_of(net, training=True):
    program = trace(net, {"x": rows(9, WIDTH)}, training=training)
    return [entry for stage in program.stages for entry in stage.code[1:]]


def drop(m, x):
    return F.dropout(x, 0.5, m.training)


def twice(m, h, x):
    out = h.relu()
    return drop(m, out) * out


JOINED = [
    (lambda m, h, x: drop(m, h.relu()), ["(relu dropout)"]),
    (lambda m, h, x: drop(m, m.relu(h)), ["(relu dropout)"]),
    (lambda m, h, x: F.relu(h + m.bias), ["(bias relu)"]),
    (lambda m, h, x: m.bias + h + x, ["(+ bias)"]),
    (lambda m, h, x: drop(m, m.act(h + x)), ["(+ elu dropout)"]),
    (lambda m, h, x: F.leaky_relu(h + 2 * m.eps * x, 0.1), ["(+ leaky_relu)"]),
    (lambda m, h, x: F.elu(m.lin(h) + m.bias, alpha=0.3), ["lin", "(bias elu)"]),
]
LEFT = [
    (lambda m, h, x: drop(m, h), ["dropout"]),
    (lambda m, h, x: h + x, ["+"]),
    (lambda m, h, x: h.relu() * 2, ["relu", "*"]),
    (lambda m, h, x: F.relu(drop(m, h) * 3), ["dropout", "*", "relu"]),
    (lambda m, h, x: F.leaky_relu(h + x, -0.1), ["+", "leaky_relu"]),
    (lambda m, h, x: torch.add(h, x, alpha=2).relu(), ["add", "relu"]),
    (lambda m, h, x: (h + x.sum(1, keepdim=True)).relu(), ["sum", "+", "relu"]),
    (lambda m, h, x: (h + x.float()).relu(), ["float", "+", "relu"]),
    (lambda m, h, x: (h + 1).relu(), ["+", "relu"]),
    (lambda m, h, x: F.relu(h + h), ["+", "relu"]),
    (twice, ["relu", "dropout", "*"]),
]


@pytest.mark.parametrize(("function", "code"), [*JOINED, *LEFT])
def test_what_is_joined(function, code):
    assert code_of(Rows(function).double()) == code


@pytest.mark.parametrize("function", [f for f, _ in (*JOINED, *LEFT)])
def test_numbers_and_gradients_are_the_models(function):
    net = Rows(function).double().eval()
    edge_index = torch.tensor([[0, 1, 2, 2, 4], [1, 1, 0, 3, 4]])
    block, x = edges_of(edge_index, 6).block, rows(6, WIDTH)
    program = trace(net, {"x": x}, training=False)
    results = []
    for call in (lambda x: program.run({"x": x}, block), lambda x: net(x, edge_index)):
        net.zero_grad()
        leaf = x.clone().requires_grad_()
        out = call(leaf)
        out.square().sum().backward()
        grads = [p.grad.clone() for p in net.parameters() if p.grad is not None]
        results.append([out.detach(), leaf.grad, *grads])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_masks_are_those_of_the_calls():
    """Each call of dropout keeps its site and its rows' ids."""

    def function(m, h, x):
        return drop(m, drop(m, x).relu() + drop(m, h).relu())

    net, key = Rows(function).double(), step_key(3, 4)
    edge_index = torch.tensor([[0, 1, 2], [1, 1, 0]])
    block, x = edges_of(edge_index, 6).block, rows(6, WIDTH)
    got = trace(net, {"x": x}, training=True).run({"x": x}, block, key)
    first, second = dropout(x, 0.5, key, 0), dropout(net.conv(x, edge_index), 0.5, key, 1)
    want = dropout(first.relu() + second.relu(), 0.5, key, 2)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


class Two(nn.Module):
    """Two GCN layers; what is between them is given."""

    def __init__(self, widths, between):
        super().__init__()
        self.one, self.two = (pyg.GCNConv(a, b) for a, b in pairwise(widths))
        self.between = between

    def forward(self, x, edge_index, edge_weight=None):
        return self.two(
            self.between(self, self.one(x, edge_index, edge_weight)), edge_index, edge_weight
        )


SCALED = [
    ((WIDTH, 5, 4), lambda m, h: drop(m, h.relu()), "(+ scale bias relu dropout scale) two.lin"),
    ((WIDTH, 5, 9), lambda m, h: drop(m, h.relu()), "(+ scale bias relu dropout scale)"),
    ((WIDTH, 5, 4), lambda m, h: h, "(+ scale bias scale) two.lin"),
    (
        (WIDTH, 5, 4),
        lambda m, h: drop(m, h.relu()) * 2,
        "(+ scale bias relu dropout) * two.lin scale",
    ),
    ((WIDTH, 5, 4), lambda m, h: h + F.relu(h), "(+ scale bias) relu (+ scale) two.lin"),
]


@pytest.mark.parametrize(("widths", "between", "code"), SCALED)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_next_layers_scaling_is_part_of_the_pass(widths, between, code, weighted):
    """Where it is one already: a product reads scaled rows then. Gradients are PyG's."""
    net = Two(widths, between).double()
    edge_index = torch.tensor([[0, 1, 2, 2, 4, 5], [1, 1, 0, 3, 4, 2]])
    edges, x = edges_of(edge_index, 6), rows(6, WIDTH)
    weight = rows(6, 1)[:, 0].abs() if weighted else None
    given = {"x": x} if weight is None else {"x": x, "edge_weight": edges.rows(weight)}
    program = trace(net, given, training=True)
    assert " ".join(program.stages[1].code[1:]) == code
    program = trace(net.eval(), given, training=False)
    results = []
    for call in (
        lambda x: program.run({**given, "x": x}, edges.block),
        lambda x: net(x, edge_index, weight),
    ):
        net.zero_grad()
        leaf = x.clone().requires_grad_()
        out = call(leaf)
        out.square().sum().backward()
        results.append([out.detach(), leaf.grad, *(p.grad.clone() for p in net.parameters())])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_learned_weights_of_edges_have_their_gradients():
    """Then scalings are products of their own, which have gradients."""

    class Learned(nn.Module):
        def __init__(self):
            super().__init__()
            self.two = Two((WIDTH, 5, 4), lambda m, h: h.relu())
            self.factor = nn.Parameter(torch.rand(1, dtype=torch.float64))

        def forward(self, x, edge_index, edge_weight):
            return self.two(x, edge_index, edge_weight.pow(self.factor))

    net = Learned().double()
    edge_index = torch.tensor([[0, 1, 2, 2, 4, 5], [1, 1, 0, 3, 4, 2]])
    edges, x, weight = edges_of(edge_index, 6), rows(6, WIDTH), rows(6, 1)[:, 0].abs() + 0.1
    given = {"x": x, "edge_weight": edges.rows(weight)}
    results = []
    for call in (
        lambda: trace(net, given, training=True).run(given, edges.block),
        lambda: net(x, edge_index, weight),
    ):
        net.zero_grad()
        call().square().sum().backward()
        results.append(net.factor.grad.clone())
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)
