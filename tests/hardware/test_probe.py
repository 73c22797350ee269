"""The probe: verdicts on made-up readings, readers on made-up machines, the whole on this one."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tiergnn.errors import ConfigError
from tiergnn.hardware import readings
from tiergnn.hardware.cgroup import CgroupReading, read_cgroup
from tiergnn.hardware.finding import Finding, Report
from tiergnn.hardware.probe import probe
from tiergnn.hardware.readings import (
    CpuReading,
    LimitReading,
    MemoryReading,
    PackageReading,
    ShmReading,
)
from tiergnn.hardware.verdicts import (
    judge_cpu,
    judge_files,
    judge_locked,
    judge_memory,
    judge_package,
    judge_shm,
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
