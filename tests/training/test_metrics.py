"""Metrics against scikit-learn, to the last bits, with ties, absent classes and missing labels."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from tiergnn.errors import ConfigError
from tiergnn.training.metrics import (
    MORE,
    OURS,
    check_metric,
    compute,
    compute_more,
    metric_mode,
    roc_auc,
)

SEEDS = st.integers(0, 2**32 - 1)


def draw(seed, rows, columns, levels):
    """Scores on few levels, so that ties are common."""
    rng = np.random.default_rng(seed)
    return rng, torch.from_numpy(rng.integers(-levels, levels + 1, (rows, columns)) / 2.0)


@given(SEEDS, st.integers(1, 40), st.integers(2, 6), st.sampled_from([1, 3, 1000]))
@settings(max_examples=60, deadline=None)
def test_class(seed, rows, classes, levels):
    rng, out = draw(seed, rows, classes, levels)
    y = rng.integers(0, rng.integers(1, classes + 1), rows)  # some classes may be absent
    got = compute("class", out, torch.from_numpy(y), classes)
    predicted = out.argmax(dim=1).numpy()
    assert got["accuracy"] == got["f1_micro"] == pytest.approx(sk.accuracy_score(y, predicted))
    want = sk.f1_score(y, predicted, average="macro", zero_division=np.nan)
    assert got["f1_macro"] == pytest.approx(want, abs=1e-14)
    assert ("roc_auc" in got) == (classes == 2)
    if classes == 2 and 0 < y.sum() < rows:
        want = sk.roc_auc_score(y, (out[:, 1] - out[:, 0]).numpy())
        assert got["roc_auc"] == pytest.approx(want, abs=1e-14)
    elif classes == 2:
        assert got["roc_auc"] is None


@given(SEEDS, st.integers(1, 40), st.integers(1, 5), st.sampled_from([1, 3, 1000]))
@settings(max_examples=60, deadline=None)
def test_multilabel(seed, rows, labels, levels):
    rng, out = draw(seed, rows, labels, levels)
    y = rng.integers(-1, 2, (rows, labels)).astype(np.int8)
    got = compute("multilabel", out, torch.from_numpy(y), labels)
    known, given_ = y >= 0, out.numpy() > 0
    if known.any():
        assert got["accuracy"] == pytest.approx(np.mean((given_ == y)[known]))
        micro = sk.f1_score(y[known], given_[known], zero_division=np.nan)
        assert got["f1_micro"] == pytest.approx(micro) or math.isnan(micro)
    columns = [(y[k, c], out.numpy()[k, c]) for c in range(labels) for k in [known[:, c]]]
    f1 = [sk.f1_score(a, b > 0, zero_division=np.nan) for a, b in columns if a.size]
    defined = [value for value in f1 if not math.isnan(value)]
    assert (got["f1_macro"] is None) == (not defined)
    if defined:
        assert got["f1_macro"] == pytest.approx(np.mean(defined), abs=1e-14)
    areas = [sk.roc_auc_score(a, b) for a, b in columns if len(set(a.tolist())) == 2]
    assert (got["roc_auc"] is None) == (not areas)
    if areas:
        assert got["roc_auc"] == pytest.approx(np.mean(areas), abs=1e-14)


@given(SEEDS, st.integers(2, 40), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_real(seed, rows, targets):
    rng, out = draw(seed, rows, targets, 1000)
    y = rng.normal(size=(rows, targets))
    full = compute("real", out, torch.from_numpy(y), None)
    assert full["mse"] == pytest.approx(sk.mean_squared_error(y, out.numpy()), rel=1e-12)
    assert full["mae"] == pytest.approx(sk.mean_absolute_error(y, out.numpy()), rel=1e-12)
    assert full["r2"] == pytest.approx(sk.r2_score(y, out.numpy()), rel=1e-9)
    hole = rng.random(y.shape) < 0.3
    got = compute("real", out, torch.from_numpy(np.where(hole, np.nan, y)), None)
    if not hole.all():
        error = (out.numpy() - y)[~hole]
        assert got["mse"] == pytest.approx(np.mean(error**2), rel=1e-12)
        assert got["mae"] == pytest.approx(np.mean(np.abs(error)), rel=1e-12)


def test_ranks_of_large_logits_are_not_tied():
    """float32 sigmoids of 20 and 30 are both 1: ranking logits must not go through them."""
    score = torch.tensor([20.0, 30.0, 40.0, -200.0])
    assert roc_auc(score, torch.tensor([False, True, True, False])) == 1.0
    assert roc_auc(score, torch.tensor([True, False, True, False])) == 0.75


@pytest.mark.parametrize("task", OURS)
def test_no_rows_is_not_applicable(task):
    y = torch.zeros((0,) if task == "class" else (0, 2), dtype=torch.int64)
    y = y.double() if task == "real" else y
    got = compute(task, torch.zeros(0, 2), y, 2)
    assert tuple(got) != ()
    assert all(value is None for value in got.values())
    assert set(got) == set(OURS[task])
    assert all(compute_more(name, task, torch.zeros(0, 2), y) is None for name in MORE[task])


def test_a_constant_target_has_no_r2():
    got = compute("real", torch.ones(3, 1), torch.full((3, 1), 2.0), None)
    assert got == {"mse": 1.0, "mae": 1.0, "r2": None}


def test_more_metrics_are_scikit_learns():
    rng = np.random.default_rng(0)
    out, y = torch.from_numpy(rng.normal(size=(50, 3))), rng.integers(0, 3, 50)
    got = compute_more("matthews_corrcoef", "class", out, torch.from_numpy(y))
    assert got == pytest.approx(sk.matthews_corrcoef(y, out.argmax(1).numpy()), abs=1e-6)
    many = rng.integers(0, 2, (50, 3))
    got = compute_more("average_precision", "multilabel", out, torch.from_numpy(many))
    assert got == pytest.approx(sk.average_precision_score(many, out.numpy()), abs=1e-6)
    for task, names in MORE.items():
        rows = {"class": torch.from_numpy(y), "multilabel": torch.from_numpy(many)}
        for name in names:
            value = compute_more(name, task, out, rows.get(task, torch.from_numpy(many * 1.5)))
            assert value is not None
            assert -1 <= value <= 1
    with pytest.raises(ConfigError, match="every entry"):
        compute_more("average_precision", "multilabel", out, torch.full((50, 3), -1))


def test_unknown_metrics_are_answered_with_the_known():
    with pytest.raises(ConfigError, match=r"accuracy.*matthews_corrcoef"):
        check_metric("class", "acuracy", 3)
    check_metric("class", "loss", 3)
    check_metric("class", "roc_auc", 2)
    with pytest.raises(ConfigError, match="unknown metric of a class task 'roc_auc'"):
        check_metric("class", "roc_auc", 3)
    assert metric_mode("mse") == metric_mode("loss") == "min"
    assert metric_mode("accuracy") == "max"


def test_nothing_warns_on_odd_input():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compute("class", torch.zeros(2, 2), torch.tensor([0, 0]), 2)
        compute("multilabel", torch.zeros(2, 1), torch.full((2, 1), -1), 1)
