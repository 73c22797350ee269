"""Refusals: each way out that one names is one, whatever was short in front of what."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from tiergnn.errors import PlanError
from tiergnn.graph.distributions import rmat_shape
from tiergnn.hardware.capacities import ASIDE_BYTES
from tiergnn.hardware.machine import Machine, Tier
from tiergnn.hardware.presets import preset
from tiergnn.planner.choose import Choosing, best
from tiergnn.planner.models import classic
from tiergnn.schedule.check import check
from tiergnn.training.options import Options
from tiergnn.training.planning import Budgets, _here
from tiergnn.units import format_bytes

SHAPE = rmat_shape(5_000, 60_000, num_features=32, num_classes=10, num_labelled=1_000)
_WAY = re.compile(r"(device_memory|host_memory|disk) of ([\d,]+) bytes")


def ways_out(error: PlanError) -> list[dict[str, int]]:
    """tier -> bytes, of each way that the refusal names."""
    lines = (error.hint or "").splitlines()
    found = [
        {flag.removesuffix("_memory"): int(n.replace(",", "")) for flag, n in _WAY.findall(line)}
        for line in lines
    ]
    return [way for way in found if way]


def with_room(machine: Machine, room: dict[str, int]) -> Machine:
    tiers = {tier: Tier(num_bytes) for tier, num_bytes in room.items()}
    device = replace(machine.device, memory=tiers.get("device", machine.device.memory))
    disk = tiers.get("disk", machine.disk)
    return replace(machine, device=device, host=tiers.get("host", machine.host), disk=disk)


def refused(asked: Choosing, strategies: tuple[str, ...] = ()) -> PlanError:
    trials = asked.trials(strategies)
    assert not any(trial.plan for trial in trials)
    with pytest.raises(PlanError) as refusal:
        best(trials, has_disk=asked.machine.disk is not None)
    return refusal.value


def check_ways(asked: Choosing, strategies: tuple[str, ...] = ()) -> list[dict[str, int]]:
    """Each named way is accepted by what was refused; the first is what the error says in data."""
    error = refused(asked, strategies)
    ways = ways_out(error)
    assert error.short is not None
    assert ways[0] == dict((error.short, *error.also_short))
    for way in ways:
        machine = with_room(asked.machine, way)
        plan = best(replace(asked, machine=machine).trials(strategies))
        check(plan.schedule, machine)
        assert all(plan.peak_bytes.get(tier, 0) <= n for tier, n in way.items())
    return ways


@pytest.mark.parametrize("seed", range(12))
def test_what_a_refusal_names_is_accepted(seed):
    random = np.random.default_rng(seed)
    device, host, disk = (int(n) for n in 2 ** random.uniform(0, 19, 3))
    model = ("gcn", "sage", "gin", "gat")[seed % 4]
    machine = replace(
        preset("a5000-nvme").with_budgets(device_bytes=device, host_bytes=host),
        disk=None if seed % 3 == 0 else Tier(disk),
    )
    hidden, layers = int(random.integers(8, 64)), 2 + seed % 2
    check_ways(
        Choosing(
            workload=classic(model, 32, 10, hidden=hidden, layers=layers),
            shape=SHAPE,
            machine=machine,
            most_parts=8,
            most_slices=4,
        )
    )


@pytest.mark.parametrize("strategy", ["halo", "leo", "nfp", "mgg", "uva"])
def test_what_a_refusal_of_ranks_names_is_accepted(strategy):
    asked = Choosing(
        workload=classic("sage", 32, 10, hidden=64, layers=3),
        shape=SHAPE,
        machine=preset("a100x8-pcie").with_budgets(device_bytes=1, host_bytes=1),
        ranks=4,
    )
    check_ways(asked, (strategy,))


def test_a_disk_that_is_short_behind_the_device_is_named_at_once():
    asked = Choosing(
        workload=classic("sage", 32, 10, hidden=64, layers=3),
        shape=SHAPE,
        machine=replace(
            preset("a5000-nvme").with_budgets(device_bytes=0, host_bytes=2**22), disk=Tier(2**20)
        ),
        most_parts=8,
        most_slices=4,
    )
    assert {"device", "disk"} in [set(way) for way in check_ways(asked, ("sliced",))]
    assert "sliced: disk memory of host 0 needs" in str(refused(asked, ("sliced",)))


def test_a_budget_of_this_machines_gpu_has_room_for_what_no_plan_counts(monkeypatch):
    """And the budget that a refusal names has it, too."""
    monkeypatch.setattr("tiergnn.hardware.measure.measure", lambda *_, **__: preset("h200"))
    monkeypatch.setattr("tiergnn.training.assemble.pick_device", lambda _: torch.device("cuda"))

    def within(num_bytes: int | None) -> Choosing:
        notes: list[str] = []
        here = _here(Options(), Budgets(device_bytes=num_bytes), 1, notes)
        room = here.device.memory
        if num_bytes is None:
            assert not any("budget" in note for note in notes)
        else:
            assert room.available_bytes == num_bytes - ASIDE_BYTES
            assert any(
                f"{format_bytes(ASIDE_BYTES)} of the device's budget" in note for note in notes
            )
        workload = classic("gcn", 32, 10, hidden=64, layers=3)
        return Choosing(workload=workload, shape=SHAPE, machine=here)

    assert best(within(None).trials()).strategy == "resident"
    error = refused(within(ASIDE_BYTES + 2**20), ("resident",))
    named = [way["device"] for way in ways_out(error)]
    assert min(named) > ASIDE_BYTES
    for num_bytes in named:
        plan = best(within(num_bytes).trials(["resident"]))
        assert plan.peak_bytes["device"] <= num_bytes - ASIDE_BYTES
