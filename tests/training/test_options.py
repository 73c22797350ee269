"""Options, features and schedulers: what is refused, and what a record keeps."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from tiergnn.errors import ConfigError
from tiergnn.graph.csr import from_edges
from tiergnn.graph.table import Table
from tiergnn.training.features import choose_features, feature_table
from tiergnn.training.optimizers import make_optimizer, make_scheduler, needs_closure
from tiergnn.training.options import Options


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"epochs": 0}, "epochs"),
        ({"epochs": 2.5}, "epochs"),
        ({"patience": 0}, "patience"),
        ({"eval_every": -1}, "eval_every"),
        ({"checkpoint_every": 0}, "checkpoint_every"),
        ({"lr": 0.0}, "lr"),
        ({"lr": float("nan")}, "lr"),
        ({"clip": -1.0}, "clip"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"seed": -1}, "seed"),
        ({"dtype": "float16"}, "bfloat16"),
        ({"normalize_features": "column"}, "row"),
        ({"metric": len}, "metric_mode"),
        ({"metric": "accuracy", "metric_mode": "max"}, "metric_mode"),
        ({"metric": len, "metric_mode": "best"}, "max, min"),
        ({"optimizer": torch.optim.SGD, "lr": 0.1}, "lr"),
        ({"optimizer": torch.optim.SGD, "weight_decay": 0.1}, "weight_decay"),
        ({"criterion": len, "class_weight": "balanced"}, "class_weight"),
        ({"device_memory": "much"}, "number of bytes"),
    ],
)
def test_mistakes_are_told(options, told):
    with pytest.raises(ConfigError, match=told):
        Options(**options)


def test_the_record_gives_the_options_back():
    options = Options(epochs=3, lr=0.1, class_weight=np.array([1, 2]), split="random:.6/.2/.2@3")
    record = json.loads(json.dumps(options.to_json()))
    back = Options.from_json(record, {})
    assert back.to_json() == options.to_json()
    assert back.class_weight == [1.0, 2.0]


def test_objects_are_named_and_asked_for_again():
    options = Options(optimizer=torch.optim.SGD, criterion=np.sum)
    record = json.loads(json.dumps(options.to_json()))
    assert record["optimizer"]["object"].endswith("SGD")
    with pytest.raises(ConfigError, match=r"optimizer=\.\.\."):
        Options.from_json(record, {"criterion": np.sum})
    back = Options.from_json(record, {"optimizer": torch.optim.SGD, "criterion": np.sum})
    assert back.optimizer is torch.optim.SGD
    with pytest.raises(ConfigError, match="leave scheduler out"):
        Options.from_json(record, {"optimizer": 1, "criterion": 1, "scheduler": len})


def line(num_nodes=4, x=None):
    src = np.arange(num_nodes - 1)
    return from_edges(src, src + 1, num_nodes, x=x)


def test_made_features():
    graph = line()
    assert choose_features(graph, "degree").width == 3
    rows = feature_table(graph, choose_features(graph, "degree")).decode()
    np.testing.assert_allclose(rows[:, 0], np.log1p([0, 1, 1, 1]), rtol=1e-6)
    np.testing.assert_allclose(rows[:, 1], np.log1p([1, 1, 1, 0]), rtol=1e-6)
    assert (rows[:, 2] == 1).all()
    onehot = feature_table(graph, choose_features(graph, "onehot"))
    assert onehot.dtype == "bool"
    assert np.array_equal(onehot.decode(), np.eye(4))
    assert feature_table(graph, choose_features(graph, "constant")).decode().tolist() == [[1]] * 4
    assert choose_features(graph, "embedding:7").width == 7
    assert feature_table(graph, choose_features(graph, "embedding:7")) is None


def test_auto_features_are_the_stored_ones_or_degrees_with_a_word(caplog):
    x = Table.from_array(np.ones((4, 5), np.uint8))
    assert choose_features(line(x=x), "auto").kind == "stored"
    assert caplog.text == ""
    assert choose_features(line(), "auto").kind == "degree"
    assert caplog.text.count("no features") == 1


@pytest.mark.parametrize("features", ["stored", "embedding", "embedding:0", "degrees", "degree:3"])
def test_features_that_are_not_there(features):
    with pytest.raises(ConfigError):
        choose_features(line(), features)


def test_optimizers():
    model = torch.nn.Linear(2, 2)
    made = make_optimizer("adamw", model, [], 0.5, 0.25)
    assert (made.defaults["lr"], made.defaults["weight_decay"]) == (0.5, 0.25)
    assert not needs_closure(made)
    assert needs_closure(make_optimizer("lbfgs", model, [], 0.5, 0.0))
    assert make_optimizer(made, model, [], 0.01, 0) is made
    extra = torch.nn.Parameter(torch.zeros(3))
    held = make_optimizer("sgd", model, [extra], 0.01, 0).param_groups[0]["params"]
    assert any(p is extra for p in held)
    for bad, told in (
        ("adan", "adam"),
        (3, "name, callable"),
        (lambda p: 3, "gave int"),
        (torch.optim.SGD(torch.nn.Linear(2, 2).parameters()), "not the model's"),
    ):
        with pytest.raises(ConfigError, match=told):
            make_optimizer(bad, model, [], 0.01, 0)
    with pytest.raises(ConfigError, match="does not hold"):
        make_optimizer(made, model, [extra], 0.01, 0)
    with pytest.raises(ConfigError, match="weight_decay"):
        make_optimizer("lbfgs", model, [], 0.01, 1.0)
    with pytest.raises(ConfigError, match="no parameter"):
        make_optimizer("adam", torch.nn.ReLU(), [], 0.01, 0)


def test_schedulers():
    optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=1.0)
    assert make_scheduler(None, optimizer, 10, "max") is None
    assert make_scheduler("plateau", optimizer, 10, "max").mode == "max"
    assert make_scheduler("cosine", optimizer, 17, "max").T_max == 17
    for bad, told in (("cosin", "cosine"), (3, "callable"), (lambda o: 3, "gave 3")):
        with pytest.raises(ConfigError, match=told):
            make_scheduler(bad, optimizer, 10, "max")
