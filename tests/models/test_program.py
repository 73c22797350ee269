"""Program and Stage: what they say of themselves, what they keep and free, where code runs."""

from __future__ import annotations

import weakref

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn
from torch.nn import functional as F

from tests.models import nets
from tests.models.graphs import rows
from tiergnn.errors import ConfigError
from tiergnn.kernels.dropout import step_key
from tiergnn.models.edges import edges_of
from tiergnn.models.trace import trace


def program_of(net, width=nets.WIDTH, training=True, **edges):
    return trace(net, {"x": torch.randn(9, width), **edges}, training=training)


class Two(nn.Module):
    def __init__(self, conv, widths):
        super().__init__()
        self.one = conv(widths[0], widths[1])
        self.two = conv(widths[1], widths[2])

    def forward(self, x, edge_index):
        return self.two(self.one(x, edge_index).relu(), edge_index)


def widths_gathered(program):
    return [program.rows[n].width for s in program.stages for n in s.gathers]


@pytest.mark.parametrize("conv", [pyg.GCNConv, pyg.SAGEConv])
def test_gathered_rows_are_the_narrower_side(conv):
    """Each layer gathers before or after its dense product, and the program says which."""
    assert widths_gathered(program_of(Two(conv, (100, 16, 7)), 100)) == [16, 7]
    assert widths_gathered(program_of(Two(conv, (8, 64, 128)), 8)) == [8, 64]
    lin = "one.lin" if conv is pyg.GCNConv else "one.lin_l"
    op = "[sum of in-edges]" if conv is pyg.GCNConv else "[mean of in-edges]"
    for widths, first in (((100, 16, 7), lin), ((8, 64, 128), op)):
        program = program_of(Two(conv, widths), widths[0])
        code = [entry for stage in program.stages for entry in stage.code]
        assert next(entry for entry in code if entry in (lin, op)) == first
        assert " ".join(program.stages[0].code) in str(program)


def test_maximum_is_gathered_before_its_product():
    maximum = program_of(Two(lambda a, b: pyg.SAGEConv(a, b, aggr="max"), (100, 16, 7)), 100)
    assert widths_gathered(maximum) == [100, 16]


def test_table():
    net = nets.Deep()
    program = program_of(net)
    text = str(program)
    lines = text.splitlines()
    assert lines[0] == "x [6] -> h5 [4], training, 6 stages"
    assert len(lines) == 2 + len(program.stages)
    assert "mean of in-edges" in lines[3]
    assert "moments of all rows" in lines[4]
    assert "convs.0 nets.py:" in lines[3]
    assert all(len(line) < 200 for line in lines)
    weighted = program_of(
        nets.Weighted(), edge_weight=torch.rand(5), edge_attr=torch.rand(5, nets.EDGE_WIDTH)
    )
    assert weighted.needs == ("x", "edge_weight", "edge_attr")
    assert "edge_attr [E, 3]" in str(weighted)
    assert "sum of in-edges, weighted" in str(weighted)
    assert "gat of 2 heads" in str(weighted)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", nets.NETS)
def test_stages_are_consistent(name, training):
    """Whatever a stage reads was written before and is not freed yet; nothing is kept in vain."""
    weight, attr = torch.rand(5).double(), torch.rand(5, 3).double()
    inputs = nets.inputs_of(name, rows(9, nets.WIDTH), weight, attr)
    program = trace(nets.NETS[name]().double(), inputs, training=training)
    alive = set(program.needs)
    for stage in program.stages:
        read = {*stage.gathers, *stage.reads, *stage.edges}
        assert read <= alive
        if stage.statistic is not None:
            assert stage.statistic.of in alive
            alive.add(stage.statistic.name)
        assert set(stage.statistics) <= alive
        assert bool(stage.gathers) == (stage.kind == "graph")
        assert set(stage.writes).isdisjoint(alive)
        assert stage.place or stage.kind == "rows"
        alive |= set(stage.writes)
        assert set(stage.frees) <= alive
        alive -= set(stage.frees)
    assert alive - {"edge_weight", "edge_attr"} == {program.output}
    with pytest.raises(AttributeError):
        program.output = "x"


def test_rows_are_freed_after_their_last_use(monkeypatch):
    """Without gradients no more than a stage's inputs and outputs are alive."""
    net = nets.Loop(layers=6).eval()
    program = program_of(net, training=False)
    block = edges_of(torch.randint(9, (2, 30)), 9).block
    seen: list[weakref.ref] = []
    most = 0
    for stage in program.stages:

        def run(*args, inner=stage.function):
            nonlocal most
            out = inner(*args)
            seen.extend(weakref.ref(tensor) for tensor in out)
            most = max(most, sum(ref() is not None for ref in seen))
            return out

        object.__setattr__(stage, "function", run)
    with torch.no_grad():
        program.run({"x": torch.randn(9, nets.WIDTH)}, block)
    assert len(seen) == 7
    assert most == 2


