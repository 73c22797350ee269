"""A plan is carried out on what it is of: another model or a smaller budget is refused."""

from __future__ import annotations

import pytest

import tiergnn as tg
from tests.planner.strategies.cases import machine
from tests.training.models import community

NARROW = {"name": "sage", "hidden_channels": 4}
QUIET = {"epochs": 1, "progress": False, "device": "cpu"}


@pytest.fixture(scope="module")
def graph():
    """Of fewer features and classes than a hidden layer has, whose width no row of a stage has."""
    return community(200, num_classes=2, num_features=3)


@pytest.fixture(scope="module")
def plans(graph):
    """strategy -> a plan of a narrow model."""
    made = {"resident": tg.plan(graph, NARROW, machine=machine(1), strategies=["resident"])}
    for name in ("grinnder", "sliced"):
        made[name] = tg.plan(
            graph, NARROW, machine=machine(1), strategies=[name],
            device_memory=3 * made["resident"].peak_bytes["device"] // 4,
        )  # fmt: skip
    return made | {"halo": tg.plan(graph, NARROW, machine=machine(2), ranks=2, strategies=["halo"])}


@pytest.mark.parametrize("strategy", ["resident", "grinnder", "sliced", "halo"])
@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"hidden_channels": 512}, "parameters"),
        ({"num_layers": 3}, "stages"),
        ({"aggr": "max"}, "stages"),
        ({"name": "gcn"}, "stages"),
        ({"name": "gat"}, "stages"),
    ],
    ids=str,
)
def test_of_another_model(graph, plans, strategy, other, told):
    with pytest.raises(tg.PlanError, match=f"of another model.*{told}") as refused:
        tg.train(graph, NARROW | other, plans[strategy], transport="virtual", **QUIET)
    assert "a plan of this very model" in str(refused.value)


def test_of_another_dtype(graph, plans):
    with pytest.raises(tg.PlanError, match="of another model, whose dtype and parameters"):
        tg.train(graph, NARROW, plans["resident"], dtype="float64", **QUIET)


@pytest.mark.parametrize("strategy", ["resident", "grinnder", "sliced", "halo"])
def test_beyond_the_budget(graph, plans, strategy):
    held = plans[strategy].peak_bytes["device"]
    options = QUIET | {"transport": "virtual", "device_memory": held - 1}
    with pytest.raises(tg.PlanError, match=f"holds .*{held:,} bytes.*allows .*{held - 1:,} bytes"):
        tg.train(graph, NARROW, plans[strategy], **options)


@pytest.mark.parametrize("strategy", ["resident", "grinnder", "sliced", "halo"])
def test_within_the_budget(graph, plans, strategy):
    """Of tensors; the process of a resident run holds its code besides."""
    held = plans[strategy].peak_bytes["device"]
    options = QUIET | {"transport": "virtual", "device_memory": held}
    run = tg.train(graph, NARROW, plans[strategy], **options)
    assert run.peak_bytes.get("device", 0) <= held
