"""Products of rows in a traced model: which are multiplied by our op, and what work they are."""

from __future__ import annotations

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn
from torch.nn import functional as F

from tests.models.graphs import rows
from tiergnn.kernels import product
from tiergnn.kernels.product import linear_rows, reference
from tiergnn.models import trace as traces
from tiergnn.models.edges import edges_of
from tiergnn.models.linear import Linear
from tiergnn.models.trace import trace
from tiergnn.models.works import Works
from tiergnn.workload import PRODUCTS

WIDTH, OUT = 6, 4


class Scaled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def hooked():
    lin = nn.Linear(WIDTH, OUT)
    lin.register_forward_hook(lambda m, given, out: out)
    return lin


class Net(nn.Module):
    """``function`` of a product's module and of the rows that a sum over in-edges gives."""

    def __init__(self, lin, function=None):
        super().__init__()
        self.lin, self.conv = lin, pyg.SimpleConv(aggr="sum")
        self.function = function or (lambda m, h: m.lin(h))

    def forward(self, x, edge_index):
        return self.function(self, self.conv(x, edge_index))


OURS = {
    "torch": (nn.Linear(WIDTH, OUT), None),
    "no bias": (nn.Linear(WIDTH, OUT, bias=False), None),
    "ours": (Linear(WIDTH, OUT), None),
    "lazy": (Linear(-1, OUT), None),
    "pyg": (pyg.Linear(WIDTH, OUT), None),
    "function": (nn.Linear(WIDTH, OUT), lambda m, h: F.linear(h, m.lin.weight, m.lin.bias)),
    "named": (
        nn.Linear(WIDTH, OUT),
        lambda m, h: F.linear(bias=None, weight=m.lin.weight, input=h),
    ),
}
TORCHS = {
    "hook": (hooked(), None),
    "class": (Scaled(WIDTH, OUT), None),
    "parametrized": (nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, OUT)), None),
    "3-D": (nn.Linear(3, OUT), lambda m, h: m.lin(h.view(-1, 2, 3)).sum(1)),
}


def linears(monkeypatch, net, x):
    """How often each way of multiplying is in the graph that is cut; the Program."""
    found = {}

    def cut(graph, root, **options):
        for node in graph.nodes:
            name = "module" if node.op == "call_module" else node.target
            found[name] = found.get(name, 0) + 1
        return real(graph, root, **options)

    real = traces.cut
    monkeypatch.setattr(traces, "cut", cut)
    program = trace(net, {"x": x}, training=True)
    return found, program


@pytest.mark.parametrize("name", [*OURS, *TORCHS])
def test_which_products_are_ours(monkeypatch, name):
    """And the numbers and gradients of all are the model's, to the bit."""
    net = Net(*(OURS | TORCHS)[name])
    edge_index = torch.tensor([[0, 1, 2, 2, 4], [1, 1, 0, 3, 4]])
    block, x = edges_of(edge_index, 6).block, rows(6, WIDTH).float()
    found, program = linears(monkeypatch, net, x)
    assert found.get(linear_rows, 0) == (name in OURS)
    assert found.get("module", 0) + found.get(F.linear, 0) <= (name in TORCHS)
    results = []
    for call in (lambda x: program.run({"x": x}, block), lambda x: net(x, edge_index)):
        net.zero_grad()
        leaf = x.clone().requires_grad_()
        out = call(leaf)
        out.square().sum().backward()
        grads = [p.grad.clone() for p in net.parameters() if p.grad is not None]
        results.append([out.detach(), leaf.grad, *grads])
    for got, want in zip(*results, strict=True):
        assert torch.equal(got, want)


def test_a_parameter_that_is_replaced_is_read_anew():
    net = Net(nn.Linear(WIDTH, OUT))
    block, x = edges_of(torch.tensor([[0, 1], [1, 0]]), 2).block, rows(2, WIDTH).float()
    program = trace(net, {"x": x}, training=True)
    net.lin.weight = nn.Parameter(torch.zeros(OUT, WIDTH))
    assert torch.equal(program.run({"x": x}, block), net.lin.bias.expand(2, OUT))


@pytest.mark.parametrize("bias", [True, False])
def test_its_work_is_that_of_torchs(monkeypatch, bias):
    monkeypatch.setattr(product.backend, "load", lambda *_: reference)
    monkeypatch.setattr(product, "_on_tensor_cores", lambda *_: True)
    given = [rows(70, WIDTH), rows(OUT, WIDTH), rows(1, OUT)[0]][: 3 if bias else 2]
    given = [t.requires_grad_() for t in given]
    done = []
    for call in (linear_rows, F.linear):
        with Works() as works:
            out = call(*given)
            forward = [d for d in works.take() if d.kind in PRODUCTS]
            torch.autograd.grad(out, given, torch.ones_like(out))
            done.append((forward, sorted(d for d in works.take() if d.kind in PRODUCTS)))
    assert done[0] == done[1]
    assert [len(side) for side in done[0]] == [1, 2]
