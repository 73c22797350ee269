"""The parts of measuring: capacities, caches, the clock, what a cache is worth, disk, copies."""

from __future__ import annotations

import time

import pytest
import torch

from tiergnn.hardware import measure_links
from tiergnn.hardware.caches import read_caches
from tiergnn.hardware.capacities import PROCESS_BYTES, cuda_tier, disk_tier, host_tier
from tiergnn.hardware.cgroup import CgroupReading
from tiergnn.hardware.clock import Clock
from tiergnn.hardware.disk_blocks import DiskRates, measure_disk
from tiergnn.hardware.effort import CPU, CUDA, TINY
from tiergnn.hardware.machine import Tier, cache_of, hit_frac
from tiergnn.hardware.measure_rows import _at_most, _cache_worth
from tiergnn.hardware.readings import MemoryReading

GIB = 2**30


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


def test_the_clock_takes_the_middle_round_and_forgets_the_first_call(monkeypatch):
    taken = iter([9.0, 0.9, 0.9, 0.9, 9.0, 0.1, 0.1, 0.1, 9.0, *([0.3] * 10)])
    now = [0.0]

    def call() -> None:
        now[0] += next(taken)

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    assert clock(budget_s=6.0, rounds=3).seconds(call) == pytest.approx(0.3)


def test_named_cases_have_a_round_a_call_and_remember_earlier_ones(monkeypatch):
    now, each = [0.0], [0.1]

    def call() -> None:
        now[0] += each[0]

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    timing = clock(budget_s=3.0)
    found = []
    for seconds in (0.1, 0.4, 0.2):
        each[0] = seconds
        found.append(timing.seconds(call, of="one"))
    assert found == pytest.approx([0.1, 0.1, 0.2])  # of two the better, of three the middle one
    assert timing.seconds(call, of="another") == pytest.approx(0.2)
    runs = now[0]
    assert timing.times({"": lambda: call}, "one", once=True)[""] == pytest.approx(0.2)
    assert now[0] == runs


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


def test_what_was_disturbed_takes_no_longer_than_what_must_be_slower():
    """Seconds a byte of rows of 16, 64 and 256 bytes, of far and of near tables."""
    rows, far, near = (16, 64, 256), {16: 900, 64: 901, 256: 902}, {16: 1, 64: 2, 256: 3}
    quiet = {(16, 900): 9.0, (64, 901): 4.0, (256, 902): 3.0, (16, 1): 5.0, (64, 2): 2.0}
    quiet[256, 3] = 1.0
    disturbed = quiet | {(256, 902): 7.0, (64, 2): 6.0, (256, 3): 8.0}
    for taken, wanted in ((dict(quiet), quiet), (disturbed, {(256, 902): 4.0, (64, 2): 4.0})):
        _at_most(taken, rows, [far, near])
        assert taken == quiet | wanted | ({} if wanted is quiet else {(256, 3): 4.0})


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
