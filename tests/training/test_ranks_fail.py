"""A rank that is killed ends the job in time, with one message; nothing is left, and resume ends
where an unbroken run would."""

from __future__ import annotations

import os
import random
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest

import tiergnn as tg
from tests.planner.strategies.cases import machine
from tests.training.dying import killed_at
from tests.training.models import community
from tests.training.stopping import timeless
from tiergnn.errors import RankError
from tiergnn.training import joined

GCN = {"name": "gcn", "hidden_channels": 4, "dropout": 0.5, "norm": "batch"}
OPTIONS = {"epochs": 3, "checkpoint_every": 1, "dtype": "float64", "device": "cpu"}
MOST = 500  # actions that a rank does, at least


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """A graph folder, a plan of two ranks for it, and what training by it gives."""
    folder = tmp_path_factory.mktemp("unbroken")
    graph = community(80).save(folder / "g")
    plan = tg.plan(
        graph, GCN, machine=machine(2), ranks=2, strategies=["halo"], device="cpu", dtype="float64",
    )  # fmt: skip
    options = OPTIONS | {"out": folder / "run", "transport": "virtual", "progress": False}
    run = tg.train(graph, GCN, plan, **options)
    return graph, plan, run, run.predict()


def ours() -> set[str]:
    """Scratch folders and shared memory that are there, but for those of others that are at work:
    a folder is named by its process."""
    found = {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("tiergnn-")}
    theirs = {str(pid) for pid in psutil.pids()} - {str(os.getpid())}
    found = {name for name in found if not theirs & set(name.split("-"))}
    return found | {name for name in os.listdir("/dev/shm") if "tiergnn" in name}


def is_killed(unbroken, out: Path, seed: int, monkeypatch) -> None:
    graph, plan, whole, logits = unbroken
    draw = random.Random(seed)
    victim, action = draw.randrange(2), draw.randrange(MOST)
    before, children = ours(), set(psutil.Process().children(recursive=True))
    monkeypatch.setitem(joined.TARGETS, "train", partial(killed_at, victim, action))
    begun = time.monotonic()
    options = OPTIONS | {"progress": False, "timeout": 60.0}
    with pytest.raises(RankError, match=f"rank {victim} was killed by SIGKILL") as caught:
        tg.train(graph, GCN, plan, out=out, transport="shared", **options)
    ended = time.monotonic()
    monkeypatch.undo()
    culprit = caught.value.culprit
    assert culprit
    log = out / "log.jsonl"
    started = log.stat().st_mtime if log.exists() else 0
    assert ended - begun < 30 or time.time() - started < 30, "it took longer than 30 s to end"
    left = set(psutil.Process().children(recursive=True)) - children
    assert not [p for p in left if p.is_running() and "rank" in p.name()]
    assert ours() <= before
    if not out.exists():  # before its first checkpoint: nothing was begun, nothing is left
        assert action < 80
        return
    run = tg.resume(out, transport="virtual", progress=False)
    assert timeless(run.history) == timeless(whole.history)
    np.testing.assert_array_equal(run.predict(), logits)


def test_killed(unbroken, tmp_path, monkeypatch):
    is_killed(unbroken, tmp_path / "run", 7, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(50))
def test_killed_at_random(unbroken, tmp_path, monkeypatch, seed):
    is_killed(unbroken, tmp_path / "run", seed, monkeypatch)
