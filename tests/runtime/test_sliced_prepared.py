"""Sliced runs that make rows of the graph and its features once: numbers, bytes and refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.planner.strategies.cases import machine
from tests.runtime.staging import Pair, close, random_graph, workload
from tests.runtime.test_sliced import PLACES, lean
from tiergnn.errors import PlanError
from tiergnn.graph.table import Table
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.schedule.check import peaks

MODELS = ("basic gcn", "basic sage", "basic gin", "sgc")
HERE = [place for place in PLACES if place not in ("edges in host", "sums again")]
TIERS = {"device": (), "disk": ("device", "host")}


def make(model, place, scratch, *, prepared=True, seed=0, **more):
    knobs = Knobs(parts=4, slices=3, **PLACES[place])
    tiers = TIERS.get(place, ("device",))
    graph = random_graph(40, 150, seed)
    return lean(
        model, graph, replace(knobs, **more), tiers=tiers, seed=seed, scratch=scratch,
        prepared=prepared,
    )  # fmt: skip


@pytest.mark.parametrize("place", HERE)
@pytest.mark.parametrize("model", MODELS)
def test_exact(model, place, tmp_path):
    assert workload(model, torch.float64, True, True).prepared
    pair = make(model, place, tmp_path, seed=MODELS.index(model))
    pair.compare(1e-10, epochs=2)
    (held, _) = peaks(pair.staged.schedule)[0, "device"]
    pair.staged.close()
    assert pair.staged.peak_bytes["device"] <= held


def test_less_is_moved_and_held_than_without():
    """The first sum of every step, its rows and their gradients."""
    moved, held = [], []
    for prepared in (False, True):
        pair = make("basic gcn", "host", None, prepared=prepared)
        schedule = pair.staged.schedule
        moved.append(sum(action.moved_bytes for action in schedule.actions))
        held.append(peaks(schedule)[0, "host"][0])
        pair.staged.close()
    assert moved[1] < moved[0]
    assert held[1] < held[0]


def test_features_of_another_dtype_are_read_as_the_model_reads_them():
    graph = random_graph(40, 150, 3)
    assert graph.x is not None
    halves = torch.from_numpy(graph.x.data).half().numpy()
    graph = replace(graph, x=Table(data=halves, dtype="float16"))
    knobs = Knobs(parts=2, slices=3, topology="turns")
    pair = lean("sgc", graph, knobs, tiers=("device",), prepared=True)
    pair.compare(1e-10, epochs=1)
    pair.staged.close()


def test_narrow_storage_rounds_what_was_prepared():
    pair = make("basic gcn", "edges in turns", None, storage="bfloat16")
    pair.step(0)
    got, want = pair.staged.infer(), pair.resident.infer()
    pair.staged.close()
    close(got, want, 2e-2)
    with pytest.raises(AssertionError):
        close(got, want, 1e-6)


def test_what_cannot_be_prepared_is_refused():
    knobs, graph = Knobs(parts=4, slices=3, topology="host"), random_graph(40, 150, 0)
    with pytest.raises(PlanError, match="topology=turns"):
        Pair.make("basic gcn", graph, "sliced", knobs, prepared=True)
    with pytest.raises(PlanError, match="prepare=False"):
        Pair.make("basic gcn", graph, "grinnder", Knobs(parts=4), there=machine(1), prepared=True)
