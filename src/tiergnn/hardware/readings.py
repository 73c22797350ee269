"""Readings of this machine: thin readers that decide nothing. ``verdicts`` judges them."""

from __future__ import annotations

import importlib.util
import os
import platform
import resource
import shutil
import sysconfig
import warnings
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from tiergnn.hardware.cgroup import CgroupReading, read_cgroup


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageReading:
    """``wants`` is the range in tiergnn's metadata, empty where there is none."""

    name: str
    version: str | None  # None: not installed
    wants: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuReading:
    model: str
    cores: int | None  # physical
    threads: int  # that this process may run on
    cgroup: CgroupReading


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReading:
    total_bytes: int
    available_bytes: int
    cgroup: CgroupReading


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitReading:
    """Soft and hard limit; None is no limit."""

    soft: int | None
    hard: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShmReading:
    """None where there is no /dev/shm."""

    total_bytes: int | None
    free_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    name: str
    capability: tuple[int, int]
    total_bytes: int
    free_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaReading:
    """What torch sees. ``torch_cuda``: the CUDA that torch was built for, None for a CPU build."""

    torch_version: str | None
    torch_cuda: str | None
    driver: str | None  # of the kernel module; None where there is none
    gpus: tuple[GpuReading, ...] = ()
    least_capability: tuple[int, int] | None = None  # that this torch has kernels for
    complaint: str | None = None  # why torch sees no device
    broken: str | None = None  # why torch cannot be imported


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonReading:
    version: str | None
    compiler: str | None  # path of the C compiler that Triton's launchers need
    python_header: bool  # whether Python.h is there, which they need too
    cache: str  # folder of compiled kernels
    cache_writable: bool


def read_package(name: str, wants: str = "") -> PackageReading:
    """Without importing it."""
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        version = None
    return PackageReading(name=name, version=version, wants=wants)


def read_requirements() -> tuple[str, ...]:
    """The Requires-Dist lines of tiergnn itself; none when it runs from a source tree."""
    try:
        return tuple(metadata.requires("tiergnn") or ())
    except metadata.PackageNotFoundError:
        return ()


def read_cpu() -> CpuReading:
    if hasattr(os, "sched_getaffinity"):
        threads = len(os.sched_getaffinity(0))
    else:
        threads = os.cpu_count() or 1
    return CpuReading(
        model=_cpu_model(),
        cores=psutil.cpu_count(logical=False),
        threads=threads,
        cgroup=read_cgroup(),
    )


def _cpu_model(file: Path = Path("/proc/cpuinfo")) -> str:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.machine()


def read_memory() -> MemoryReading:
    memory = psutil.virtual_memory()
    return MemoryReading(
        total_bytes=memory.total, available_bytes=memory.available, cgroup=read_cgroup()
    )


def read_limit(kind: int) -> LimitReading:
    """``kind`` is one of the resource module's RLIMIT constants."""
    soft, hard = (None if n == resource.RLIM_INFINITY else n for n in resource.getrlimit(kind))
    return LimitReading(soft=soft, hard=hard)


def read_shm(folder: str = "/dev/shm") -> ShmReading:
    try:
        space = os.statvfs(folder)
    except OSError:
        return ShmReading(total_bytes=None, free_bytes=None)
    return ShmReading(
        total_bytes=space.f_blocks * space.f_frsize, free_bytes=space.f_bavail * space.f_frsize
    )


def read_cuda() -> CudaReading:
    """Imports torch, which takes seconds, only when it is a build for CUDA."""
    version = read_package("torch").version
    driver = _driver()
    if version is None or version.endswith("+cpu"):
        return CudaReading(torch_version=version, torch_cuda=None, driver=driver)
    try:
        import torch
    except (ImportError, OSError) as error:
        reason = str(error).split("\n")[0]
        return CudaReading(torch_version=version, torch_cuda=None, driver=driver, broken=reason)
    cuda = torch.version.cuda
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seen = torch.cuda.is_available()
    complaint = None if seen else " ".join(str(w.message).split("\n")[0] for w in caught) or None
    try:
        gpus = tuple(
            _gpu(torch, index) for index in range(torch.cuda.device_count() if seen else 0)
        )
    except RuntimeError as error:  # a device that fails as soon as it is used
        gpus, complaint = (), str(error).split("\n")[0]
    built = [int(arch[3:].rstrip("af")) for arch in torch.cuda.get_arch_list() if arch[:3] == "sm_"]
    least = divmod(min(built), 10) if built else None
    return CudaReading(
        torch_version=version,
        torch_cuda=cuda,
        driver=driver,
        gpus=gpus,
        least_capability=least,
        complaint=complaint,
    )


def _gpu(torch: Any, index: int) -> GpuReading:
    found = torch.cuda.get_device_properties(index)
    free_bytes, _ = torch.cuda.mem_get_info(index)
    return GpuReading(
        name=found.name,
        capability=(found.major, found.minor),
        total_bytes=found.total_memory,
        free_bytes=free_bytes,
    )


def _driver(file: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """Version of the NVIDIA kernel module, from a line such as
    ``NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  ...``."""
    try:
        words = file.read_text().split()
    except OSError:
        return None
    numbers = (word for word in words if word.replace(".", "").isdigit() and "." in word)
    return next(numbers, "of unknown version")


def read_triton() -> TritonReading:
    """Without importing it: a build of it loads the driver."""
    cache = Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")
    compiler = os.environ.get("CC") or "gcc"
    found = (shutil.which(name) for name in (compiler, "gcc", "clang", "cc"))
    spec = importlib.util.find_spec("triton")
    return TritonReading(
        version=read_package("triton").version if spec else None,
        compiler=next((path for path in found if path), None),
        python_header=(Path(sysconfig.get_path("include")) / "Python.h").exists(),
        cache=str(cache),
        cache_writable=_writable(cache),
    )


def _writable(folder: Path) -> bool:
    """Whether files can be made in a folder that may have yet to be made."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
