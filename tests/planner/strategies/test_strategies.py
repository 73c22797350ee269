"""Every strategy over random graphs, parts and knobs: proved by check, alike by walks and text."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planner.strategies.cases import WORKLOADS, cases, graph_case, knobs_of, machine, small
from tiergnn.errors import ConfigError, PlanError
from tiergnn.planner.cost import Costs
from tiergnn.planner.simulate import simulate
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.planner.strategies.known import KNOBS, RANKED, SIZED, STRATEGIES
from tiergnn.schedule.actions import Op
from tiergnn.schedule.capacity import held_in_order
from tiergnn.schedule.check import check, peaks
from tiergnn.schedule.contents import Content, What
from tiergnn.schedule.schedule import Schedule

OURS = [name for name in STRATEGIES if name != "resident"]
ONE_DEVICE = ("hongtu", "grinnder", "sliced")


@pytest.mark.parametrize("name", OURS)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_every_schedule_is_sound(name, data):
    workload = WORKLOADS[data.draw(st.sampled_from(sorted(WORKLOADS)))]
    case = data.draw(cases(max_parts=16 if name in ONE_DEVICE else 8))
    knobs = data.draw(knobs_of(KNOBS[name], workload, case.layout.num_parts))
    there = machine(*data.draw(st.sampled_from([(8, 1), (2, 4)])))
    schedule = STRATEGIES[name](workload, case.shape, case.layout, there, knobs)
    check(schedule, there)
    assert schedule.num_ranks == (1 if name in ONE_DEVICE else case.layout.num_parts)
    assert Schedule.parse(str(schedule)) == schedule
    timeline = simulate(schedule, there, Costs.of(there))
    assert timeline.seconds > 0
    counted = [action for action in schedule.actions if action.op is Op.STEP]
    assert len(counted) == schedule.num_ranks
    # Loss and backward are of every part, however many rows of it are labelled.
    labelled = sum(part.labelled > 0 for part in case.layout.parts)
    assert sum(action.op is Op.LOSS for action in schedule.actions) == labelled
    again = STRATEGIES[name](workload, case.shape, case.layout, there, knobs)
    assert again == schedule


@pytest.mark.parametrize("name", RANKED)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_every_evaluation_is_sound(name, data):
    """No gradient is made, and the output's rows of all parts are what stays."""
    workload = WORKLOADS[data.draw(st.sampled_from(sorted(WORKLOADS)))]
    case = data.draw(cases())
    knobs = data.draw(knobs_of(KNOBS[name], workload, case.layout.num_parts))
    there = machine(*data.draw(st.sampled_from([(8, 1), (2, 4)])))
    schedule = RANKED[name](workload, case.shape, case.layout, there, knobs)
    check(schedule, there)
    assert not {Op.BACKWARD, Op.LOSS, Op.STEP} & {action.op for action in schedule.actions}
    assert not any(buffer.kind == "gradients" for buffer in schedule.buffers)
    left = [b.holds for b in schedule.buffers if b.lasting and not b.given]
    assert left == [Content(What.ROWS, workload.output, p) for p in range(schedule.num_ranks)]


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("model", sorted(WORKLOADS))
def test_every_stage_runs_once_on_every_row(name, model):
    workload, case = WORKLOADS[model], graph_case(40, 160, 4, 20, seed=3)
    count = {"parts" if name in ONE_DEVICE else "ranks": 4}
    knobs = Knobs(**count, **({"slices": 2} if name == "sliced" else {}))
    there = machine()
    schedule = STRATEGIES[name](workload, case.shape, case.layout, there, knobs)
    for stage in workload.stages:
        passes = [Op.FORWARD, Op.UPDATE]
        if name in ONE_DEVICE and workload.output in stage.writes:
            passes = [Op.RECOMPUTE]  # forward and backward are one visit
        ran = [
            action.part
            for action in schedule.actions
            if action.stage == stage.index and action.op in passes and action.slice < 0
        ]
        assert sorted(ran) == ([0, 1, 2, 3] if stage.writes else []), stage.index
        back = [
            action.part
            for action in schedule.actions
            if action.stage == stage.index and action.op is Op.BACKWARD and action.slice < 0
        ]
        graded = any(workload.row_kind(written).grad for written in stage.writes)
        assert sorted(back) == ([0, 1, 2, 3] if graded else []), stage.index


@pytest.mark.parametrize("name", ONE_DEVICE)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_budgets_hold_or_the_least_that_would_do_is_told(name, data):
    workload = WORKLOADS[data.draw(st.sampled_from(["gcn", "gin"]))]
    case = data.draw(cases(max_parts=6))
    knobs = data.draw(knobs_of(KNOBS[name], workload, case.layout.num_parts))
    device, host = data.draw(st.integers(1000, 40_000)), data.draw(st.integers(0, 20_000))
    for _ in range(6):
        there = small(device, host)
        try:
            schedule = STRATEGIES[name](workload, case.shape, case.layout, there, knobs)
        except PlanError as error:
            tier = error.problem.split(": ")[1].split()[0]
            least = int(error.hint.split("at least ")[1].split()[0])
            assert least > {"device": device, "host": host}[tier]
            device, host = (least, host) if tier == "device" else (device, least)
            continue
        check(schedule, there)
        held = peaks(schedule)
        assert held[0, "device"][0] <= device
        assert held.get((0, "host"), (0, {}))[0] <= host
        return
    raise AssertionError("what was said to do did not do")


