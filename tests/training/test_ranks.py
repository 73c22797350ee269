"""Training over ranks: what one device would have got, whatever their number."""

from __future__ import annotations

import json
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import psutil
import pytest
import torch
from torch import nn
from torch_geometric.nn import models

import tiergnn as tg
from tests.planner.strategies.cases import machine
from tests.training.models import community, net
from tests.training.stopping import StopAt, timeless
from tiergnn.errors import ConfigError, Interrupted, RankError, StoreError
from tiergnn.training.folder import RunFolder

QUIET = {"progress": False, "device": "cpu"}
EXACT = {"dtype": "float64", **QUIET}


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """This host as a machine that need not be measured."""
    monkeypatch.setattr("tiergnn.hardware.measure.measure", lambda *a, **k: machine(1))


def normed(graph):
    torch.manual_seed(0)
    return models.GCN(graph.x.width, 8, 2, graph.num_classes, 0.5, norm="BatchNorm")


def dropping(graph):
    return net(graph, dropout=0.5)


def planned(graph, model, ranks, **options):
    there = machine(ranks)
    kept = {name: options[name] for name in ("dtype", "split", "optimizer") if name in options}
    return tg.plan(
        graph, model, machine=there, ranks=ranks, strategies=["halo"], device="cpu", **kept
    )


def trained(graph, make, ranks, *, out=None, transport="virtual", **options):
    plan = planned(graph, make(graph), ranks, **options)
    return tg.train(graph, make(graph), plan, out=out, transport=transport, **options)


def close(got, want, tol=1e-10):
    np.testing.assert_allclose(got.losses, want.losses, rtol=tol)
    np.testing.assert_allclose(got.predict(), want.predict(), rtol=10 * tol, atol=tol)


def test_losses_metrics_and_files_are_those_of_one(tmp_path):
    """With dropout, BatchNorm, class weights, clipping, a schedule; and evaluated afterwards."""
    graph = community(150)
    options = EXACT | {
        "epochs": 6, "class_weight": "balanced", "clip": 0.05, "scheduler": "cosine", "patience": 5,
    }  # fmt: skip
    want = tg.train(graph, normed(graph), **options)
    run = trained(graph, normed, 3, out=tmp_path / "run", **options)
    close(run, want)
    assert run.metrics["test"].keys() == want.metrics["test"].keys()
    assert run.metrics["test"]["accuracy"] == want.metrics["test"]["accuracy"]
    assert (run.best_epoch, run.finished) == (want.best_epoch, want.finished)
    assert run.transport.startswith("virtual, 3 ranks")
    assert run.peak_bytes["device"] > 0
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"run.json", "log.jsonl", "plan.json", "partition", "result.json"} <= names
    lines = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    assert timeless(map(json.loads, lines)) == timeless(run.history)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["losses"], result["ranks"]) == (run.losses, 3)
    assert {span.rank for span in run.timeline.spans} == {0, 1, 2}
    given = {"graph": graph, "model": normed(graph), "device": "cpu"}
    assert tg.evaluate(tmp_path / "run", **given) == run.metrics
    alone = tg.predict(tmp_path / "run", ranks=1, **given)
    np.testing.assert_allclose(alone, run.predict(), rtol=1e-9, atol=1e-11)


TASKS = {
    "real": lambda draw, n: np.where(draw.random((n, 2)) < 0.2, np.nan, draw.random((n, 2))),
    "multilabel": lambda draw, n: draw.integers(-1, 2, (n, 3)).astype(np.int8),
}


@pytest.mark.parametrize("task", TASKS)
def test_rows_without_labels_and_ranks_without_any(task):
    """All labels are of nodes of one rank, some of them unknown."""
    draw = np.random.default_rng(0)
    graph = replace(
        community(60), y=TASKS[task](draw, 60), task=task,
        num_classes=None if task == "real" else 3,
    )  # fmt: skip
    split = {"train": np.arange(0, 18), "val": np.arange(18, 20), "test": np.arange(40, 60)}
    options = EXACT | {"epochs": 3, "split": split}
    want = tg.train(graph, net(graph), **options)
    plan = planned(graph, net(graph), 3, **options)
    run = tg.train(graph, net(graph), plan, partition="block", transport="virtual", **options)
    close(run, want)
    for name, scores in run.history[-1].items():
        if name in split:
            for metric, value in want.history[-1][name].items():
                assert scores[metric] == (None if value is None else pytest.approx(value, rel=1e-9))


