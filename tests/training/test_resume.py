"""A resumed run is the unbroken one, bit for bit, whatever broke it (case A21)."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tiergnn as tg
from tests.training.models import community, net, same_bits, weights
from tests.training.stopping import StopAt, crash, timeless
from tiergnn import files
from tiergnn.errors import ConfigError, Interrupted, StoreError

QUIET = {"progress": False}


@pytest.fixture(scope="module")
def small():
    return community(150)


ROOT = Path(__file__).parents[2]
GAT = {"name": "gat", "hidden_channels": 8, "heads": 2, "dropout": 0.5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A21's graph: 2,000 nodes, in a graph folder."""
    path = tmp_path_factory.mktemp("graph") / "g"
    community(2_000).save(path)
    return path


def lines(run_dir):
    return [json.loads(line) for line in (Path(run_dir) / "log.jsonl").read_text().splitlines()]


def test_a21_ten_epochs_straight_or_killed_in_the_middle_of_a_write(folder, tmp_path):
    """kill -9 inside the second write of the sixth checkpoint, then resume in a new process."""
    options = {"epochs": 10, "scheduler": "cosine", "checkpoint_every": 1, "seed": 3}
    call = f"tg.train({str(folder)!r}, {GAT!r}, progress=False, **{options!r}, out="
    unbroken = python(f"import tiergnn as tg; {call}{str(tmp_path / 'a')!r})")
    assert unbroken.returncode == 0, unbroken.stderr
    straight = tg.resume(tmp_path / "a", **QUIET)
    script = f"""
        import os, signal
        import tiergnn as tg
        from tiergnn import files

        real, calls = os.replace, []

        def fatal(source, target):
            calls.append(target)
            if "epoch-6.json" in str(target):
                os.kill(os.getpid(), signal.SIGKILL)
            real(source, target)

        files.os.replace = fatal
        out = {str(tmp_path / "b")!r}
        tg.train({str(folder)!r}, {GAT!r}, out=out, progress=False, **{options!r})
    """
    died = python(script)
    assert died.returncode == -signal.SIGKILL, died.stderr
    names = [path.name for path in (tmp_path / "b" / "checkpoints").iterdir()]
    assert any(name.startswith(".epoch-6.json.partial") for name in names)
    assert len(lines(tmp_path / "b")) == 6  # the log was ahead of the checkpoint
    shutil.copytree(tmp_path / "b", tmp_path / "here")
    here = tg.resume(tmp_path / "here", **QUIET)  # in a process that ran other tests before
    assert same_bits(weights(straight.model), weights(here.model))
    went_on = python(f"import tiergnn as tg; tg.resume({str(tmp_path / 'b')!r}, progress=False)")
    assert went_on.returncode == 0, went_on.stderr
    resumed = tg.resume(tmp_path / "b", **QUIET)
    assert same_bits(weights(straight.model), weights(resumed.model))
    assert resumed.losses == straight.losses
    assert timeless(resumed.history) == timeless(straight.history)
    assert timeless(lines(tmp_path / "b")) == timeless(lines(tmp_path / "a"))
    assert [record["epoch"] for record in lines(tmp_path / "b")] == list(range(1, 11))
    assert np.array_equal(tg.predict(tmp_path / "b"), straight.predict())
    assert tg.evaluate(tmp_path / "b") == straight.metrics
    result = json.loads((tmp_path / "b" / "result.json").read_text())
    assert (result["losses"], result["metrics"]) == (straight.losses, straight.metrics)


def python(script, **options):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True, text=True, timeout=300, cwd=ROOT, check=False, **options,
    )  # fmt: skip


