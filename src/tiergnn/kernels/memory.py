"""Memory for large new rows on the CPU, on huge pages and used again.

The system hands out every large tensor as fresh zeroed pages and takes them back with it, which for
outputs of hundreds of megabytes takes as long as the kernel that writes them. Memory given out here
comes back when its last tensor is gone and serves the next output of the same size. What is held,
idle or not, never exceeds the most that was in use at once.

Smaller tensors, and those that torch makes, are the system's allocator's, which ``keep_small`` and
``keep_large`` have keep what they gave back.

Legend: N rows, D columns.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
import weakref

import numpy as np
import torch
from torch import Tensor

from tiergnn.threads import open_after_fork

LARGE_BYTES = 32 * 2**20  # from here on the allocator gives a tensor pages of its own
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # parameters of glibc's mallopt
_NEVER, _USUAL = -1, 65536
_KEEPS = threading.Event()  # set once the allocator was told to keep what is given back


class Pool:
    """Large memories by size. Thread-safe; a tensor may die in any thread."""

    def __init__(self) -> None:
        # Reentrant: the garbage collector may give memory back while a thread takes some.
        self._lock = threading.RLock()
        self._idle: list[np.ndarray] = []  # bytes, oldest first
        self._used_bytes = 0
        self._most_bytes = 0

    @property
    def idle_bytes(self) -> int:
        return sum(memory.nbytes for memory in self._idle)

    def take(self, num_bytes: int) -> Tensor:
        """Uninitialised bytes [num_bytes], which come back when no tensor uses them any more."""
        with self._lock:
            fitting = [memory for memory in self._idle if memory.nbytes == num_bytes]
            memory = fitting[-1] if fitting else None
            self._idle = [other for other in self._idle if other is not memory]
            self._used_bytes += num_bytes
            self._most_bytes = max(self._most_bytes, self._used_bytes)
            while self._idle and self._used_bytes + self.idle_bytes > self._most_bytes:
                del self._idle[0]
        if memory is None:
            memory = self._fresh(num_bytes)
        lent = memory[:]
        weakref.finalize(lent, self._give_back, memory).atexit = False
        return torch.frombuffer(lent, dtype=torch.uint8)

    def _fresh(self, num_bytes: int) -> np.ndarray:
        """Memory that is counted already; if there is none, without what lies idle."""
        try:
            return _allocate(num_bytes)
        except OSError:
            with self._lock:
                self._idle.clear()
        try:
            return _allocate(num_bytes)
        except OSError as error:
            with self._lock:
                self._used_bytes -= num_bytes
                self._most_bytes = self._used_bytes
            raise MemoryError(f"no host memory for rows of {num_bytes:,} bytes") from error

    def _give_back(self, memory: np.ndarray) -> None:
        with self._lock:
            self._used_bytes -= memory.nbytes
            self._idle.append(memory)

    def release(self) -> None:
        """Give idle memory back to the system."""
        with self._lock:
            self._idle.clear()
            self._most_bytes = self._used_bytes


POOL = Pool()
open_after_fork(POOL._lock)


def new_rows(num_rows: int, num_columns: int, dtype: torch.dtype) -> Tensor:
    """torch.empty [N, D]; from LARGE_BYTES on it is of the pool."""
    num_bytes = num_rows * num_columns * dtype.itemsize
    if num_bytes < LARGE_BYTES:
        return torch.empty(num_rows, num_columns, dtype=dtype)
    storage = POOL.take(num_bytes).untyped_storage()
    shape = num_rows, num_columns
    return torch.empty(0, dtype=dtype).set_(storage, 0, shape)  # pyright: ignore[reportCallIssue, reportArgumentType]


def keep_small() -> None:
    """Have the allocator keep what tensors below LARGE_BYTES give back, for those of later steps.

    By itself glibc returns it to the system, some of it in every step, and takes pages anew, which
    takes as long as a kernel does. What lies free now is given back first. For the whole process,
    and for good; without glibc nothing happens.
    """
    _KEEPS.set()
    _tell_glibc(
        ("malloc_trim", 0),
        ("mallopt", _MMAP_THRESHOLD, LARGE_BYTES),
        ("mallopt", _TRIM_THRESHOLD, _NEVER),
    )


def keep_large() -> None:
    """As ``keep_small``, and of tensors of any size, until ``no_large``.

    Pages of their own are zeroed anew for each: at 4 GB a second, and below one where the memory is
    a virtual machine's that lent it out again meanwhile. What stays free between tensors of
    different sizes takes up to a quarter more than they do.
    """
    keep_small()
    _tell_glibc(("mallopt", _MMAP_MAX, 0))


def no_large() -> None:
    """Larger tensors have pages of their own again, which go with them."""
    _tell_glibc(("mallopt", _MMAP_MAX, _USUAL), ("malloc_trim", 0))


def give_back() -> None:
    """Return to the system what lies idle of earlier work: in the pool and in the allocator."""
    POOL.release()
    if _KEEPS.is_set():
        # Of a thread's own memory glibc gives back the end alone when something is freed there; the
        # first time that may be a piece before the end.
        _tell_glibc(("mallopt", _TRIM_THRESHOLD, 0))
        for _ in range(2):
            freed = torch.empty(2**18, dtype=torch.uint8)
            del freed
        _tell_glibc(("mallopt", _TRIM_THRESHOLD, _NEVER))
    _tell_glibc(("malloc_trim", 0))


def _tell_glibc(*calls: tuple[str, *tuple[int, ...]]) -> None:
    """Functions of the C library and their numbers; another one has none of them."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        libc = ctypes.CDLL(None)
        for name, *numbers in calls:
            getattr(libc, name)(*numbers)


def _allocate(num_bytes: int) -> np.ndarray:
    """Fresh bytes that start a page; where there are huge pages, on those."""
    flags = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    memory = mmap.mmap(-1, num_bytes, **flags)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # advice, which a kernel without huge pages refuses
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)
