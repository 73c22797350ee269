"""The simulator against laws that hold for all schedules: orders, work, waiting, rates, memory."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planner.clocks import COMPUTE, D2H, H2D, at, clocked, link
from tests.schedule.legal import machine, move, random_legal, stream
from tiergnn.hardware.machine import Curve, Machine
from tiergnn.planner.cost import Costs
from tiergnn.planner.critical import critical_path
from tiergnn.planner.simulate import simulate
from tiergnn.schedule.actions import Lane, Op
from tiergnn.schedule.check import peaks
from tiergnn.schedule.order import order_of
from tiergnn.schedule.schedule import Writer

SEEDS = st.integers(0, 10**6)


def shared(ranks: int) -> Machine:
    links = {"h2d": link(devices=2, duplex_frac=0.7), "d2h": link(duplex_frac=0.6)}
    return machine(ranks, links=links)


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, ranks=st.integers(1, 4))
def test_orders_are_kept_and_work_is_conserved(seed, ranks):
    schedule = random_legal(seed, ranks=ranks, steps=40)
    on = shared(ranks)
    costs = Costs.of(on)
    timeline = simulate(schedule, on, costs)
    assert timeline == simulate(schedule, on, costs)
    spans = at(timeline)
    lanes: dict[tuple[int, str], float] = defaultdict(float)
    done_s = [0.0]
    for action in schedule.actions:
        start_s, end_s = spans[action.index]
        # Nothing ends sooner than it would alone; lanes hold one at a time, in their order.
        assert end_s - start_s >= costs.seconds(action) * (1 - 1e-9)
        assert start_s >= lanes[action.rank, action.lane]
        lanes[action.rank, action.lane] = end_s
        assert all(spans[i][1] <= start_s for i in action.after)
        done_s.append(end_s)
    order = order_of(schedule)
    for j in range(0, len(schedule.actions), 7):
        for i in range(0, len(schedule.actions), 5):
            if order.before(i, j):
                assert spans[i][1] <= spans[j][0]
    assert timeline.seconds == max(done_s) >= max(timeline.busy_s().values())
    # A wire never moves more than its rate: two ranks share one here.
    for pair in range(0, ranks, 2):
        moved = sum(
            work.amount
            for action in schedule.actions
            if action.rank in (pair, pair + 1)
            for work in action.work
            if work.place == "h2d"
        )
        assert timeline.seconds >= moved * (1 - 1e-9)


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, ranks=st.integers(1, 3))
def test_never_idle_without_a_reason(seed, ranks):
    """Each action starts the moment that the last of what it waits for ends."""
    schedule = random_legal(seed, ranks=ranks, steps=40)
    timeline = clocked(schedule, shared(ranks))
    path = critical_path(timeline, schedule)
    spans = at(timeline)
    assert path.gap_s == 0
    ended = 0.0
    for i in path.actions:
        assert spans[i][0] == ended
        ended = spans[i][1]
    assert ended == timeline.seconds
    assert sum(seconds for _, seconds in path.share_s) == pytest.approx(timeline.seconds)
    idle = timeline.idle_s()
    stalled: dict[tuple[int, str], float] = defaultdict(float)
    for stall in path.stalls:
        stalled[stall.rank, stall.lane] += stall.seconds
    assert all(seconds <= idle[key] + 1e-9 for key, seconds in stalled.items())


WIRES = dict(
    zip(
        Lane, ("h2d", "d2h", "peer", "disk_read", "disk_write", "host_copy", "network"), strict=True
    )
)


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, ranks=st.integers(1, 3), name=st.sampled_from([*WIRES.values(), "stream"]))
def test_faster_is_never_slower(seed, ranks, name):
    """Where nothing is shared: a faster wire may bring two transfers together on the next one."""
    schedule = random_legal(seed, ranks=ranks, steps=40)
    actions = (
        replace(
            a,
            work=tuple(
                replace(work, place=WIRES[a.lane]) if work.kind == "move" else work
                for work in a.work
            ),
        )
        for a in schedule.actions
    )
    schedule = replace(schedule, actions=tuple(actions))
    on = machine(ranks)
    fast = (
        replace(on, device=replace(on.device, stream_Bps=3.0))
        if name == "stream"
        else machine(ranks, links={name: link(3.0)})
    )
    assert clocked(schedule, fast).seconds <= clocked(schedule, on).seconds * (1 + 1e-9)


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS)
def test_twice_as_fast_takes_half_the_time(seed):
    schedule = random_legal(seed, ranks=4, steps=40)
    on = shared(4)
    links = {name: replace(each, Bps=Curve.flat(2.0)) for name, each in on.links.items()}
    fast = replace(on, links=links, device=replace(on.device, stream_Bps=2.0))
    assert clocked(schedule, fast).seconds == pytest.approx(clocked(schedule, on).seconds / 2)


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, ranks=st.integers(1, 3))
def test_what_is_held_never_exceeds_what_is_proven(seed, ranks):
    schedule = random_legal(seed, ranks=ranks, steps=40)
    proven = peaks(schedule)
    for rank, tier, held in clocked(schedule, shared(ranks)).peak_bytes:
        assert held <= proven[rank, tier][0]


def test_a_long_schedule_is_clocked_in_seconds():
    ranks = 8
    w = Writer("long", ranks)
    for step in range(20_000 // ranks):
        for r in range(ranks):
            name = w.buffer(f"b{step}.{r}", r, "device", "staging", 1)
            w.reserve(r, name)
            w.add(r, H2D, Op.COPY, writes=[name], work=[move("h2d", 1 + step % 3)])
            w.add(r, COMPUTE, Op.FORWARD, reads=[name], work=[stream(1)])
            w.add(r, D2H, Op.COPY, reads=[name], work=[move("d2h", 1 + step % 2)])
            w.release(r, name)
    schedule = w.finish()
    assert len(schedule.actions) == 100_000
    on = machine(ranks, links={"h2d": link(devices=4, duplex_frac=0.9)})
    began = time.process_time()
    timeline = clocked(schedule, on)
    assert time.process_time() - began < 10
    assert timeline.seconds >= 100_000 / 5 / ranks