OPTIONS = {
    "plateau": {"scheduler": "plateau", "optimizer": "sgd", "lr": 0.5},
    "onecycle": {"scheduler": "onecycle"},
    "patience": {"patience": 3, "epochs": 40},
    "lbfgs": {"optimizer": "lbfgs", "lr": 0.5, "epochs": 3, "checkpoint_every": 1},
    "learned rows": {"features": "embedding:6"},
    "seldom": {"eval_every": 4, "clip": 0.5, "class_weight": "balanced"},
    "float64": {"dtype": "float64"},
    "bfloat16": {"dtype": "bfloat16"},
    "given splits": {"split": {"train": np.arange(0, 150, 3), "val": np.arange(1, 150, 3)}},
    "made splits": {"split": "random:0.3/0.3/0.4"},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_kind_of_state_goes_on(small, tmp_path, name):
    spec = {"name": "sage", "hidden_channels": 8, "dropout": 0.4}
    options = {"epochs": 9, "checkpoint_every": 3, "seed": 7} | OPTIONS[name]
    straight = tg.train(small, spec, out=tmp_path / "a", **options, **QUIET)
    stop = min(7, len(straight.history) - 1)
    crash(stop, graph=small, model=spec, out=tmp_path / "b", **options)
    resumed = tg.resume(tmp_path / "b", graph=small, **QUIET)
    assert timeless(resumed.history) == timeless(straight.history)
    assert (resumed.best_epoch, resumed.finished) == (straight.best_epoch, straight.finished)
    assert same_bits(weights(straight.model), weights(resumed.model))
    assert np.array_equal(resumed.predict(), straight.predict())
    assert np.array_equal(tg.predict(tmp_path / "b", graph=small), straight.predict())


class Noisy(nn.Module):
    """Batch statistics, and random numbers of torch's own, which a resume must take up as well."""

    def __init__(self, width, classes):
        super().__init__()
        self.first = tg.nn.SAGEConv(width, 8)
        self.norm = nn.BatchNorm1d(8)
        self.last = tg.nn.GCNConv(8, classes)

    def forward(self, x, edge_index):
        h = self.norm(self.first(x, edge_index)).relu()
        return self.last(h, edge_index)


def noisy(graph):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Noisy(graph.x.width, graph.num_classes)


def shaken(out, y):
    """A criterion that draws random numbers."""
    return nn.functional.cross_entropy(out + 0.1 * torch.randn_like(out), y)


def test_a_model_and_objects_of_ones_own(small, tmp_path):
    objects = {
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
        "scheduler": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [3, 6]),
        "criterion": shaken,
    }
    options = {"epochs": 8, "checkpoint_every": 2, **objects}
    straight = tg.train(small, noisy(small), out=tmp_path / "a", **options, **QUIET)
    crash(5, graph=small, model=noisy(small), out=tmp_path / "b", **options)
    for missing, told in (
        ({"model": noisy(small), **objects}, "graph=..."),
        ({"graph": small, **objects}, "model=..."),
        ({"graph": small, "model": noisy(small)}, "optimizer=..."),
    ):
        with pytest.raises(ConfigError) as error:
            tg.resume(tmp_path / "b", **missing, **QUIET)
        assert told in str(error.value)
    again = noisy(small)
    resumed = tg.resume(tmp_path / "b", graph=small, model=again, **objects, **QUIET)
    assert resumed.losses == straight.losses
    assert same_bits(weights(straight.model), weights(again))
    # A criterion that is not at hand leaves the loss undefined, nothing else.
    scores = tg.evaluate(tmp_path / "b", graph=small, model=noisy(small))
    assert scores["val"]["loss"] is None
    assert scores["val"]["accuracy"] == straight.metrics["val"]["accuracy"]


def test_what_is_passed_again_is_checked(small, tmp_path, caplog):
    crash(3, graph=small, model=net(small), out=tmp_path / "r", epochs=5, checkpoint_every=1)
    y = small.y.copy()
    y[7] = (y[7] + 1) % 5
    with pytest.raises(ConfigError, match="not the one that was trained on: y differ"):
        tg.resume(tmp_path / "r", graph=replace(small, y=y), model=net(small), **QUIET)
    with pytest.raises(ConfigError, match=r"conv1\.bias is \[16\], in the checkpoint \[8\]"):
        tg.resume(tmp_path / "r", graph=small, model=net(small, hidden=16), **QUIET)
    with pytest.raises(ConfigError, match="is float64, in the checkpoint float32"):
        tg.resume(tmp_path / "r", graph=small, model=net(small).double(), **QUIET)
    with pytest.raises(ConfigError, match="leave optimizer out"):
        tg.resume(tmp_path / "r", graph=small, model=net(small), optimizer=torch.optim.SGD, **QUIET)
    with caplog.at_level(logging.WARNING, "tiergnn"), pytest.raises(ConfigError):
        tg.resume(tmp_path / "r", graph=small, model=net(small, "sage"), **QUIET)
    assert "was trained as" in caplog.text


def test_a_folder_of_the_graph_and_the_graph_in_memory_are_one(folder, tmp_path):
    crash(3, graph=folder, model="gcn", out=tmp_path / "r", epochs=4, checkpoint_every=1)
    assert len(tg.resume(tmp_path / "r", graph=community(2_000), **QUIET).history) == 4


def test_longer_than_planned(small, tmp_path):
    spec = {"name": "gcn", "hidden_channels": 8, "dropout": 0.5}
    straight = tg.train(small, spec, epochs=9, **QUIET)
    tg.train(small, spec, epochs=5, out=tmp_path / "r", **QUIET)
    finished = tg.resume(tmp_path / "r", graph=small, **QUIET)
    assert (len(finished.history), finished.finished) == (5, "epochs")
    longer = tg.resume(tmp_path / "r", graph=small, epochs=9, **QUIET)
    assert longer.losses == straight.losses
    with pytest.raises(ConfigError, match="has done 9 epochs, more than 3"):
        tg.resume(tmp_path / "r", graph=small, epochs=3, **QUIET)
    tg.train(small, spec, epochs=5, scheduler="cosine", out=tmp_path / "c", **QUIET)
    with pytest.raises(ConfigError, match="cosine schedule was made for 5 epochs"):
        tg.resume(tmp_path / "c", graph=small, epochs=9, **QUIET)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_writes_a_checkpoint_and_says_how_to_go_on(small, tmp_path, signum):
    spec = {"name": "gcn", "hidden_channels": 8, "dropout": 0.5}
    before = signal.getsignal(signum)
    with pytest.raises(KeyboardInterrupt) as stopped:
        tg.train(small, spec, epochs=9, out=tmp_path / "r", progress=StopAt(4, signum))
    assert isinstance(stopped.value, Interrupted)
    assert (stopped.value.epoch, stopped.value.signum) == (4, signum)
    assert f"tiergnn resume {tmp_path / 'r'}" in str(stopped.value)
    assert signal.getsignal(signum) is before
    resumed = tg.resume(tmp_path / "r", graph=small, **QUIET)
    assert resumed.losses == tg.train(small, spec, epochs=9, **QUIET).losses
    with pytest.raises(Interrupted, match="nothing was kept"):
        tg.train(small, spec, epochs=9, progress=StopAt(4, signum))


