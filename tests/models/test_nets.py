"""Models as users write them: stages give what the model gives, whole and by parts."""

from __future__ import annotations

import copy

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from tests.models.by_parts import run_by_parts
from tests.models.graphs import assert_close, given, rows
from tests.models.nets import CLASSES, NETS, WIDTH, call, inputs_of
from tiergnn.graph.odd import ODD
from tiergnn.kernels import backend
from tiergnn.kernels.dropout import dropout, step_key
from tiergnn.models.edges import edges_of
from tiergnn.models.trace import trace

KEY = step_key(5, 7)


@pytest.fixture(scope="module")
def data():
    """A graph with loops, duplicates and rows without in-edges."""
    return given(ODD["weighted"]())


@pytest.fixture(autouse=True)
def reference():
    with backend.use("reference"):
        yield


def make(name):
    torch.manual_seed(0)
    return NETS[name]().double()


def gradients(net, out, inputs):
    """Of a weighted sum of the output: of parameters and inputs, by name."""
    weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype, device=out.device).view(out.shape)
    (out * weights).sum().backward()
    found = {n: p.grad for n, p in net.named_parameters() if p.grad is not None}
    return found | {n: v.grad for n, v in inputs.items() if v.grad is not None}


def leaves(*values):
    return [value.detach().clone().requires_grad_() for value in values]


def without_dropout(net, monkeypatch):
    monkeypatch.setattr(F, "dropout", lambda x, *_, **__: x)
    for module in net.modules():
        if isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
        if isinstance(module, nn.Dropout):
            module.p = 0.0


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", NETS)
def test_equals_the_model(name, training, data, monkeypatch):
    """Values, all gradients and running statistics, against PyG running the model itself."""
    net = make(name)
    without_dropout(net, monkeypatch)
    theirs, ours = copy.deepcopy(net), net
    edges = edges_of(data.edge_index, data.num_nodes)
    x, weight, attr = leaves(rows(data.num_nodes, WIDTH), data.weight, data.attr)
    theirs.train(training)
    want = call(theirs, name, x, data.edge_index, weight, attr)
    want_grads = gradients(theirs, want, {"x": x, "edge_weight": weight, "edge_attr": attr})
    x, weight, attr = leaves(x, weight, attr)
    inputs = inputs_of(name, x, edges.rows(weight), edges.rows(attr))
    before = {n: b.clone() for n, b in ours.named_buffers()}
    program = trace(ours, inputs, training=training)
    assert all(torch.equal(b, before[n]) for n, b in ours.named_buffers())
    got = program.run(inputs, edges.block, KEY)
    assert got.shape == (data.num_nodes, CLASSES)
    assert_close(got, want, 1e-10)
    got_grads = gradients(ours, got, {"x": x, "edge_weight": weight, "edge_attr": attr})
    if data.has_double_loops:
        # PyG sends a gradient to loops that it overwrites.
        loops = data.edge_index[0] == data.edge_index[1]
        for grads in (got_grads, want_grads):
            if "edge_weight" in grads:
                grads["edge_weight"] = grads["edge_weight"].masked_fill(loops, 0)
            if name == "weighted":  # edge features are part of its edge weights
                for key in ("edge_attr", "gate.weight", "gate.bias"):
                    grads.pop(key)
    assert got_grads.keys() == want_grads.keys()
    for key, value in want_grads.items():
        assert_close(got_grads[key], value, 1e-10)
    for (key, value), (_, other) in zip(ours.named_buffers(), theirs.named_buffers(), strict=True):
        assert_close(value, other, 1e-12), key


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", NETS)
def test_parts_equal_the_whole(name, training, data):
    """Every stage part by part, dropout and batch norm on: the same masks, values, gradients."""
    edges = edges_of(data.edge_index, data.num_nodes)
    found = []
    for by_parts in (False, True):
        net = make(name)
        x, weight, attr = leaves(rows(data.num_nodes, WIDTH), data.weight, data.attr)
        inputs = inputs_of(name, x, edges.rows(weight), edges.rows(attr))
        program = trace(net, inputs, training=training)
        if by_parts:
            out = run_by_parts(program, inputs, edges.block, KEY, num_parts=4)
        else:
            out = program.run(inputs, edges.block, KEY)
        grads = gradients(net, out, {"x": x, "edge_weight": weight, "edge_attr": attr})
        found.append({"out": out} | grads | dict(net.named_buffers()))
    whole, parts = found
    assert whole.keys() == parts.keys()
    for key, value in whole.items():
        assert_close(parts[key], value, 1e-10)


def test_masks_are_those_of_the_ordinal_of_the_call(data):
    """A dropout call's mask is kernels.dropout's at the site that counts the model's calls."""
    net = make("gcn").train()
    x = rows(data.num_nodes, WIDTH)
    edges = edges_of(data.edge_index, data.num_nodes)
    got = trace(net, {"x": x}, training=True).run({"x": x}, edges.block, KEY)

    class Numbered(TorchFunctionMode):
        calls = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is not F.dropout:
                return func(*args, **(kwargs or {}))
            self.calls += 1
            return dropout(args[0], kwargs["p"], KEY, self.calls - 1)

    with Numbered() as mode:
        want = net(x, data.edge_index)
    assert mode.calls == 2
    assert_close(got, want, 1e-12)
    other = trace(net, {"x": x}, training=True).run({"x": x}, edges.block, step_key(5, 8))
    assert not torch.equal(got, other)


