"""Cases of users, by name: what a plan tells before anything runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tiergnn.errors import PlanError
from tiergnn.graph.distributions import rmat_shape
from tiergnn.graph.generate import sbm
from tiergnn.graph.partition import Partition, partition
from tiergnn.graph.published import published_shape
from tiergnn.graph.shape import layout_of, shape_of
from tiergnn.hardware.machine import TIERS, Tier
from tiergnn.hardware.presets import preset
from tiergnn.planner.choose import Choosing, best
from tiergnn.planner.models import classic
from tiergnn.planner.plan import Plan
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.schedule.check import check

MIB = 2**20


def test_a01_what_does_not_fit_is_told_before_it_runs_with_what_would_do():
    """Three layers of 256 on 2.4 million nodes: how much is missing, and that it can be staged."""
    shape = published_shape("products")
    machine = preset("h200").with_budgets(device_bytes=8 * 2**30)
    asked = Choosing(
        workload=classic("sage", shape.num_features, shape.num_classes, hidden=256, layers=3),
        shape=shape,
        machine=machine,
    )
    refused = asked.trial("resident", Knobs()).refused
    assert refused is not None
    assert refused.short is not None
    tier, needed = refused.short
    assert tier == "device"
    assert needed > 8 * 2**30
    missing = needed - 8 * 2**30
    assert f"{missing} bytes too many" in str(refused)
    assert "largest" in str(refused)
    roomy = replace(asked, machine=preset("h200").with_budgets(device_bytes=needed))
    assert roomy.trial("resident", Knobs()).plan is not None
    plan = best(asked.trials(["resident", "sliced"]))
    assert plan.strategy == "sliced"
    check(plan.schedule, machine)
    assert plan.peak_bytes["device"] <= 8 * 2**30


def test_a09_a_plan_sees_the_fullest_part():
    """Blocks of 6,000, 2,000 and 1,000 nodes as parts: one rank has two thirds of all."""
    graph = sbm((6_000, 2_000, 1_000), 3, degree=10, shuffle=False, seed=1)
    blocks = np.repeat(np.arange(3, dtype=np.int32), (6_000, 2_000, 1_000))
    workload = classic("gcn", 32, 3, hidden=64, layers=2)

    def planned(parts: Partition) -> Plan:
        plan = Plan(
            strategy="halo",
            knobs=Knobs(ranks=3),
            workload=workload,
            shape=shape_of(graph),
            layout=layout_of(parts, graph),
            machine=preset("a100x8-pcie"),
        )
        check(plan.schedule, plan.machine)
        return plan

    even = planned(partition(graph, 3, "metis", balance={"nodes": 1.1}))
    skewed = planned(Partition(graph=graph, part_of=blocks, num_parts=3))
    assert max(part.rows for part in even.layout.parts) <= 1.1 * 3_000
    assert skewed.peak_bytes["device"] > 1.5 * even.peak_bytes["device"]
    compute = [one.timeline.busy_s() for one in (even, skewed)]
    rows = [max(s for (_, lane), s in busy.items() if lane == "compute") for busy in compute]
    assert rows[1] > rows[0]
    assert "3 parts (given), counted" in skewed.explain()


SMALL = rmat_shape(20_000, 200_000, num_features=64, num_classes=10, num_labelled=5_000)


@pytest.mark.parametrize("short", TIERS)
def test_a23_an_impossible_budget_is_refused_with_the_least_that_works(short):
    machine = preset("a5000-nvme").with_budgets(device_bytes=12 * MIB, host_bytes=16 * MIB)
    asked = Choosing(
        workload=classic("sage", 64, 10, hidden=64, layers=3),
        shape=SMALL,
        machine=machine,
        most_parts=8,
    )

    def within(num_bytes: int) -> Choosing:
        return replace(asked, machine=machine.with_budgets(**{f"{short}_bytes": num_bytes}))

    staged = ["resident", "grinnder"]
    plan = best(asked.trials(staged))
    assert all(plan.peak_bytes[tier] > 0 for tier in TIERS)
    with pytest.raises(PlanError) as refusal:
        best(within(MIB // 4).trials(staged))
    assert "no plan fits" in str(refusal.value)
    assert f"{short} memory" in str(refusal.value)
    assert f"{short}_memory of" in str(refusal.value) or f"{short} of" in str(refusal.value)
    assert refusal.value.short is not None
    tier, needed = refusal.value.short
    assert tier == short
    found = best(within(needed).trials(staged))
    assert found.peak_bytes[short] <= needed
    with pytest.raises(PlanError):
        best(within(needed // 2).trials(staged))


def test_a23_a_million_rows_of_128_within_256_mib_of_each_memory():
    shape = rmat_shape(1_000_000, 4_000_000, num_features=128, num_classes=16, num_labelled=10_000)
    machine = preset("a5000-nvme").with_budgets(device_bytes=256 * MIB, host_bytes=256 * MIB)
    asked = Choosing(
        workload=classic("gcn", 128, 16, hidden=32, layers=2), shape=shape, machine=machine
    )
    plan = best(asked.trials(["resident", "grinnder"]))
    check(plan.schedule, machine)
    assert plan.peak_bytes["device"] <= 256 * MIB
    assert plan.peak_bytes["host"] <= 256 * MIB
    assert plan.peak_bytes["disk"] >= 1_000_000 * 128 * 4 - 256 * MIB
    moved = plan.timeline.moved_bytes()
    assert moved["disk_read"] > 0 < moved["disk_write"]


def test_a23_without_a_disk_the_way_out_names_host_memory():
    machine = replace(preset("a5000-nvme"), disk=None, host=Tier(4 * MIB))
    asked = Choosing(
        workload=classic("gcn", 64, 10, hidden=64, layers=2),
        shape=SMALL,
        machine=machine.with_budgets(device_bytes=8 * MIB),
        most_parts=8,
    )
    with pytest.raises(PlanError, match="host_memory of"):
        best(asked.trials(["grinnder", "hongtu"]))
