"""``--ranks`` and torchrun: real processes, started by us and by it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import tiergnn as tg
from tests.planner.strategies.cases import machine
from tests.training.models import community

ROOT = Path(__file__).parents[2]
MODEL = ("--model", "gcn", "--hidden", 4, "--norm", "batch", "--dropout", 0.5)
OPTIONS = ("--epochs", 4, "--dtype", "float64", "--device", "cpu", "--quiet", "--json")


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    folder = tmp_path_factory.mktemp("graphs") / "g"
    community(100).save(folder)
    return folder


@pytest.fixture(scope="module")
def alone(graph):
    model = {"name": "gcn", "hidden_channels": 4, "norm": "batch", "dropout": 0.5}
    return tg.train(graph, model, epochs=4, dtype="float64", device="cpu", progress=False)


@pytest.fixture
def here(monkeypatch):
    """This host as a machine that need not be measured."""
    monkeypatch.setattr("tiergnn.hardware.measure.measure", lambda *a, **k: machine(1))


def test_ranks_are_started_and_report_as_one(cli, graph, alone, here, tmp_path):
    arguments = (*MODEL, *OPTIONS, "--ranks", 2, "--strategy", "halo", "--partition", "block")
    done = cli("train", graph, *arguments, "--out", tmp_path / "a").json
    assert done["losses"] == pytest.approx(alone.losses, rel=1e-10)
    assert done["metrics"]["test"]["accuracy"] == alone.metrics["test"]["accuracy"]
    assert (done["ranks"], done["predicted"]["strategy"]) == (2, "halo")
    assert done["epochs"] == 4


def test_options_of_ranks_are_honoured(cli, graph, alone, here, tmp_path):
    """Transport, partition, strategy; resumed on more, evaluated and predicted on one."""
    virtual = ("--transport", "virtual", "--partition", "block", "--strategy", "halo")
    train = ("train", graph, *MODEL, *OPTIONS, "--ranks", 3, "--out", tmp_path / "a")
    assert cli(*train, *virtual).json["losses"] == pytest.approx(alone.losses, rel=1e-10)
    plan = json.loads((tmp_path / "a" / "plan.json").read_text())
    assert "block" in json.dumps(plan)
    went = cli("resume", tmp_path / "a", "--epochs", 6, "--ranks", 2, "--quiet", "--json").json
    assert (went["ranks"], went["epochs"]) == (2, 6)
    one = cli("evaluate", tmp_path / "a", "--ranks", 1, "--json").json["metrics"]
    two = cli("evaluate", tmp_path / "a", "--json").json["metrics"]
    assert one["test"] == pytest.approx(two["test"], rel=1e-9)
    told = cli("train", graph, *MODEL, "--ranks", 3, "--epochs", 1, *virtual, "--device", "cpu",
               "--out", tmp_path / "b")  # fmt: skip
    assert told.code == 0, told.err
    assert "note: 3 ranks share" in told.out
    assert "virtual, 3 ranks (asked for)" in told.out
    few = cli(*train, *virtual, "--overwrite", "--ranks", 2, "--partition", "none")
    assert few.code == 3
    assert "there is no partition 'none'" in few.err
    odd = cli(*train, "--overwrite", "--transport", "nccl")
    assert odd.code == 2
    assert "transport nccl: the ranks are on CPUs" in odd.err
    both = cli("train", graph, *MODEL, "--plan", tmp_path / "a" / "plan.json", "--ranks", 2,
               "--out", tmp_path / "c")  # fmt: skip
    assert both.code == 2
    assert "a plan has its budgets and ranks already" in both.err


def torchrun(*arguments: object) -> subprocess.CompletedProcess[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
        "--master-port", str(port), "-m", "tiergnn", *map(str, arguments),
    ]  # fmt: skip
    environment = {k: v for k, v in os.environ.items() if k != "TIERGNN_DEBUG"}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_torchrun(graph, alone, tmp_path):
    """By a plan, so that no process has to measure the machine; then resumed."""
    model = {"name": "gcn", "hidden_channels": 4, "norm": "batch", "dropout": 0.5}
    plan = tg.plan(
        graph, model, machine=machine(2), ranks=2, strategies=["halo"], device="cpu",
        dtype="float64",
    )  # fmt: skip
    plan.save(tmp_path / "plan.json")
    done = torchrun("train", graph, *MODEL, *OPTIONS, "--plan", tmp_path / "plan.json", "--out",
                    tmp_path / "a")  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["losses"] == pytest.approx(alone.losses, rel=1e-10)
    assert found["ranks"] == 2
    wrong = torchrun("train", graph, *MODEL, *OPTIONS, "--ranks", 3, "--out", tmp_path / "b")
    assert wrong.returncode != 0
    assert "wanted 3 ranks, torchrun started 2" in wrong.stderr
