"""Host memory that a GPU reads and writes directly: registered in chunks, once, given back once.

Where the system refuses to lock so much memory, it stays pageable, and one warning says the limit.
"""

from __future__ import annotations

import contextlib
import logging
import math
import mmap
import resource
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tiergnn.units import format_bytes

CHUNK_BYTES = 256 * 2**30  # one call for 512 GiB and more fails
PAGE_BYTES = mmap.PAGESIZE
_ALREADY = 712  # cudaErrorHostMemoryAlreadyRegistered
_PORTABLE_MAPPED = 3
_HUGE_BYTES = 32 * 2**20  # from here on memory lies on huge pages where it can
log = logging.getLogger("tiergnn")


class _Held(NamedTuple):
    """Registered memory, which must not be freed: what comes to lie there would be taken for it."""

    memory: Tensor
    users: int
    chunks: tuple[int, ...]  # offsets in bytes
    ours: int  # of the chunks, to give back


class Pinning:
    """What of this process's memory is registered.

    ``register(address, bytes)`` and ``unregister(address)`` return CUDA's error code, 0 where all
    is well; None: no CUDA, and all memory stays as it is.
    """

    def __init__(
        self,
        register: Callable[[int, int], int] | None,
        unregister: Callable[[int], int] | None,
        *,
        chunk_bytes: int = CHUNK_BYTES,
    ):
        self._register, self._unregister = register, unregister
        self._chunk_bytes = chunk_bytes
        self._held: dict[tuple[int, int], _Held] = {}  # by address and bytes
        self._lock = threading.Lock()
        self._returned: deque[Tensor] = deque()  # to be unpinned
        self._warned = False

    @property
    def pinned_bytes(self) -> int:
        """Registered now; memory registered twice counts once."""
        with self._alone():
            return sum(size for (_, size), held in self._held.items() if held.chunks)

    def pin(self, memory: Tensor, *, grain_bytes: int = 1) -> tuple[int, ...]:
        """Register a contiguous tensor; gives the offsets in bytes at which chunks start.

        Empty where it is pageable. Chunks end at multiples of ``grain_bytes`` (of a row) and of a
        page: a copy must not cross from one into the next. Pinned twice, it is unpinned twice.
        """
        num_bytes = memory.numel() * memory.element_size()
        if self._register is None or num_bytes == 0:
            return ()
        key = memory.data_ptr(), num_bytes
        with self._alone():
            held = self._held.get(key) or _Held(memory, 0, *self._chunks(*key, grain_bytes))
            self._held[key] = held._replace(users=held.users + 1)
        return held.chunks

    def unpin(self, memory: Tensor) -> None:
        """Give back what ``pin`` took; for memory that was left pageable this does nothing.

        Never waits: the garbage collector calls it in the midst of ``pin``, too. While another call
        is at work, that one gives the memory back when it is done.
        """
        self._returned.append(memory)
        self._settle()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        finally:
            self._settle()

    def _settle(self) -> None:
        """Give back what was returned, unless somebody has the lock, who comes here after it."""
        while self._returned and self._lock.acquire(blocking=False):
            try:
                while self._returned:
                    self._give_back(self._returned.popleft())
            finally:
                self._lock.release()

    def _give_back(self, memory: Tensor) -> None:
        key = memory.data_ptr(), memory.numel() * memory.element_size()
        held = self._held.pop(key, None)
        if held is None:
            return
        if held.users > 1:
            self._held[key] = held._replace(users=held.users - 1)
        elif self._unregister is not None:
            for offset in held.chunks[: held.ours]:
                self._unregister(key[0] + offset)

    def _chunks(self, address: int, num_bytes: int, grain: int) -> tuple[tuple[int, ...], int]:
        """Starts of the registered chunks, and how many of them are ours to give back."""
        assert self._register is not None
        step = math.lcm(grain, PAGE_BYTES)
        step *= max(1, self._chunk_bytes // step)
        done: list[int] = []
        for offset in range(0, num_bytes, step):
            code = self._register(address + offset, min(step, num_bytes - offset))
            if code == _ALREADY and not done and self._is_registered(address + num_bytes - 1):
                return (0,), 0  # whole, and somebody else's, who also gives it back
            if code != 0:
                if self._unregister is not None:
                    for start in done:
                        self._unregister(address + start)
                self._warn(num_bytes, code)
                return (), 0
            done.append(offset)
        return tuple(done), len(done)

    def _is_registered(self, address: int) -> bool:
        assert self._register is not None
        code = self._register(address, 1)
        if code == 0 and self._unregister is not None:
            self._unregister(address)
        return code == _ALREADY

    def _warn(self, num_bytes: int, code: int) -> None:
        if self._warned:
            return
        self._warned = True
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        limit = "unlimited" if soft == resource.RLIM_INFINITY else format_bytes(soft)
        log.warning(
            "%s of host memory cannot be locked for the GPU (CUDA error %d); the limit on locked "
            "memory (ulimit -l) is %s. Pageable memory is used: copies are several times slower\n"
            "  try: ulimit -l unlimited, docker run --ulimit memlock=-1, or less host_memory",
            format_bytes(num_bytes),
            code,
            limit,
        )


def _cuda() -> Pinning:
    if not torch.cuda.is_available():
        return Pinning(None, None)
    cudart: Any = torch.cuda.cudart()
    return Pinning(
        lambda address, num_bytes: int(
            cudart.cudaHostRegister(address, num_bytes, _PORTABLE_MAPPED)
        ),
        lambda address: int(cudart.cudaHostUnregister(address)),
    )


_process: list[Pinning] = []


def process_pinning() -> Pinning:
    """The one of this process; finds out about CUDA when it is first asked."""
    if not _process:
        _process.append(_cuda())
    return _process[0]


class Pins:
    """Memory that one owner has registered, until ``close``, or until nobody knows the owner."""

    def __init__(self, pinning: Pinning | None = None):
        self._pinning = pinning or process_pinning()
        self._memory: list[Tensor] = []
        weakref.finalize(self, _unpin, self._pinning, self._memory).atexit = False

    def add(self, memory: Tensor, *, grain_bytes: int = 1) -> tuple[int, ...]:
        """As ``Pinning.pin``."""
        starts = self._pinning.pin(memory, grain_bytes=grain_bytes)
        self._memory.append(memory)
        return starts

    def close(self) -> None:
        """Give all of it back."""
        _unpin(self._pinning, self._memory)


def _unpin(pinning: Pinning, memory: list[Tensor]) -> None:
    while memory:
        pinning.unpin(memory.pop())


def page_bytes(num_bytes: int) -> Tensor:
    """Zeroed uint8 [num_bytes] that starts a page, of private memory (never of /dev/shm).

    Its pages take memory when they are first written.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, max(1, num_bytes), flags=flags)
    if num_bytes >= _HUGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # advice, which a kernel without huge pages refuses
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.from_numpy(np.frombuffer(memory, np.uint8)[:num_bytes])
