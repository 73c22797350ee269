"""Norms over all rows: PyG's numbers and gradients, whole and by parts; running statistics."""

from __future__ import annotations

import copy

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

from tests.models.by_parts import run_by_parts
from tests.models.graphs import assert_close, rows
from tiergnn.errors import ConfigError
from tiergnn.models.edges import edges_of
from tiergnn.models.moments import combine_moments, moments
from tiergnn.models.trace import trace

WIDTH = 6
NORMS = {
    "batch": lambda: nn.BatchNorm1d(WIDTH),
    "batch plain": lambda: nn.BatchNorm1d(WIDTH, affine=False, eps=1e-3),
    "batch untracked": lambda: nn.BatchNorm1d(WIDTH, track_running_stats=False),
    "batch average": lambda: nn.BatchNorm1d(WIDTH, momentum=None),
    "batch lazy": lambda: nn.LazyBatchNorm1d(),
    "pyg batch": lambda: pyg.BatchNorm(WIDTH, momentum=0.3),
    "pyg batch single": lambda: pyg.BatchNorm(WIDTH, allow_single_element=True),
    "graph": lambda: pyg.GraphNorm(WIDTH),
    "layer graph": lambda: pyg.LayerNorm(WIDTH),
    "layer graph plain": lambda: pyg.LayerNorm(WIDTH, affine=False),
    "layer node": lambda: pyg.LayerNorm(WIDTH, mode="node"),
    "instance": lambda: pyg.InstanceNorm(WIDTH),
    "instance affine": lambda: pyg.InstanceNorm(WIDTH, affine=True),
    "pair": lambda: pyg.PairNorm(scale=1.5),
    "pair individual": lambda: pyg.PairNorm(scale_individually=True),
    "mean": lambda: pyg.MeanSubtractionNorm(),
    "size": lambda: pyg.GraphSizeNorm(),
    "groups": lambda: pyg.DiffGroupNorm(WIDTH, groups=3),
    "torch layer": lambda: nn.LayerNorm(WIDTH),
    "torch rms": lambda: nn.RMSNorm(WIDTH),
    "torch group": lambda: nn.GroupNorm(2, WIDTH),
}


class Net(nn.Module):
    """The norm twice, after a layer that gives its rows a mean and a scale."""

    def __init__(self, norm):
        super().__init__()
        self.lin = nn.Linear(WIDTH, WIDTH)
        self.norm = norm

    def forward(self, x, edge_index):
        return self.norm(self.norm(3 * self.lin(x) + 1).square())


def make(name):
    torch.manual_seed(1)
    net = Net(NORMS[name]()).double()
    if name == "batch lazy":
        net(rows(5, WIDTH), None)
        net.norm.reset_running_stats()
    for parameter in net.norm.parameters():
        nn.init.uniform_(parameter, 0.5, 1.5)
    return net


def run(net, out, x):
    weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view(out.shape)
    (out * weights).sum().backward()
    found = {"out": out.detach(), "x": x.grad}
    found |= {n: p.grad for n, p in net.named_parameters()}
    return found | {n: b.double() for n, b in net.named_buffers()}


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", NORMS)
def test_norm(name, training):
    """Three steps, so that running statistics run."""
    block = edges_of(torch.zeros(2, 0, dtype=torch.int64), 29).block
    net = make(name).train(training)
    others = {"program": copy.deepcopy(net), "parts": copy.deepcopy(net)}
    programs = {
        key: trace(other, {"x": rows(5, WIDTH)}, training=training) for key, other in others.items()
    }
    for step in range(3):
        x = rows(29, WIDTH, seed=step)
        want = run(net, net(x.requires_grad_(), None), x)
        for key, program in programs.items():
            x = x.detach().clone().requires_grad_()
            others[key].zero_grad()
            execute = run_by_parts if key == "parts" else type(program).run
            got = run(others[key], execute(program, {"x": x}, block), x)
            assert want.keys() == got.keys()
            for part, value in want.items():
                assert_close(got[part], value, 1e-10)
        net.zero_grad()


def test_a_statistic_is_a_stage_of_its_own():
    program = trace(make("batch"), {"x": rows(5, WIDTH)}, training=True)
    assert [stage.kind for stage in program.stages] == ["rows", "statistic", "statistic"]
    first, second = program.stages[1:]
    assert first.statistic.of == "h0"
    assert first.statistics == (first.statistic.name,)
    assert second.reads == ("h1",)
    assert trace(make("batch"), {"x": rows(5, WIDTH)}, training=False).stages[0].kind == "rows"


@pytest.mark.parametrize("name", ["batch", "instance"])
def test_one_row_has_no_variance(name):
    block = edges_of(torch.zeros(2, 0, dtype=torch.int64), 1).block
    net = make(name)
    x = rows(1, WIDTH)
    with pytest.raises(ValueError, match="more than 1"):
        net(x, None)
    with pytest.raises(ConfigError, match="more than one row"):
        trace(net, {"x": x}, training=True).run({"x": x}, block)


def test_one_row_where_it_is_allowed():
    block = edges_of(torch.zeros(2, 0, dtype=torch.int64), 1).block
    net = make("pyg batch single")
    x = rows(1, WIDTH)
    program = trace(net, {"x": x}, training=True)
    before = net.norm.module.running_mean.clone()
    assert_close(program.run({"x": x}, block), net(x, None), 1e-12)
    assert torch.equal(net.norm.module.running_mean, before)


def test_no_rows():
    block = edges_of(torch.zeros(2, 0, dtype=torch.int64), 0).block
    net = make("batch")
    program = trace(net, {"x": rows(0, WIDTH)}, training=True)
    assert program.run({"x": rows(0, WIDTH)}, block).shape == (0, WIDTH)
    assert torch.isfinite(net.norm.running_mean).all()


def test_moments_of_parts():
    """Any parts, empty ones among them, of a column far from 0."""
    x = rows(50, 3) * 1e-3 + 1e4
    whole = moments(x)
    parts = combine_moments([moments(part) for part in x.split([7, 0, 1, 42])])
    assert_close(parts, whole, 1e-12)
    assert_close(parts[2] / parts[0], x.var(0, correction=0), 1e-9)
    assert torch.equal(combine_moments([moments(x[:0])] * 2), torch.zeros(3, 3).double())


def test_half_rows_have_moments_in_single():
    x = torch.full((5000, 1), 3.0, dtype=torch.float16)
    count, mean, squares = moments(x)
    assert (count.dtype, float(count), float(mean), float(squares)) == (
        torch.float32,
        5000.0,
        3.0,
        0.0,
    )


def test_refused():
    class Columns(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(2)
            self.hetero = pyg.HeteroLayerNorm(WIDTH, 2)
            self.tracked = pyg.InstanceNorm(WIDTH, track_running_stats=True)
            self.choice = "norm"

        def forward(self, x, edge_index):
            if self.choice == "norm":
                return self.norm(x.view(-1, 2, 3))
            return getattr(self, self.choice)(x)

    for choice, message in (
        ("norm", "BatchNorm1d over rows of 2 dimensions"),
        ("hetero", "several types"),
        ("tracked", "running statistics"),
    ):
        net = Columns()
        net.choice = choice
        with pytest.raises(ConfigError, match=message):
            trace(net, {"x": torch.randn(5, WIDTH)}, training=True)
