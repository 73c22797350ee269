"""What the probe says of CUDA devices and of Triton, on made-up machines."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tiergnn.hardware import readings
from tiergnn.hardware.readings import (
    CudaReading,
    GpuReading,
    PackageReading,
    TritonReading,
)
from tiergnn.hardware.verdicts import (
    judge_cuda,
    judge_triton,
)

MIB, GIB = 1024**2, 1024**3
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
