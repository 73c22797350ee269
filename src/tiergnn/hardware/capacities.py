"""Capacities: how much of each memory there is, and how much of it is not for plans."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from tiergnn.hardware.machine import Tier
from tiergnn.hardware.readings import MemoryReading, read_memory

# Python with torch, NumPy, SciPy and Numba's kernels in it: 0.35 to 0.5 GiB, measured.
PROCESS_BYTES = 512 * 2**20

# Of a GPU's budget, beside what plans count: cuBLAS takes 32 MiB for each of two threads that
# multiply (measured on an H200), rows on their way two buffers of 16 MiB each way, and what is made
# of them 16 MiB each way.
ASIDE_BYTES = 5 * 32 * 2**20


def host_tier(memory: MemoryReading | None = None, own_bytes: int | None = None) -> Tier:
    """The host's memory, or what the control group leaves of it.

    Reserved are what others hold at the moment and one process of ours without data;
    ``own_bytes`` of what is in use are this process's (None: read now).
    """
    memory = memory or read_memory()
    own_bytes = psutil.Process().memory_info().rss if own_bytes is None else own_bytes
    capacity = memory.total_bytes
    used = memory.total_bytes - memory.available_bytes
    limit = memory.cgroup.limit_bytes
    if limit is not None and limit < capacity:
        # What processes outside of the group hold counts only where it leaves less than the limit.
        outside = max(0, limit - memory.available_bytes - own_bytes)
        capacity, used = limit, max(memory.cgroup.used_bytes or 0, outside)
    reserved = max(0, used - own_bytes) + PROCESS_BYTES
    return Tier(capacity, min(capacity, reserved))


def free_host_bytes() -> int:
    """What could be taken now."""
    memory = read_memory()
    free, limit = memory.available_bytes, memory.cgroup.limit_bytes
    if limit is not None:
        free = min(free, limit - (memory.cgroup.used_bytes or 0))
    return max(0, free)


def disk_tier(folder: str | Path) -> Tier | None:
    """The disk under a folder; None where there is no such folder."""
    try:
        space = os.statvfs(folder)
    except OSError:
        return None
    total, free = space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize
    return Tier(total, total - free)


def cuda_tier(total_bytes: int, free_bytes: int, own_bytes: int) -> Tier:
    """A device's memory. Reserved is what is in use beyond the ``own_bytes`` of torch's allocator:
    the context, libraries and other processes."""
    return Tier(total_bytes, min(total_bytes, max(0, total_bytes - free_bytes - own_bytes)))
