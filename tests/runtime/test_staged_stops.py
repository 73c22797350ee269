"""Runs that end in the middle: by an error, by Ctrl-C; and budgets that are not kept."""

from __future__ import annotations

import signal
import threading

import pytest
import torch

from tests.runtime.staging import Pair, random_graph
from tiergnn.errors import PlanError
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.schedule.schedule import HERE


@pytest.fixture
def pair():
    made = Pair.make("gcn", random_graph(40, 150, 0), "grinnder", Knobs(parts=4))
    yield made
    made.staged.close()


def lanes():
    return [thread for thread in threading.enumerate() if thread.name.startswith("tiergnn-")]


def test_an_error_says_where_and_leaves_nothing(pair):
    def broken(out, part):
        if part == 2:
            raise ZeroDivisionError("of mine")
        return pair.share(out, part)

    before = len(lanes())
    with pytest.raises(ZeroDivisionError, match="of mine") as caught:
        pair.staged.train_step(broken, 0)
    (note,) = caught.value.__notes__
    marked = next(line for line in note.splitlines() if HERE in line)
    assert marked.split()[3:5] == ["LOSS", "p2"]
    assert len(lanes()) == before
    pair.compare(1e-10, epochs=1)  # as if nothing had been


def test_an_error_on_another_lane_is_the_steps(pair, monkeypatch):
    def broken(self, names, **options):
        if any("grad.of" in name for name in names):
            raise OSError("no more")
        return reserve(self, names, **options)

    buffers = type(pair.staged._walks[True]._buffers)
    reserve = buffers.reserve
    monkeypatch.setattr(buffers, "reserve", broken)
    with pytest.raises(OSError, match="no more"):
        pair.staged.train_step(pair.share, 0)
    monkeypatch.undo()
    pair.compare(1e-10, epochs=1)


def test_ctrl_c_ends_a_step_within_a_part(pair):
    visited = []

    def interrupting(out, part):
        visited.append(part)
        if len(visited) == 2:
            signal.raise_signal(signal.SIGINT)
        return pair.share(out, part)

    before = len(lanes())
    with pytest.raises(KeyboardInterrupt):
        pair.staged.train_step(interrupting, 0)
    assert len(visited) == 2
    assert len(lanes()) == before
    pair.compare(1e-10, epochs=1)


def test_beyond_a_budget_is_refused_as_it_happens(pair):
    """A schedule that was not proved for what there is."""
    buffers = pair.staged._walks[True]._buffers
    buffers._capacities["device"] = pair.staged.peak_bytes.get("device", 0) + 100
    with pytest.raises(PlanError, match="device memory would hold"):
        pair.staged.train_step(pair.share, 0)


def test_rows_larger_than_their_buffer_are_refused(pair):
    buffers = pair.staged._walks[True]._buffers
    name = next(b.name for b in pair.staged.schedule.buffers if b.tier == "device" and not b.given)
    with pytest.raises(PlanError, match="were written to a buffer of"):
        buffers.put(name, torch.zeros(10**6))
