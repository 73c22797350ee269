"""What the probe says of a disk, and how it is measured and given up."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tiergnn.hardware import disk
from tiergnn.hardware.disk import DiskReading, read_disk
from tiergnn.hardware.verdicts import (
    judge_disk,
)

MIB, GIB = 1024**2, 1024**3
DISK = DiskReading(
    folder="/data",
    file_system="ext4",
    total_bytes=100 * GIB,
    free_bytes=50 * GIB,
    write_Bps=2e9,
    read_Bps=1e9,
    direct=True,
)


@pytest.mark.parametrize(
    ("change", "statuses", "words"),
    [
        ({}, ["ok", "ok"], "write 2 GB/s, read 1 GB/s (O_DIRECT)"),
        ({"direct": False}, ["ok", "ok"], "page cache may flatter"),
        ({"file_system": "tmpfs"}, ["ok", "ok"], "memory, not a disk"),
        ({"read_Bps": 5e7}, ["ok", "warn"], "50 MB/s"),
        ({"free_bytes": 5 * GIB}, ["warn", "ok"], "5.0 GiB of 100.0 GiB at /data (ext4)"),
        ({"free_bytes": 5 * MIB}, ["fail", "ok"], "5.0 MiB"),
        (
            {"write_Bps": None, "error": "Read-only file system"},
            ["ok", "warn"],
            "not measured at /data (ext4): Read-only file system",
        ),
    ],
    ids=str,
)
def test_disk_verdicts(change, statuses, words):
    found = judge_disk(replace(DISK, **change))
    assert [finding.status for finding in found] == statuses
    assert any(words in finding.value for finding in found)


def test_a_disk_of_which_nothing_is_known():
    (finding,) = judge_disk(DiskReading(folder="/x", error="No such file or directory"))
    assert finding.status == "warn"
    assert "No such file" in finding.value


def test_measuring_a_disk(tmp_path):
    start = time.perf_counter()
    reading = read_disk(tmp_path)
    assert time.perf_counter() - start < 6  # 3 s, and what a busy machine adds
    assert reading.error is None
    assert reading.write_Bps > 0
    assert reading.read_Bps > 0
    assert reading.total_bytes >= reading.free_bytes > 0
    assert reading.file_system
    assert list(tmp_path.iterdir()) == []


def refuse(monkeypatch, code, when=lambda path, flags: True):
    """os.open fails with ``code``, as on a disk that does not have what is asked for."""
    real = os.open

    def opened(path, flags, *args, **kwargs):
        if when(str(path), flags):
            raise OSError(code, os.strerror(code))
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", opened)


def test_a_file_system_without_o_direct_is_measured_through_the_cache(tmp_path, monkeypatch):
    refuse(monkeypatch, errno.EINVAL, lambda path, flags: flags & os.O_DIRECT)
    reading = read_disk(tmp_path)
    assert (reading.direct, reading.error) == (False, None)
    assert reading.write_Bps > 0
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_nameless_files(tmp_path, monkeypatch):
    refuse(monkeypatch, errno.EOPNOTSUPP, lambda path, flags: path == str(tmp_path))
    reading = read_disk(tmp_path)
    assert reading.error is None
    assert reading.write_Bps > 0
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_disk_is_reported(tmp_path, monkeypatch):
    refuse(monkeypatch, errno.EROFS, lambda path, flags: flags & (os.O_WRONLY | os.O_RDWR))
    reading = read_disk(tmp_path)
    assert reading.error == "Read-only file system"
    assert judge_disk(reading)[-1].status == "warn"


def test_a_disk_that_fills_up_is_reported_and_left_clean(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    before = len(os.listdir("/proc/self/fd"))
    assert read_disk(tmp_path).error == "No space left on device"
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_short_write_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "pwrite", lambda *_: 512)
    assert read_disk(tmp_path).error == f"moved 512 of {disk._BLOCK_BYTES} bytes"


def test_a_nearly_full_disk_is_not_written_to(tmp_path, monkeypatch):
    space = SimpleNamespace(f_bavail=10, f_blocks=1000, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _: space)
    reading = read_disk(tmp_path)
    assert reading.free_bytes == 40960
    assert "too little space" in reading.error
    assert [finding.status for finding in judge_disk(reading)] == ["fail", "warn"]


def test_a_folder_that_is_not_there(tmp_path):
    reading = read_disk(tmp_path / "none")
    assert reading.error == "No such file or directory"
    assert reading.free_bytes is None


def test_a_slow_disk_is_given_up_in_time(tmp_path, monkeypatch):
    real_write, real_read = os.pwrite, os.preadv

    def slow_write(*args):
        time.sleep(0.1)
        return real_write(*args)

    def slow_read(*args):
        time.sleep(0.1)
        return real_read(*args)

    monkeypatch.setattr(disk, "_WRITE_S", 0.3)
    monkeypatch.setattr(disk, "_READ_S", 0.3)
    monkeypatch.setattr(os, "pwrite", slow_write)
    monkeypatch.setattr(os, "preadv", slow_read)
    start = time.perf_counter()
    reading = read_disk(tmp_path)
    assert time.perf_counter() - start < 3
    assert 0 < reading.write_Bps < 60e6