def test_resumed_on_other_numbers_of_ranks(tmp_path):
    """Three, two, one, two: each goes on where the last has stopped (case A21).

    Without BatchNorm: the gradient of a bias before it is nothing but rounding, which Adam scales.
    """
    graph = community(120)
    options = EXACT | {"optimizer": "adam", "lr": 0.05}
    whole = tg.train(graph, dropping(graph), epochs=8, **options)
    run = trained(graph, dropping, 3, out=tmp_path / "run", epochs=2, **options)
    for ranks, epochs in ((2, 4), (1, 6), (2, 8)):
        run = tg.resume(
            tmp_path / "run", graph, dropping(graph), ranks=ranks, epochs=epochs, **QUIET
        )
        assert len(run.history) == epochs
        _, record = RunFolder.open(tmp_path / "run")
        assert (record["plan"] is None) == (ranks == 1)
    close(run, whole)
    assert run.metrics["val"]["accuracy"] == whole.metrics["val"]["accuracy"]
    again = tg.predict(tmp_path / "run", graph=graph, model=dropping(graph), device="cpu")
    np.testing.assert_array_equal(again, run.predict())


class Crashing(torch.optim.Adam):
    """Each rank's dies at its step ``at``."""

    at = 0

    def step(self, closure=None):
        steps = {int(state["step"]) for state in self.state.values()}
        if steps == {self.at - 1}:
            raise RuntimeError("crash")
        return super().step(closure)


def test_a_crash_is_resumed_bit_for_bit_on_as_many(tmp_path, monkeypatch):
    """The parts are those of the run folder."""
    graph = community(120)
    options = EXACT | {"epochs": 6, "checkpoint_every": 2, "eval_every": 2, "optimizer": Crashing}
    plan = planned(graph, normed(graph), 2, **options)
    owners = np.random.default_rng(3).integers(0, 2, 120).astype(np.int32)
    parts = replace(tg.partition(graph, 2), part_of=owners, method="given")
    given = {"plan": plan, "partition": parts, "transport": "virtual"}
    whole = tg.train(graph, normed(graph), out=tmp_path / "a", **given, **options)
    monkeypatch.setattr(Crashing, "at", 6)
    with pytest.raises(RankError, match="crash"):
        tg.train(graph, normed(graph), out=tmp_path / "b", **given, **options)
    monkeypatch.setattr(Crashing, "at", 0)
    run = tg.resume(tmp_path / "b", graph, normed(graph), optimizer=Crashing, **QUIET)
    assert len(whole.history) == 6
    assert timeless(run.history) == timeless(whole.history)
    np.testing.assert_array_equal(run.predict(), whole.predict())


@pytest.mark.parametrize("transport", ["virtual", "shared"])
def test_no_rank_outlives_a_callback_that_raises(tmp_path, transport):
    """What they went on to write would spoil what is resumed."""
    graph = community(120)
    options = EXACT | {"epochs": 2000, "eval_every": 50, "progress": StopAt(1)}
    with pytest.raises(RuntimeError, match="crash"):
        trained(graph, normed, 2, out=tmp_path / "run", transport=transport, **options)
    assert not [t for t in threading.enumerate() if t.name.startswith("tiergnn-rank")]
    lines = (tmp_path / "run" / "log.jsonl").read_text()
    assert 0 < lines.count("\n") < 2000
    time.sleep(0.2)
    assert (tmp_path / "run" / "log.jsonl").read_text() == lines


