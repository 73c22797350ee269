"""Measuring this host: figures that make sense, soon done, remembered, and refused when spoilt."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tiergnn.errors import ConfigError
from tiergnn.hardware import measure as measuring
from tiergnn.hardware.effort import CPU, TINY
from tiergnn.hardware.machine import Curve, Link, Machine, Tier
from tiergnn.hardware.measure import measure
from tiergnn.hardware.presets import preset
from tiergnn.hardware.remembered import cache_file, recall, remember

GIB = 2**30


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def counted(cache, monkeypatch):
    """How often the host was measured; what is measured is a preset."""
    found: list[Machine] = []

    def fake(folder, kind, effort) -> Machine:
        found.append(replace(preset("cpu2"), name=f"measured {len(found)}"))
        return found[-1]

    monkeypatch.setattr(measuring, "_measured", fake)
    return found


def sensible(machine: Machine) -> None:
    device = machine.device
    assert machine.source == "measured"
    assert device.kind == "cpu"
    assert 0 < device.memory.available_bytes <= machine.host.capacity_bytes
    assert machine.disk is not None
    assert device.stream_Bps > 1e8
    for row in (64, 256):
        assert device.gather_Bps.at(row) <= device.cached_gather_Bps.at(row) * 1.001
    assert 0 < device.launch_s < 0.1
    assert 0 < device.graph_launch_s < 0.1
    assert device.fresh_Bps > 1e6
    assert device.draws_per_s > 1e6
    for curve in (device.attends_per_s, device.drops_per_s, device.totals_Bps, device.adds_Bps):
        assert all(1e6 < rate < 1e13 for _, rate in curve.points)
    assert {"float32", "float64"} <= set(device.matmul_flops)
    for name in ("h2d", "d2h", "host_copy", "host_gather", "disk_read", "disk_write"):
        assert all(rate > 1e4 for _, rate in machine.link(name).Bps.points), name
    reads = [rate for _, rate in machine.link("disk_read").Bps.points]
    assert reads == sorted(reads)


def test_a_little_measuring_of_this_machine(cache, tmp_path):
    start = time.process_time()
    machine = measure(tmp_path, device="cpu", effort=TINY)
    assert time.process_time() - start < 20
    sensible(machine)
    assert Machine.load(_saved(machine, tmp_path)) == machine


def _saved(machine: Machine, folder: Path) -> Path:
    machine.save(folder / "m.json")
    return folder / "m.json"


@pytest.mark.slow
def test_measuring_this_machine_is_quick_and_says_the_same_again(cache, tmp_path):
    found = []
    for _ in range(2):
        start = time.perf_counter()
        found.append(measure(tmp_path, device="cpu", refresh=True))
        assert time.perf_counter() - start < 20
        sensible(found[-1])
    once, again = (machine.device for machine in found)
    figures = [
        (once.stream_Bps, again.stream_Bps),
        *((once.gather_Bps.at(w), again.gather_Bps.at(w)) for w in (64, 256, 1024)),
        *((once.cached_gather_Bps.at(w), again.cached_gather_Bps.at(w)) for w in (64, 256, 1024)),
        *((once.matmul_of("float32").at(w), again.matmul_of("float32").at(w)) for w in (64, 256)),
    ]
    for a, b in figures:
        assert 0.5 < a / b < 2


def test_what_was_measured_is_remembered(counted, cache, tmp_path):
    first = measure(tmp_path, device="cpu", effort=TINY)
    assert measure(tmp_path, device="cpu", effort=TINY).name == first.name == "measured 0"
    assert len(counted) == 1
    assert [path.suffix for path in (cache / "tiergnn").iterdir()] == [".json"]
    assert measure(tmp_path, device="cpu", effort=TINY, refresh=True).name == "measured 1"
    assert measure(tmp_path, device="cpu", effort=TINY).name == "measured 1"


def test_capacities_are_those_of_now(counted, tmp_path, monkeypatch):
    measure(tmp_path, device="cpu", effort=TINY)
    monkeypatch.setattr(measuring, "host_tier", lambda: Tier(5 * GIB, GIB))
    machine = measure(tmp_path, device="cpu", effort=TINY)
    assert len(counted) == 1
    assert machine.host == machine.device.memory == Tier(5 * GIB, GIB)


def test_other_versions_settings_and_disks_are_measured_anew(counted, tmp_path, monkeypatch):
    measure(tmp_path, device="cpu", effort=TINY)
    monkeypatch.setattr(measuring, "__version__", "99")
    measure(tmp_path, device="cpu", effort=TINY)
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "perhaps")
    measure(tmp_path, device="cpu", effort=TINY)
    monkeypatch.setattr(measuring, "_mount", lambda folder: "/elsewhere")
    measure(tmp_path, device="cpu", effort=TINY)
    measure(tmp_path, device="cpu", effort=CPU)
    assert len(counted) == 5


def spoilt_text(path: Path) -> str:
    return path.read_text()[:100]


def spoilt_version(path: Path) -> str:
    return json.dumps(json.loads(path.read_text()) | {"version": 0})


def spoilt_rates(path: Path) -> str:
    return path.read_text().replace('"stream_Bps": 2', '"stream_Bps": -2')


def spoilt_owner(path: Path) -> str:
    data = json.loads(path.read_text())
    data["fingerprint"]["host"] = "another"
    return json.dumps(data)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (spoilt_text, "had no JSON"),
        (spoilt_version, "had tiergnn-measured version 0"),
        (spoilt_rates, "stream_Bps is above 0"),
        (spoilt_owner, "is of another machine"),
    ],
)
def test_a_spoilt_memory_is_measured_again_with_a_warning(
    counted, cache, tmp_path, caplog, spoil, told
):
    measure(tmp_path, device="cpu", effort=TINY)
    (path,) = (cache / "tiergnn").iterdir()
    path.write_text(spoil(path))
    with caplog.at_level(logging.WARNING, "tiergnn"):
        assert measure(tmp_path, device="cpu", effort=TINY).name == "measured 1"
    (record,) = caplog.records
    assert "measuring again" in record.getMessage()
    assert told in record.getMessage()
    assert measure(tmp_path, device="cpu", effort=TINY).name == "measured 1"


def test_a_cache_that_cannot_be_written_is_one_warning(counted, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING, "tiergnn"):
        assert measure(tmp_path, device="cpu", effort=TINY).name == "measured 0"
    assert ["not kept for next time" in r.getMessage() for r in caplog.records] == [True]


def test_the_cache_is_the_users(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    marks = {"cpu": "one"}
    assert cache_file(marks).parent == tmp_path / ".cache" / "tiergnn"
    assert cache_file(marks) != cache_file({"cpu": "two"})
    assert recall(marks) is None
    remember(marks, preset("cpu2"))
    assert recall(marks) == preset("cpu2")


def test_a_device_that_is_not_there_is_refused(cache, tmp_path):
    with pytest.raises(ConfigError, match="no device 'tpu'"):
        measure(tmp_path, device="tpu")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="no device 'cuda'"):
            measure(tmp_path, device="cuda")


def test_without_a_disk_the_rest_is_measured(cache, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "tiergnn"):
        machine = measure(tmp_path / "none", device="cpu", effort=TINY)
    assert machine.disk is None
    assert "disk_read" not in machine.links
    assert any("is left out" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(("load", "warned"), [(3.1, True), (2.0, False), (None, False)])
def test_a_machine_that_others_use_is_said_to_be(monkeypatch, caplog, load, warned):
    def loads() -> tuple[float, float, float]:
        if load is None:
            raise OSError
        return load, 0.0, 0.0

    monkeypatch.setattr(measuring.os, "getloadavg", loads)
    with caplog.at_level(logging.WARNING, "tiergnn"):
        measuring._warn_of_others(2)
    assert ["measure again" in record.getMessage() for record in caplog.records] == [True] * warned


@pytest.mark.gpu
def test_a_cuda_device_is_measured(cache, tmp_path):
    machine = measure(tmp_path, device="cuda", refresh=True)
    assert machine.device.kind == "cuda"
    links = machine.links
    assert {"h2d", "d2h", "pageable", "zero_copy", "host_copy", "host_gather"} <= set(links)
    assert links["pageable"].Bps.at(2**24) < links["h2d"].Bps.at(2**24)
    assert links["zero_copy"].Bps.at(64) < links["h2d"].Bps.at(2**24)
    assert machine.device.gather_Bps.at(256) <= machine.device.cached_gather_Bps.at(256)


def test_ranks_get_one_machine_and_their_collectives(cache, tmp_path, monkeypatch):
    """A group of one rank on gloo: all that several do, but the waiting."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1
    )
    try:
        monkeypatch.setattr(measuring, "_measured", lambda *a: preset("cpu2"))
        monkeypatch.setattr(
            measuring, "peer_links", lambda *a, num_hosts: {"peer": Link(Bps=Curve.flat(num_hosts))}
        )
        machine = measure(tmp_path, device="cpu", effort=TINY)
    finally:
        torch.distributed.destroy_process_group()
    assert machine.link("peer").Bps.at(1) == 1
    assert (machine.num_hosts, machine.num_devices) == (1, 1)
    assert machine.device.gather_Bps == preset("cpu2").device.gather_Bps


def _one_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    machine = measure(folder, device="cpu", effort=TINY)
    machine.save(f"{folder}/rank{rank}.json")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_measure_what_they_send_each_other(cache, tmp_path):
    torch.multiprocessing.spawn(_one_rank, (str(tmp_path),), nprocs=2)
    first, second = (Machine.load(tmp_path / f"rank{rank}.json") for rank in range(2))
    assert (first.num_hosts, first.num_devices) == (1, 2)
    assert first.link("peer_copy").Bps.at(2**20) > 1e6
    assert second == first
