"""What cannot be cut is refused: with the operation, the user's file and line, and a way out."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
import torch_geometric.utils as pyg_utils
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tiergnn.errors import ConfigError
from tiergnn.models.trace import trace


def branch(net, x, edge_index):
    if x.sum(-1)[0] > 0:
        return x
    return -x


def branch_on_rows(net, x, edge_index):
    return x if (x > 0) else -x


def add_loops(net, x, edge_index):
    edge_index, _ = pyg_utils.add_self_loops(edge_index)
    return net.conv(x, edge_index)


def drop_edges(net, x, edge_index):
    edge_index, _ = pyg_utils.dropout_edge(edge_index)
    return net.conv(x, edge_index)


def loop_over_rows(net, x, edge_index):
    return torch.cat(list(x))


def assign(net, x, edge_index):
    x[:, 0] = 0
    return x


def view_changed(net, x, edge_index):
    h = net.lin(x)
    h.view(-1, 2, 3).relu_()
    return h * 2


def autocast(net, x, edge_index):
    with torch.autocast("cpu", torch.bfloat16):
        return net.lin(x)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, *grads):
        return 2 * grads[0]


def own_function(net, x, edge_index):
    return Doubled.apply(net.lin(x))


def checkpointed(net, x, edge_index):
    return checkpoint(net.lin, x, use_reentrant=False)


def checkpointed_again(net, x, edge_index):
    return checkpoint(net.lin, x, use_reentrant=True)


# forward, a part of the message (the operation and why), a part of the line.
REFUSED = {
    "mean": (lambda net, x, e: x - x.mean(0), r"mean\(x, 0\).*V rows into \[6\]"),
    "sum": (lambda net, x, e: x.sum(), r"sum\(x\)"),
    "keepdim": (lambda net, x, e: x - x.mean(0, keepdim=True), r"mean\(x"),
    "gram": (lambda net, x, e: x @ x.t() @ x, r"t\(x\)"),
    "gram T": (lambda net, x, e: x @ x.T @ x, r"transpose\(x"),
    "softmax": (lambda net, x, e: F.softmax(x, dim=0), r"softmax\(x.*a row comes out otherwise"),
    "softmax method": (lambda net, x, e: x.softmax(-2), r"softmax\(x.*comes out otherwise"),
    "normalize": (lambda net, x, e: F.normalize(x, dim=0), "comes out otherwise"),
    "cumsum": (lambda net, x, e: x.cumsum(0), r"cumsum\(x, 0\)"),
    "cumsum of nothing": (lambda net, x, e: (x * 0).cumsum(0), r"cumsum\(mul, 0\)"),
    "sort": (lambda net, x, e: x.sort(dim=0).values, "comes out otherwise"),
    "flip": (lambda net, x, e: x.flip(0), r"flip\(x, 0\)"),
    "roll": (lambda net, x, e: x.roll(1, 0), r"roll\(x"),
    "pool": (lambda net, x, e: pyg.global_mean_pool(x, None), r"mean\(x"),
    "mask": (lambda net, x, e: x[x[:, 0] > 0], r"getitem\(x, gt\).*picks rows"),
    "slice": (lambda net, x, e: x[: 10**6], r"getitem\(x.*picks rows"),
    "row": (lambda net, x, e: x + x[0], r"getitem\(x, 0\).*picks rows"),
    "split": (lambda net, x, e: x.split(10**6)[0], r"split\(x.*cuts the rows apart"),
    "narrow": (lambda net, x, e: x.narrow(0, 0, 3), r"narrow\(x"),
    "merge": (lambda net, x, e: x.reshape(-1, 12), r"reshape\(x, -1, 12\)"),
    "flatten": (lambda net, x, e: x.view(-1), r"view\(x, -1\)"),
    "cat": (lambda net, x, e: torch.cat([x, x]), r"cat\(\(x, x\)\)"),
    "stack": (lambda net, x, e: torch.stack([x, x]).mean(0), r"stack\(\(x, x\)\)"),
    "einsum": (lambda net, x, e: torch.einsum("vd,wd->vw", x, x), r"einsum"),
    "noise": (lambda net, x, e: x + torch.rand_like(x), "rand_like draws its own"),
    "constant noise": (lambda net, x, e: x + torch.randn(6), "randn draws its own"),
    "noise in place": (lambda net, x, e: x.clone().normal_(), "normal draws its own"),
    "alpha": (lambda net, x, e: F.alpha_dropout(x, 0.5, True), "alpha_dropout draws its own"),
    "alpha module": (lambda net, x, e: net.alpha(x), "AlphaDropout draws its own"),
    "python": (lambda net, x, e: x if random.random() < 2 else -x, "draws from random"),
    "numpy random": (lambda net, x, e: x * float(np.random.rand()), "draws from random"),
    "item": (lambda net, x, e: x * x.max().item(), r"max\(x\)"),
    "float": (lambda net, x, e: x * float(x.amax(-1)), "turned into a number"),
    "numpy": (lambda net, x, e: torch.tensor(x.detach().numpy()), r"numpy\(detach\)"),
    "branch": (branch, r"getitem\(sum"),
    "branch on rows": (branch_on_rows, "a branch depends on values"),
    "rows loop": (loop_over_rows, "a loop over rows"),
    "rows count": (lambda net, x, e: x / x.size(0), r"truediv\(x, num_rows\)"),
    "rows arithmetic": (lambda net, x, e: x.new_zeros(x.size(0) * 2, 3), r"mul\(num_rows, 2\)"),
    "rows branch": (lambda net, x, e: x if x.size(0) > 1 else -x, r"gt\(num_rows, 1\)"),
    "len": (lambda net, x, e: x.new_zeros(len(x), 3), "len"),
    "zeros": (lambda net, x, e: x + torch.zeros(x.size(0), 6), r"zeros\(\)"),
    "assign": (assign, "assigning to a part"),
    "view": (view_changed, "changed in place through another view"),
    "out": (lambda net, x, e: torch.abs(x, out=torch.empty(3)), "out="),
    "table": (lambda net, x, e: net.table + x, "features='embedding'"),
    "unlisted": (lambda net, x, e: x.triu(), "triu is not known"),
    "unlisted module": (
        lambda net, x, e: net.attend(x, x, x)[0],
        "MultiheadAttention is not known",
    ),
    "unregistered": (lambda net, x, e: net.hidden[0](x), "Linear is no submodule"),
    "gather": (lambda net, x, e: x[e[0]], r"getitem\(block, 0\).*the graph itself"),
    "unpack": (lambda net, x, e: (lambda row, col: x)(*e), "the graph itself"),
    "loops": (add_loops, "the graph itself"),
    "drop edges": (drop_edges, "the graph itself"),
    "transpose": (lambda net, x, e: net.conv(x, e.t()), "edge_index.t"),
    "other edges": (lambda net, x, e: net.conv(x, net.edges), "edges that are not the graph's"),
    "buffer": (lambda net, x, e: x + net.kept.add_(1.0), "changed in place"),
    "constant dropped": (
        lambda net, x, e: x * F.dropout(torch.ones(6)),
        "dropout of a constant would be drawn once",
    ),
    "constant changed": (lambda net, x, e: torch.zeros(10, 6).add_(x), "changed in place"),
    "spectral": (lambda net, x, e: net.spectral(x), "Linear changes its buffers at every call"),
    "autocast": (autocast, "autocast inside of forward"),
    "own function": (own_function, r"Doubled.apply is a black box"),
    "checkpoint": (checkpointed, "torch.utils.checkpoint"),
    "checkpoint, reentrant": (checkpointed_again, "torch.utils.checkpoint"),
    "edges and rows": (
        lambda net, x, e, edge_weight: x * edge_weight,
        "of nodes and of edges meet",
    ),
    "lstm": (lambda net, x, e: net.lstm(x[None])[0][0], r"picks rows|V rows into"),
    "lstm dropout": (lambda net, x, e: net.lstm(x[:, None])[0][:, 0], "LSTM with dropout draws"),
    "shape": (lambda net, x, e: net.lin(x[:, :3]), "shapes cannot be multiplied"),
}


def make(function):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = pyg.GCNConv(6, 6)
            self.lin = nn.Linear(6, 6)
            self.alpha = nn.AlphaDropout()
            self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6))
            self.norm = pyg.GraphNorm(6)
            self.attend = nn.MultiheadAttention(6, 2)
            self.lstm = nn.LSTM(6, 6, num_layers=2, dropout=0.5, batch_first=True)
            self.table = nn.Parameter(torch.randn(200, 6))
            self.register_buffer("kept", torch.zeros(6))
            self.hidden = [nn.Linear(6, 6)]
            self.edges = torch.zeros(2, 3, dtype=torch.int64)
            self.step = 0

        forward = function

    return Net()


def inputs():
    return {"x": torch.randn(30, 6), "edge_weight": torch.rand(50)}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    function, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message) as caught:
        trace(make(function), inputs(), training=True)
    where = caught.value.culprit or ""
    if "draws from random" not in message:
        assert f"test_refusals.py:{_first_line(function)}" in where or _inside(function, where)


def _first_line(function):
    return function.__code__.co_firstlineno


def _inside(function, where):
    """Whether ``file:line`` is one of the lines of the function."""
    first = _first_line(function)
    last = max(line for *_, line in function.__code__.co_lines() if line)
    return any(f"test_refusals.py:{line}:" in where for line in range(first, last + 1))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda net, x, e: (x, x), "something else than one tensor"),
        (lambda net, x, e: net.table, "something else than one tensor"),
        (lambda net, x, e: {"out": x}, "something else than one tensor"),
        (lambda net, x, e: x.max(0), "something else than one tensor"),
        (lambda net, x, e: x.sort(dim=0).values, "a row comes out otherwise"),
        (lambda net, x, e, batch: x, "needs batch, which is nothing of a graph"),
        (lambda net, x, e, edge_type: x, "a column of edge_attr"),
        (lambda net, x, e, edge_attr: x, "needs edge_attr, which the graph does not have"),
        (lambda net, graph: net.conv(graph.x, graph.edge_index) + graph.pos, "no 'pos'"),
        (lambda net, x, e: net.nothing(x), "no attribute 'nothing'"),
    ],
)
def test_what_goes_in_and_comes_out(function, message):
    with pytest.raises(ConfigError, match=message):
        trace(make(function), inputs(), training=True)


def test_state_that_changes():
    """A counter, a buffer or a random choice would be frozen into the trace."""

    def count(net, x, edge_index):
        net.step += 1
        return x * net.step

    def decay(net, x, edge_index):
        net.kept = net.kept * 0.9
        return x + net.kept

    for function, name in ((count, "step"), (decay, "kept")):
        net = make(function)
        with pytest.raises(ConfigError, match=f"changes Net.{name}"):
            trace(net, inputs(), training=True)
        assert isinstance(net.kept, torch.Tensor)
        assert torch.equal(net.kept, torch.zeros(6))


def test_what_forward_keeps_is_taken_back():
    def keep(net, x, edge_index):
        net.last = x
        net.both = [x, x]
        return x

    net = make(keep)
    with pytest.warns(UserWarning, match=r"keeps Net.last, Net.both"):
        trace(net, inputs(), training=True)
    assert not hasattr(net, "last")
    assert not hasattr(net, "both")


def test_several_graphs():
    """Norms over a batch vector, and several types, are of other tasks."""

    def batched(net, x, edge_index):
        return net.norm(x, x[:, 0].long())

    with pytest.raises(ConfigError, match="GraphNorm over several graphs"):
        trace(make(batched), inputs(), training=True)


def test_inputs():
    net = make(lambda net, x, e: x)
    with pytest.raises(ConfigError, match="inputs are x"):
        trace(net, {"edge_weight": torch.rand(3)}, training=True)
    with pytest.raises(ConfigError, match="inputs are x"):
        trace(net, {**inputs(), "pos": torch.rand(3)}, training=True)
    with pytest.raises(ConfigError, match=r"torch\.nn\.Module"):
        trace(lambda x, e: x, inputs(), training=True)


# What looks like the above and is row-local.
ALLOWED = {
    "heads": lambda net, x, e: x.view(-1, 2, 3).transpose(1, 2).flatten(1),
    "heads by count": lambda net, x, e: x.reshape(x.size(0), 3, -1).mean(1),
    "shape": lambda net, x, e: x.view(*x.shape[:-1], 2, 3).sum(dim=-1),
    "columns": lambda net, x, e: torch.cat([x[:, :2], x[..., 4:], x[:, None, 1]], dim=-1),
    "last column": lambda net, x, e: x[..., -1:],
    "order": lambda net, x, e: x.sort(dim=1).values + x.max(1, keepdim=True)[0],
    "top": lambda net, x, e: x.topk(2, dim=-1).values,
    "expand": lambda net, x, e: net.kept.expand(x.size(0), -1) + x,
    "ones": lambda net, x, e: x * x.new_ones(x.shape[0], 1) + torch.zeros_like(x),
    "where": lambda net, x, e: torch.where(x > 0, x, net.kept),
    "bilinear": lambda net, x, e: torch.einsum("vd,de,ve->v", x, net.lin.weight, x)[:, None],
    "products": lambda net, x, e: torch.bmm(x.view(-1, 2, 3), x.view(-1, 3, 2)).flatten(1),
    "norms": lambda net, x, e: x / x.norm(dim=1, keepdim=True).clamp(min=1e-6),
    "numbers": lambda net, x, e: x * x.size(-1) if x.dim() == 2 and x.shape[1] == 6 else x[0],
    "dtype": lambda net, x, e: x.to(x.dtype) if x.is_floating_point() else x.mean(0),
    "isinstance": lambda net, x, e: x if isinstance(x, torch.Tensor) else x[0],
    "made in forward": lambda net, x, e: nn.Tanh()(x),
    "whole": lambda net, x, e: x @ torch.linalg.matrix_exp(net.lin.weight),
    "lookup": lambda net, x, e: net.table[x[:, 0].abs().long()],
    "in place": lambda net, x, e: F.relu(net.lin(x), inplace=True).mul_(2).clamp_(max=1),
    "other": lambda net, x, e: torch.addcmul(x, x, net.kept, value=2.0).squeeze().split(2, 1)[0],
}


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed(name):
    """The same numbers as the model itself, on a graph of another size than any probe."""
    torch.manual_seed(0)
    net = make(ALLOWED[name]).eval()
    x = torch.randn(53, 6)
    program = trace(net, {"x": x}, training=False)
    from tiergnn.models.edges import edges_of

    block = edges_of(torch.zeros(2, 0, dtype=torch.int64), 53).block
    assert torch.equal(program.run({"x": x.clone()}, block), net(x.clone(), None))


def test_a_number_that_is_none_is_no_change():
    """NaN differs from itself; a model may hold it all the same."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.limit = float("nan")
            self.lin = nn.Linear(4, 3)

        def forward(self, x, edge_index):
            return self.lin(x)

    assert trace(Net(), {"x": torch.ones(6, 4)}, training=True).stages