@pytest.mark.parametrize("name", ["gcn", "gat", "gin", "sage", "appnp"])
@pytest.mark.parametrize("graph", ["no_edges", "isolated", "star_in", "loops", "one_loop"])
def test_odd_graphs(name, graph):
    """Nodes without in-edges, and nodes that there is one of, come out as PyG has them."""
    data = given(ODD[graph]())
    net = make(name)
    x = rows(data.num_nodes, WIDTH)
    block = edges_of(data.edge_index, data.num_nodes).block
    got = trace(net, {"x": x}, training=False).run({"x": x}, block)
    assert_close(got, net.eval()(x, data.edge_index), 1e-10)
    if data.num_nodes == 1 and name == "gin":
        with pytest.raises(ValueError, match="more than one row"):
            trace(net, {"x": x}, training=True).run({"x": x}, block, KEY)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", NETS)
def test_no_nodes(name, training):
    """A graph of nothing gives nothing, and gradients of 0."""
    net = make(name)
    none = torch.zeros(0, dtype=torch.float64)
    inputs = inputs_of(name, none.view(0, WIDTH), none, none.view(0, 3))
    block = edges_of(torch.zeros(2, 0, dtype=torch.int64), 0).block
    out = trace(net, inputs, training=training).run(inputs, block, KEY)
    assert out.shape == (0, CLASSES)
    out.sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in net.parameters())
    assert all(torch.isfinite(b).all() for b in net.buffers() if b.is_floating_point())


def test_program_follows_the_model(data):
    """A program reads the model's parameters and buffers when it runs: nothing is copied."""
    net = make("deep")
    x = rows(data.num_nodes, WIDTH)
    block = edges_of(data.edge_index, data.num_nodes).block
    program = trace(net, {"x": x}, training=False)
    with torch.no_grad():
        for tensor in (*net.parameters(), *net.buffers()):
            if tensor.is_floating_point():
                tensor.mul_(0.9)
    net.norms[0].running_mean = net.norms[0].running_mean + 1  # another tensor, as .to() makes
    assert_close(program.run({"x": x}, block), net.eval()(x, data.edge_index), 1e-12)
    state = {name: value + 0.1 for name, value in make("deep").state_dict().items()}
    net.load_state_dict(state)
    assert_close(program.run({"x": x}, block), net(x, data.edge_index), 1e-12)


def test_no_grad_inside_of_forward(data):
    """A model that stops gradients stops them in the program, even traced without gradients."""

    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode = pyg.SAGEConv(WIDTH, 8)
            self.conv = pyg.GCNConv(8, CLASSES)
            self.gate = nn.Parameter(torch.ones(8))

        def forward(self, x, edge_index):
            with torch.no_grad():
                h = self.encode(x, edge_index).relu()
            return self.conv(h * self.gate, edge_index)

    net = Frozen().double()
    x = rows(data.num_nodes, WIDTH)
    with torch.no_grad():
        program = trace(net, {"x": x}, training=True)
    got = program.run({"x": x}, edges_of(data.edge_index, data.num_nodes).block)
    assert_close(got, net(x, data.edge_index), 1e-12)
    found = gradients(net, got, {})
    assert found.keys() == {"gate", "conv.bias", "conv.lin.weight"}


def test_the_models_mode_is_its_own(data):
    """Tracing and running leave the mode of every module; a program keeps the one it has."""
    net = make("deep").train()
    net.norms[0].eval()
    x = rows(data.num_nodes, WIDTH)
    block = edges_of(data.edge_index, data.num_nodes).block
    program = trace(net, {"x": x}, training=False)
    assert net.training
    assert not net.norms[0].training
    want = program.run({"x": x}, block)
    assert torch.equal(program.run({"x": x}, block), want)
    assert_close(want, net.eval()(x, data.edge_index), 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_dtypes(dtype, data):
    """A program runs in the dtype that its model and inputs have."""
    for name in ("gcn", "sage", "gat", "gin"):
        net = make(name)
        x = rows(data.num_nodes, WIDTH)
        block = edges_of(data.edge_index, data.num_nodes).block
        want = trace(net, {"x": x}, training=False).run({"x": x}, block)
        net = net.to(dtype)
        x = x.to(dtype)
        got = trace(net, {"x": x}, training=False).run({"x": x}, block)
        assert got.dtype == dtype
        assert_close(got, want, 1e-5 if dtype == torch.float32 else 0.1)


@pytest.mark.gpu
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", NETS)
def test_cuda_equals_the_cpu(name, training, data):
    """The same values, masks and gradients on a CUDA device, whichever kernels it has."""
    found = []
    for device in ("cpu", "cuda"):
        net = make(name).to(device)
        values = (rows(data.num_nodes, WIDTH), data.weight, data.attr)
        x, weight, attr = leaves(*(value.to(device) for value in values))
        edges = edges_of(data.edge_index.to(device), data.num_nodes)
        inputs = inputs_of(name, x, edges.rows(weight), edges.rows(attr))
        program = trace(net, inputs, training=training)
        out = program.run(inputs, edges.block, KEY)
        grads = gradients(net, out, {"x": x, "edge_weight": weight, "edge_attr": attr})
        found.append({"out": out} | grads)
    for key, value in found[0].items():
        assert_close(found[1][key].cpu(), value, 1e-10)
