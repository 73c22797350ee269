"""The simulator against cases that can be worked out by hand.

Every link of the test machine moves a byte a second and its device streams one, so that the amount
of a work is its seconds.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import strategies as st

from tests.planner.clocks import COMPUTE, D2H, H2D, PEER, at, clocked, link
from tests.schedule.legal import machine, move, stream
from tiergnn.errors import ConfigError, PlanError
from tiergnn.hardware.machine import Curve, Link, Queueing
from tiergnn.planner.cost import Costs
from tiergnn.planner.critical import critical_path
from tiergnn.planner.simulate import least_s, simulate
from tiergnn.schedule.actions import Lane, Op, Work
from tiergnn.schedule.schedule import Schedule, Writer

SEEDS = st.integers(0, 10**6)


def test_two_lanes_run_side_by_side():
    w = Writer("test")
    w.add(0, H2D, Op.COPY, work=[move("h2d", 5)])
    w.add(0, COMPUTE, Op.FORWARD, work=[stream(3)])
    w.add(0, COMPUTE, Op.FORWARD, work=[stream(4)])
    w.add(0, D2H, Op.COPY, after=[0, 2], work=[move("d2h", 2)])
    timeline = clocked(w.finish())
    assert at(timeline) == {0: (0, 5), 1: (0, 3), 2: (3, 7), 3: (7, 9)}
    assert timeline.seconds == 9
    assert timeline.busy_s() == {(0, "compute"): 7, (0, "h2d"): 5, (0, "d2h"): 2}
    assert timeline.idle_s() == {(0, "compute"): 2, (0, "h2d"): 4, (0, "d2h"): 7}
    assert timeline.moved_bytes() == {"h2d": 5, "compute": 0, "d2h": 2}
    assert timeline.bottleneck == "compute"


def test_lanes_on_a_cpu_share_its_cores():
    w = Writer("test")
    w.add(0, H2D, Op.COPY, work=[move("h2d", 2)])
    w.add(0, COMPUTE, Op.FORWARD, work=[stream(3)])
    cpu = replace(machine(), device=replace(machine().device, kind="cpu"))
    assert at(clocked(w.finish(), cpu)) == {0: (0, 4), 1: (0, 5)}


def test_nothing_begins_before_the_host_has_queued_it():
    """Of steps that are walked action by action; what a lane is at does not wait for the host."""
    on = machine(1)
    queueing = Queueing(action_s=2, tile_s=1, stage_s=4)
    on = replace(on, device=replace(on.device, queueing=queueing))
    found = {}
    for strategy in ("sliced", "resident"):
        w = Writer(strategy)
        tiles = [w.buffer(f"t{i}", 0, "host", "activations", 1) for i in range(3)]
        slices = w.buffer("s", 0, "device", "activations", 3)
        w.reserve(0, slices, *tiles)
        w.add(0, H2D, Op.COPY, reads=tiles, writes=[slices], work=[move("h2d", 9)])
        w.add(0, COMPUTE, Op.FORWARD, stage=0, work=[stream(3)])
        w.add(0, COMPUTE, Op.FORWARD, stage=0, work=[stream(1)])
        w.release(0, slices, *tiles)
        found[strategy] = at(clocked(w.finish(), on))
    # Queued at 2 (a reservation), 7 (a copy of three tiles), 13 and 19.
    assert found["sliced"] == {0: (2, 2), 1: (7, 16), 2: (13, 16), 3: (19, 20), 4: (21, 21)}
    assert found["resident"] == {0: (0, 0), 1: (0, 9), 2: (0, 3), 3: (3, 4), 4: (9, 9)}


@pytest.mark.parametrize(
    ("seconds", "lane", "recorded"),  # one nobody could stop, one that the host has a part in
    [(1, D2H, True), (6, D2H, False), (1, Lane.HOST, False)],
)
def test_a_step_that_is_recorded_waits_for_no_host(seconds, lane, recorded):
    on, queueing = machine(1), Queueing(action_s=2, tile_s=0, stage_s=4)
    on, w = replace(on, device=replace(on.device, queueing=queueing)), Writer("sliced")
    made = w.buffer("a", 0, "device", "activations", 1)
    w.reserve(0, made)
    w.add(0, lane, Op.ZERO, writes=[made])
    for op, work in ((Op.FORWARD, [stream(seconds)]), (Op.STEP, [])):
        w.add(0, COMPUTE, op, stage=0, reads=[made], work=work)
    queued = max(12, 10 + seconds)  # the actions at 2, 4, 10 and 12
    assert clocked(w.finish(), on).seconds == (seconds if recorded else queued)


@pytest.mark.parametrize(("load", "work"), [(3, 5), (5, 3), (4, 4)])
def test_double_buffering_runs_at_the_pace_of_the_slower_lane(load, work):
    w = Writer("test")
    num = 20
    for i in range(num):
        w.buffer(f"b{i}", 0, "device", "staging", 10)
        w.reserve(0, f"b{i}", lane=H2D)
        w.add(0, H2D, Op.COPY, writes=[f"b{i}"], work=[move("h2d", load)])
        if i:
            w.release(0, f"b{i - 1}")
        w.add(0, COMPUTE, Op.FORWARD, reads=[f"b{i}"], work=[stream(work)])
    w.release(0, f"b{num - 1}")
    timeline = clocked(w.finish())
    # Two buffers: the load of one runs beside the work on the other.
    assert timeline.seconds == load + (num - 1) * max(load, work) + work
    assert timeline.peak_bytes == ((0, "device", 20),)


def transfers(*sizes: int, name: str = "h2d", lane: Lane = H2D) -> Schedule:
    """One transfer on each of as many ranks, all at once."""
    w = Writer("test", len(sizes))
    for rank, num_bytes in enumerate(sizes):
        w.add(rank, lane, Op.COPY, work=[move(name, num_bytes)])
    return w.finish()


def test_a_link_of_its_own_is_not_shared():
    assert at(clocked(transfers(4, 4))) == {0: (0, 4), 1: (0, 4)}


@pytest.mark.parametrize("devices", [2, 4])
def test_a_shared_link_divides_its_rate(devices):
    on = machine(4, links={"h2d": link(devices=devices)})
    assert clocked(transfers(6, 6, 6, 6), on).seconds == 6 * devices
    # One alone has it all.
    assert clocked(transfers(6, 0, 0, 0), on).seconds == 6
    # Ranks 0 and 1 share for 2 seconds each way of the shorter one; then the longer has it all.
    spans = at(clocked(transfers(2, 6, 0, 0), on))
    assert spans[0] == (0, 4)
    assert spans[1] == (0, 8)


def test_a_latecomer_slows_what_is_under_way():
    on = machine(2, links={"h2d": link(devices=2)})
    w = Writer("test", 2)
    w.add(0, H2D, Op.COPY, work=[move("h2d", 10)])
    wait = w.add(1, COMPUTE, Op.FORWARD, work=[stream(4)])
    w.add(1, H2D, Op.COPY, after=[wait], work=[move("h2d", 2)])
    # Alone until 4, at half rate until 8, when 2 bytes have come; 4 remain.
    assert at(clocked(w.finish(), on)) == {0: (0, 12), 1: (0, 4), 2: (4, 8)}


def test_peers_behind_the_link_to_the_host_take_its_wire():
    def both(**fields) -> float:
        w = Writer("test")
        w.add(0, H2D, Op.COPY, work=[move("h2d", 4)])
        w.add(0, Lane.PEER, Op.COPY, work=[move("peer", 4)])
        return clocked(w.finish(), machine(links={"h2d": link(), "peer": link(**fields)})).seconds

    assert (both(), both(wire="h2d")) == (4, 8)
    with pytest.raises(ConfigError, match="unknown link 'host'"):
        link(wire="host")


def test_groups_of_two_hosts_share_nothing():
    on = machine(2, num_hosts=2, links={"h2d": link(devices=2)})
    assert clocked(transfers(6, 0, 6, 0), on).seconds == 6
    assert clocked(transfers(6, 6, 6, 0), on).seconds == 12


def test_opposite_directions_slow_each_other():
    on = machine(links={"h2d": link(duplex_frac=0.5), "d2h": link(duplex_frac=0.8)})
    w = Writer("test")
    w.add(0, H2D, Op.COPY, work=[move("h2d", 5)])
    w.add(0, D2H, Op.COPY, work=[move("d2h", 4)])
    # d2h ends at 5, having gone at 0.8; until then h2d went at 0.5, and has 2.5 bytes left.
    spans = at(clocked(w.finish(), on))
    assert spans[1] == (0, pytest.approx(5))
    assert spans[0] == (0, pytest.approx(7.5))


def test_a_disk_reads_slower_while_it_writes():
    on = machine(links={name: link(duplex_frac=0.5) for name in ("disk_read", "disk_write")})
    w = Writer("test")
    w.add(0, Lane.DISK_READ, Op.COPY, work=[move("disk_read", 4)])
    w.add(0, Lane.DISK_WRITE, Op.COPY, work=[move("disk_write", 2)])
    assert at(clocked(w.finish(), on)) == {0: (0, 6), 1: (0, 4)}


def test_rows_read_in_place_hold_their_lane_and_share_the_wire():
    rows = Work(kind="gather", amount=12, grain=4, span=100, place="host")
    fast = Link(Bps=Curve(((4.0, 2.0), (8.0, 6.0))))
    w = Writer("test")
    w.add(0, COMPUTE, Op.FORWARD, work=[rows])
    w.add(0, COMPUTE, Op.FORWARD, work=[replace(rows, grain=8)])
    # By the width of a row: 12 bytes at 2 a second, then at 6.
    alone = clocked(w.finish(), machine(links={"zero_copy": fast}))
    assert at(alone) == {0: (0, 6), 1: (6, 8)}
    w.add(0, H2D, Op.COPY, work=[move("h2d", 3)])
    beside = clocked(w.finish(), machine(links={"zero_copy": fast}))
    # The copy has half of the wire for 6 seconds, while 6 of the first 12 bytes come.
    assert at(beside) == {0: (0, 9), 1: (9, 11), 2: (0, 6)}
    assert alone.moved_bytes() == {"compute": 24}


def test_peers_read_in_place():
    w = Writer("test", 2)
    for rank in range(2):
        work = Work(kind="gather", amount=6, place="peer", span=10)
        w.add(rank, COMPUTE, Op.FORWARD, work=[work, stream(1)])
    assert clocked(w.finish()).seconds == 7
    assert clocked(w.finish(), machine(2, links={"peer": link(2.0, devices=2)})).seconds == 7
    assert clocked(w.finish(), machine(2, links={"peer": link(devices=2)})).seconds == 13


def test_a_meeting_waits_for_the_last_and_ends_for_all():
    w = Writer("test", 3)
    for rank in range(3):
        w.add(rank, COMPUTE, Op.FORWARD, work=[stream(rank + 1)])
    met = w.meet(Op.EXCHANGE, "m", work={0: [move("peer_copy", 4)], 1: [move("peer_copy", 1)]})
    for rank in range(3):
        w.add(rank, COMPUTE, Op.FORWARD, after=[met[rank]], work=[stream(1)])
    spans = at(clocked(w.finish()))
    assert [spans[met[rank]] for rank in range(3)] == [(3, 7)] * 3
    assert [spans[met[2] + 1 + rank] for rank in range(3)] == [(7, 8)] * 3


def test_some_ranks_meet_while_others_go_on():
    w = Writer("test", 3)
    w.add(0, COMPUTE, Op.FORWARD, work=[stream(5)])
    met = w.meet(Op.BARRIER, "m", ranks=[0, 2])
    late = w.add(1, PEER, Op.FORWARD, work=[stream(1)])
    spans = at(clocked(w.finish()))
    assert spans[met[2]] == (5, 5)
    assert spans[late] == (0, 1)


def test_to_have_met_takes_processors_a_moment():
    """A GPU waits in order, without the host."""
    w = Writer("test", 2)
    w.add(0, COMPUTE, Op.FORWARD, work=[stream(3)])
    met = w.meet(Op.BARRIER, "m")
    schedule = w.finish()
    slow = machine(2, links={"peer_copy": replace(link(), latency_s=2.0)})
    cpu = replace(slow, device=replace(slow.device, kind="cpu"))
    for on, end_s in ((slow, 3), (cpu, 5)):
        spans = at(clocked(schedule, on))
        assert [spans[met[rank]] for rank in (0, 1)] == [(3, end_s)] * 2
    assert least_s((a.done for a in schedule.actions), cpu, Costs.of(cpu)) <= 5


def test_a_message_takes_both_ends():
    w = Writer("test", 2)
    w.add(1, PEER, Op.FORWARD, work=[stream(2)])
    w.add(0, PEER, Op.SEND, tag="m", work=[move("peer_copy", 3)])
    w.add(1, PEER, Op.RECV, tag="m")
    assert at(clocked(w.finish())) == {0: (0, 2), 1: (2, 5), 2: (2, 5)}


def test_factors_of_costs_count():
    schedule = transfers(4)
    on = machine()
    costs = Costs(machine=on, factors={"h2d": 2.5})
    assert simulate(schedule, on, costs).seconds == 10


def test_what_waits_forever_is_said():
    w = Writer("test", 2)
    for rank in range(2):
        w.add(rank, PEER, Op.SEND, tag=f"from{rank}")
        w.add(rank, PEER, Op.RECV, tag=f"from{1 - rank}")
    with pytest.raises(PlanError, match="crossed sends"):
        clocked(w.finish())


def test_a_link_that_is_not_there():
    bare = replace(machine(), links={})
    with pytest.raises(PlanError, match="no h2d link"):
        clocked(transfers(4), bare)


def test_nothing_takes_no_time():
    timeline = clocked(Schedule(strategy="test", num_ranks=1, buffers=(), actions=()))
    assert timeline.seconds == 0
    assert (
        critical_path(timeline, Schedule(strategy="t", num_ranks=1, buffers=(), actions=())).bound
        is None
    )
