"""A host as a machine for more ranks than it has devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tiergnn.graph.distributions import rmat_shape
from tiergnn.graph.shape import expected_layout
from tiergnn.hardware.machine import Machine, Tier
from tiergnn.hardware.presets import preset
from tiergnn.hardware.sharing import shared
from tiergnn.planner.cost import Costs
from tiergnn.planner.models import classic
from tiergnn.planner.simulate import simulate
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.planner.strategies.known import STRATEGIES
from tiergnn.schedule.actions import Op

GIB = 2**30


def cpu() -> Machine:
    like = preset("h200")
    device = replace(like.device, name="cores", kind="cpu", memory=Tier(64 * GIB), pass_bytes=0)
    links = {n: like.links[n] for n in ("h2d", "d2h", "host_copy", "host_gather", "disk_read")}
    return replace(like, num_devices=1, device=device, host=Tier(64 * GIB), links=links)


def test_ranks_on_processors_get_a_share_each():
    found, notes = shared(cpu(), 4)
    alone = cpu().device
    assert found.num_devices == 4
    assert found.device.stream_Bps == alone.stream_Bps / 4
    assert found.device.gather_Bps.at(256) == pytest.approx(alone.gather_Bps.at(256) / 4)
    flops = found.device.matmul_flops["float32"].at(64)
    assert flops == pytest.approx(alone.matmul_flops["float32"].at(64) / 4)
    # Four processes of Python and torch fit beside the data, all of it in the host's memory.
    assert 4 * found.device.memory.available_bytes <= 64 * GIB - 3 * GIB // 2
    assert found.host.available_bytes <= 64 * GIB - 3 * GIB // 2
    assert found.link("peer").Bps == found.device.gather_Bps
    assert found.link("peer_copy").devices == found.link("host_copy").devices == 4
    assert notes == ["4 ranks share this machine's processors"]


def test_ranks_on_one_gpu_share_it():
    found, notes = shared(preset("h200"), 2)
    assert found.num_devices == 2
    assert found.device.memory.capacity_bytes == preset("h200").device.memory.capacity_bytes // 2
    assert found.link("h2d").devices >= 2
    assert any("share NVIDIA H200" in note or "share" in note for note in notes)


def test_a_machine_that_has_them_stays():
    there = preset("a100x8-pcie")
    found, notes = shared(there, 8)
    assert (found.device, found.name, found.num_devices) == (there.device, there.name, 8)
    assert found.link("peer") == there.link("peer")
    assert notes == []
    assert shared(cpu(), 1) == (cpu(), [])


def test_hosts_have_a_network():
    found, notes = shared(cpu(), 4, num_hosts=2)
    assert (found.num_hosts, found.num_devices) == (2, 2)
    assert found.link("network").Bps.at(1) > 0
    assert "the network was not measured: 10 Gbit/s are assumed" in notes


def test_ranks_on_processors_read_each_others_rows_as_their_own():
    shape = rmat_shape(2_000, 40_000, num_features=64, num_classes=8)
    machine = shared(cpu(), 2)[0]
    workload = classic("gin", 64, 8, hidden=64, layers=2)
    knobs, layout = Knobs(ranks=2), expected_layout(shape, 2)
    schedule = STRATEGIES["mgg"](workload, shape, layout, machine, knobs)
    costs = Costs.of(machine)
    found: dict[int, float] = {}
    for action in schedule.actions:
        if action.op is Op.AGGREGATE and action.rank == 0:
            read = sum(work.amount for work in action.work if work.kind == "gather")
            launch_s = machine.device.graph_launch_s or machine.device.launch_s
            found[action.slice] = (costs.seconds(action) - launch_s) / read
    # Half a thousand kB lie in the caches, wherever they came from.
    assert found[3] == pytest.approx(found[0], rel=0.05)
    assert found[3] < 0.8 / machine.device.gather_Bps.at(256)
    # Lanes side by side take turns on a rank's cores.
    computed_s = sum(costs.parts(action)[0] for action in schedule.actions if action.rank == 0)
    assert simulate(schedule, machine, costs).seconds >= computed_s
