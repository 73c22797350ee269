"""In how many pieces rows of others come: as many as end soonest, alike in a step and in an
evaluation, each summed as soon as it is there."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from tests.planner.strategies.cases import WORKLOADS, graph_case, machine
from tiergnn.errors import ConfigError
from tiergnn.graph.distributions import rmat_shape
from tiergnn.graph.shape import GraphShape, expected_layout
from tiergnn.hardware.machine import Curve, Link, Machine
from tiergnn.hardware.presets import preset
from tiergnn.planner.cost import Costs
from tiergnn.planner.models import classic
from tiergnn.planner.simulate import simulate
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.planner.strategies.known import RANKED, STRATEGIES
from tiergnn.planner.strategies.pieces import ahead, cut
from tiergnn.schedule.actions import Action, Op
from tiergnn.schedule.check import check
from tiergnn.schedule.contents import What
from tiergnn.schedule.schedule import Schedule

REPLICAS = (What.REPLICAS, What.GRAD_REPLICAS)


@cache
def behind_a_link() -> Machine:
    """Eight H200, peers behind the link to the host."""
    way = Link(Bps=Curve.flat(50e9), wire="h2d")
    found = preset("h200")
    return replace(
        found, num_devices=8, links=found.links | {"peer": way, "peer_copy": way, "zero_copy": way}
    )


@cache
def products() -> GraphShape:
    return rmat_shape(
        2_449_029, 61_859_140, a=0.45, b=0.22, c=0.22, num_features=100, num_classes=47,
        num_labelled=196_615, undirected=True, name="products",
    )  # fmt: skip


def written(shape: GraphShape, on: Machine, *, evaluation: bool = False, **knobs) -> Schedule:
    chosen = {"device_cache_frac": 1.0, "exchange": "outputs"} | knobs
    workload = classic("gin", 100, 47, hidden=64, layers=3)
    write = (RANKED if evaluation else STRATEGIES)["leo"]
    return write(workload, shape, expected_layout(shape, 8), on, Knobs(ranks=8, **chosen))


def pulls(schedule: Schedule) -> list[Action]:
    """What rank 0 copies of others' rows."""
    return [a for a in schedule.actions if a.rank == 0 and a.op is Op.COPY and a.lane == "peer"]


def cuts(schedule: Schedule, what: What) -> set[tuple[int, int]]:
    held = [b.holds for b in schedule.buffers if b.rank == 0 and b.holds and b.holds.what is what]
    return {holds.rows for holds in held if holds.rows is not None}


def test_as_many_as_end_soonest():
    """The clock likes what is chosen about as much as anything else."""
    on = behind_a_link()
    seconds = {
        pieces: simulate(schedule, on, Costs.of(on)).seconds
        for pieces in (0, 1, 2, 3, 4, 6, 8)
        if check(schedule := written(products(), on, pieces=pieces), on) is None
    }
    assert seconds[0] < 0.98 * seconds[1]
    assert seconds[0] < 1.01 * min(seconds.values())


def test_whole_where_nothing_is_won():
    small = rmat_shape(2000, 20_000, num_features=100, num_classes=47, num_labelled=100)
    on = behind_a_link()
    chosen = cuts(written(products(), on), What.REPLICAS)
    assert len(chosen) > 1
    for schedule in (
        written(small, on),
        written(products(), on, pipeline=False),
        written(products(), on, asynchronous=False),
        written(products(), on, device_cache_frac=0.25),  # reads in place come after
        written(products(), replace(on, device=replace(on.device, kind="cpu"))),
    ):
        assert len(cuts(schedule, What.REPLICAS)) == 1


def test_evaluations_are_cut_alike():
    """So that edges lie on the device once; inputs, too, though they are there from the first."""
    on = behind_a_link()
    step, evaluation = (written(products(), on, evaluation=e) for e in (False, True))
    assert cuts(step, What.REPLICAS) == cuts(evaluation, What.REPLICAS)
    rows = sorted(cuts(step, What.REPLICAS))
    assert rows[0][0] == 0
    assert all(a[1] == b[0] for a, b in pairwise(rows))


def test_a_piece_is_summed_while_the_next_one_comes():
    on = behind_a_link()
    schedule = written(products(), on, pieces=3)
    spans = {s.index: s for s in simulate(schedule, on, Costs.of(on)).spans}
    summed = {
        name: action
        for action in schedule.actions
        if action.op in (Op.AGGREGATE, Op.BACKWARD) and action.slice == 1
        for name in action.reads
    }
    found = pulls(schedule)
    assert len(found) == 4 * 3  # two layers of three, each forward and backward
    for first, then in zip(found[::3], found[1::3], strict=True):
        assert spans[summed[first.writes[0]].index].start_s < spans[then.index].end_s
        assert spans[then.index].start_s <= spans[first.index].end_s + 1e-9


@pytest.mark.parametrize("exchange", ["inputs", "outputs"])
def test_no_memory_but_two_chunks_for_what_goes_to_host_memory(exchange):
    case, workload = graph_case(60, 900, 4, 20, seed=5), WORKLOADS["gcn"]
    for pieces in (4, 8):
        knobs = Knobs(ranks=4, host_cache_frac=1.0, exchange=exchange, pieces=pieces)
        schedule = STRATEGIES["leo"](workload, case.shape, case.layout, machine(), knobs)
        check(schedule, machine())
        held = most = 0
        staging = {b.name: 1 for b in schedule.buffers if b.rank == 0 and b.kind == "staging"}
        for action in schedule.actions:
            count = sum(staging.get(name, 0) for name in action.writes)
            held += {Op.RESERVE: count, Op.RELEASE: -count}.get(action.op, 0)
            most = max(most, held)
        assert most <= (4 if exchange == "outputs" else pieces)


def test_cuts_leave_nothing_out():
    assert list(cut(2, 9, 3)) == [(2, 4), (4, 6), (6, 9)]
    assert list(cut(0, 2, 5)) == [(0, 1), (1, 2)]
    assert list(cut(3, 3, 2)) == []


def test_one_is_told_to_come_before_the_one_before_it_is_used():
    told: list[str] = []
    used = [(name, len(told)) for name, _ in ahead("abc", lambda n: told.append(n) or n)]
    assert used == [("a", 2), ("b", 3), ("c", 3)]
    assert list(ahead("", str)) == []


def test_a_number_below_none_is_refused():
    with pytest.raises(ConfigError, match="pieces are 0 or more, had -1"):
        Knobs(pieces=-1)