@pytest.mark.parametrize("name", ONE_DEVICE)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_what_is_held_is_told_without_writing(name, data):
    """Sized before it is written, a schedule holds exactly what is proven of it."""
    workload = WORKLOADS[data.draw(st.sampled_from(sorted(WORKLOADS)))]
    case = data.draw(cases(max_parts=16))
    knobs = data.draw(knobs_of(KNOBS[name], workload, case.layout.num_parts))
    fitting = SIZED[name](workload, case.shape, case.layout, machine(), knobs)
    schedule = fitting.write()
    proven = peaks(schedule)
    walked = held_in_order(schedule)
    assert {place: full.num_bytes for place, full in walked.items()} == {
        place: num_bytes for place, (num_bytes, _) in proven.items()
    }
    assert {place: num_bytes for place, (num_bytes, _) in fitting.sized.held.items()} == {
        place: num_bytes for place, (num_bytes, _) in proven.items()
    }


def test_more_host_memory_means_less_disk():
    workload, case = WORKLOADS["gin"], graph_case(60, 400, 6, 30, seed=1)
    for name in ("grinnder", "sliced"):
        knobs = Knobs(parts=6, tier="disk", **({"slices": 4} if name == "sliced" else {}))
        moved = []
        for host in (3_500, 6_000, 12_000, 10**6):
            there = small(60_000 if name == "grinnder" else 15_000, host)
            schedule = STRATEGIES[name](workload, case.shape, case.layout, there, knobs)
            timeline = simulate(schedule, there, Costs.of(there))
            on_disk = timeline.moved_bytes()
            moved.append(on_disk.get("disk_read", 0) + on_disk.get("disk_write", 0))
        assert moved == sorted(moved, reverse=True), name
        assert moved[-1] < moved[0], name


def test_workloads_that_say_nothing_of_slices_are_refused():
    """Such as were saved before slices were metered."""
    workload, case = WORKLOADS["gcn"], graph_case(20, 50, 2, 5, seed=0)
    old = replace(workload, stages=tuple(replace(s, slices=None) for s in workload.stages))
    with pytest.raises(PlanError, match="slices of stage 1"):
        STRATEGIES["sliced"](old, case.shape, case.layout, machine(1), Knobs(parts=2, slices=2))


def test_slices_stay_on_the_device_as_it_grows():
    workload, case = WORKLOADS["gcn"], graph_case(60, 400, 4, 30, seed=1)
    knobs = Knobs(parts=4, slices=4)
    moved = []
    for device in (14_500, 15_000, 16_000, 10**6):
        there = small(device, 10**6)
        schedule = STRATEGIES["sliced"](workload, case.shape, case.layout, there, knobs)
        moved.append(sum(action.moved_bytes for action in schedule.actions))
    assert moved == sorted(moved, reverse=True)
    assert moved[0] > moved[-1] == 0


def test_refusals_name_the_way_out():
    workload, case, there = WORKLOADS["gcn"], graph_case(20, 50, 2, 5, seed=0), machine()
    arguments = (workload, case.shape, case.layout, there)
    with pytest.raises(ConfigError, match="halo has no knob slices"):
        STRATEGIES["halo"](*arguments, Knobs(ranks=2, slices=2))
    with pytest.raises(ConfigError, match="asked for 3 parts, the layout has 2"):
        STRATEGIES["grinnder"](*arguments, Knobs(parts=3))
    for name in ("grinnder", "hongtu"):
        with pytest.raises(ConfigError, match="topology=host"):
            STRATEGIES[name](*arguments, Knobs(parts=2, topology="turns"))
    with pytest.raises(ConfigError, match="no stage 9"):
        STRATEGIES["uva"](*arguments, Knobs(ranks=2, recompute=(9,)))
    with pytest.raises(PlanError, match="needs 2 devices"):
        STRATEGIES["mgg"](*arguments[:3], machine(1), Knobs(ranks=2))
    with pytest.raises(ConfigError, match="unknown tier"):
        Knobs(tier="tape")
    with pytest.raises(ConfigError, match="fraction"):
        Knobs(hot_frac=1.5)
    stages = tuple(replace(s, columnwise=False) for s in workload.stages)
    whole = replace(workload, stages=stages)
    with pytest.raises(PlanError, match="strategy grinnder"):
        STRATEGIES["sliced"](whole, *arguments[1:], Knobs(parts=2))
    rows = tuple(replace(r, grad=True) for r in workload.rows)
    with pytest.raises(PlanError, match="learns x"):
        STRATEGIES["halo"](replace(workload, rows=rows), *arguments[1:], Knobs(ranks=2))
