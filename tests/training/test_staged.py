"""Training by a staged plan: the losses, metrics and predictions of the resident run."""

from __future__ import annotations

import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.nn import models

import tiergnn as tg
from tests.planner.strategies.cases import machine
from tests.training.models import community, net
from tiergnn.errors import ConfigError
from tiergnn.graph.shape import layout_of
from tiergnn.runtime.visits import Visits
from tiergnn.training.scoring import Scoring

QUIET = {"progress": False, "device": "cpu"}


def planned(graph, model, strategy="grinnder", frac=0.75, **options):
    """A staged plan under a share of what the resident one holds on the device."""
    there = machine(1)
    whole = tg.plan(graph, model, machine=there, device="cpu", strategies=["resident"], **options)
    return tg.plan(
        graph, model, machine=there, device="cpu", strategies=[strategy],
        device_memory=int(frac * whole.peak_bytes["device"]), **options,
    )  # fmt: skip


@pytest.mark.parametrize("strategy", ["grinnder", "hongtu", "sliced"])
def test_a_staged_run_is_the_resident_run(strategy, tmp_path):
    graph = community(300)
    plan = planned(graph, net(graph, dropout=0.5), strategy)
    assert plan.knobs.parts > 1
    options = {"epochs": 8, **QUIET}
    run = tg.train(graph, net(graph, dropout=0.5), plan, out=tmp_path / "run", **options)
    want = tg.train(graph, net(graph, dropout=0.5), **options)
    np.testing.assert_allclose(run.losses, want.losses, rtol=1e-5)
    np.testing.assert_allclose(run.predict(), want.predict(), rtol=1e-4, atol=1e-5)
    assert run.metrics["test"]["accuracy"] == want.metrics["test"]["accuracy"]
    assert run.peak_bytes["device"] <= plan.machine.tier("device").available_bytes
    assert run.timeline is not None
    again = tg.predict(tmp_path / "run", graph=graph, model=net(graph, dropout=0.5), device="cpu")
    np.testing.assert_array_equal(again, run.predict())


@pytest.mark.parametrize("strategy", ["grinnder", "sliced"])
def test_evaluations_hold_the_output_of_judged_nodes_alone(strategy):
    """Scores are those of the resident run, of other splits than the run's as well."""
    graph = community(300)
    y = graph.y.copy()
    y[::10] = -1  # judged nowhere
    graph = replace(graph, y=y)
    plan, split = planned(graph, net(graph), strategy), {"train": np.arange(60), "val": [200, 207]}
    run, want = (
        tg.train(graph, net(graph), by, epochs=2, split=split, **QUIET) for by in (plan, None)
    )
    held = run._resident
    answers = [b for b in held.evaluation.buffers if b.lasting and not b.given]
    assert sum(b.num_bytes for b in answers) == (54 + 1) * graph.num_classes * 4
    for ours, theirs in zip(run.history, want.history, strict=True):
        for name in split:
            assert ours[name]["accuracy"] == theirs[name]["accuracy"]
            assert ours[name]["loss"] == pytest.approx(theirs[name]["loss"], rel=1e-5)
    for name in ("all", "test", None):
        scores = run.evaluate(name), want.evaluate(name)
        assert scores[0].keys() == scores[1].keys()
        for part in scores[0]:
            assert scores[0][part] == pytest.approx(scores[1][part], rel=1e-4)
    np.testing.assert_allclose(run.predict(), want.predict(), rtol=1e-4, atol=1e-5)


def test_a_staged_run_resumes_bit_for_bit(tmp_path):
    graph = community(200)
    plan = planned(graph, net(graph, dropout=0.5))
    whole = tg.train(graph, net(graph, dropout=0.5), plan, epochs=6, **QUIET)
    tg.train(graph, net(graph, dropout=0.5), plan, epochs=3, out=tmp_path / "run", **QUIET)
    run = tg.resume(
        tmp_path / "run", graph, net(graph, dropout=0.5), epochs=6, progress=False, device="cpu"
    )
    assert run.losses == whole.losses
    np.testing.assert_array_equal(run.predict(), whole.predict())


TASKS = {
    "class": (lambda draw, n: draw.integers(0, 3, n), ("cross_entropy", "nll")),
    "multilabel": (lambda draw, n: draw.integers(-1, 2, (n, 3)).astype(np.int8), ("bce",)),
    "real": (
        lambda draw, n: np.where(draw.random((n, 3)) < 0.2, np.nan, draw.random((n, 3))),
        ("mse", "mae", "huber"),
    ),
}


