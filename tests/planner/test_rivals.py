"""Trials that others beat whatever the clock says: not written, and never the plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planner.strategies.cases import WORKLOADS, cases, knobs_of, machine
from tiergnn.errors import ConfigError, PlanError
from tiergnn.graph.distributions import rmat_shape
from tiergnn.hardware.presets import preset
from tiergnn.planner.choose import Choosing, Rivals, Trial, best, comparison, undominated
from tiergnn.planner.cost import Costs
from tiergnn.planner.models import classic
from tiergnn.planner.plan import Plan
from tiergnn.planner.simulate import least_s
from tiergnn.planner.strategies.known import KNOBS, SIZED, STRATEGIES

MIB = 2**20
SHAPES = {
    "wide": rmat_shape(20_000, 200_000, num_features=256, num_classes=10, num_labelled=5_000),
    "dense": rmat_shape(20_000, 2_000_000, num_features=32, num_classes=10, num_labelled=5_000),
}


def asked(shape: str, model: str, where: str, device: int, host: int, **options) -> Choosing:
    """Budgets in MiB; 0: all there is."""
    found = preset(where).with_budgets(
        device_bytes=device * MIB or None, host_bytes=host * MIB or None
    )
    of = SHAPES[shape]
    return Choosing(
        workload=classic(model, of.num_features, of.num_classes, hidden=32, layers=3),
        shape=of,
        machine=found,
        most_parts=8,
        most_slices=8,
        **options,
    )


def told(trial: Trial) -> tuple[object, ...]:
    return trial.strategy, trial.knobs, trial.tried.workload, trial.seconds, trial.peak_bytes


ASKED = [
    (shape, model, where, device, host)
    for shape in SHAPES
    for model, where, device, host in (
        ("gcn", "h200", 0, 0),
        ("sage", "h200", 40, 0),
        ("gcn", "a5000-nvme", 40, 32),
        ("gat", "a5000-nvme", 60, 0),
        ("gin", "t4x8", 24, 0),
        ("gcn", "a100x8-pcie", 30, 64),
    )
]


@pytest.mark.parametrize(
    ("question", "thorough"),
    [*((question, False) for question in ASKED), *((question, True) for question in ASKED[1::9])],
    ids=str,
)
def test_what_is_not_written_changes_no_answer(question, thorough, monkeypatch):
    trials = asked(*question, thorough=thorough).trials()
    monkeypatch.setattr(Rivals, "lost", lambda *_: None)
    whole = asked(*question, thorough=thorough).trials()
    assert all(trial.least is None for trial in whole)
    assert [trial.strategy for trial in trials] == [trial.strategy for trial in whole]
    if not any(trial.plan for trial in whole):
        assert list(map(told_refused, trials)) == list(map(told_refused, whole))
        return
    plan, want = best(trials), best(whole)
    assert (plan, plan.seconds) == (want, want.seconds)
    if thorough:
        assert list(map(told, undominated(trials))) == list(map(told, undominated(whole)))


def told_refused(trial: Trial) -> tuple[object, ...]:
    return trial.strategy, trial.knobs, str(trial.refused)


def test_what_was_not_written_says_so():
    question = asked("dense", "gcn", "h200", 0, 0)
    trials = question.trials()
    fastest = best(trials)
    lost = [trial for trial in trials if trial.least is not None]
    assert len(lost) >= 3
    for trial, row in zip(trials, comparison(trials), strict=True):
        assert row[2].startswith(">= ") == (trial.least is not None)
        if trial.least is None:
            continue
        assert trial.fits
        assert trial.plan is None
        assert vars(trial.tried).keys().isdisjoint({"schedule", "timeline", "fitting"})
        assert "or more" in str(trial.refused)
        assert fastest.seconds < trial.least.seconds
        again = question.trial(trial.strategy, trial.knobs)
        assert trial.least.seconds <= again.seconds
        assert trial.peak_bytes == again.peak_bytes


@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=40, deadline=None)
@given(data=st.data(), case=cases(), model=st.sampled_from(list(WORKLOADS)))
def test_no_clock_is_ahead_of_the_least_seconds(name, data, case, model):
    """As sized before it is written, or counted from the schedule; on a CPU, whose lanes share its
    cores, too."""
    workload, parts = WORKLOADS[model], case.layout.num_parts
    one = name == "resident"
    knobs = data.draw(knobs_of(KNOBS[name], workload, parts))
    where = machine(1 if name in SIZED or one else parts)
    if data.draw(st.booleans()):
        where = replace(where, device=replace(where.device, kind="cpu"))
    if one:
        knobs = replace(knobs, parts=1, ranks=1)
        parts = 1
    plan = Plan(
        strategy=name, knobs=knobs, workload=workload, shape=case.shape, layout=case.layout,
        machine=where,
    )  # fmt: skip
    try:
        least = plan.least
        seconds = plan.timeline.seconds
    except (ConfigError, PlanError):
        return
    costs = Costs.of(where).of_schedule(plan.schedule)
    counted = least_s((action.done for action in plan.schedule.actions), where, costs)
    assert 0 < counted <= seconds
    assert (least is not None) == (name in SIZED)
    if least is not None:
        assert 0 < least.seconds <= (1 + 1e-9) * counted  # of chunks some
        held = {tier: n for tier, n in plan.peak_bytes.items() if n}
        assert held == {tier: n for tier, n in least.peak_bytes.items() if n}


@pytest.mark.parametrize("beaten", [False, True])
def test_hot_rows_are_those_of_the_fastest_cut(beaten, monkeypatch):
    """Of which the first is the fastest here; where all are beaten without them, too."""
    question = asked("dense", "gcn", "a5000-nvme", 40, 0)

    def slow(_: Rivals, plan: Plan) -> Trial | None:
        if plan.knobs.hot_frac:
            return None
        return Trial(tried=replace(plan), refused=PlanError("slow"), least=plan.least)

    if beaten:
        monkeypatch.setattr(Rivals, "lost", slow)
    *plain, hot = question.trials(["grinnder"])
    assert hot.plan is not None
    fitting = [trial.knobs for trial in plain if trial.fits]
    fastest = min(fitting, key=lambda knobs: question.trial("grinnder", knobs).seconds)
    assert fastest != fitting[-1]
    assert hot.knobs == replace(fastest, hot_frac=hot.knobs.hot_frac)
    assert hot.knobs.hot_frac > 0
