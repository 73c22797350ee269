"""Options of train: each is honoured or refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from tests.cli.runs import FEW
from tiergnn.cli import options
from tiergnn.graph.csr import Graph
from tiergnn.graph.generate import sbm
from tiergnn.graph.table import Table
from tiergnn.models import zoo
from tiergnn.planner.strategies.known import STRATEGIES

CHANGES = [
    ("gcn", ("--hidden", 5)),
    ("gcn", ("--layers", 3)),
    ("gcn", ("--dropout", 0.4)),
    ("gcn", ("--input-dropout", 0.1)),
    ("gat", ("--attention-dropout", 0.1)),
    ("appnp", ("--edge-dropout", 0.1)),
    ("gat", ("--out-heads", 2)),
    ("gcn", ("--improved",)),
    ("gcn", ("--no-self-loops",)),
    ("gin", ("--train-eps",)),
    ("gcn", ("--norm", "batch")),
    ("gcn", ("--norm", "layer")),
    ("gcn", ("--residual",)),
    ("gcn", ("--jk", "cat")),
    ("gcn", ("--act", "elu")),
    ("gat", ("--heads", 2)),
    ("gatv2", ("--heads", 2)),
    ("sage", ("--aggr", "max")),
    ("sgc", ("--hops", 1)),
    ("appnp", ("--hops", 1)),
    ("appnp", ("--alpha", 0.6)),
    ("gcn", ("--epochs", 6)),
    ("gcn", ("--lr", 0.1)),
    ("gcn", ("--wd", 0.5)),
    ("gcn", ("--optimizer", "sgd")),
    ("gcn", ("--scheduler", "exponential")),
    ("gcn", ("--class-weight", "balanced")),
    ("gcn", ("--class-weight", "1,5,0.1")),
    ("gcn", ("--clip", 1e-3, "--optimizer", "sgd")),
    ("gcn", ("--seed", 3)),
    ("gcn", ("--split", "1")),
    ("gcn", ("--split", "random:0.5/0.2/0.2")),
    ("gcn", ("--features", "degree")),
    ("gcn", ("--features", "embedding:4")),
    ("gcn", ("--normalize-features",)),
    ("gcn", ("--dtype", "float64")),
]


@pytest.fixture(scope="module")
def plain_losses():
    return {}


@pytest.mark.parametrize(("model", "options"), CHANGES, ids=str)
def test_options_of_training_are_honoured(train, plain_losses, model, options):
    if model not in plain_losses:
        plain_losses[model] = train(model=model)["losses"]
    assert train(*options, model=model)["losses"] != plain_losses[model]


def test_edge_dim_makes_attention_read_edge_features(cli, graph, tmp_path):
    kept = Graph.open(graph)
    attr = np.arange(2 * kept.num_edges, dtype=np.float32).reshape(-1, 2) / kept.num_edges
    replace(kept, edge_attr=Table.from_array(attr), path=None).save(tmp_path / "g")
    blind, seeing = (
        cli(
            "train", tmp_path / "g", "-m", "gat", *options, *FEW, "--out", tmp_path / options[0]
        ).json
        for options in (("--hidden", 4), ("--edge-dim", 2, "--hidden", 4))
    )
    assert blind["losses"] != seeing["losses"]


OPTIONS_OF_MODELS = {
    "hidden_channels": options.Hidden,
    "num_layers": options.Layers,
    "dropout": options.Dropout,
    "input_dropout": options.InputDropout,
    "attention_dropout": options.AttentionDropout,
    "edge_dropout": options.EdgeDropout,
    "heads": options.Heads,
    "out_heads": options.OutHeads,
    "norm": options.Norm,
    "residual": options.Residual,
    "jk": options.Jump,
    "act": options.Act,
    "aggr": options.Aggr,
    "K": options.Hops,
    "alpha": options.Alpha,
    "improved": options.Improved,
    "add_self_loops": options.SelfLoops,
    "train_eps": options.TrainEps,
    "edge_dim": options.EdgeDim,
}


def test_every_option_of_every_model_is_offered():
    known = {name for model in zoo.MODELS for name in zoo.options_of(model)}
    assert known == set(OPTIONS_OF_MODELS)


@pytest.mark.parametrize("name", OPTIONS_OF_MODELS)
def test_help_tells_the_defaults_of_the_models(name):
    """ "gat 8, others 64" and the like, held to what the models do."""
    shown = OPTIONS_OF_MODELS[name].__metadata__[0].show_default
    told = dict(re.findall(r"(?:^|, )(\w+) ([^,]+)", shown)) if " " in shown else {}
    if shown.startswith("as --"):
        told = {}
    words = {True: "yes", False: "no", None: "as --dropout" if "dropout" in name else "none"}
    for model in zoo.MODELS:
        defaults = zoo.options_of(model)
        if name in defaults:
            value = defaults[name]
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            text = f"{value:g}" if is_number else words.get(value, value)
            assert told.get(model, told.get("others", shown)) == text, model


def test_help_names_the_models_of_an_option_that_few_have():
    for name, annotated in OPTIONS_OF_MODELS.items():
        told = re.search(r"\(([a-z0-9, ]+)\)\.?$", annotated.__metadata__[0].help)
        if told is not None:
            having = [model for model in zoo.MODELS if name in zoo.options_of(model)]
            assert told.group(1).split(", ") == having, name


def test_help_names_every_strategy():
    assert set(re.findall(r"\w+", options.STRATEGIES.partition(":")[2])) - {"of", "ranks"} == {
        *STRATEGIES
    }


def test_options_that_change_something_else(cli, train, tmp_path, graph):
    assert set(train("--eval-every", 2)["metrics"]) == {"train", "val", "test"}
    log = (tmp_path / "run1" / "log.jsonl").read_text().splitlines()
    assert ["val" in json.loads(line) for line in log] == [False, True, False, True]

    stopped = train("--epochs", 200, "--patience", 2, "--lr", 0.5)
    assert stopped["finished"] == "patience"
    assert len(stopped["losses"]) < 200

    by_loss = train("--metric", "loss", "--lr", 0.3, "--epochs", 12)
    log = [json.loads(s) for s in (tmp_path / "run3" / "log.jsonl").read_text().splitlines()]
    losses = [record["val"]["loss"] for record in log]
    assert by_loss["best_epoch"] == 1 + int(np.argmin(losses))

    assert train("--device", "cpu")["losses"]
    train("--tensorboard")
    assert list((tmp_path / "run5" / "tensorboard").iterdir())

    again = cli("train", graph, "-m", "gcn", "--out", tmp_path / "run1", *FEW)
    assert again.code == 2
    assert "--overwrite" in again.err
    replaced = cli("train", graph, "-m", "gcn", "--out", tmp_path / "run1", *FEW, "--overwrite")
    assert len(replaced.json["losses"]) == 4


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        (("--model", "gnc"), "gcn, sage, gin"),
        (("--model", "gcn", "--heads", 4), "heads"),
        (("--model", "gat", "--alpha", 0.5), "alpha"),
        (("--model", "gcn", "--norm", "bacth"), "batch"),
        (("--model", "gcn", "--jk", "mean"), "cat"),
        (("--model", "gcn", "--act", "rleu"), "relu"),
        (("--model", "sage", "--aggr", "mode"), "mean"),
        (("--model", "gcn", "--optimizer", "adm"), "'adam'"),
        (("--model", "gcn", "--scheduler", "cosin"), "'cosine'"),
        (("--model", "gcn", "--metric", "acuracy"), "'accuracy'"),
        (("--model", "gcn", "--loss", "hinge"), "cross_entropy"),
        (("--model", "gcn", "--split", "7"), "1"),
        (("--model", "gcn", "--features", "degrees"), "'degree'"),
        (("--model", "gcn", "--dtype", "float8"), "bfloat16"),
        (("--model", "gcn", "--device", "cuda:99"), "doctor"),
        (("--model", "gcn", "--device-memory", "1KiB"), "KiB"),
        (("--model", "gcn", "--device-memory", "lots"), "GiB"),
        (("--model", "gcn", "--class-weight", "1,x"), "1,2,0.5"),
        (("--model", "gcn", "--class-weight", "even"), "balanced"),
        (("--model", "gcn", "--epochs", 0), "epochs"),
        (("--model", "gcn", "--lr", -1), "lr"),
        (("--model", "gcn", "--dropout", 1.5), "dropout"),
        (("--model", "gcn", "--hidden", 0), "hidden"),
    ],
    ids=str,
)
def test_bad_options_are_refused_with_the_way_out(cli, graph, tmp_path, options, answer):
    refused = cli("train", graph, *options, "--out", tmp_path / "r")
    assert refused.code == 2, refused.err
    assert answer in refused.err
    assert refused.out == ""
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("width", [None, 3])
def test_edge_features_to_attend_to_must_be_there(cli, tmp_path, width):
    """Of a width that no layer would meet, or none at all: the option would be ignored."""
    made = sbm(60, 3, degree=4, num_features=4, seed=1)
    attr = None if width is None else Table.from_array(np.ones((made.num_edges, width), np.float32))
    replace(made, edge_attr=attr).save(tmp_path / "g")
    given = ("train", tmp_path / "g", "-m", "gat", "--edge-dim")
    refused = cli(*given, 2, "--out", tmp_path / "r", *FEW)
    assert refused.code == 2
    had = "no edge features" if width is None else "3 edge features"
    assert f"edge_dim=2, and the graph has {had}" in refused.err
    assert not (tmp_path / "r").exists()
    if width is not None:
        assert cli(*given, width, "--out", tmp_path / "r", *FEW).code == 0
