"""What ``sliced`` begins ahead: the first copies of a phase, chunks of edges, room for the next."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.planner.strategies.cases import Case, graph_case, small
from tiergnn.errors import PlanError
from tiergnn.planner.models import classic
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.planner.strategies.known import STRATEGIES
from tiergnn.planner.strategies.passing import Turns
from tiergnn.schedule.actions import Action, Lane, Op
from tiergnn.schedule.check import check
from tiergnn.schedule.schedule import Schedule
from tiergnn.workload import Workload

PARTS, SLICES = 4, 4
CASE = graph_case(64, 400, PARTS, 30, seed=1)
Chosen = Callable[[Action], bool]


def least(workload: Workload, case: Case, knobs: Knobs, *, host_bytes: int) -> Schedule:
    """With no more device memory than it needs, and hardly more host memory than given."""
    tiers = {"device": 1_000, "host": host_bytes}
    for _ in range(8):
        there = small(tiers["device"], tiers["host"])
        try:
            schedule = STRATEGIES["sliced"](workload, case.shape, case.layout, there, knobs)
        except PlanError as error:
            tier, num_bytes = error.short or ("", 0)
            tiers[tier] = num_bytes
            continue
        check(schedule, there)
        return schedule
    raise AssertionError("what was said to do did not do")


def written(model: str, **knobs: str) -> Schedule:
    """Three layers with all rows in host memory."""
    workload = classic(model, 8, 8, hidden=8, layers=3, heads=4)
    chosen = Knobs(parts=PARTS, slices=SLICES, **knobs)
    return least(workload, CASE, chosen, host_bytes=10**7)


def find(schedule: Schedule, chosen: Chosen) -> list[int]:
    return [action.index for action in schedule.actions if chosen(action)]


def copies(schedule: Schedule, lane: Lane, buffer: str) -> list[int]:
    """Those that a buffer (whatever its number) takes part in."""

    def is_one(action: Action) -> bool:
        names = action.writes if lane is Lane.H2D else action.reads
        return (
            action.op is Op.COPY
            and action.lane is lane
            and any(name.partition("~")[0] == buffer for name in names)
        )

    return find(schedule, is_one)


def of(schedule: Schedule, op: Op, stage: int, *, part: int = -1, slice: int = -1) -> int:
    (found,) = find(
        schedule, lambda a: (a.op, a.stage, a.part, a.slice) == (op, stage, part, slice)
    )
    return found


def test_a_slice_is_brought_before_the_last_block_is_there():
    schedule = written("gcn")
    last = of(schedule, Op.UPDATE, 1, part=PARTS - 1)
    early, late = copies(schedule, Lane.H2D, "h1.c0")[:2]
    assert not schedule.order.before(last, early)
    assert schedule.order.before(last, late)
    tiles = [schedule.actions[i].reads for i in (early, late)]
    assert [len(names) for names in tiles] == [PARTS - 1, 1]
    assert f".p{PARTS - 1}@" in tiles[1][0]


def test_a_block_is_brought_before_the_last_slice_is_there():
    schedule = written("gcn")
    last = of(schedule, Op.AGGREGATE, 2, slice=SLICES - 1)
    early, late = copies(schedule, Lane.H2D, "sum.s2.p0")[:2]
    assert not schedule.order.before(last, early)
    assert schedule.order.before(last, late)
    tiles = [schedule.actions[i].reads for i in (early, late)]
    assert [len(names) for names in tiles] == [SLICES - 1, 1]
    assert f".c{SLICES - 1}." in tiles[1][0]


def test_the_next_chunk_of_edges_does_not_wait_for_the_one_at_work():
    schedule = written("gat", topology="host")
    first = of(schedule, Op.AGGREGATE, 1, part=0, slice=0)
    ahead, behind = (copies(schedule, Lane.H2D, f"topology.p{part}")[0] for part in (1, 2))
    assert not schedule.order.before(first, ahead)
    assert schedule.order.before(first, behind)


def test_a_block_that_leaves_in_pieces_holds_up_neither_the_next_nor_what_comes():
    """SAGE's backward makes two gradients of each block of rows."""
    schedule = written("sage")
    order = schedule.order
    for gradient in ("sum.s2.grad.p1", "h1.grad.p1"):
        (leaving,) = copies(schedule, Lane.D2H, gradient)
        assert not order.before(leaving, of(schedule, Op.BACKWARD, 2, part=2))
        coming = copies(schedule, Lane.H2D, "sum.s2.p2")[-1]
        assert not order.before(coming, leaving)


@pytest.mark.parametrize("tier", ["host", "disk"])
@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("parts", [1, 2])
def test_what_is_still_to_be_written_is_brought_once_it_is_there(parts, slices, tier):
    """A phase of one turn has nothing before that; a slice on a disk is read in one piece."""
    case = graph_case(20, 60, parts, 9, seed=2)
    workload = classic("gat", 5, 4, hidden=4, layers=3, heads=2)
    knobs = Knobs(parts=parts, slices=slices, tier=tier)
    schedule = least(workload, case, knobs, host_bytes=1_000 if tier == "disk" else 10**6)
    assert bool(find(schedule, lambda a: a.lane is Lane.DISK_READ)) == (tier == "disk")


def test_turns_are_begun_one_ahead():
    told: list[str] = []
    turns = Turns(lambda: told.append("settle"))
    for number in range(2):
        turns.take(
            lambda number=number: told.append(f"begin {number}"),
            lambda _, number=number: told.append(f"run {number}"),
        )
    turns.then(lambda: told.append("then"))
    turns.finish()
    turns.then(lambda: told.append("now"))
    assert told == [
        "begin 0", "settle", "begin 1", "run 0", "settle", "run 1", "then", "settle", "now",
    ]  # fmt: skip
