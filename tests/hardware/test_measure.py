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
from tiergnn.hardware import measure_links
from tiergnn.hardware.caches import read_caches
from tiergnn.hardware.capacities import PROCESS_BYTES, cuda_tier, disk_tier, host_tier
from tiergnn.hardware.cgroup import CgroupReading
from tiergnn.hardware.clock import Clock
from tiergnn.hardware.disk_blocks import DiskRates, measure_disk
from tiergnn.hardware.effort import CPU, CUDA, TINY
from tiergnn.hardware.machine import Curve, Link, Machine, Tier, cache_of, hit_frac
from tiergnn.hardware.measure import measure
from tiergnn.hardware.measure_rows import _cache_worth
from tiergnn.hardware.presets import preset
from tiergnn.hardware.readings import MemoryReading
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


# Its parts


def memory(total: int, available: int, limit: int | None = None, used: int | None = None):
    group = CgroupReading(limit_bytes=limit, used_bytes=used)
    return MemoryReading(total_bytes=total * GIB, available_bytes=available * GIB, cgroup=group)


@pytest.mark.parametrize(
    ("reading", "own", "capacity", "others"),
    [
        (memory(64, 50), 2, 64, 12),
        (memory(64, 50, limit=16 * GIB, used=3 * GIB), 2, 16, 1),
        (memory(64, 4, limit=16 * GIB, used=3 * GIB), 2, 16, 8),  # others outside leave less
        (memory(64, 50, limit=128 * GIB, used=3 * GIB), 2, 64, 12),
        (memory(64, 64), 2, 64, 0),
    ],
)
def test_the_hosts_memory_is_what_the_control_group_leaves(reading, own, capacity, others):
    tier = host_tier(reading, own * GIB)
    assert tier == Tier(capacity * GIB, others * GIB + PROCESS_BYTES)
    full = host_tier(memory(1, 0), 0)
    assert full.available_bytes == 0


def test_other_capacities(tmp_path):
    assert cuda_tier(100, 60, 30) == Tier(100, 10)
    assert cuda_tier(100, 90, 30) == Tier(100, 0)
    found = disk_tier(tmp_path)
    assert found is not None
    assert 0 < found.available_bytes < found.capacity_bytes
    assert disk_tier(tmp_path / "none") is None


def test_caches_are_read_as_linux_states_them(tmp_path):
    levels = [(1, "Data", "48K"), (1, "Instruction", "32K"), (2, "Unified", "1024K")]
    for i, (level, kind, size) in enumerate([*levels, (3, "Unified", "32M")]):
        folder = tmp_path / f"index{i}"
        folder.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(f"{text}\n")
    assert read_caches(tmp_path) == (2**20, 2**25)
    assert read_caches(tmp_path / "none") == (2**20, 2**25)  # the usual ones
    (tmp_path / "index3" / "size").write_text("lots\n")
    assert read_caches(tmp_path) == (48 * 1024, 2**20)


def test_effort_stays_within_a_quarter_of_free_memory():
    for effort in (CPU, CUDA, TINY):
        for free in (2**24, 2**30, 2**34, 2**40):
            fitted = effort.within(free)
            assert fitted.most_bytes <= max(2**22, free // 4)
            assert 4 * fitted.copy_bytes <= fitted.most_bytes
            assert 2 * fitted.read_bytes <= fitted.most_bytes
            assert 4 * max(fitted.tensor_bytes) <= max(fitted.most_bytes, 2**22)
        assert effort.within(2**50) == effort


def clock(**values) -> Clock:
    return Clock(**({"device": torch.device("cpu"), "budget_s": 0.01} | values))


def test_the_clock_takes_the_better_round_and_forgets_the_first_call(monkeypatch):
    taken = iter([9.0, 0.3, 0.3, 9.0, 0.1, 0.2, 9.0, 0.2, 0.2] * 5)
    now = [0.0]

    def call() -> None:
        now[0] += next(taken)

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    found = clock(budget_s=3.0, rounds=3).seconds(call)
    assert found == pytest.approx(0.1, abs=0.11)
    assert found < 0.3


def test_the_clock_runs_a_far_too_slow_call_twice():
    calls = []

    def slow() -> None:
        calls.append(1)
        time.sleep(0.02)

    assert clock(budget_s=0.001).seconds(slow) >= 0.02
    assert len(calls) == 2


def test_the_clock_may_count_the_processors_seconds():
    wall = clock(rounds=1).seconds(lambda: time.sleep(0.005))
    own = clock(rounds=1, processor_time=True).seconds(lambda: time.sleep(0.005))
    assert own < wall / 2


def test_after_its_time_the_clock_runs_single_rounds():
    made = []

    def make():
        made.append(1)
        return lambda: None

    clock(until_s=0.0).times({"a": make})
    assert len(made) == 1
    clock().times({"a": make})
    assert len(made) == 1 + 3


def test_the_cache_is_worth_what_answers_so_many_reads():
    """Times made of a cache of 10 MB are told from it."""
    worth, cached_s, memory_s = 10e6, 1.0, 6.0

    def taken(span: float) -> float:
        hit = hit_frac(worth, span)
        return hit * cached_s + (1 - hit) * memory_s

    around = [(span, taken(span)) for span in (4e6, 8e6, 16e6, 32e6)]
    found = _cache_worth(around, (256e6, taken(256e6)), stated=32 * 10**6, cached_s=cached_s)
    assert found == pytest.approx(worth, rel=0.05)
    flat = [(span, 1.0) for span, _ in around]
    assert _cache_worth(flat, (256e6, 1.0), stated=7, cached_s=1.0) == 7
    assert cache_of(0.5, 100.0) == pytest.approx(100 / 7 ** (1 / 3))


def test_the_disk_by_blocks_leaves_nothing_behind(tmp_path):
    found = measure_disk(tmp_path)
    assert isinstance(found, DiskRates)
    sizes = [size for size, _ in found.read.points]
    assert sizes[0] == 4096
    assert sizes == sorted(sizes)
    assert 0 < found.read_latency_s < 1
    assert 0 < found.free_bytes <= found.total_bytes
    assert list(tmp_path.iterdir()) == []
    assert "o such file" in str(measure_disk(tmp_path / "none"))


def test_copies_are_a_latency_and_a_rate():
    taken = {size: 1e-5 + size / 1e9 for size in (2**16, 2**20, 2**24)}
    link = measure_links._copies(taken)
    assert link.Bps.at(2**24) == pytest.approx(1e9, rel=0.01)
    assert link.latency_s == pytest.approx(1e-5, rel=0.1)
    assert measure_links._copies({2**20: 1e-3}).Bps.at(1) > 1e9


def test_pinned_memory_is_described_to_cuda_where_it_lies():
    rows = torch.zeros(6)
    mapped = measure_links._Mapped(rows).__cuda_array_interface__
    assert mapped["data"] == (rows.data_ptr(), False)
    assert (mapped["shape"], mapped["typestr"]) == ((6,), "<f4")


@pytest.mark.gpu
def test_a_cuda_device_is_measured(cache, tmp_path):
    start = time.perf_counter()
    machine = measure(tmp_path, device="cuda", refresh=True)
    assert time.perf_counter() - start < 20
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
