"""The critical path of a timeline, and two timelines side by side."""

from __future__ import annotations

from dataclasses import replace

from tests.planner.test_simulate import COMPUTE, D2H, H2D, PEER, clocked
from tests.schedule.legal import move, stream, whole
from tiergnn.planner.critical import Stall, critical_path
from tiergnn.schedule.actions import Op
from tiergnn.schedule.schedule import Writer
from tiergnn.schedule.timeline import Timeline, side_by_side


def test_which_lane_bounds_and_who_waits_for_whom():
    w = Writer("test")
    for i in range(4):
        w.buffer(f"b{i}", 0, "device", "staging", 1)
        w.reserve(0, f"b{i}", lane=H2D)
        w.add(0, H2D, Op.COPY, writes=[f"b{i}"], work=[move("h2d", 5)])
        w.add(0, COMPUTE, Op.FORWARD, reads=[f"b{i}"], work=[stream(3)])
    for i in range(4):
        w.release(0, f"b{i}")
    schedule = w.finish()
    path = critical_path(clocked(schedule), schedule)
    assert path.bound == (0, "h2d")
    assert dict(path.share_s) == {(0, "h2d"): 20, (0, "compute"): 3}
    assert path.stalls == (
        Stall(rank=0, lane="compute", for_rank=0, for_lane="h2d", seconds=5 + 3 * 2),
    )


def test_a_wait_is_passed_on_through_room_and_meetings():
    """Rank 1 waits at a barrier, after making room, for the slow copy of rank 0."""
    w = Writer("test", 2)
    w.add(0, D2H, Op.COPY, work=[move("d2h", 9)])
    met = w.meet(Op.BARRIER, "m")
    w.buffer("b", 1, "device", "staging", 1)
    room = w.add(1, PEER, Op.RESERVE, writes=["b"])
    w.add(1, COMPUTE, Op.FORWARD, after=[room], writes=["b"], work=[stream(1)])
    w.release(1, "b")
    schedule = w.finish()
    path = critical_path(clocked(schedule), schedule)
    assert path.bound == (0, "d2h")
    assert path.actions[0] == 0
    assert Stall(rank=1, lane="compute", for_rank=0, for_lane="d2h", seconds=9) in path.stalls
    assert met[1] in path.actions


def test_gaps_of_a_measured_timeline():
    w = Writer("test")
    for seconds in (2, 3):
        w.add(0, COMPUTE, Op.FORWARD, work=[stream(seconds)])
    schedule = w.finish()
    predicted = clocked(schedule)
    first, second = predicted.spans
    late = replace(second, start_s=second.start_s + 0.5, end_s=second.end_s + 0.5)
    path = critical_path(Timeline(source="measured", spans=(first, late)), schedule)
    assert path.gap_s == 0.5
    assert dict(path.share_s) == {(0, "compute"): 5}
    # An action without a span takes no time, and does not break the chain.
    path = critical_path(Timeline(source="measured", spans=(late,)), schedule)
    assert path.actions == (0, 1)


def test_two_timelines_side_by_side():
    w = Writer("test")
    for part in range(3):
        w.add(0, COMPUTE, Op.FORWARD, stage=1, part=part, work=[stream(2)])
        w.add(0, H2D, Op.COPY, part=part, work=[move("h2d", 1)])
    predicted = clocked(w.finish())
    slower = tuple(replace(s, end_s=s.start_s + 2 * (s.end_s - s.start_s)) for s in predicted.spans)
    rows = side_by_side(predicted, replace(predicted, source="measured", spans=slower[:-1]))
    assert [(row.lane, row.label, row.predicted, row.measured) for row in rows] == [
        ("compute", "FORWARD s1", 3, 2),
        ("h2d", "COPY", 3, 3),
    ]
    assert (rows[0].predicted_s, rows[0].measured_s) == (6, 8)
    assert rows[0].error_frac == -0.25
    assert rows[1].error_frac == -0.5


def test_a_timeline_is_read_back(tmp_path):
    timeline = clocked(whole())
    timeline.save(tmp_path / "timeline.json")
    assert Timeline.load(tmp_path / "timeline.json") == timeline
