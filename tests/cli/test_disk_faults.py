"""Training from the command line over a disk that fails: the same numbers, or one error and a run
that can be resumed."""

from __future__ import annotations

import gc
import json
import shutil
from pathlib import Path

import pytest

import tiergnn as tg
from tiergnn.graph.generate import sbm
from tiergnn.hardware.presets import resolve
from tiergnn.memory.engine import Engine
from tiergnn.memory.faults import FaultPlan, Faulty
from tiergnn.memory.file import SectorFile

OPTIONS = ("--model", "gcn", "--hidden", 16, "--device", "cpu", "--quiet", "--json",
           "--epochs", 3, "--checkpoint-every", 1)  # fmt: skip


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    folder = tmp_path_factory.mktemp("graphs") / "sbm"
    sbm(600, 3, degree=8, num_features=16, seed=1).save(folder)
    return folder


@pytest.fixture(scope="module")
def plan(graph, tmp_path_factory):
    """Of a run with the least host memory, the rest on the disk; and the folder there."""
    folder = tmp_path_factory.mktemp("plans")
    scratch, path = folder / "scratch", folder / "plan.json"
    scratch.mkdir()
    machine, model = resolve("cpu2"), {"name": "gcn", "hidden_channels": 16}
    whole = tg.plan(graph, model, machine=machine, strategies=["grinnder"], device="cpu")
    host = 1024
    while True:
        try:
            made = tg.plan(
                graph, whole.workload, machine=machine, strategies=["grinnder"], disk=scratch,
                host_memory=host,
            )  # fmt: skip
            break
        except tg.PlanError as error:
            host = error.short[1] if error.short is not None else 0
    assert made.knobs.tier == "disk"
    made.save(path)
    return path, scratch


@pytest.fixture(scope="module")
def want(graph, plan, tmp_path_factory):
    """Losses and metrics over a sound disk, and how often that was read and written."""
    from typer.testing import CliRunner

    from tiergnn.cli.main import app

    faulty, out = Faulty(FaultPlan()), tmp_path_factory.mktemp("runs") / "want"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "tiergnn.memory.scratch.Engine", lambda: Engine(num_threads=1, calls=faulty.calls)
        )
        asked = ("train", graph, *OPTIONS, "--plan", plan[0], "--out", out)
        done = CliRunner().invoke(app, [str(word) for word in asked])
    return json.loads(done.stdout), faulty.counts


def left_in(scratch) -> list[Path]:
    """What is there when a run is forgotten; a process that ends does not leave it either."""
    gc.collect()
    return list(scratch.iterdir())


def test_faults_that_pass_and_rows_that_are_lost_change_nothing(
    cli, graph, plan, want, failing, tmp_path, caplog
):
    (path, scratch), (want, counts) = plan, want
    calls = counts["write"]
    failing(
        FaultPlan(
            reads={10: "eio", 11: "eio", 20: "short", 30: "flip"},
            writes={0: "flip", calls // 2: "short", calls // 2 + 5: "eio"},
        )
    )
    found = cli("train", graph, *OPTIONS, "--plan", path, "--out", tmp_path / "found").json
    assert found["losses"] == want["losses"]
    assert found["metrics"] == want["metrics"]
    told = [text for text in caplog.messages if "made again" in text]
    assert len(told) == 1
    assert str(scratch) in told[0]
    assert left_in(scratch) == []


FAULTS = {
    "eio on reads": ({"reads": "eio"}, "Input/output error", "smartctl"),
    "eio on writes": ({"writes": "eio"}, "Input/output error", "smartctl"),
    "full": ({"writes": "enospc"}, "No space left on device", "free some space"),
    "damage": ({"writes": "flip"}, "are not what was written there", "another one"),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_disk_that_fails_for_good_is_one_error_and_the_run_goes_on(
    kind, cli, graph, plan, want, failing, tmp_path
):
    (calls, said, hint), (path, scratch), (want, counts) = FAULTS[kind], plan, want
    ((which, fault),) = calls.items()
    begun = counts[which.removesuffix("s")] // 2
    failing(FaultPlan(**{which: dict.fromkeys(range(begun, begun + 100_000), fault)}))
    run = tmp_path / "run"
    done = cli("train", graph, *OPTIONS, "--plan", path, "--out", run)
    assert done.code == 3
    assert done.out == ""
    assert said in done.err
    assert hint in done.err
    assert str(scratch) in done.err
    assert "Traceback" not in done.err
    assert left_in(scratch) == []
    failing(FaultPlan())
    again = cli("resume", run, "--quiet", "--json").json
    assert again["losses"] == want["losses"]
    assert again["metrics"] == want["metrics"]
    assert left_in(scratch) == []


def test_a_scratch_folder_that_disappears(cli, graph, plan, want, tmp_path, monkeypatch):
    """With all that is around it; a run that goes on makes it again."""
    (path, scratch), (want, _) = plan, want
    create, made = SectorFile.create.__func__, []

    def removing(cls, file, *args, **options):
        made.append(file)
        if len(made) == 40:
            shutil.rmtree(scratch)
        return create(cls, file, *args, **options)

    monkeypatch.setattr(SectorFile, "create", classmethod(removing))
    run = tmp_path / "run"
    done = cli("train", graph, *OPTIONS, "--plan", path, "--out", run)
    assert done.code == 3
    assert "the scratch folder has disappeared" in done.err
    assert str(scratch) in done.err
    assert "Traceback" not in done.err
    assert not scratch.exists()
    monkeypatch.undo()
    again = cli("resume", run, "--quiet", "--json").json
    assert again["losses"] == want["losses"]
    assert left_in(scratch) == []
