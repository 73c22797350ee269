"""Every model of the tests, stage by stage as a schedule says, against one graph of the whole."""

from __future__ import annotations

import copy

import pytest
import torch
import torch_geometric.nn as pyg
from hypothesis import given as randomly
from hypothesis import settings
from hypothesis import strategies as st
from torch import nn

from tests.models.graphs import assert_close, given, rows
from tests.models.nets import CLASSES, NETS, WIDTH, Deep, inputs_of
from tiergnn.graph.odd import ODD
from tiergnn.graph.shape import GraphShape, Histogram
from tiergnn.kernels.dropout import step_key
from tiergnn.models.allocations import recording
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


def whole(program, inputs, block):
    """The output by one graph of the whole."""
    return program.run(inputs, block, KEY)


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
    """Loss, all gradients, running statistics; kept stages and losses to the last bit."""
    net, inputs, block, program = made(name, data, learned=learned)
    before = copy.deepcopy(net.state_dict())
    more = [inputs["x"]] if learned else []
    loss = loss_of(whole(program, inputs, block))
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
    for key, value in want.items():  # the order of all sums is that of one graph
        assert value is None or torch.equal(bits["keep"][key], value), key
    assert_same(bits["mixed"], bits["recompute"], 1e-12)
    for key, value in step_again(program, inputs, block, net, before, learned).items():
        assert value is None or torch.equal(bits["recompute"][key], value), key


def step_again(program, inputs, block, net, before, learned):
    """Gradients of one more step in which every stage is run again."""
    net.load_state_dict(before)
    net.zero_grad()
    inputs["x"].grad = None
    walk_of(program, inputs, block, "recompute", learned).run(KEY, loss_of, measure=True)
    return grads_of(net, *([inputs["x"]] if learned else []))


def compare(net, x, block, ways=WAYS, rel=1e-10):
    """Gradients of each way against one graph of the whole."""
    inputs = {"x": x}
    program = trace(net, inputs, training=True)
    net.zero_grad()
    loss = loss_of(whole(program, inputs, block))
    loss.backward()
    want = {n: g if g is None else g.clone() for n, g in grads_of(net).items()}
    for way in ways:
        net.zero_grad()
        got = walk_of(program, inputs, block, way).run(KEY, loss_of, measure=True)
        assert torch.equal(got, loss)
        assert_same(grads_of(net), want, rel)
    return want


class Odd(nn.Module):
    """Tied, frozen, parametrized and unused weights; an output that an early stage wrote."""

    def __init__(self):
        super().__init__()
        self.first = pyg.GCNConv(WIDTH, 8)
        self.tied = pyg.SAGEConv(8, 8)
        self.lin = torch.nn.utils.parametrizations.weight_norm(nn.Linear(8, CLASSES))
        self.unused = nn.Parameter(torch.ones(3))
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x, edge_index):
        h = self.first(x, edge_index).relu()
        out = self.lin(self.norm(h))
        late = self.tied(self.tied(h, edge_index).tanh(), edge_index)
        return out + self.lin(late) + self.lin(h)


@pytest.mark.parametrize("frozen", ["", "first", "tied", "lin", "norm"])
def test_tied_frozen_parametrized_and_unused_weights(frozen, data):
    net = Odd().double()
    for p in getattr(net, frozen).parameters() if frozen else ():
        p.requires_grad_(False)
    block = edges_of(data.edge_index, data.num_nodes).block
    found = compare(net, rows(data.num_nodes, WIDTH), block)
    assert found["unused"] is None
    assert (found["lin.parametrizations.weight.original1"] is None) == (frozen == "lin")


def test_the_output_may_be_an_early_row(data):
    class Early(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.next = pyg.GCNConv(WIDTH, CLASSES), pyg.GCNConv(CLASSES, 3)
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x, edge_index):
            out = self.first(x, edge_index)
            self.norm(self.next(out, edge_index))
            return out

    block = edges_of(data.edge_index, data.num_nodes).block
    compare(Early().double(), rows(data.num_nodes, WIDTH), block)


