"""What check says of tiny schedules against every interleaving of them."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedule.brute import interleavings, sound
from tests.schedule.legal import edit, machine, random_legal, without
from tiergnn.errors import PlanError
from tiergnn.schedule.actions import Action, Buffer, Lane, Op
from tiergnn.schedule.check import check, peaks
from tiergnn.schedule.schedule import Schedule, Writer

SEEDS = st.integers(0, 10**6)


def verdict(schedule: Schedule) -> str:
    """ "" or what check finds wrong."""
    try:
        check(schedule, machine(schedule.num_ranks))
    except PlanError as error:
        return error.problem
    return ""


def tiny(seed: int) -> Schedule:
    """Up to nine actions of two lanes on two ranks, mostly illegal."""
    rng = Random(seed)
    ranks = rng.choice([1, 1, 2])
    buffers = [
        Buffer(
            name=f"b{k}",
            rank=rng.randrange(ranks),
            tier="host",
            kind="staging",
            num_bytes=rng.randrange(1, 9),
            given=rng.random() < 0.2,
            lasting=rng.random() < 0.2,
        )
        for k in range(rng.randrange(1, 4))
    ]
    steps: list[dict] = []
    for buffer in buffers:
        if not buffer.given:
            steps.append({"rank": buffer.rank, "op": Op.RESERVE, "writes": (buffer.name,)})
    for _ in range(rng.randrange(1, 4)):
        names = [rng.choice(buffers).name for _ in range(2)]
        reads, writes = ((), names[:1]) if rng.random() < 0.5 else (names[:1], names[1:])
        rank = rng.randrange(ranks)
        steps.append({"rank": rank, "op": Op.COPY, "reads": tuple(reads), "writes": tuple(writes)})
    if ranks == 2 and rng.random() < 0.7:
        at = rng.randrange(len(steps) + 1)
        steps[at:at] = [{"rank": r, "op": Op.BARRIER, "tag": "t"} for r in (0, 1)]
    for buffer in buffers:
        if not buffer.lasting:
            steps.append({"rank": buffer.rank, "op": Op.RELEASE, "writes": (buffer.name,)})
    if rng.random() < 0.2:
        a, b = rng.randrange(len(steps)), rng.randrange(len(steps))
        steps[a], steps[b] = steps[b], steps[a]
    actions: list[Action] = []
    for i, step in enumerate(steps[:9]):
        mine = [a.index for a in actions if a.rank == step["rank"]]
        after = tuple(sorted(rng.sample(mine, min(len(mine), rng.randrange(3)))))
        lane = Lane.PEER if step["op"] == Op.BARRIER else rng.choice([Lane.COMPUTE, Lane.PEER])
        actions.append(Action(index=i, lane=lane, after=after, **step))
    return Schedule(
        strategy="tiny", num_ranks=ranks, buffers=tuple(buffers), actions=tuple(actions)
    )


def loosened(seed: int) -> Schedule:
    """A short legal schedule with some of what its actions wait for dropped."""
    rng = Random(seed)
    schedule = random_legal(seed, ranks=rng.choice([1, 2]), steps=rng.randrange(2, 6))
    for action in schedule.actions:
        kept = tuple(i for i in action.after if rng.random() < 0.9)
        schedule = edit(schedule, action.index, after=kept)
    return schedule


def crossed(seed: int) -> Schedule:
    """Two ranks that meet a few times, each in an order of its own."""
    rng = Random(seed)
    tags = ["a", "b", "c"][: rng.randrange(2, 4)]
    actions: list[Action] = []
    for rank in range(2):
        for tag in rng.sample(tags, len(tags)):
            op = Op.BARRIER if tag == "a" else (Op.SEND, Op.RECV)[(rank + (tag == "c")) % 2]
            lane = Lane.PEER if tag == "a" else rng.choice([Lane.PEER, Lane.PEER, Lane.COMPUTE])
            actions.append(Action(index=len(actions), rank=rank, lane=lane, op=op, tag=tag))
    return Schedule(strategy="tiny", num_ranks=2, buffers=(), actions=tuple(actions))


@pytest.mark.parametrize("make", [tiny, loosened, crossed])
@settings(max_examples=150, deadline=None)
@given(seed=SEEDS)
def test_verdict_is_that_of_all_interleavings(make, seed):
    schedule = make(seed)
    truth = interleavings(schedule)
    problem = verdict(schedule)
    assert (problem == "") == sound(schedule, truth), problem


def test_both_verdicts_occur():
    found = [verdict(make(seed)) for make in (tiny, loosened, crossed) for seed in range(150)]
    accepted = sum(problem == "" for problem in found)
    assert 40 < accepted < len(found) - 40
    # Nor is one kind of fault all that it ever sees.
    faults = {
        word
        for p in found
        for word in ("race", "leak", "written", "reserved", "free", "sends", "meet")
        if word in p
    }
    assert len(faults) >= 6


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS, steps=st.integers(2, 6), ranks=st.integers(1, 2))
def test_peaks_are_never_below_what_is_held(seed, steps, ranks):
    schedule = random_legal(seed, ranks=ranks, steps=steps)
    truth = interleavings(schedule)
    proven = peaks(schedule)
    for place, (num_bytes, kinds) in proven.items():
        assert num_bytes >= truth.peaks[place]
        assert all(held >= 0 for held in kinds.values())
    # The host's tier is shared: the sum over the ranks at one moment decides.
    assert verdict(replace(schedule)) == ""
    if truth.together:
        with pytest.raises(PlanError, match="bytes too many"):
            check(schedule, machine(ranks, host=truth.together - 1))


def eager(seed: int) -> Schedule:
    """A legal schedule whose reserves wait for no release, so that lanes hold side by side."""
    schedule = random_legal(seed, ranks=1 + seed % 2, steps=4 + seed % 5)
    for action in schedule.actions:
        if action.op == Op.RESERVE:
            schedule = edit(schedule, action.index, after=())
    return schedule


def test_how_conservative_the_peaks_are():
    """On random schedules not at all; see the next test for what can be counted in excess."""
    for seed in range(100):
        schedule = eager(seed)
        assert verdict(schedule) == ""
        truth = interleavings(schedule)
        for place, (num_bytes, kinds) in peaks(schedule).items():
            assert num_bytes == truth.peaks[place] == sum(kinds.values())


def test_what_is_counted_in_excess():
    """Rank 2 holds only after rank 1 is done, but neither is ordered with rank 0."""
    w = Writer("excess", 3)
    for rank in range(3):
        w.buffer(f"b{rank}", rank, "host", "staging", 10)
    w.reserve(0, "b0")
    w.release(0, "b0")
    w.reserve(1, "b1")
    w.release(1, "b1")
    w.meet(Op.BARRIER, "done", ranks=[1, 2])
    w.reserve(2, "b2", lane=Lane.PEER)
    w.release(2, "b2")
    schedule = w.finish()
    assert interleavings(schedule).together == 20
    check(schedule, machine(3, host=30))
    with pytest.raises(PlanError, match="1 bytes too many"):
        check(schedule, machine(3, host=29))


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS)
def test_peaks_are_exact_on_one_lane(seed):
    """Where reserves and releases of a rank are one chain, nothing is counted in excess."""
    schedule = random_legal(seed, ranks=1, steps=6)
    actions = tuple(
        replace(a, lane=Lane.COMPUTE) if a.op in (Op.RESERVE, Op.RELEASE) else a
        for a in schedule.actions
    )
    schedule = replace(schedule, actions=actions)
    truth = interleavings(schedule)
    for place, (num_bytes, kinds) in peaks(schedule).items():
        assert num_bytes == truth.peaks[place] == sum(kinds.values())


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, drop=st.integers(0, 100))
def test_a_dropped_action_is_never_accepted_wrongly(seed, drop):
    schedule = random_legal(seed, ranks=2, steps=4)
    schedule = without(schedule, drop % len(schedule.actions))
    lonely = {tag for tag in _tags(schedule) if _tags(schedule).count(tag) == 1}
    if verdict(schedule) == "":
        assert not lonely
        assert sound(schedule, interleavings(schedule))


def _tags(schedule: Schedule) -> list[str]:
    return [action.tag for action in schedule.actions if action.tag]
