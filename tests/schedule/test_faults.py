"""check finds what is wrong with a schedule, says it in its own words and shows where."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tests.schedule.legal import find, machine, without
from tests.schedule.planted import FAULTS, GOOD, MACHINE, extra, gradients, reduce_of_one
from tiergnn.errors import PlanError
from tiergnn.schedule.actions import Lane, Op
from tiergnn.schedule.check import check, peaks
from tiergnn.schedule.schedule import Schedule, Writer


def test_the_schedule_without_a_fault_is_accepted():
    check(GOOD, MACHINE)
    check(gradients("ZERO", "BACKWARD", "REDUCE", "STEP", "ZERO"), MACHINE)


@pytest.mark.parametrize("name", FAULTS)
def test_fault(name):
    make, words = FAULTS[name]
    with pytest.raises(PlanError, match=words) as caught:
        check(make(), MACHINE)
    assert caught.value.culprit
    assert caught.value.hint


def test_each_fault_has_its_own_words():
    problems = {}
    for name, (make, _) in FAULTS.items():
        with pytest.raises(PlanError) as caught:
            check(make(), MACHINE)
        assert caught.value.problem not in problems, (name, problems)
        problems[caught.value.problem] = name
    assert len(problems) >= 40


def test_a_fault_shows_the_lines_around_it():
    with pytest.raises(PlanError) as caught:
        check(extra(op=Op.RELEASE, writes=("h0",)), MACHINE)
    text = str(caught.value).splitlines()
    assert text[0] == "double free of h0: action 36 released it before"
    assert [line for line in text if line.endswith("<-- here")] == [
        "    40 r0 compute RELEASE writes h0  <-- here"
    ]
    assert text[2:5] == [f"    {action}" for action in GOOD.actions[-3:]]
    assert text[-1] == "  try: release it once"


PEAKS = {"device": 217, "host": 220}  # rank 1's device; both ranks' features and rank 0's page


@pytest.mark.parametrize("tier", PEAKS)
def test_one_byte_too_many(tier):
    check(GOOD, machine(2, **{tier: PEAKS[tier]}))
    with pytest.raises(PlanError) as caught:
        check(GOOD, machine(2, **{tier: PEAKS[tier] - 1}))
    error = caught.value
    whose = {"device": "device tier of rank 1", "host": "host tier of ranks 0,1 together"}[tier]
    assert error.problem.startswith(
        f"{whose} needs {PEAKS[tier]} B, has {PEAKS[tier] - 1} B: 1 byte"
    )
    assert {"device": "largest: h1, activations, 50 B", "host": "largest: x0, features, 100 B"}[
        tier
    ] in error.problem
    assert "<-- here" in str(error)
    assert "RESERVE" in str(error).split("<-- here")[0].splitlines()[-1]


def test_hosts_do_not_share_their_memory():
    check(GOOD, machine(1, num_hosts=2, host=120))
    with pytest.raises(PlanError, match="host tier of ranks 0 together needs 120 B"):
        check(GOOD, machine(1, num_hosts=2, host=119))


def test_what_is_given_counts_before_the_first_action():
    with pytest.raises(PlanError, match="disk tier of ranks 0 together needs 1000 B") as caught:
        check(GOOD, machine(2, disk=999))
    assert "before the first action" in str(caught.value)


def test_a_machine_with_too_little():
    with pytest.raises(PlanError, match="wanted 2 ranks, had 1 devices"):
        check(GOOD, machine(1))
    with pytest.raises(PlanError, match="no disk tier"):
        check(GOOD, machine(2, disk=None))


def test_gradients_of_parameters_that_one_rank_holds():
    """Marked `own` they need no sum."""
    schedule = gradients("BACKWARD", "STEP")
    with pytest.raises(PlanError, match="never reduced"):
        check(schedule, MACHINE)
    check(replace(schedule, buffers=tuple(replace(b, own=True) for b in schedule.buffers)), MACHINE)


def test_a_rank_that_does_not_step_counts_too():
    schedule = reduce_of_one()
    schedule = without(schedule, find(schedule, "r1 compute STEP"))
    with pytest.raises(
        PlanError, match="over the ranks 0,1 before this STEP, had it summed over 0"
    ):
        check(schedule, MACHINE)


def levels(*sums: list[int]) -> Schedule:
    """Four ranks that sum gradients among these, copy them to the host and step there."""
    w = Writer("levels", 4)
    names = {r: [f"g{r}"] for r in range(4)}
    for r in range(4):
        w.buffer(f"g{r}", r, "device", "gradients", 4)
        w.buffer(f"c{r}", r, "host", "gradients", 4)
        w.reserve(r, f"g{r}", f"c{r}")
        w.add(r, Lane.COMPUTE, Op.BACKWARD, writes=names[r])
    for number, ranks in enumerate(sums):
        w.meet(Op.REDUCE, f"sum{number}", ranks=ranks, reads=names, writes=names)
    for r in range(4):
        w.add(r, Lane.D2H, Op.COPY, reads=names[r], writes=[f"c{r}"])
        w.add(r, Lane.HOST, Op.STEP, reads=[f"c{r}"])
        w.release(r, f"g{r}", f"c{r}")
    return w.finish()


def test_a_sum_of_sums_is_whole():
    """Summed within each pair, then between the pairs; a copy of a sum is one."""
    check(levels([0, 1], [2, 3], [0, 2], [1, 3]), machine(4))
    with pytest.raises(PlanError, match="gradient c1 summed over the ranks 0,1,2,3"):
        check(levels([0, 1], [2, 3], [0, 2]), machine(4))
    with pytest.raises(PlanError, match="had those of 0,1 reduced twice by sum1@0,1,2"):
        check(levels([0, 1], [0, 1, 2]), machine(4))


def test_peaks_by_kind():
    found = peaks(GOOD)
    assert found[1, "device"] == (
        217,
        {"activations": 80, "staging": 50, "gradients": 40, "parameters": 40, "workspace": 7},
    )
    assert found[0, "host"] == (120, {"features": 100, "staging": 20})


@pytest.mark.parametrize("ranks", [1, 8])
def test_a_long_schedule_is_proven_in_seconds(ranks):
    """100,000 actions; a proof that compared pairs would take hours."""
    w = Writer("long", ranks)
    for step in range(20_000 // ranks):
        for r in range(ranks):
            name = w.buffer(f"b{step}.{r}", r, "device", "staging", 1)
            w.reserve(r, name)
            w.add(r, Lane.H2D, Op.COPY, writes=[name])
            w.add(r, Lane.COMPUTE, Op.FORWARD, reads=[name])
            w.add(r, Lane.D2H, Op.COPY, reads=[name])
            w.release(r, name)
    schedule = w.finish()
    assert len(schedule.actions) == 100_000
    began = time.process_time()
    check(schedule, machine(ranks))
    assert time.process_time() - began < 10
