"""Every model of the tests, stage by stage as a schedule says, against one graph of the whole."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.models.graphs import assert_close, given, rows
from tests.models.nets import NETS, WIDTH, inputs_of
from tiergnn.graph.odd import ODD
from tiergnn.graph.shape import GraphShape, Histogram
from tiergnn.kernels.dropout import step_key
from tiergnn.models.edges import edges_of
from tiergnn.models.trace import trace
from tiergnn.planner.strategies import resident
from tiergnn.runtime.outline import outline
from tiergnn.runtime.walk import Walk

KEY = step_key(5, 7)
WAYS = ("keep", "recompute", "mixed")


def shape_of(block, num_features=WIDTH):
    nodes, edges = block.num_dst, block.num_edges
    degrees = Histogram((0, edges), (nodes - 1.0, 1.0))
    return GraphShape(
        name="test", num_nodes=nodes, num_edges=edges, in_degrees=degrees, out_degrees=degrees,
        num_features=num_features, feature_dtype="float64", num_classes=4, num_labelled=nodes,
    )  # fmt: skip


def loss_of(out):
    weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view(out.shape)
    return (out * weights).sum()


def chosen(program, way):
    return {
        "keep": (),
        "recompute": [stage.index for stage in program.stages],
        "mixed": [stage.index for stage in program.stages][::2],
    }[way]


def walk_of(program, inputs, block, way="keep", learned=False):
    work = outline(program, dtype=torch.float64, learned=learned)
    schedule = resident.training(work, shape_of(block), recompute=chosen(program, way))
    return Walk(program, schedule, block, inputs.__getitem__)


def grads_of(net, *more):
    found = {name: p.grad for name, p in net.named_parameters()}
    return found | {str(i): p.grad for i, p in enumerate(more)}


def assert_same(got, want, rel):
    assert {n: g is None for n, g in got.items()} == {n: g is None for n, g in want.items()}
    for name, value in want.items():
        if value is not None:
            assert_close(got[name], value, rel)


@pytest.fixture(scope="module")
def data():
    return given(ODD["weighted"]())


def made(name, data, dtype=torch.float64, learned=False):
    torch.manual_seed(0)
    net = NETS[name]().to(dtype)
    x = rows(data.num_nodes, WIDTH).to(dtype)
    if learned:
        x = torch.nn.Parameter(x)
    edges = edges_of(data.edge_index, data.num_nodes)
    weight, attr = edges.rows(data.weight).to(dtype), edges.rows(data.attr).to(dtype)
    inputs = inputs_of(name, x, weight, attr)
    return net, inputs, edges.block, trace(net, inputs, training=True)


@pytest.mark.parametrize("learned", [False, True], ids=["given", "learned"])
@pytest.mark.parametrize("name", NETS)
def test_equals_one_graph_of_the_whole(name, learned, data):
    """Loss, all gradients, running statistics; recomputed stages give the bits of kept ones."""
    net, inputs, block, program = made(name, data, learned=learned)
    before = copy.deepcopy(net.state_dict())
    more = [inputs["x"]] if learned else []
    loss = loss_of(program.run(inputs, block, KEY))
    loss.backward()
    want = {n: g if g is None else g.clone() for n, g in grads_of(net, *more).items()}
    state = copy.deepcopy(net.state_dict())
    bits = {}
    for way in WAYS:
        net.load_state_dict(before)
        net.zero_grad()
        inputs["x"].grad = None
        got = walk_of(program, inputs, block, way, learned).run(KEY, loss_of)
        assert torch.equal(got, loss)
        found = grads_of(net, *more)
        assert_same(found, want, 1e-10)
        for key, value in net.state_dict().items():
            assert torch.equal(value, state[key]), key
        bits[way] = {n: g if g is None else g.clone() for n, g in found.items()}
    for way in WAYS:
        for key, value in bits["keep"].items():
            assert value is None or torch.equal(bits[way][key], value), (way, key)
