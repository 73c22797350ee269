"""Training of each task: classes and their weights, several labels a node, real targets."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from torch.nn import functional as F

import tiergnn as tg
from tests.training.models import community, net
from tiergnn.errors import ConfigError

QUIET = {"progress": False}


@pytest.fixture(scope="module")
def graph():
    return community(150)


def test_class_weights_change_the_loss(graph):
    plain, balanced, given = (
        tg.train(graph, net(graph), epochs=1, class_weight=w, **QUIET).losses[0]
        for w in (None, "balanced", [1.0, 5.0, 1.0, 1.0, 1.0])
    )
    assert len({plain, balanced, given}) == 3


def test_multilabel(graph):
    y = np.stack([graph.y == c for c in range(5)], 1).astype(np.int8)
    y[::4, 2] = -1
    many = replace(graph, y=y, task="multilabel", num_classes=5)
    run = tg.train(many, net(many), epochs=30, patience=20, class_weight="balanced", **QUIET)
    assert run.metrics["test"]["f1_micro"] > 0.4
    assert set(run.metrics["test"]) == {"loss", "f1_micro", "f1_macro", "roc_auc", "accuracy"}
    areas = [record["val"]["roc_auc"] for record in run.history]
    assert run.best_epoch == 1 + int(np.argmax(areas))
    told = re.fullmatch(r"Run\(epochs=(\d+), best_epoch=(\d+), loss=.*, roc_auc=.*\)", repr(run))
    assert told is not None
    assert told.groups() == (str(len(areas)), str(run.best_epoch))
    labels = run.predict(kind="labels")
    assert (labels.dtype, labels.shape) == (np.int8, y.shape)
    assert np.array_equal(labels, run.predict(kind="probabilities") > 0.5)


def test_real(graph):
    y = np.stack([graph.x.data[:, 0] * 2 + 1, graph.in_degree], 1).astype(np.float32)
    y[::5, 0] = np.nan
    real = replace(graph, y=y, task="real", num_classes=None)
    run = tg.train(real, net(real, "sage"), epochs=60, lr=0.05, **QUIET)
    assert run.metrics["train"]["mse"] < 0.2 * run.history[0]["train"]["mse"]
    assert run.history[0]["train"]["loss"] == pytest.approx(run.history[0]["train"]["mse"])
    with pytest.raises(ConfigError, match="real task has no labels"):
        run.predict(kind="labels")


def test_two_classes_have_an_area_under_the_curve():
    two = community(100)
    two = replace(two, y=(two.y > 1).astype(np.int64), num_classes=2)
    run = tg.train(two, net(two), epochs=20, metric="roc_auc", **QUIET)
    assert 0.5 < run.metrics["val"]["roc_auc"] <= 1


def test_a_criterion_of_the_users(graph):
    def mine(out, y):
        return F.nll_loss(out.log_softmax(-1), y) + 1

    own = tg.train(graph, net(graph), epochs=2, criterion=mine, **QUIET)
    default = tg.train(graph, net(graph), epochs=2, **QUIET)
    np.testing.assert_allclose(own.losses, np.array(default.losses) + 1, rtol=1e-6)


def test_a_training_split_of_classes_without_weight_is_refused(graph):
    """It would make the first loss nan, which is blamed on the learning rate."""
    lone = replace(graph, splits=graph.splits | {"train": np.flatnonzero(graph.y == 2)[:9]})
    with pytest.raises(ConfigError, match="0 for every class of the training split: 2\n") as error:
        tg.train(lone, net(lone), epochs=1, class_weight=[1, 1, 0, 1, 1], **QUIET)
    assert "--class-weight" in str(error.value)


def test_a_split_of_classes_without_weight_has_no_loss(graph, caplog):
    """Which is said, is no nan in what is written, and leaves the other metrics as they are."""
    lone = replace(graph, splits=graph.splits | {"val": np.flatnonzero(graph.y == 2)})
    options = {"epochs": 3, "class_weight": [1, 1, 0, 1, 1], "metric": "loss", **QUIET}
    run = tg.train(lone, net(lone), patience=1, **options)
    assert "every class of split val (2): its loss is n/a" in caplog.text
    assert run.metrics["val"]["loss"] is None
    assert run.metrics["val"]["accuracy"] is not None
    assert all(record["val"]["loss"] is None for record in run.history)
    assert run.best_epoch == 3  # while it is undefined, the newest weights are kept
    assert run.metrics["test"]["loss"] > 0
    json.dumps(run.as_dict(), allow_nan=False)


@pytest.mark.parametrize("weight", ["balanced", [1.0, 5.0, 1.0, 1.0, 1.0], None])
def test_a_split_has_one_loss_asked_for_alone_or_with_the_others(graph, weight):
    """Balanced weights count the training split, whichever split is evaluated."""
    run = tg.train(graph, net(graph), epochs=2, class_weight=weight, **QUIET)
    for split in ("val", "test"):
        assert run.evaluate(split)[split] == run.evaluate()[split] == run.metrics[split]


def test_balanced_weights_of_a_graph_without_a_training_split(graph, tmp_path):
    """It is evaluated all the same: what is asked for is counted instead."""
    tg.train(graph, "gcn", epochs=2, class_weight="balanced", out=tmp_path / "r", **QUIET)
    lone = replace(graph, splits={"test": graph.splits["test"]})
    found = tg.evaluate(tmp_path / "r", graph=lone, split="test")["test"]
    assert found["loss"] > 0
    assert found["accuracy"] == tg.evaluate(tmp_path / "r", graph=graph)["test"]["accuracy"]