@settings(max_examples=25, deadline=None)
@randomly(
    st.lists(
        st.sampled_from(["gcn", "sage", "gin", "norm", "skip", "jump"]), min_size=1, max_size=6
    ),
    st.integers(0, 2**10),
    st.sampled_from([torch.float64, torch.float32]),
)
def test_random_models(layers, again, dtype):
    """Any mixture of kept and recomputed stages of any chain with skips."""
    data = given(ODD["weighted"]())

    class Random(nn.Module):
        def __init__(self):
            super().__init__()
            makers = {
                "gcn": lambda: pyg.GCNConv(WIDTH, WIDTH),
                "sage": lambda: pyg.SAGEConv(WIDTH, WIDTH),
                "gin": lambda: pyg.GINConv(nn.Linear(WIDTH, WIDTH)),
                "norm": lambda: nn.BatchNorm1d(WIDTH),
            }
            self.layers = nn.ModuleList(makers.get(name, nn.Identity)() for name in layers)

        def forward(self, x, edge_index):
            seen = [x]
            for name, layer in zip(layers, self.layers, strict=True):
                if name == "skip":
                    x = x + seen[len(seen) // 2].tanh()
                elif name == "jump":
                    x = torch.stack(seen, dim=1).sum(1)
                elif name == "norm":
                    x = layer(x)
                else:
                    x = layer(x, edge_index).sigmoid()
                seen.append(x)
            return x

    torch.manual_seed(again)
    net, inputs = Random().to(dtype), {"x": rows(data.num_nodes, WIDTH).to(dtype)}
    block = edges_of(data.edge_index, data.num_nodes).block
    program = trace(net, inputs, training=True)
    if not any(p.requires_grad for p in net.parameters()):
        return
    loss_of(whole(program, inputs, block)).backward()
    want = {n: g if g is None else g.clone() for n, g in grads_of(net).items()}
    net.zero_grad()
    chosen_stages = [s.index for i, s in enumerate(program.stages) if again >> (i % 11) & 1]
    work = outline(program, dtype=dtype, learned=False)
    schedule = resident.training(work, shape_of(block), recompute=chosen_stages)
    Walk(program, schedule, block, inputs.__getitem__).run(KEY, loss_of)
    assert_same(grads_of(net), want, 1e-10 if dtype == torch.float64 else 1e-4)


def peak_of(step):
    with recording(torch.device("cpu")) as allocations:
        allocations.mark("step")
        step()
        allocations.mark("")
    held = torch.tensor(allocations.by_mark["step"]).cumsum(0)
    return int(held.max())


def test_recomputing_takes_less_memory_and_keeping_no_more_than_one_graph():
    torch.manual_seed(0)
    num_nodes = 4_000
    edge_index = torch.randint(num_nodes, (2, 12_000))
    block = edges_of(edge_index, num_nodes).block
    inputs = {"x": torch.randn(num_nodes, WIDTH)}

    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList(
                pyg.GINConv(
                    nn.Sequential(nn.Linear(a, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
                )
                for a in (WIDTH, 64, 64)
            )

        def forward(self, x, edge_index):
            for conv in self.convs:
                x = conv(x, edge_index)
            return x

    net = Wide()
    program = trace(net, inputs, training=True)

    def in_one():
        loss_of(whole(program, inputs, block)).backward()

    def walked(way):
        walk = walk_of(program, inputs, block, way)
        return lambda: walk.run(KEY, loss_of)

    steps = {"whole": in_one} | {way: walked(way) for way in WAYS}
    peaks = {}
    for name, step in steps.items():
        step()  # what stays with the block is made
        net.zero_grad()  # outside: a recording sees given back only what another one saw given
        peaks[name] = peak_of(step)
    assert peaks["keep"] <= peaks["whole"] + 4096
    assert peaks["recompute"] < 0.7 * peaks["keep"]
    assert peaks["recompute"] < peaks["mixed"] < peaks["keep"]


def test_a_failure_says_where_leaves_the_parameters_and_holds_nothing(data):
    net, inputs, block, program = made("deep", data)
    walk = walk_of(program, inputs, block, "mixed")
    before = copy.deepcopy(net.state_dict())
    parameters = [p.detach().clone() for p in net.parameters()]

    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, out):
            return out.clone()

        @staticmethod
        def backward(ctx, *grads):
            raise RuntimeError("broken")

    for fails in ("forward", "backward"):

        def loss(out, fails=fails):
            if fails == "forward":
                raise RuntimeError("broken")
            return loss_of(Broken.apply(out))

        with pytest.raises(RuntimeError, match="broken") as error:
            walk.run(KEY, loss, measure=True)
        note = "\n".join(error.value.__notes__)
        assert "LOSS" in next(line for line in note.splitlines() if "<-- here" in line)
        assert not walk._held
        assert not walk._graphs
        assert all(torch.equal(a, b) for a, b in zip(parameters, net.parameters(), strict=True))
    net.load_state_dict(before)
    net.zero_grad()
    again = walk.run(KEY, loss_of)
    assert torch.isfinite(again)


def test_the_timeline_is_of_all_actions_in_their_order(data):
    _, inputs, block, program = made("deep", data)
    for way in WAYS:
        walk = walk_of(program, inputs, block, way)
        assert walk.timeline(0) is None
        walk.run(KEY, loss_of)
        assert walk.timeline(0) is None
        walk.run(KEY, loss_of, measure=True)
        walk.update(lambda: None)
        spans = walk.timeline(7).spans
        wanted = [a.index for a in walk.schedule.actions if a.op != "RESERVE"]
        assert sorted(span.index for span in spans) == wanted
        assert all(span.end_s >= span.start_s >= 0 for span in spans)
        backward = [span.label for span in spans if span.label.startswith("BACKWARD")]
        assert backward == [a.label for a in walk.schedule.actions if a.op == "BACKWARD"]
        assert walk.timeline(7).peak_bytes == ((0, "device", 7),)


def test_other_strategies_are_refused(data):
    from dataclasses import replace

    from tiergnn.errors import PlanError

    _, inputs, block, program = made("gcn", data)
    schedule = walk_of(program, inputs, block).schedule
    other = replace(schedule.actions[1], op="EXCHANGE", tag="all")
    schedule = replace(schedule, actions=(schedule.actions[0], other, *schedule.actions[2:]))
    with pytest.raises(PlanError, match="does not EXCHANGE"):
        Walk(program, schedule, block, inputs.__getitem__)


def test_deep_models_run_twice_alike(data):
    """The same bits from one walk to the next, in every way."""
    torch.manual_seed(0)
    net = Deep().double()
    x = rows(data.num_nodes, WIDTH)
    block = edges_of(data.edge_index, data.num_nodes).block
    program = trace(net, {"x": x}, training=True)
    for way in WAYS:
        found = []
        for _ in range(2):
            net.zero_grad()
            walk_of(program, {"x": x}, block, way).run(KEY, loss_of)
            found.append([p.grad.clone() for p in net.parameters()])
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
