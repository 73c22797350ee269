"""Ready models: what the papers have, every option, names and round trips."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

from tests.models.graphs import assert_close, given, rows
from tiergnn.errors import ConfigError
from tiergnn.graph.odd import ODD
from tiergnn.kernels.dropout import step_key
from tiergnn.models import layers, zoo
from tiergnn.models.edges import edges_of
from tiergnn.models.trace import trace

STACKED = ("gcn", "sage", "gin", "gat", "gatv2")
VARIANTS = {
    "plain": {},
    "deep": {"num_layers": 4, "norm": "batch", "residual": True, "act": "leaky_relu"},
    "jumping": {"num_layers": 3, "jk": "cat", "norm": "layer"},
    "max": {"jk": "max", "hidden_channels": 12},
    "sum": {"jk": "sum", "residual": True, "act": "tanh"},
    "last": {"jk": "last", "input_dropout": 0.2, "dropout": 0.0},
    "one": {"num_layers": 1, "residual": True},
}


@pytest.fixture(scope="module")
def data():
    return given(ODD["random"]())


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", STACKED)
def test_variants(name, variant, data):
    """Every variant traces for both modes, and the program gives what the model gives."""
    torch.manual_seed(0)
    model = zoo.build(name, 7, 3, **VARIANTS[variant]).double()
    x = rows(data.num_nodes, 7)
    edges = edges_of(data.edge_index, data.num_nodes)
    got = trace(model, {"x": x}, training=False).run({"x": x}, edges.block)
    assert got.shape == (data.num_nodes, 3)
    assert_close(got, model.eval()(x, data.edge_index), 1e-10)
    out = trace(model, {"x": x}, training=True).run({"x": x}, edges.block, step_key(0, 0))
    out.square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("name", ["sgc", "appnp"])
def test_others(name, data):
    model = zoo.build(name, 7, 3, K=3).double()
    x = rows(data.num_nodes, 7)
    edges = edges_of(data.edge_index, data.num_nodes)
    inputs = {"x": x, "edge_weight": edges.rows(data.weight)}
    got = trace(model, inputs, training=False).run(inputs, edges.block)
    assert_close(got, model.eval()(x, data.edge_index, data.weight), 1e-10)
    with torch.no_grad():
        plain = model(x, data.edge_index)
    assert not torch.allclose(got, plain)


def test_gcn_is_the_papers():
    model = zoo.build("gcn", 1433, 7)
    assert [(c.in_channels, c.out_channels) for c in model.convs] == [(1433, 16), (16, 7)]
    assert (model.dropout, model.input_dropout) == (0.5, 0.5)
    program = trace(model, {"x": torch.randn(9, 1433)}, training=True)
    code = " ".join(entry for stage in program.stages for entry in stage.code)
    assert code.count("dropout") == 2
    assert code.count("relu") == 1
    assert sum(p.numel() for p in model.parameters()) == 1433 * 16 + 16 + 16 * 7 + 7


def test_gat_is_the_papers():
    model = zoo.build("gat", 1433, 7)
    first, last = model.convs
    assert (first.heads, first.out_channels, first.concat, first.dropout) == (8, 8, True, 0.6)
    assert (last.in_channels, last.heads, last.out_channels, last.concat) == (64, 1, 7, False)
    assert (model.dropout, model.input_dropout) == (0.6, 0.6)
    program = trace(model, {"x": torch.randn(9, 1433)}, training=True)
    code = " ".join(entry for stage in program.stages for entry in stage.code)
    assert code.count("elu") == 1
    assert [s.op for s in program.stages if s.kind == "graph"] == [
        "gat of 8 heads",
        "gat of 1 head",
    ]
    assert sum(s.random for s in program.stages) == 3  # rows, and attention of both layers


def test_gatv2_has_its_layers():
    assert all(isinstance(c, layers.GATv2Conv) for c in zoo.build("gatv2", 5, 3).convs)


def test_parameters_load_from_pygs_models():
    """The same architecture in PyG: names of the layers' parameters are PyG's."""
    theirs = pyg.models.GraphSAGE(7, 16, 2, 3)
    ours = zoo.build("sage", 7, 3, hidden_channels=16)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    x, edge_index = torch.randn(5, 7), torch.tensor([[0, 1, 2], [1, 2, 0]])
    assert_close(ours.eval()(x, edge_index), theirs.eval()(x, edge_index), 1e-5)


@pytest.mark.parametrize("name", zoo.MODELS)
def test_config_round_trip(name):
    options = {"dropout": 0.25} | ({} if name == "sgc" else {"hidden_channels": 24})
    model = zoo.build(name, 7, 3, **options)
    again = zoo.from_config(json.loads(json.dumps(model.config)))
    assert str(again) == str(model)
    again.load_state_dict(model.state_dict(), strict=True)
    assert again.dropout == 0.25


@pytest.mark.parametrize("name", zoo.MODELS)
def test_every_option_is_used(name):
    """Another value of any option gives another module or another program."""
    other = {
        "hidden_channels": 5,
        "num_layers": 3,
        "dropout": 0.125,
        "input_dropout": 0.375,
        "act": "tanh",
        "norm": "layer",
        "residual": True,
        "jk": "cat",
        "improved": True,
        "add_self_loops": False,
        "aggr": "max",
        "train_eps": True,
        "heads": 2,
        "out_heads": 3,
        "attention_dropout": 0.125,
        "edge_dim": 4,
        "K": 3,
        "alpha": 0.4,
        "edge_dropout": 0.125,
    }
    inputs = {"x": torch.ones(9, 7), "edge_weight": torch.ones(9), "edge_attr": torch.ones(9, 4)}
    data = given(ODD["random"]())
    edges = edges_of(data.edge_index, data.num_nodes)

    def outcome(**options):
        torch.manual_seed(0)
        model = zoo.build(name, 7, 3, **options)
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.1)
        for p in model.parameters():
            p.data += torch.linspace(0, 0.1, p.numel()).view(p.shape)
        program = trace(model, inputs, training=True)
        given_rows = {
            "x": rows(data.num_nodes, 7).float(),
            "edge_weight": edges.rows(data.weight).float(),
            "edge_attr": torch.ones(data.edge_index.shape[1], 4),
        }
        out = program.run(given_rows, edges.block, step_key(0, 0))
        return out, sum(p.numel() for p in model.parameters() if p.requires_grad)

    usual = outcome()
    for option, default in zoo.options_of(name).items():
        assert other[option] != default
        out, count = outcome(**{option: other[option]})
        assert count != usual[1] or not torch.allclose(out, usual[0]), option


def test_unknown_names():
    with pytest.raises(ConfigError, match=r"unknown model 'gatt'[\s\S]*'gat', or one of gcn, sage"):
        zoo.build("gatt", 5, 3)
    with pytest.raises(ConfigError, match=r"unknown option of gcn 'hidden'[\s\S]*hidden_channels"):
        zoo.build("gcn", 5, 3, hidden=3)
    for option, value in {"norm": "instance", "jk": "lstm", "act": "gelu"}.items():
        with pytest.raises(ConfigError, match=f"unknown {option} '{value}'"):
            zoo.build("gat", 5, 3, **{option: value})
    with pytest.raises(ConfigError, match="unknown aggr"):
        zoo.build("sage", 5, 3, aggr="median")


WRONG = (-2, 0, 1.5, 513, float("nan"), "a", True, None, [], np.zeros(2))


@pytest.mark.parametrize("name", zoo.MODELS)
def test_options_out_of_their_domains(name):
    """Each says the option, what was wanted and what was found; all others make a model."""
    for option in zoo.options_of(name):
        refused = {}
        for value in WRONG:
            try:
                zoo.build(name, 5, 3, **{option: value})
            except ConfigError as error:
                refused[repr(value)] = error, str(value)
        assert len(refused) >= 6, (option, refused)
        for shown, (error, plain) in refused.items():
            assert option in error.problem
            assert shown in error.problem or f"'{plain}'" in error.problem
            assert "must be" in error.problem or "one of" in (error.hint or "")


def test_numbers_of_models():
    for options, told in (
        ({"num_layers": 0}, r"num_layers must be a whole number in 1\.\.512, had 0"),
        ({"num_layers": 1.5}, r"num_layers must be a whole number in 1\.\.512, had 1\.5"),
        ({"num_layers": 513}, r"had 513\n  try: a module of your own may be deeper"),
        ({"hidden_channels": True}, "hidden_channels must be a whole number from 1, had True"),
        ({"dropout": 1.5}, r"dropout must be a number in 0\.\.1, had 1\.5"),
        ({"input_dropout": "no"}, r"input_dropout must be a number in 0\.\.1, had 'no'"),
        ({"residual": 1}, "residual must be True or False, had 1"),
    ):
        with pytest.raises(ConfigError, match=told):
            zoo.build("gcn", 5, 3, **options)
        with pytest.raises(ConfigError, match=told):
            zoo.GCN(5, 3, **options)
    for widths in ((-2, 3), ("5", 3), (5, None), (5, -1)):
        with pytest.raises(ConfigError, match="_channels must be a whole number"):
            zoo.build("sage", *widths)
    heads = zoo.build("gat", np.int64(5), 3, heads=np.int32(2), dropout=np.float32(0.5))
    assert heads.convs[0].heads == 2
