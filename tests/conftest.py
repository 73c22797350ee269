"""Shared by every test: uninitialised memory is poisoned, and two threads are enough."""

from __future__ import annotations

import os
import signal
import sys

# Tests start processes that import torch, and three thousand modules with it: where none may keep
# its bytecode, each compiles all of them anew, for ten seconds.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.setdefault("NUMBA_NUM_THREADS", "2")
# Test workers share the cores: a thread that spins while it waits slows the others tenfold.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch

sys.dont_write_bytecode = False
# A shell has what it starts in the background ignore Ctrl-C, which tests send to what they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# nohup has the same done to hang-ups.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def poison(monkeypatch):
    """Fill torch.empty with NaN, so that an element nobody wrote is seen."""

    def poisoned(make):
        def empty(*args, **kwargs):
            out = make(*args, **kwargs)
            if out.is_floating_point() and not out.is_meta:
                with torch.no_grad():
                    out.fill_(float("nan"))
            return out

        return empty

    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, poisoned(getattr(torch, name)))


@pytest.fixture
def failing(monkeypatch):
    """Has the disks of runs fail by a plan; gives how often each call of the system was made."""
    from tiergnn.memory.engine import Engine
    from tiergnn.memory.faults import FaultPlan, Faulty

    def by(plan: FaultPlan) -> Faulty:
        faulty = Faulty(plan)
        monkeypatch.setattr(
            "tiergnn.memory.scratch.Engine", lambda: Engine(num_threads=1, calls=faulty.calls)
        )
        return faulty

    return by


def pytest_collection_modifyitems(items):
    """`gpu` tests are skipped, saying so, where there is no CUDA device."""
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