@pytest.mark.parametrize("weight", [None, "balanced", (0.5, 0.0, 2.0)], ids=str)
@pytest.mark.parametrize(
    ("task", "criterion"), [(t, c) for t, (_, names) in TASKS.items() for c in names]
)
def test_shares_add_up_to_the_loss(task, criterion, weight):
    """With masks, class weights, parts without labels; gradients as well."""
    if task == "real" and weight is not None:
        return
    draw = np.random.default_rng(0)
    classes = None if task == "real" else 3
    graph = replace(community(60), y=TASKS[task][0](draw, 60), task=task, num_classes=classes)
    ids = np.sort(draw.permutation(60)[:25])
    cpu = torch.device("cpu")
    scoring = Scoring(graph, {"train": ids}, cpu, criterion=criterion, class_weight=weight)
    owner = draw.integers(0, 9, 60)
    owner[ids[owner[ids] == 4]] = 5  # part 4 has no labels
    parts = [torch.from_numpy(np.flatnonzero(owner == part)) for part in range(10)]
    share = scoring.by_parts(parts, cpu)
    out = torch.randn(60, 3, dtype=torch.float64).log_softmax(1).requires_grad_()
    whole = scoring.loss(out)
    (want,) = torch.autograd.grad(whole, out)
    total = sum(share(out[gid], part) for part, gid in enumerate(parts))
    assert isinstance(total, torch.Tensor)
    torch.testing.assert_close(total, whole, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(torch.autograd.grad(total, out)[0], want, rtol=1e-12, atol=1e-14)


def test_criteria_of_ones_own():
    """A sum over rows has shares; anything else is refused with what would do."""
    graph, cpu = community(60), torch.device("cpu")
    parts = [torch.arange(20), torch.arange(20, 60)]
    ids = {"train": np.arange(0, 60, 2)}
    ours = nn.CrossEntropyLoss(reduction="sum")
    scoring = Scoring(graph, ids, cpu, criterion=ours)
    share = scoring.by_parts(parts, cpu)
    out = torch.randn(60, graph.num_classes, dtype=torch.float64)
    total = share(out[:20], 0) + share(out[20:], 1)
    torch.testing.assert_close(total, scoring.loss(out))
    for criterion in (nn.CrossEntropyLoss(), lambda out, y: out.sum()):
        with pytest.raises(ConfigError, match="one part at a time"):
            Scoring(graph, ids, cpu, criterion=criterion).by_parts(parts, cpu)


def test_labels_of_a_split_of_ones_own_make_the_loss():
    """What the plan counted of the stored split does not matter."""
    graph = community(200)
    plan = planned(graph, net(graph))
    split = {"train": np.arange(0, 100), "val": np.arange(100, 200)}
    run = tg.train(graph, net(graph), plan, epochs=3, split=split, **QUIET)
    want = tg.train(graph, net(graph), epochs=3, split=split, **QUIET)
    np.testing.assert_allclose(run.losses, want.losses, rtol=1e-5)
    counted = layout_of(tg.partition(graph, plan.knobs.parts), graph)
    assert sum(part.labelled for part in counted.parts) != 100


def test_plans_of_others_are_refused():
    graph = community(200)
    plan = planned(graph, net(graph))
    with pytest.raises(tg.PlanError, match="the plan is for 200 nodes"):
        tg.train(community(100), net(graph), plan, epochs=1, **QUIET)
    with pytest.raises(tg.PlanError, match="of another model"):
        tg.train(graph, net(graph, hidden=16), plan, epochs=1, **QUIET)
    with pytest.raises(tg.ConfigError, match="unknown strategy 'dgcl'"):
        tg.train(graph, net(graph), replace(plan, strategy="dgcl"), epochs=1, **QUIET)
    with pytest.raises(tg.ConfigError, match="uva has no knob parts"):
        tg.train(graph, net(graph), replace(plan, strategy="uva"), epochs=1, **QUIET)


def test_ctrl_c_within_an_epoch_is_resumed_bit_for_bit(tmp_path, monkeypatch):
    """The step is given up at the next action; statistics of BatchNorm stay as they were."""
    graph = community(200)

    def model():
        torch.manual_seed(0)
        return models.GCN(graph.x.width, 8, 2, graph.num_classes, 0.5, norm="BatchNorm")

    plan = planned(graph, model())
    whole = tg.train(graph, model(), plan, epochs=5, **QUIET)
    visits = []
    backward = Visits.backward

    def interrupting(self, action):
        visits.append(action.index)
        if len(visits) == 2 * plan.knobs.parts + 1:  # within the first epoch's backward
            signal.raise_signal(signal.SIGINT)
        backward(self, action)

    monkeypatch.setattr(Visits, "backward", interrupting)
    with pytest.raises(tg.Interrupted):
        tg.train(graph, model(), plan, epochs=5, out=tmp_path / "run", **QUIET)
    assert len(visits) == 2 * plan.knobs.parts + 1
    monkeypatch.undo()
    run = tg.resume(tmp_path / "run", graph, model(), progress=False, device="cpu")
    assert run.losses == whole.losses
    np.testing.assert_array_equal(run.predict(), whole.predict())


@pytest.mark.parametrize("strategy", ["resident", "grinnder"])
def test_plans_of_models_that_read_edge_weights(strategy):
    """What a planned stage reads of edges is what the model's stage reads of them."""
    graph = community(200)
    draw = np.random.default_rng(0)
    graph = replace(graph, edge_weight=draw.random(graph.num_edges, np.float32) + 0.5)
    model = {"name": "gcn", "hidden_channels": 8, "norm": "batch"}
    frac = 1.0 if strategy == "resident" else 0.75
    plan = planned(graph, model, strategy, frac)
    run = tg.train(graph, model, plan, epochs=3, **QUIET)
    want = tg.train(graph, model, epochs=3, **QUIET)
    np.testing.assert_allclose(run.losses, want.losses, rtol=1e-5)
