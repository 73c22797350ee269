"""What refreshes the caches of leo: rows of their owners, or sums and the row-local rest again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.planner.strategies.cases import WORKLOADS, graph_case, machine
from tiergnn.errors import PlanError
from tiergnn.graph.published import published_shape
from tiergnn.hardware.presets import preset
from tiergnn.planner.choose import Choosing, best
from tiergnn.planner.models import classic
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.planner.strategies.known import STRATEGIES
from tiergnn.planner.strategies.refreshing import Chain, chain_to
from tiergnn.schedule.actions import Op
from tiergnn.schedule.contents import What
from tiergnn.schedule.schedule import Schedule
from tiergnn.workload import StageWork, Workload

CASE = graph_case(60, 900, 4, 20, seed=5)


def write(workload: Workload, **knobs) -> Schedule:
    chosen = Knobs(ranks=4, device_cache_frac=0.3, host_cache_frac=0.1, **knobs)
    return STRATEGIES["leo"](workload, CASE.shape, CASE.layout, machine(), chosen)


def on_replicas(schedule: Schedule) -> list[int]:
    """The stages that rank 0 runs for rows of others."""
    ours = [a for a in schedule.actions if a.rank == 0 and a.op is Op.UPDATE and a.slice == 1]
    return [action.stage for action in ours]


def altered(workload: Workload, index: int, **fields) -> Workload:
    stages = tuple(replace(s, **fields) if s.index == index else s for s in workload.stages)
    return replace(workload, stages=stages)


def stage(workload: Workload, index: int) -> StageWork:
    return next(each for each in workload.stages if each.index == index)


@pytest.mark.parametrize(("model", "stages"), [("gcn", [1]), ("gin", [1, 2]), ("sage", [2])])
def test_a_chain_goes_from_one_sum_to_the_next(model, stages):
    """Through a BatchNorm in gin, whose moments are those of all rows; not in the first layer of
    sage, which reads features of own rows beside the sums."""
    assert on_replicas(write(WORKLOADS[model], exchange="inputs")) == stages
    assert on_replicas(write(WORKLOADS[model], exchange="outputs")) == []


def test_moments_that_stand_alone_are_no_stage_of_a_chain():
    late = WORKLOADS["late moments"]
    assert len(on_replicas(write(late, exchange="inputs"))) == 2


def test_what_replicas_cannot_be_made_of_is_said():
    """And the ways out that are named are ones."""
    gin = WORKLOADS["gin"]
    user, norm, start = stage(gin, 3), stage(gin, 2), stage(gin, 1)
    chain = chain_to(gin, user)
    assert isinstance(chain, Chain)
    assert [each.index for each in chain.stages] == [1, 2]
    more = replace(
        gin, inputs=(*gin.inputs, "x0"), rows=(*gin.rows, replace(gin.rows[0], name="x0"))
    )
    unable = {
        "asks for the edges of its rows": altered(gin, 2, by_degrees=False),
        "x0 is read as well": altered(more, 2, reads=(*norm.reads, "x0")),
        "is not a sum that it comes of": altered(gin, 1, divisible=False),
        "no sum comes before it": replace(gin, inputs=("x", "h1"), stages=(norm, *gin.stages[2:])),
    }
    for reason, workload in unable.items():
        told = chain_to(workload, stage(workload, 3))
        assert isinstance(told, str)
        assert reason in told
    assert start.writes == norm.reads
    workload = unable["asks for the edges of its rows"]
    with pytest.raises(PlanError, match=r"no sums of gin can refresh its caches\n  h2, .*stage 2"):
        write(workload, exchange="inputs")
    for exchange in ("outputs", "narrower"):
        assert on_replicas(write(workload, exchange=exchange)) == []


def test_narrower_takes_sums_where_they_are():
    """Widths 7, 30, 30, 40: sums of 7 and 30 columns before rows of 30 and 30."""
    workload = classic("gcn", 7, 40, hidden=30, layers=3)
    assert on_replicas(write(workload, exchange="inputs")) == [1, 2]
    assert on_replicas(write(workload)) == [1]


def test_sums_of_replicas_say_what_they_hold():
    """Rows of both caches, and room for all that their code takes."""
    schedule = write(classic("gcn", 7, 40, hidden=30, layers=3), exchange="inputs")
    kept = [(b, b.holds) for b in schedule.buffers if b.holds]
    kept = [(b, holds) for b, holds in kept if holds.what is What.SUM_REPLICAS]
    assert {holds.part for _, holds in kept} == {0, 1, 2, 3}
    for buffer, holds in kept:
        _, rows = holds.rows or (0, 0)
        assert buffer.num_bytes == rows * 4 * {"h0": 7, "h1": 30}[holds.of]
        ids = schedule.buffer_of[f"cached.r{buffer.rank}"]
        assert ids.num_bytes == 32 * rows
        copied = [a for a in schedule.actions if buffer.name in a.writes and a.op is Op.COPY]
        assert sum(work.amount for a in copied for work in a.work) <= buffer.num_bytes


def test_the_strategy_says_what_else_is_tried():
    """Caches of leo with what refreshes them otherwise; nobody else has any."""
    shape = published_shape("products")
    workload = classic("gcn", 16, 64, hidden=64, layers=3)
    asked = Choosing(workload=workload, shape=shape, machine=preset("a100x8-pcie"), ranks=8)
    trials = asked.trials(["leo"])
    tried = {trial.knobs.exchange for trial in trials}
    assert tried == {"narrower", "outputs"}
    assert not any(trial.knobs.device_cache_frac for trial in asked.trials(["halo", "mgg"]))
    assert best(trials).seconds == min(trial.seconds for trial in trials)
