"""What readings mean: pure functions from readings to findings, each shortfall with its remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tiergnn.hardware.disk import DiskReading
from tiergnn.hardware.finding import Finding
from tiergnn.hardware.readings import (
    CpuReading,
    CudaReading,
    LimitReading,
    MemoryReading,
    PackageReading,
    ShmReading,
    TritonReading,
)
from tiergnn.units import format_bytes, format_rate

MIB, GIB = 1024**2, 1024**3

# Optional packages: what each is for, and the extra that installs it.
OPTIONAL = {
    "triton": ("kernels on a GPU", "gpu"),
    "pymetis": ("METIS partitions", "partition"),
    "pyarrow": ("Parquet files", "parquet"),
    "torch-geometric": ("PyG data and models", "pyg"),
    "tensorboard": ("TensorBoard logs", "tensorboard"),
    "matplotlib": ("plots", "plot"),
}
REQUIRED = (
    "torch",
    "numpy",
    "scipy",
    "numba",
    "safetensors",
    "typer",
    "rich",
    "psutil",
    "torchmetrics",
)
_LEAST_MEMORY_BYTES = (512 * MIB, 2 * GIB)  # fail, warn
_LEAST_SHM_BYTES = GIB
_LEAST_FILES = 1024
_LEAST_FREE_BYTES = (GIB, 10 * GIB)  # fail, warn
_LEAST_DISK_BPS = 200e6
_TRITON_CAPABILITY = (7, 5)


def wanted_ranges(requirements: Iterable[str]) -> dict[str, str]:
    """Package -> version range, from Requires-Dist lines; tiergnn's own extras are left out."""
    found = {}
    for line in requirements:
        match = re.match(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*\(?([^;()]*)", line)
        if match and match[1] != "tiergnn":
            found.setdefault(match[1].lower().replace("_", "-"), match[2].replace(" ", ""))
    return found


def within(version: str, wants: str) -> bool:
    """Whether a version meets a range such as ``>=2.11,<2.15``; suffixes do not count."""
    have = _numbers(version)
    for clause in filter(None, wants.split(",")):
        operator, bound = re.match(r"([<>=!~]*)(.*)", clause).groups()  # type: ignore[union-attr]
        limit = _numbers(bound)
        width = max(len(have), len(limit))
        a, b = (n + (0,) * (width - len(n)) for n in (have, limit))
        checks = {">=": a >= b, "<=": a <= b, "<": a < b, ">": a > b, "==": a == b, "!=": a != b}
        if not checks.get(operator, True):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def judge_package(package: PackageReading, *, has_gpu: bool) -> Finding:
    name, version = package.name, package.version
    if version is None and name in OPTIONAL:
        purpose, extra = OPTIONAL[name]
        return Finding(
            group="software",
            name=name,
            value=f"not installed: only for {purpose}",
            status="warn" if name == "triton" and has_gpu else "ok",
            remedy=f"pip install 'tiergnn[{extra}]'",
            data=(("version", None),),
        )
    spec = f"'{name}{package.wants}'"
    if version is None:
        return Finding(
            group="software",
            name=name,
            value="not installed",
            status="fail",
            remedy=f"pip install {spec}",
            data=(("version", None),),
        )
    fits = within(version, package.wants)
    return Finding(
        group="software",
        name=name,
        value=version if fits else f"{version}, outside {package.wants}",
        status="ok" if fits else "warn",
        remedy=None if fits else f"pip install {spec}",
        data=(("version", version),),
    )


def judge_cpu(cpu: CpuReading) -> Finding:
    quota = cpu.cgroup.cpus
    cores = f"{cpu.cores} cores, " if cpu.cores else ""
    value = f"{cpu.model}: {cores}{cpu.threads} threads"
    short = quota is not None and quota < cpu.threads
    usable = max(1, int(quota)) if short and quota is not None else cpu.threads
    if short:
        value += f", limited to {quota:g} CPUs by the control group"
    return Finding(
        group="cpu",
        name="CPU",
        value=value,
        status="warn" if short else "ok",
        remedy=f"export OMP_NUM_THREADS={usable} NUMBA_NUM_THREADS={usable}" if short else None,
        data=(
            ("cores", cpu.cores),
            ("threads", cpu.threads),
            ("quota_cpus", quota),
            ("usable_threads", usable),
        ),
    )


def judge_memory(memory: MemoryReading) -> Finding:
    """What may be used is what the machine has left, and what the control group has left."""
    group = memory.cgroup
    limit_bytes, used_bytes = group.limit_bytes, group.used_bytes or 0
    if limit_bytes is not None and limit_bytes >= memory.total_bytes:
        limit_bytes = None
    total, usable = memory.total_bytes, memory.available_bytes
    value = f"{format_bytes(usable)} available of {format_bytes(total)}"
    remedy = "close other programs, or use a machine with more memory"
    if limit_bytes is not None:
        usable = max(0, min(usable, limit_bytes - used_bytes))
        value = (
            f"{format_bytes(usable)} available of {format_bytes(limit_bytes)}, "
            f"the control group's limit (machine: {format_bytes(total)})"
        )
        remedy = "raise the container's limit, for example docker run --memory=16g"
    fail_bytes, warn_bytes = _LEAST_MEMORY_BYTES
    status = "fail" if usable < fail_bytes else "warn" if usable < warn_bytes else "ok"
    return Finding(
        group="memory",
        name="RAM",
        value=value,
        status=status,
        remedy=None if status == "ok" else remedy,
        data=(
            ("total_bytes", total),
            ("available_bytes", memory.available_bytes),
            ("limit_bytes", limit_bytes),
            ("usable_bytes", usable),
        ),
    )


def judge_shm(shm: ShmReading) -> Finding:
    data = (("total_bytes", shm.total_bytes), ("free_bytes", shm.free_bytes))
    remedy = "docker run --shm-size=8g, or mount -o remount,size=8g /dev/shm"
    if shm.total_bytes is None or shm.free_bytes is None:
        value, status = "missing: processes cannot share memory", "warn"
        remedy = "mount -t tmpfs tmpfs /dev/shm, or docker run --shm-size=8g"
    else:
        value = f"{format_bytes(shm.free_bytes)} free of {format_bytes(shm.total_bytes)}"
        small = shm.total_bytes < _LEAST_SHM_BYTES
        full = shm.free_bytes < min(_LEAST_SHM_BYTES, shm.total_bytes) // 4
        status = "warn" if small or full else "ok"
        if full and not small:
            remedy = "remove what dead programs left there: ls -l /dev/shm"
    return Finding(
        group="memory",
        name="/dev/shm",
        value=value,
        status=status,
        remedy=None if status == "ok" else remedy,
        data=data,
    )


def judge_locked(limit: LimitReading, *, has_gpu: bool) -> Finding:
    """Host memory that a GPU reads directly is locked."""
    short = limit.soft is not None and has_gpu and limit.soft < 64 * GIB
    raisable = limit.hard is None
    return Finding(
        group="limits",
        name="locked memory (ulimit -l)",
        value="unlimited" if limit.soft is None else format_bytes(limit.soft),
        status="warn" if short else "ok",
        remedy=(
            "ulimit -l unlimited"
            if raisable
            else "docker run --ulimit memlock=-1, or '* - memlock unlimited' in "
            "/etc/security/limits.conf"
        )
        if short
        else None,
        data=(("soft_bytes", limit.soft), ("hard_bytes", limit.hard)),
    )


def judge_files(limit: LimitReading) -> Finding:
    short = limit.soft is not None and limit.soft < _LEAST_FILES
    raisable = limit.hard is None or limit.hard >= _LEAST_FILES
    return Finding(
        group="limits",
        name="open files (ulimit -n)",
        value="unlimited" if limit.soft is None else str(limit.soft),
        status="warn" if short else "ok",
        remedy=(
            f"ulimit -n {limit.hard or 65536}" if raisable else "docker run --ulimit nofile=65536"
        )
        if short
        else None,
        data=(("soft", limit.soft), ("hard", limit.hard)),
    )


def judge_cuda(cuda: CudaReading) -> list[Finding]:
    """One finding a device, or one that says why there is none."""
    if not cuda.gpus:
        return [_no_gpu(cuda)]
    return [_judge_gpu(index, cuda) for index in range(len(cuda.gpus))]


def _no_gpu(cuda: CudaReading) -> Finding:
    if cuda.broken is not None:
        value, status = f"torch {cuda.torch_version} cannot be imported: {cuda.broken}", "fail"
        remedy = "pip install --force-reinstall torch"
    elif cuda.driver is None:
        value, status, remedy = "none: training runs on the CPU", "ok", None
        if cuda.torch_cuda is not None:
            value += f" (torch is built for CUDA {cuda.torch_cuda}, no NVIDIA driver is loaded)"
    elif cuda.torch_version is None:
        value, status = f"driver {cuda.driver}, but torch is not installed", "fail"
        remedy = "pip install torch"
    elif cuda.torch_cuda is None:
        value, status = f"driver {cuda.driver}, but torch {cuda.torch_version} is for CPUs", "warn"
        remedy = "pip install --force-reinstall torch, from an index with CUDA builds"
    else:
        why = f": {cuda.complaint}" if cuda.complaint else ""
        value, status = f"driver {cuda.driver}, but torch sees no device{why}", "warn"
        remedy = (
            f"a driver for CUDA {cuda.torch_cuda} or a torch for this driver; in a container "
            "docker run --gpus all; check CUDA_VISIBLE_DEVICES"
        )
    return Finding(
        group="gpu",
        name="CUDA",
        value=value,
        status=status,
        remedy=remedy,
        data=(("num_devices", 0), ("driver", cuda.driver), ("torch_cuda", cuda.torch_cuda)),
    )


def _judge_gpu(index: int, cuda: CudaReading) -> Finding:
    gpu, least = cuda.gpus[index], cuda.least_capability
    major, minor = gpu.capability
    value = f"{gpu.name}, {format_bytes(gpu.total_bytes)}, capability {major}.{minor}"
    status, remedy = "ok", None
    if gpu.free_bytes is not None:
        value += f", {format_bytes(gpu.free_bytes)} free"
        if gpu.free_bytes < gpu.total_bytes // 2:
            status, remedy = "warn", "see who uses it: nvidia-smi"
    if least is not None and gpu.capability < least:
        status = "fail"
        value += f"; torch {cuda.torch_version} needs {least[0]}.{least[1]}"
        remedy = "an older torch built for this device, or a newer device"
    return Finding(
        group="gpu",
        name=f"CUDA device {index}",
        value=value,
        status=status,
        remedy=remedy,
        data=(
            ("name", gpu.name),
            ("capability", f"{major}.{minor}"),
            ("total_bytes", gpu.total_bytes),
            ("free_bytes", gpu.free_bytes),
        ),
    )


def judge_triton(triton: TritonReading, cuda: CudaReading) -> Finding:
    """Whether Triton's kernels can be compiled and launched here."""
    missing: tuple[str, str] | None = None
    if triton.version is None:
        missing = "not installed", "pip install 'tiergnn[gpu]'"
    elif cuda.gpus and min(gpu.capability for gpu in cuda.gpus) < _TRITON_CAPABILITY:
        missing = "a device has capability below 7.5", "CUDA_VISIBLE_DEVICES without that device"
    elif triton.compiler is None:
        missing = "no C compiler, which its launchers need", "apt-get install gcc"
    elif not triton.python_header:
        missing = "no Python.h, which its launchers need", "apt-get install python3-dev"
    elif not triton.cache_writable:
        missing = f"{triton.cache} cannot be written", "export TRITON_CACHE_DIR=/tmp/triton"
    if not cuda.gpus:
        value, status, remedy = "not needed without a CUDA device", "ok", None
    elif missing is None:
        value, status, remedy = f"{triton.version}, ready", "ok", None
    else:
        value, status, remedy = f"unusable: {missing[0]}", "fail", missing[1]
    return Finding(
        group="gpu",
        name="Triton kernels",
        value=value,
        status=status,
        remedy=remedy,
        data=(("usable", bool(cuda.gpus) and missing is None), ("compiler", triton.compiler)),
    )


def judge_disk(disk: DiskReading) -> list[Finding]:
    """Space, and speed with how it was measured."""
    findings = []
    place = f"{disk.folder} ({disk.file_system})" if disk.file_system else disk.folder
    data = (("folder", disk.folder), ("file_system", disk.file_system))
    if disk.free_bytes is not None and disk.total_bytes is not None:
        fail_bytes, warn_bytes = _LEAST_FREE_BYTES
        free = disk.free_bytes
        status = "fail" if free < fail_bytes else "warn" if free < warn_bytes else "ok"
        findings.append(
            Finding(
                group="disk",
                name="free space",
                value=f"{format_bytes(free)} of {format_bytes(disk.total_bytes)} at {place}",
                status=status,
                remedy=None
                if status == "ok"
                else "free some space, or use a folder on another disk",
                data=(*data, ("free_bytes", free), ("total_bytes", disk.total_bytes)),
            )
        )
    return [*findings, _judge_speed(disk, place, data)]


def _judge_speed(
    disk: DiskReading, place: str, data: tuple[tuple[str, int | float | str | bool | None], ...]
) -> Finding:
    if disk.write_Bps is None or disk.read_Bps is None:
        return Finding(
            group="disk",
            name="speed",
            value=f"not measured at {place}: {disk.error}",
            status="warn",
            remedy="tiergnn doctor --folder DIR: one that exists, has space and can be written",
            data=(*data, ("error", disk.error)),
        )
    how = "O_DIRECT" if disk.direct else "buffered: the page cache may flatter it"
    if disk.file_system in ("tmpfs", "ramfs"):
        how = "this is memory, not a disk"
    slow = min(disk.write_Bps, disk.read_Bps) < _LEAST_DISK_BPS
    return Finding(
        group="disk",
        name="speed",
        value=f"write {format_rate(disk.write_Bps)}, read {format_rate(disk.read_Bps)} ({how})",
        status="warn" if slow else "ok",
        remedy="keep graphs and runs on a local SSD or NVMe disk" if slow else None,
        data=(
            *data,
            ("write_Bps", disk.write_Bps),
            ("read_Bps", disk.read_Bps),
            ("direct", disk.direct),
        ),
    )
