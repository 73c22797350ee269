"""Losses of the three tasks against torch's own, with what is unknown left out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional as F

from tiergnn.errors import ConfigError
from tiergnn.graph.csr import from_edges
from tiergnn.training.criteria import class_weights, make_criterion
from tiergnn.training.scoring import NO_CRITERION, Scoring

CPU = torch.device("cpu")


def rand(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


def with_grad(loss, out):
    out = out.clone().requires_grad_()
    value = loss(out)
    value.backward()
    return value.detach(), out.grad


def same(ours, theirs, out):
    for a, b in zip(with_grad(ours, out), with_grad(theirs, out), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-14, atol=1e-15)


def test_class():
    out, y = rand(9, 4), torch.arange(9) % 3
    same(
        lambda o: make_criterion("class", None, None, y, 4)(o, y),
        lambda o: F.cross_entropy(o, y),
        out,
    )
    weight = [1.0, 2.0, 0.5, 4.0]
    ours = make_criterion("class", "cross_entropy", weight, y, 4)
    want = torch.tensor(weight, dtype=torch.float64)
    same(lambda o: ours(o, y), lambda o: F.cross_entropy(o, y, weight=want), out)


def test_log_softmax_outputs_need_no_change():
    out, y = rand(9, 4), torch.arange(9) % 3
    cross, nll = (make_criterion("class", name, None, y, 4) for name in ("cross_entropy", "nll"))
    same(lambda o: cross(o.log_softmax(1), y), lambda o: nll(o.log_softmax(1), y), out)


def test_balanced_weights():
    y = torch.tensor([0, 0, 0, 2, 2, 3])
    want = compute_class_weight("balanced", classes=np.array([0, 2, 3]), y=y.numpy())
    got = class_weights("class", "balanced", y, 5)
    assert got.tolist() == pytest.approx([want[0], 1.0, want[1], want[2], 1.0])
    many = torch.tensor([[1, 0], [0, 0], [0, -1], [-1, 0]], dtype=torch.int8)
    assert class_weights("multilabel", "balanced", many, 2).tolist() == [2.0, 1.0]


def test_multilabel_leaves_unknown_entries_out():
    out = rand(6, 3)
    y = torch.tensor([[0, 1, -1], [1, 1, 1], [-1, -1, 0], [0, 0, 0], [1, -1, 1], [0, 1, 0]])
    known = y >= 0
    ours = make_criterion("multilabel", None, None, y, 3)
    same(
        lambda o: ours(o, y.to(o.dtype)),
        lambda o: F.binary_cross_entropy_with_logits(o[known], y[known].to(o.dtype)),
        out,
    )
    weighted = make_criterion("multilabel", "bce", [1.0, 3.0, 1.0], y, 3)
    full = torch.ones(6, 3, dtype=torch.float64)
    pos = torch.tensor([1.0, 3.0, 1.0], dtype=torch.float64)
    same(
        lambda o: weighted(o, full),
        lambda o: F.binary_cross_entropy_with_logits(o, full, pos_weight=pos),
        out,
    )


@pytest.mark.parametrize(
    ("name", "theirs"),
    [(None, F.mse_loss), ("mse", F.mse_loss), ("mae", F.l1_loss), ("huber", F.huber_loss)],
)
def test_real_leaves_nan_out(name, theirs):
    out, y = rand(7, 2), rand(7, 2) * 3
    y[::3, 1] = math.nan
    known = ~y.isnan()
    ours = make_criterion("real", name, None, y, None)
    same(lambda o: ours(o, y), lambda o: theirs(o[known], y[known]), out)


def test_mistakes_are_told():
    y = torch.tensor([0, 1])
    with pytest.raises(ConfigError, match="cross_entropy, nll"):
        make_criterion("class", "mse", None, y, 2)
    with pytest.raises(ConfigError, match="needs 2 numbers"):
        make_criterion("class", None, [1.0, 2.0, 3.0], y, 2)
    with pytest.raises(ConfigError, match="balanced"):
        make_criterion("class", None, "fair", y, 2)
    with pytest.raises(ConfigError, match="the task is real"):
        make_criterion("real", None, "balanced", y, None)


def graph(y, **options):
    ids = np.arange(len(y))
    return from_edges(ids, ids, len(y), y=np.array(y), **options)


def scoring(y, splits=None, **options):
    kinds = {key: options.pop(key) for key in ("task", "num_classes") if key in options}
    ids = {
        name: np.array(v, dtype=np.int64)
        for name, v in (splits or {"train": range(len(y))}).items()
    }
    return Scoring(graph(y, **kinds), ids, CPU, **options)


def test_unlabelled_nodes_of_a_split_are_left_out():
    out = rand(5, 3)
    got = scoring([0, -1, 2, 1, -1]).loss(out)
    rows = torch.tensor([0, 2, 3])
    assert torch.equal(got, F.cross_entropy(out[rows], torch.tensor([0, 2, 1])))


def test_the_callers_criterion_gets_labelled_rows():
    seen = {}

    def mine(out, y):
        seen.update(out=out, y=y)
        return out.sum()

    scoring([0, -1, 1], criterion=mine).loss(rand(3, 2))
    assert seen["out"].shape == (2, 2)
    assert seen["y"].tolist() == [0, 1]
    scoring([0.5, math.nan, 1.5], criterion=mine).loss(rand(3))
    assert seen["y"].tolist() == [0.5, 1.5]
    scoring([[1, 0], [-1, 1]], criterion=mine).loss(rand(2, 2).float())
    assert seen["y"].dtype == torch.float32
    with pytest.raises(ConfigError, match=r"one number, gave a tensor \[3, 2\]"):
        scoring([0, 1, 1], criterion=lambda out, y: out).loss(rand(3, 2))


def test_one_logit_of_two_classes():
    out, y = rand(6, 1), [0, 1, 1, 0, 1, 0]
    want = F.binary_cross_entropy_with_logits(out[:, 0], torch.tensor(y).double())
    for shape in ((6, 1), (6,)):
        judge = scoring(y)
        torch.testing.assert_close(judge.loss(out.reshape(shape)), want)
        judge.check_output(out.reshape(shape), 6)
        accuracy = judge.scores(out.reshape(shape))["train"]["accuracy"]
        assert accuracy == float(((out[:, 0] > 0) == torch.tensor(y).bool()).double().mean())


@pytest.mark.parametrize(
    ("y", "options", "good", "bad"),
    [
        ([0, 1, 2], {}, [(3, 3), (3, 4)], [(3, 2), (4, 3), (3,), (3, 3, 1)]),
        ([[0, 1], [1, 1]], {}, [(2, 2)], [(2, 1), (2, 3), (2,)]),
        ([0.5, 1.5], {}, [(2, 1), (2,)], [(2, 2), (3, 1)]),
    ],
)
def test_outputs_of_the_wrong_shape_are_refused(y, options, good, bad):
    judge = scoring(y, **options)
    for shape in good:
        judge.check_output(torch.zeros(shape), len(y))
    for shape in bad:
        with pytest.raises(ConfigError, match="out_channels="):
            judge.check_output(torch.zeros(shape), len(y))


def test_empty_and_unlabelled_splits_are_not_applicable():
    judge = scoring([0, 1, -1], {"train": [0, 1], "val": [], "test": [2]})
    got = judge.scores(rand(3, 2))
    assert got["train"]["loss"] is not None
    for split in ("val", "test"):
        assert not judge.judged(split)
        assert set(got[split].values()) == {None}


def test_a_metric_of_the_callers():
    def share(out, y):
        return float((out.argmax(1) == y).double().mean())

    judge = scoring([0, 1, -1], {"train": [0, 1], "val": [2]}, metric=share, mode="max")
    got = judge.scores(rand(3, 2))
    assert got["train"]["share"] == got["train"]["accuracy"]
    assert got["val"]["share"] is None
    assert (judge.metric_name, judge.mode) == ("share", "max")


def test_one_of_the_more_metrics_only_when_asked():
    assert "cohen_kappa" not in scoring([0, 1]).scores(rand(2, 2))["train"]
    got = scoring([0, 1], metric="cohen_kappa").scores(torch.eye(2))["train"]
    assert got["cohen_kappa"] == 1.0


def test_no_criterion_leaves_the_loss_undefined():
    got = scoring([0, 1], criterion=NO_CRITERION).scores(rand(2, 2))["train"]
    assert got["loss"] is None
    assert got["accuracy"] is not None


def test_half_precision_outputs_are_judged_in_float32():
    out = rand(4, 2).bfloat16()
    got = scoring([0, 1, 1, 0]).loss(out)
    assert got.dtype == torch.float32
    assert torch.equal(got, F.cross_entropy(out.float(), torch.tensor([0, 1, 1, 0])))
