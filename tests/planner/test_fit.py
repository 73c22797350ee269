"""Factors of costs, learned back from what was measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.planner.works import GB, action, gather
from tiergnn.errors import PlanError
from tiergnn.hardware.presets import PRESETS, preset
from tiergnn.planner.cost import Costs
from tiergnn.planner.fit import Fit, fit, fit_actions
from tiergnn.planner.simulate import simulate
from tiergnn.schedule.actions import Action, Lane, Op, Work
from tiergnn.schedule.schedule import Writer
from tiergnn.schedule.timeline import Span, Timeline

PLANTED = {"gather": 1.7, "matmul": 0.6, "stream": 1.2, "launch": 3.0, "h2d": 0.8, "d2h": 2.5}


def many_actions(seed: int, count: int = 600) -> list[Action]:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        kinds = rng.random(4)
        size = 10 ** rng.uniform(7, 11)
        works = [
            gather(int(10 * size * kinds[0]), launches=int(rng.integers(1, 20))),
            Work(kind="matmul", amount=int(10 * size * kinds[1]), grain=64),
            Work(kind="stream", amount=int(size * kinds[2])),
        ]
        link = "h2d" if rng.random() < 0.5 else "d2h"
        works.append(Work(kind="move", amount=int(size * kinds[3] / 200), place=link))
        made.append(action(*works[int(rng.integers(0, 3)) :]))
    return made


@pytest.mark.parametrize(("noise", "within"), [(0.0, 0.01), (0.1, 0.05)])
def test_fit_finds_what_was_planted(noise, within):
    machine = preset("h200")
    made = many_actions(0)
    truth = Costs(machine=machine, factors=PLANTED)
    rng = np.random.default_rng(1)
    seconds = [truth.seconds(a) * (1 + noise * rng.standard_normal()) for a in made]
    learned = fit_actions(Costs.of(machine), made, seconds)
    assert learned.costs.factors.keys() == PLANTED.keys()
    for name, factor in PLANTED.items():
        assert learned.costs.factor(name) == pytest.approx(factor, rel=within), name
    assert learned == fit_actions(Costs.of(machine), made, seconds)
    whole = learned.residuals[-1]
    assert (whole.cost_class, whole.num_samples) == ("all", len(made))
    assert whole.mean_after < max(0.01, 1.2 * noise)
    assert whole.mean_after < whole.mean_before


def test_fit_leaves_alone_what_was_not_seen_and_starts_from_what_is_known():
    known = Costs(machine=preset("h200"), factors={"d2h": 4.0, "stream": 2.0})
    made = [action(Work(kind="stream", amount=GB, launches=0))] * 5
    seconds = [6 * Costs.of(preset("h200")).seconds(a) for a in made]
    learned = fit_actions(known, made, seconds).costs
    assert learned.factor("d2h") == 4.0
    assert learned.factor("gather") == 1.0
    assert learned.factor("stream") == pytest.approx(6.0, rel=0.01)


def step(seconds_of: Costs) -> tuple:
    """A schedule of three actions and the timeline that ``seconds_of`` gives it."""
    write = Writer("resident")
    h = write.buffer("h", 0, "device", "activations", GB)
    write.reserve(0, h)
    write.add(0, Lane.COMPUTE, Op.FORWARD, stage=0, writes=[h], work=[gather()])
    write.add(0, Lane.COMPUTE, Op.FORWARD, stage=1, reads=[h], work=[gather(), gather()])
    write.release(0, h)
    schedule = write.finish()
    at, spans = 0.0, []
    for a in schedule.actions:
        taken = seconds_of.seconds(a)
        spans.append(
            Span(
                index=a.index,
                rank=0,
                lane=a.lane.value,
                label=a.label,
                start_s=at,
                end_s=at + taken,
            )
        )
        at += taken
    return schedule, Timeline(source="measured", spans=tuple(spans))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_simulates(name):
    machine = preset(name)
    costs = Costs.of(machine)
    schedule, alone = step(costs)
    predicted = simulate(schedule, machine, costs)
    assert predicted.seconds == pytest.approx(alone.seconds)


def test_a_resident_step_on_cuda_is_replayed_all_but_its_update():
    machine = preset("h200")
    device = replace(machine.device, replayed_launch_s=1e-6, queueing=None)
    machine = replace(machine, device=device)
    costs = Costs.of(machine)
    write = Writer("resident")
    h = write.buffer("h", 0, "device", "activations", GB)
    launches = Work(kind="stream", amount=0, launches=10)
    write.reserve(0, h)
    write.add(0, Lane.COMPUTE, Op.FORWARD, stage=0, writes=[h], work=[launches])
    untrained = write.finish()
    write.add(0, Lane.COMPUTE, Op.STEP, reads=[h], work=[launches])
    write.release(0, h)
    schedule = write.finish()
    eager_s, replayed_s = 10 * device.launch_s, 10e-6
    step_s = simulate(schedule, machine, costs).seconds
    assert step_s == pytest.approx(replayed_s + eager_s)
    assert simulate(untrained, machine, costs).seconds == pytest.approx(eager_s)
    other = replace(schedule, strategy="sliced")
    assert simulate(other, machine, costs).seconds == pytest.approx(2 * eager_s)


def test_fit_from_timelines_and_its_table():
    machine = preset("h200")
    truth = Costs(machine=machine, factors={"gather": 2.0})
    learned = fit(Costs.of(machine), [step(truth), step(truth)])
    assert isinstance(learned, Fit)
    assert learned.costs.factor("gather") == pytest.approx(2.0, rel=0.01)
    lines = str(learned).splitlines()
    assert lines[0].split()[:3] == ["class", "actions", "factor"]
    assert [line.split()[:2] for line in lines[1:]] == [["gather", "4"], ["all", "4"]]
    row = learned.residuals[0]
    assert 0.4 < row.mean_before < 0.5  # half of it had been predicted, and the launches rightly
    assert row.mean_after < 0.01
    assert f"{row.mean_before:.1%}" in lines[1]


def test_fit_counts_moments_to_the_forward_of_their_stage():
    write, costs = Writer("resident"), Costs.of(preset("h200"))
    h = write.buffer("h", 0, "device", "activations", GB)
    write.reserve(0, h)
    write.add(0, Lane.COMPUTE, Op.MOMENTS, stage=0, writes=[h])
    write.add(0, Lane.COMPUTE, Op.FORWARD, stage=0, reads=[h], work=[gather()])
    write.release(0, h)
    schedule, whole_s = write.finish(), 3 * costs.seconds(action(gather()))
    taken = {Op.MOMENTS: whole_s / 3, Op.FORWARD: whole_s * 2 / 3}
    spans = tuple(
        Span(index=a.index, rank=0, lane="compute", label=a.label, start_s=0.0, end_s=taken[a.op])
        for a in schedule.actions
        if a.op in taken
    )
    learned = fit(costs, [(schedule, Timeline(source="measured", spans=spans))])
    assert learned.costs.factor("gather") == pytest.approx(3.0, rel=0.1)  # launches stay


def test_fit_refuses_what_teaches_nothing():
    machine = preset("h200")
    schedule, timeline = step(Costs.of(machine))
    with pytest.raises(PlanError, match="nothing to learn"):
        fit(Costs.of(machine), [])
    with pytest.raises(PlanError, match="nothing to learn"):
        fit_actions(Costs.of(machine), [action()], [1.0])
    renamed = replace(timeline.spans[1], label="BACKWARD s0")
    with pytest.raises(PlanError, match="a timeline of another schedule"):
        fit(Costs.of(machine), [(schedule, replace(timeline, spans=(renamed,)))])
