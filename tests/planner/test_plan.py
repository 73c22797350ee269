"""Plans: chosen among strategies within budgets, the same after JSON and on other machines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tiergnn.errors import ConfigError, PlanError
from tiergnn.graph.distributions import rmat_shape
from tiergnn.hardware.machine import Tier
from tiergnn.hardware.presets import preset
from tiergnn.planner.choose import Choosing, best, comparison, undominated
from tiergnn.planner.models import classic
from tiergnn.planner.plan import Plan
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.schedule.check import check

SHAPE = rmat_shape(50_000, 800_000, num_features=64, num_classes=10, num_labelled=5_000)
WORKLOAD = classic("sage", 64, 10, hidden=64, layers=3)


def choosing(machine, **options):
    return Choosing(workload=WORKLOAD, shape=SHAPE, machine=machine, **options)


@pytest.fixture(scope="module")
def roomy():
    return best(choosing(preset("h200")).trials())


@pytest.fixture(scope="module")
def all_trials(roomy):
    machine = preset("h200").with_budgets(device_bytes=roomy.peak_bytes["device"] // 2)
    return choosing(machine, thorough=True).trials()


def test_with_room_for_all_the_plan_is_resident_and_keeps_everything(roomy):
    assert (roomy.strategy, roomy.knobs) == ("resident", Knobs())
    assert set(roomy.held["device"]) >= {"topology", "features", "saved", "gradients"}
    assert "predicted" in roomy.explain()


def test_a_plan_through_json_is_the_same_plan(roomy, tmp_path):
    roomy.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again == roomy
    assert str(again.schedule) == str(roomy.schedule)
    assert (again.seconds, again.held) == (roomy.seconds, roomy.held)


def test_within_a_budget_another_strategy_holds_to_it(roomy):
    budget = roomy.peak_bytes["device"] // 2
    machine = preset("h200").with_budgets(device_bytes=budget)
    plan = best(choosing(machine).trials())
    check(plan.schedule, machine)
    assert plan.strategy != "resident"
    assert plan.peak_bytes["device"] <= budget
    assert plan.seconds > roomy.seconds


def test_of_all_trials_the_fastest_is_taken(all_trials):
    trials = all_trials
    fitting = [trial for trial in trials if trial.plan is not None]
    assert {trial.strategy for trial in fitting} >= {"sliced", "grinnder", "hongtu"}
    assert best(trials).seconds == min(trial.seconds for trial in fitting)
    assert len(comparison(trials)) == len(trials)


def test_the_frontier_has_no_point_that_another_beats(all_trials):
    trials = all_trials
    points = undominated(trials)
    assert len(points) >= 3
    seconds = [trial.seconds for trial in points]
    assert seconds == sorted(seconds)

    def costs(trial):
        held = trial.plan.peak_bytes
        return (trial.seconds, *(held.get(tier, 0) for tier in ("device", "host", "disk")))

    for trial in trials:
        if trial.plan is not None:
            better = [
                p
                for p in points
                if all(a <= b for a, b in zip(costs(p), costs(trial), strict=True))
            ]
            assert better


def test_what_cannot_work_is_refused_with_what_would(roomy):
    small = preset("h200").with_budgets(device_bytes=2**20, host_bytes=2**20)
    small = replace(small, disk=Tier(2**20))
    with pytest.raises(PlanError) as refusal:
        best(choosing(small).trials())
    text = str(refusal.value)
    assert "no plan fits" in text
    assert "largest" in text
    assert "device_memory of" in text
    tier, needed = refusal.value.short
    enough = {"device": "device_bytes", "host": "host_bytes", "disk": "disk_bytes"}
    assert needed > 2**20
    # What it says would do, does, with room in the other tiers.
    others = preset("h200").with_budgets(**{enough["device"]: needed}) if tier == "device" else None
    if others is not None:
        assert best(choosing(others).trials()).peak_bytes["device"] <= needed


def test_several_ranks_have_strategies_of_their_own():
    plan = best(choosing(preset("a100x8-pcie"), ranks=4).trials())
    assert plan.strategy in ("halo", "leo", "nfp")
    assert plan.layout.num_parts == 4
    assert plan.schedule.num_ranks == 4


def test_the_same_decision_on_another_machine(roomy):
    there = roomy.on(preset("t4x8"))
    assert there.knobs == roomy.knobs
    assert there.seconds > roomy.seconds


def test_an_unknown_strategy_is_answered_with_the_known_ones():
    with pytest.raises(ConfigError, match="grinnder"):
        choosing(preset("h200")).trials(["grinder"])
    with pytest.raises(ConfigError, match="resident"):
        _ = replace(best(choosing(preset("h200")).trials(["resident"])), strategy="none").schedule
