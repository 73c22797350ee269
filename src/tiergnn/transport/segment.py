"""Memory that processes of one host share: no file has its name, so nothing can be left behind.

A segment is an anonymous file in memory (memfd), taken at once, so that a shortage is an error here
and not a bus error later. Others open it by the process that holds it, ``/proc/PID/fd/FD``. It does
not count against /dev/shm, and ends with the last process that maps it, however that ends.
"""

from __future__ import annotations

import itertools
import mmap
import os

import torch
from torch import Tensor

from tiergnn.errors import StoreError
from tiergnn.hardware.capacities import free_host_bytes
from tiergnn.units import format_bytes

_numbers = itertools.count()


class Segment:
    """``num_bytes`` zeroed bytes. ``address`` is what others open; until ``close`` they can."""

    def __init__(self, num_bytes: int) -> None:
        size = max(1, num_bytes)
        free = free_host_bytes()
        if size > free:
            raise StoreError(
                f"shared memory of {format_bytes(size)} wanted, {format_bytes(free)} are free",
                hint="fewer ranks on this host, or a plan with a smaller host_memory",
            )
        try:
            self.handle = os.memfd_create("tiergnn", os.MFD_CLOEXEC)
            os.posix_fallocate(self.handle, 0, size)
        except OSError as error:
            raise StoreError(
                f"shared memory of {format_bytes(size)} wanted, {format_bytes(free)} are free: "
                f"{error.strerror}",
                hint="fewer ranks on this host, or --transport gloo, which shares none",
            ) from error
        self.memory = mmap.mmap(self.handle, size)
        self.num_bytes = num_bytes
        # Numbered, because handles are used again: one address never names two segments.
        self.address = f"{os.getpid()}:{self.handle}:{num_bytes}:{next(_numbers)}"

    def tensor(self) -> Tensor:
        return as_tensor(self.memory, self.num_bytes)

    def close(self) -> None:
        """No one can open it any more; who has mapped it keeps it. Twice is as once."""
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1


def as_tensor(memory: mmap.mmap, num_bytes: int) -> Tensor:
    """uint8 [num_bytes] on mapped memory, which stays as long as the tensor."""
    return torch.frombuffer(memory, dtype=torch.uint8, count=max(1, num_bytes))[:num_bytes]


def open_segment(address: str) -> tuple[mmap.mmap, int, int]:
    """The memory of another process's segment, its bytes and an open handle to it."""
    pid, handle, num_bytes, _ = map(int, address.split(":"))
    try:
        opened = os.open(f"/proc/{pid}/fd/{handle}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise StoreError(
            f"shared memory of process {pid} cannot be opened: {error.strerror}",
            hint="the ranks of a host under one user and one PID namespace, or --transport gloo",
        ) from error
    return mmap.mmap(opened, max(1, num_bytes)), num_bytes, opened


def map_segment(address: str) -> Tensor:
    """Another process's segment as uint8 [num_bytes], in place."""
    memory, num_bytes, handle = open_segment(address)
    os.close(handle)
    return as_tensor(memory, num_bytes)
