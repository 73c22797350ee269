"""The probe: verdicts on made-up readings, readers on made-up machines, the whole on this one."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tiergnn.errors import ConfigError
from tiergnn.hardware import disk, readings
from tiergnn.hardware.cgroup import CgroupReading, read_cgroup
from tiergnn.hardware.disk import DiskReading, read_disk
from tiergnn.hardware.finding import Finding, Report
from tiergnn.hardware.probe import probe
from tiergnn.hardware.readings import (
    CpuReading,
    CudaReading,
    GpuReading,
    LimitReading,
    MemoryReading,
    PackageReading,
    ShmReading,
    TritonReading,
)
from tiergnn.hardware.verdicts import (
    judge_cpu,
    judge_cuda,
    judge_disk,
    judge_files,
    judge_locked,
    judge_memory,
    judge_package,
    judge_shm,
    judge_triton,
    wanted_ranges,
    within,
)

MIB, GIB = 1024**2, 1024**3
FREE = CgroupReading()


def test_the_whole_probe_on_this_machine(tmp_path):
    report = probe(tmp_path)
    told = json.loads(json.dumps(report.to_json()))
    names = {finding["name"] for finding in told["findings"]}
    assert {"Python", "torch", "pymetis", "CPU", "RAM", "/dev/shm", "speed"} <= names
    assert {"locked memory (ulimit -l)", "open files (ulimit -n)", "Triton kernels"} <= names
    assert told["status"] == report.status
    assert list(report.groups()) == ["software", "cpu", "memory", "limits", "gpu", "disk"]
    assert all("\n" not in (finding.remedy or "") for finding in report)
    assert list(tmp_path.iterdir()) == []


def test_the_probe_imports_nothing_heavy():
    code = (
        "import sys; from tiergnn.hardware.probe import probe; probe('.')\n"
        "heavy = {'numba', 'pymetis', 'pyarrow', 'torch_geometric', 'matplotlib', 'tensorboard'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_report_is_as_good_as_its_worst():
    fine = Finding(group="cpu", name="a", value="1")
    slow = Finding(group="disk", name="b", value="2", status="warn", remedy="r")
    dead = Finding(group="gpu", name="c", value="3", status="fail", remedy="r", data=(("n", 1),))
    assert Report(()).status == Report((fine,)).status == "ok"
    assert Report((slow, fine)).status == "warn"
    assert Report((dead, slow, fine)).status == "fail"
    assert Report((dead, fine, slow)).shortfalls == (dead, slow)
    assert dead.to_json()["data"] == {"n": 1}
    with pytest.raises(ConfigError, match="unknown status"):
        Finding(group="cpu", name="a", value="1", status="bad")
    with pytest.raises(AssertionError, match="no way out"):
        Finding(group="cpu", name="a", value="1", status="warn")


# Packages


def test_ranges_of_the_metadata():
    lines = [
        "torch<2.15,>=2.11",
        "numpy (>=2.3)",
        'pymetis>=2025.2; extra == "partition"',
        'tiergnn[parquet,partition]; extra == "dev"',
        "rich",
        "torch_geometric[full] >= 2.8",
    ]
    assert wanted_ranges(lines) == {
        "torch": "<2.15,>=2.11",
        "numpy": ">=2.3",
        "pymetis": ">=2025.2",
        "rich": "",
        "torch-geometric": ">=2.8",
    }


@pytest.mark.parametrize(
    ("version", "wants", "fits"),
    [
        ("2.13.0+cpu", ">=2.11,<2.15", True),
        ("2.9.1", ">=2.11,<2.15", False),
        ("2.15.0", ">=2.11,<2.15", False),
        ("3.0.0rc1", ">=3", True),
        ("13", ">=13", True),
        ("13.0", "==13", True),
        ("13.0.1", "<=13", False),
        ("2.8.0.post1", ">=2.8", True),
        ("1.0", "!=1.0", False),
        ("1.1", ">1.0", True),
        ("1.2", "", True),
    ],
)
def test_versions_within_ranges(version, wants, fits):
    assert within(version, wants) == fits


@pytest.mark.parametrize(
    ("package", "has_gpu", "status", "remedy"),
    [
        (PackageReading(name="torch", version="2.13.0", wants=">=2.11"), False, "ok", None),
        (
            PackageReading(name="torch", version="2.9.0", wants=">=2.11"),
            False,
            "warn",
            "pip install 'torch>=2.11'",
        ),
        (PackageReading(name="numba", version=None), False, "fail", "pip install 'numba'"),
        (
            PackageReading(name="pyarrow", version=None),
            True,
            "ok",
            "pip install 'tiergnn[parquet]'",
        ),
        (PackageReading(name="triton", version=None), False, "ok", "pip install 'tiergnn[gpu]'"),
        (PackageReading(name="triton", version=None), True, "warn", "pip install 'tiergnn[gpu]'"),
    ],
    ids=str,
)
def test_packages(package, has_gpu, status, remedy):
    finding = judge_package(package, has_gpu=has_gpu)
    assert (finding.status, finding.remedy) == (status, remedy)
    assert dict(finding.data) == {"version": package.version}


def test_an_absent_package_has_no_version():
    assert readings.read_package("no-such-package-here").version is None
    assert readings.read_package("numpy").version


# Processors and memory


def test_cpus_in_a_container():
    cpu = CpuReading(model="x", cores=8, threads=16, cgroup=CgroupReading(cpus=2.5))
    finding = judge_cpu(cpu)
    assert finding.status == "warn"
    assert finding.remedy == "export OMP_NUM_THREADS=2 NUMBA_NUM_THREADS=2"
    assert "limited to 2.5 CPUs" in finding.value
    assert dict(judge_cpu(replace(cpu, cgroup=FREE)).data)["usable_threads"] == 16
    assert judge_cpu(replace(cpu, cgroup=CgroupReading(cpus=16.0))).status == "ok"
    tiny = judge_cpu(replace(cpu, cores=None, cgroup=CgroupReading(cpus=0.5)))
    assert dict(tiny.data)["usable_threads"] == 1


@pytest.mark.parametrize(
    ("available", "limit", "used", "usable", "status", "remedy"),
    [
        (12 * GIB, None, None, 12 * GIB, "ok", None),
        (GIB, None, None, GIB, "warn", "close other programs"),
        (100 * MIB, None, None, 100 * MIB, "fail", "close other programs"),
        (12 * GIB, 4 * GIB, GIB, 3 * GIB, "ok", None),
        (12 * GIB, 4 * GIB, 3 * GIB, GIB, "warn", "docker run --memory"),
        (2 * GIB, 8 * GIB, GIB, 2 * GIB, "ok", None),
        (12 * GIB, 4 * GIB, 5 * GIB, 0, "fail", "docker run --memory"),
        (12 * GIB, 64 * GIB, GIB, 12 * GIB, "ok", None),  # a limit above the machine is none
    ],
)
def test_memory(available, limit, used, usable, status, remedy):
    group = CgroupReading(limit_bytes=limit, used_bytes=used)
    finding = judge_memory(
        MemoryReading(total_bytes=16 * GIB, available_bytes=available, cgroup=group)
    )
    assert dict(finding.data)["usable_bytes"] == usable
    assert finding.status == status
    assert (remedy in finding.remedy) if remedy else finding.remedy is None
    assert ("control group" in finding.value) == (limit is not None and limit < 16 * GIB)


@pytest.mark.parametrize(
    ("total", "free", "status", "remedy"),
    [
        (None, None, "warn", "mount -t tmpfs"),
        (64 * MIB, 64 * MIB, "warn", "--shm-size"),
        (8 * GIB, 8 * GIB, "ok", None),
        (8 * GIB, 10 * MIB, "warn", "ls -l /dev/shm"),
        (64 * MIB, 0, "warn", "--shm-size"),
    ],
)
def test_shared_memory(total, free, status, remedy):
    finding = judge_shm(ShmReading(total_bytes=total, free_bytes=free))
    assert finding.status == status
    assert (remedy in finding.remedy) if remedy else finding.remedy is None


def test_a_machine_without_dev_shm(tmp_path):
    reading = readings.read_shm(str(tmp_path / "shm"))
    assert reading == ShmReading(total_bytes=None, free_bytes=None)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")


def test_cgroup_2_takes_the_tightest_of_its_parents(tmp_path):
    write(
        tmp_path,
        {
            "self": "0::/pod/job",
            "fs/pod/memory.max": "4000",
            "fs/pod/memory.current": "1500",
            "fs/pod/memory.stat": "anon 1000\ninactive_file 400",
            "fs/pod/cpu.max": "max 100000",
            "fs/pod/job/memory.max": "9000",
            "fs/pod/job/memory.current": "900",
            "fs/pod/job/cpu.max": "150000 100000",
        },
    )
    reading = read_cgroup(tmp_path / "self", tmp_path / "fs")
    assert reading == CgroupReading(limit_bytes=4000, used_bytes=1100, cpus=1.5)


def test_cgroup_2_seen_from_inside_a_container(tmp_path):
    write(
        tmp_path,
        {"self": "0::/../../x", "fs/memory.max": "7000", "fs/memory.current": "10"},
    )
    reading = read_cgroup(tmp_path / "self", tmp_path / "fs")
    assert reading == CgroupReading(limit_bytes=7000, used_bytes=10)


def test_cgroup_1(tmp_path):
    write(
        tmp_path,
        {
            "self": "9:name=systemd:/\n4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/",
            "fs/memory/memory.limit_in_bytes": "9223372036854771712",
            "fs/memory/memory.usage_in_bytes": "5",
            "fs/memory/docker/abc/memory.limit_in_bytes": "3000",
            "fs/memory/docker/abc/memory.usage_in_bytes": "2500",
            "fs/memory/docker/abc/memory.stat": "total_inactive_file 500\ncache 1",
            "fs/cpu/cpu.cfs_quota_us": "-1",
            "fs/cpu/cpu.cfs_period_us": "100000",
            "fs/cpu/docker/abc/cpu.cfs_quota_us": "50000",
            "fs/cpu/docker/abc/cpu.cfs_period_us": "100000",
        },
    )
    reading = read_cgroup(tmp_path / "self", tmp_path / "fs")
    assert reading == CgroupReading(limit_bytes=3000, used_bytes=2000, cpus=0.5)


def test_no_cgroups_at_all(tmp_path):
    assert read_cgroup(tmp_path / "none", tmp_path / "fs") == FREE
    assert read_cgroup().limit_bytes is None or read_cgroup().limit_bytes > 0


# Limits


def test_locked_memory_matters_with_a_gpu():
    low, none = LimitReading(soft=64 * 1024, hard=64 * 1024), LimitReading(soft=None, hard=None)
    assert judge_locked(low, has_gpu=False).status == "ok"
    assert judge_locked(none, has_gpu=True).status == "ok"
    assert "memlock=-1" in judge_locked(low, has_gpu=True).remedy
    assert judge_locked(replace(low, hard=None), has_gpu=True).remedy == "ulimit -l unlimited"
    assert judge_locked(none, has_gpu=True).value == "unlimited"


def test_open_files():
    assert judge_files(LimitReading(soft=1024, hard=4096)).status == "ok"
    assert judge_files(LimitReading(soft=256, hard=4096)).remedy == "ulimit -n 4096"
    assert judge_files(LimitReading(soft=256, hard=None)).remedy == "ulimit -n 65536"
    assert "nofile" in judge_files(LimitReading(soft=256, hard=256)).remedy
    assert judge_files(LimitReading(soft=None, hard=None)).value == "unlimited"


def test_limits_are_this_process_s():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert readings.read_limit(resource.RLIMIT_NOFILE) == LimitReading(soft=soft, hard=hard)


# Devices

NO_CUDA = CudaReading(torch_version="2.13.0+cpu", torch_cuda=None, driver=None)
GPU = GpuReading(name="X100", capability=(9, 0), total_bytes=80 * GIB, free_bytes=79 * GIB)
CUDA = CudaReading(
    torch_version="2.11.0", torch_cuda="13.0", driver="580.1", gpus=(GPU,), least_capability=(7, 5)
)
TRITON = TritonReading(
    version="3.6.0", compiler="/usr/bin/gcc", python_header=True, cache="/c", cache_writable=True
)


@pytest.mark.parametrize(
    ("change", "status", "value", "remedy"),
    [
        ({}, "ok", "none: training runs on the CPU", None),
        ({"torch_cuda": "13.0"}, "ok", "no NVIDIA driver is loaded", None),
        ({"driver": "570.1"}, "warn", "torch 2.13.0+cpu is for CPUs", "CUDA builds"),
        ({"driver": "570.1", "torch_version": None}, "fail", "not installed", "pip install torch"),
        (
            {"driver": "470.1", "torch_cuda": "13.0", "complaint": "driver too old"},
            "warn",
            "sees no device: driver too old",
            "--gpus all",
        ),
        ({"broken": "libcudart.so: no such file"}, "fail", "libcudart", "force-reinstall"),
    ],
    ids=str,
)
def test_no_device_says_why(change, status, value, remedy):
    (finding,) = judge_cuda(replace(NO_CUDA, **change))
    assert finding.status == status
    assert value in finding.value
    assert (remedy in finding.remedy) if remedy else finding.remedy is None


def test_devices():
    old = replace(GPU, capability=(7, 0))
    busy = replace(GPU, free_bytes=10 * GIB)
    found = judge_cuda(replace(CUDA, gpus=(GPU, old, busy, replace(GPU, free_bytes=None))))
    assert [finding.status for finding in found] == ["ok", "fail", "warn", "ok"]
    assert found[0].value == "X100, 80.0 GiB, capability 9.0, 79.0 GiB free"
    assert "needs 7.5" in found[1].value
    assert "nvidia-smi" in found[2].remedy
    assert [finding.name for finding in found] == [f"CUDA device {i}" for i in range(4)]


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({}, None),
        ({"version": None}, "tiergnn[gpu]"),
        ({"compiler": None}, "apt-get install gcc"),
        ({"python_header": False}, "python3-dev"),
        ({"cache_writable": False}, "TRITON_CACHE_DIR"),
    ],
    ids=str,
)
def test_triton(change, remedy):
    triton = replace(TRITON, **change)
    assert judge_triton(triton, NO_CUDA).status == "ok"
    finding = judge_triton(triton, CUDA)
    assert finding.status == ("fail" if remedy else "ok")
    assert (remedy in finding.remedy) if remedy else finding.remedy is None
    assert dict(finding.data)["usable"] == (remedy is None)


def test_triton_needs_a_capable_device():
    old = replace(CUDA, gpus=(replace(GPU, capability=(7, 0)),))
    assert judge_triton(TRITON, old).status == "fail"


def test_a_build_for_cpus_is_not_imported(monkeypatch):
    monkeypatch.setattr(
        readings, "read_package", lambda name: PackageReading(name=name, version="9.9+cpu")
    )
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it would raise
    reading = readings.read_cuda()
    assert (reading.torch_version, reading.torch_cuda, reading.gpus) == ("9.9+cpu", None, ())
    assert reading.broken is None


def test_a_torch_that_cannot_be_imported(monkeypatch):
    monkeypatch.setattr(
        readings, "read_package", lambda name: PackageReading(name=name, version="9.9+cu130")
    )
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "torch" in readings.read_cuda().broken


class Cuda:
    """torch.cuda of a machine with two devices."""

    def is_available(self):
        return True

    def device_count(self):
        return 2

    def get_arch_list(self):
        return ["sm_80", "sm_75", "sm_90a", "compute_90"]

    def get_device_properties(self, index):
        return SimpleNamespace(name=f"X{index}", major=9, minor=0, total_memory=80 * GIB)

    def mem_get_info(self, index):
        return 70 * GIB, 80 * GIB


def fake_torch(monkeypatch, cuda):
    monkeypatch.setattr(
        readings, "read_package", lambda name: PackageReading(name=name, version="9.9+cu130")
    )
    torch = SimpleNamespace(cuda=cuda, version=SimpleNamespace(cuda="13.0"))
    monkeypatch.setitem(sys.modules, "torch", torch)


def test_reading_devices(monkeypatch):
    fake_torch(monkeypatch, Cuda())
    reading = readings.read_cuda()
    assert [gpu.name for gpu in reading.gpus] == ["X0", "X1"]
    assert reading.gpus[0].free_bytes == 70 * GIB
    assert reading.least_capability == (7, 5)


def test_reading_a_device_that_fails(monkeypatch):
    class Broken(Cuda):
        def mem_get_info(self, index):
            raise RuntimeError("CUDA error: uncorrectable ECC error\nmore")

    fake_torch(monkeypatch, Broken())
    reading = readings.read_cuda()
    assert (reading.gpus, reading.complaint) == ((), "CUDA error: uncorrectable ECC error")


def test_reading_no_device_with_torchs_own_words(monkeypatch):
    class Old(Cuda):
        def is_available(self):
            import warnings

            warnings.warn("the NVIDIA driver is too old\nsee ...", stacklevel=1)
            return False

    fake_torch(monkeypatch, Old())
    assert readings.read_cuda().complaint == "the NVIDIA driver is too old"


def test_reading_the_driver(tmp_path):
    file = tmp_path / "version"
    assert readings._driver(file) is None
    file.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 16\n")
    assert readings._driver(file) == "570.86.15"


def test_reading_triton(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "yet" / "to" / "be"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    reading = readings.read_triton()
    assert (reading.compiler, reading.cache_writable) == (None, True)
    (tmp_path / "gcc").write_text("#!/bin/sh\n")
    (tmp_path / "gcc").chmod(0o755)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file" / "cache"))
    reading = readings.read_triton()
    assert (reading.compiler, reading.cache_writable) == (str(tmp_path / "gcc"), False)


# Disk

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