def test_errors_are_those_of_one_device(tmp_path):
    graph = community(90)
    plan = planned(graph, net(graph), 2)
    given = {"plan": plan, "transport": "virtual", "epochs": 2, **QUIET}
    x = np.array(graph.x.data)
    x[70, 1] = np.inf
    broken = replace(graph, x=replace(graph.x, data=x))
    with pytest.raises(ConfigError, match=r"became nan in epoch 1: x\[70, 1\], of node 70, is inf"):
        tg.train(broken, net(graph), out=tmp_path / "run", **given)
    with pytest.raises(ConfigError, match="one part at a time"):
        tg.train(graph, net(graph), criterion=nn.CrossEntropyLoss(), **given)
    with pytest.raises(ConfigError, match="cannot be sent there"):
        tg.train(graph, net(graph), criterion=lambda out, y: out.sum(), **given)
    with pytest.raises(ConfigError, match="3 parts, 2 ranks"):
        tg.train(graph, net(graph), partition=tg.partition(graph, 3), **given)
    with pytest.raises(ConfigError, match="a partition is for several ranks"):
        tg.train(graph, net(graph), partition="block", epochs=1, **QUIET)
    with pytest.raises(tg.PlanError, match="of another model"):
        tg.train(graph, net(graph, hidden=5), **given)
    with pytest.raises(tg.PlanError, match="the plan is for 90 nodes"):
        tg.train(community(50), net(graph), **given)
    with pytest.raises(ConfigError, match="transport nccl: the ranks are on CPUs"):
        tg.train(graph, net(graph), **given | {"transport": "nccl"})
    (tmp_path / "file").write_text("")
    with pytest.raises((ConfigError, StoreError)):
        tg.train(graph, net(graph), out=tmp_path / "file", **given)


def test_a_graph_that_was_changed_in_memory_is_what_ranks_see(tmp_path):
    """Its folder holds other features."""
    graph = tg.Graph.open(community(80).save(tmp_path / "g").path)
    x = np.array(graph.x.data)[:, ::-1].copy()
    changed = replace(graph, x=replace(graph.x, data=x))
    want = tg.train(changed, net(graph), epochs=2, **EXACT)
    run = trained(changed, net, 2, epochs=2, **EXACT)
    close(run, want)
    same = tg.train(graph, net(graph), epochs=2, **EXACT)
    assert same.losses[1] != pytest.approx(want.losses[1], rel=1e-6)


@pytest.mark.parametrize(("strategy", "transport"), [("uva", "virtual"), ("leo", "shared")])
def test_rows_read_in_place(strategy, transport):
    graph = community(120)
    options = EXACT | {"epochs": 3}
    plan = tg.plan(
        graph, dropping(graph), machine=machine(2), ranks=2, strategies=[strategy], device="cpu",
        dtype="float64",
    )  # fmt: skip
    run = tg.train(graph, dropping(graph), plan, transport=transport, **options)
    close(run, tg.train(graph, dropping(graph), **options))


@pytest.mark.parametrize("strategy", ["halo", "leo"])
def test_ctrl_c_stops_all_ranks_with_a_checkpoint(tmp_path, strategy):
    """Processes that wait for each other are stopped once, at the end of the same step."""
    graph = community(90)
    plan = tg.plan(
        graph, normed(graph), machine=machine(2), ranks=2, strategies=[strategy], device="cpu",
        dtype="float64",
    )  # fmt: skip
    options = EXACT | {"epochs": 5000, "checkpoint_every": 1000}
    options |= {"progress": StopAt(3, signal.SIGINT)}
    children = psutil.Process().children
    before = {child.pid for child in children(recursive=True)}
    with pytest.raises(Interrupted) as stopped:
        tg.train(graph, normed(graph), plan, out=tmp_path / "r", transport="shared", **options)
    assert stopped.value.signum == signal.SIGINT
    done = stopped.value.epoch
    assert 3 <= done < 5000
    left = [child for child in children(recursive=True) if child.pid not in before]
    assert not [child for child in left if "rank" in child.name()]
    run = tg.resume(tmp_path / "r", graph, normed(graph), epochs=done + 2, **QUIET)
    whole = EXACT | {"epochs": done + 2}
    want = tg.train(graph, normed(graph), plan, transport="virtual", **whole)
    assert run.losses == want.losses