def test_a_signal_that_the_process_ignores_stays_ignored(small):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        run = tg.train(small, "gcn", epochs=4, progress=StopAt(2, signal.SIGINT))
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(run.history) == 4


def test_a_second_signal_stops_at_once(small, tmp_path):
    def impatient(record):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)  # a signal is handled between two steps of the interpreter

    with pytest.raises(KeyboardInterrupt) as stopped:
        tg.train(small, "gcn", epochs=9, out=tmp_path / "r", progress=impatient)
    assert not isinstance(stopped.value, Interrupted)
    assert len(tg.resume(tmp_path / "r", graph=small, **QUIET).history) == 9


def test_killed_before_the_first_epoch(small, tmp_path):
    def early(path, data, real=files.write_whole):
        real(path, data)
        if path.name == "epoch-0.json":
            raise RuntimeError("crash")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tiergnn.training.checkpoint.write_whole", early)
        with pytest.raises(RuntimeError, match="crash"):
            tg.train(small, "gcn", epochs=3, out=tmp_path / "r", **QUIET)
    resumed = tg.resume(tmp_path / "r", graph=small, **QUIET)
    assert resumed.losses == tg.train(small, "gcn", epochs=3, **QUIET).losses


def test_a_full_disk_ends_the_run_with_one_error_and_can_be_resumed(small, tmp_path):
    def full(path, data, real=files.write_whole):
        if path.name.startswith("epoch-4"):
            raise files.unwritable(path, OSError(28, "No space left on device"), len(data))
        real(path, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tiergnn.training.checkpoint.write_whole", full)
        with pytest.raises(StoreError, match="No space left on device"):
            tg.train(small, "gcn", epochs=6, checkpoint_every=2, out=tmp_path / "r", **QUIET)
    resumed = tg.resume(tmp_path / "r", graph=small, **QUIET)
    assert resumed.losses == tg.train(small, "gcn", epochs=6, **QUIET).losses


def test_another_graph_with_the_same_features(small, tmp_path):
    tg.train(small, {"name": "sage", "hidden_channels": 8}, epochs=20, out=tmp_path / "r", **QUIET)
    other = community(90, seed=4)
    assert tg.predict(tmp_path / "r", graph=other).shape == (90, 5)
    assert tg.predict(tmp_path / "r", graph=other, kind="labels").shape == (90,)
    assert 0 <= tg.evaluate(tmp_path / "r", "all", graph=other)["all"]["accuracy"] <= 1
    unlabelled = replace(other, y=None, task=None, num_classes=None, splits={})
    assert tg.predict(tmp_path / "r", graph=unlabelled).shape == (90, 5)
    assert tg.predict(tmp_path / "r", graph=unlabelled, kind="labels").shape == (90,)
    with pytest.raises(ConfigError, match="no labels"):
        tg.evaluate(tmp_path / "r", "all", graph=unlabelled)
    with pytest.raises(ConfigError):
        tg.predict(tmp_path / "r", graph=community(90, num_features=5))


def test_a_graph_folder_that_moved_or_changed(tmp_path):
    graph = community(60).save(tmp_path / "g")
    tg.train(graph, "gcn", epochs=2, out=tmp_path / "r", **QUIET)
    want = tg.predict(tmp_path / "r")
    (tmp_path / "g").rename(tmp_path / "moved")
    with pytest.raises(StoreError, match="no such graph folder"):
        tg.predict(tmp_path / "r")
    assert np.array_equal(tg.predict(tmp_path / "r", graph=tmp_path / "moved"), want)
    community(60, seed=1).save(tmp_path / "g")
    with pytest.raises(ConfigError, match="not the one that was trained on"):
        tg.resume(tmp_path / "r")


def test_lazy_layers_are_resumed(small, tmp_path, caplog):
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = tg.nn.SAGEConv(-1, 8)
            self.last = nn.LazyLinear(5)

        def forward(self, x, edge_index):
            return self.last(self.first(x, edge_index).relu())

    options = {"epochs": 6, "checkpoint_every": 2}
    straight = tg.train(small, Lazy(), **options, out=tmp_path / "a", **QUIET)
    crash(3, graph=small, model=Lazy(), out=tmp_path / "b", **options)
    with caplog.at_level(logging.WARNING, "tiergnn"):
        resumed = tg.resume(tmp_path / "b", graph=small, model=Lazy(), **QUIET)
    assert resumed.losses == straight.losses
    assert "was trained as" not in caplog.text