def test_code_runs_where_less_is_stored():
    """A projection of the input for a later stage waits for it, unless its rows are narrower."""

    class Skip(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.first = nn.Linear(nets.WIDTH, 8)
            self.conv = pyg.GCNConv(8, 8)
            self.skip = nn.Linear(nets.WIDTH, width)
            self.last = nn.Linear(8 + width, 4)

        def forward(self, x, edge_index):
            skip = self.skip(x).relu()
            h = self.conv(self.conv(self.first(x), edge_index).relu(), edge_index)
            return self.last(torch.cat([h, skip], dim=-1))

    wide, narrow = program_of(Skip(64)), program_of(Skip(1))
    assert "skip" in wide.stages[-1].code
    assert "x" in wide.stages[-1].reads
    assert "skip" in narrow.stages[0].code
    assert narrow.stages[-1].reads != wide.stages[-1].reads


def test_layers_may_see_each_others_rows_only_by_names():
    """Two convolutions of one input are two stages that gather the same rows."""

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean = pyg.SAGEConv(6, 6)
            self.most = pyg.SAGEConv(6, 6, aggr="max")

        def forward(self, x, edge_index):
            return self.mean(x, edge_index) + self.most(x, edge_index)

    program = program_of(Both())
    assert [s.gathers for s in program.stages] == [("x",), ("x",)]
    assert [s.op for s in program.stages] == ["mean of in-edges", "max of in-edges"]
    assert program.stages[1].reads == ("x", program.stages[0].writes[0])


def test_a_model_without_a_graph_is_one_stage():
    program = program_of(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Dropout(0.5)))
    assert [s.kind for s in program.stages] == ["rows"]
    assert program.needs == ("x",)


def test_missing_inputs():
    program = program_of(nets.OfData(), edge_weight=torch.rand(9))
    block = edges_of(torch.tensor([[0, 1], [1, 0]]), 3).block
    x, weight = torch.randn(3, 6), torch.rand(2)
    with pytest.raises(ConfigError, match="needs edge_weight"):
        program.run({"x": x}, block, step_key(0, 0))
    with pytest.raises(ConfigError, match="dropout needs a key"):
        program.run({"x": x, "edge_weight": weight}, block)
    assert program.run({"x": x, "edge_weight": weight}, block, step_key(0, 0)).shape == (3, 4)


def test_optional_inputs_are_taken_when_the_graph_has_them():
    class Optional(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = pyg.GCNConv(6, 4)

        def forward(self, x, edge_index, edge_weight=None, scale: float = 2.0):
            if edge_weight is not None:
                edge_weight = edge_weight.abs()
            return self.conv(x, edge_index, edge_weight) * scale

    assert program_of(Optional()).needs == ("x",)
    assert program_of(Optional(), edge_weight=torch.rand(9)).needs == ("x", "edge_weight")
    assert program_of(Optional(), edge_attr=torch.rand(9, 2)).needs == ("x",)


def test_names_of_parameters():
    """The two required parameters are features and graph, whatever they are called."""

    class Names(nn.Module):
        def __init__(self, forward):
            super().__init__()
            self.conv = pyg.SAGEConv(6, 4)
            self.function = forward

        def forward(self, *args):
            raise AssertionError

    for function in (
        lambda self, h0, structure: self.conv(h0, structure),
        lambda self, x, adj: self.conv(x, adj),
        lambda self, data: self.conv(data.x, data.edge_index),
        lambda self, batch: self.conv(batch["x"], batch["edge_index"]),
        lambda self, g: self.conv(g.x.view(g.num_nodes, -1), g.adj_t),
        lambda self, edge_index, x: self.conv(x, edge_index),
    ):
        net = type("Net", (Names,), {"forward": function})(None)
        assert widths_gathered(program_of(net)) == [4]


def test_lazy_models_get_their_widths():
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = pyg.GCNConv(-1, 8)
            self.two = pyg.GATConv(-1, 3, heads=2)
            self.three = pyg.SAGEConv(-1, 5)
            self.lin = nn.LazyLinear(4)

        def forward(self, x, edge_index):
            for conv in (self.one, self.two, self.three):
                x = conv(x, edge_index)
            return self.lin(x)

    net = Lazy()
    program_of(net)
    assert (net.one.lin.in_channels, net.two.lin.in_channels) == (6, 8)
    assert (net.three.lin_l.in_channels, net.lin.in_features) == (6, 5)
    want = net(torch.randn(3, 6), torch.tensor([[0], [1]]))
    assert want.shape == (3, 4)


def test_tracing_leaves_the_generators_alone():
    net, x = nets.Attention(), rows(9, nets.WIDTH).float()
    before = torch.get_rng_state()
    trace(net, {"x": x}, training=True)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
def test_compiled_and_nested_models():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nets.Loop()
            self.act = F.tanh

        def forward(self, x, edge_index):
            return self.act(self.inner(x, edge_index))

    assert len(program_of(torch.compile(Outer())).stages) == 4
