"""Files read and written past the page cache: whole sectors, loops on short I/O, bounded retries.

``Calls`` are the two calls of the system; tests put faulty ones in their place.
"""

from __future__ import annotations

import errno
import mmap
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np

from tiergnn.errors import StoreError
from tiergnn.graph.staging import store_errors
from tiergnn.units import format_bytes

SECTOR_BYTES = 4096  # places, lengths and memory of direct I/O are multiples of it
_DIRECT = getattr(os, "O_DIRECT", 0)
_REFUSED = (errno.EINVAL, errno.EOPNOTSUPP)  # what a file system without direct I/O answers
_PASSING = (errno.EIO, errno.EAGAIN, errno.ETIMEDOUT, errno.EINTR)  # worth another try
_RETRIES = 3
_PAUSE_S = 0.005  # before the first retry; each next one waits four times as long


@dataclass(frozen=True, slots=True)
class Calls:
    """``os.preadv`` and ``os.pwritev``, or what stands for them."""

    preadv: Callable[[int, Sequence[Any], int], int] | None = None
    pwritev: Callable[[int, Sequence[Any], int], int] | None = None

    def read(self, handle: int, buffer: Any, offset: int) -> int:
        return (self.preadv or os.preadv)(handle, [buffer], offset)

    def write(self, handle: int, buffer: Any, offset: int) -> int:
        return (self.pwritev or os.pwritev)(handle, [buffer], offset)


_SYSTEM = Calls()
_MANY = 8  # ranges, from which on they are read in compiled code
_pread = numba.types.ExternalFunction(
    "pread64",
    numba.types.int64(numba.types.int32, numba.types.uintp, numba.types.uintp, numba.types.int64),
)


@numba.njit(cache=True, nogil=True)
def _read_whole(handle, slab, start, end, at, first):
    """Read ranges from ``first`` on; the first that was not read whole, or how many there are."""
    for i in range(first, start.size):
        size = end[i] - start[i]
        if _pread(handle, slab.ctypes.data + at[i], size, start[i]) != size:
            return i
    return start.size


class SectorFile:
    """An open file; ``direct`` says whether its I/O passes the page cache by.

    Thread-safe: places are given with each call. Raises StoreError, naming the file.
    ``on_retry`` is called for every call of the system that has to be made again.
    """

    def __init__(self, path: Path, handle: int, *, direct: bool, calls: Calls):
        self.path, self.direct = path, direct
        self._handle, self._calls = handle, calls
        self.on_retry: Callable[[], None] = lambda: None

    @classmethod
    def create(cls, path: Path, num_bytes: int, *, direct: bool = True, calls: Calls) -> SectorFile:
        """A new file whose blocks are all there: a disk that is too small says so now."""
        with store_errors("create a file", path):
            if not path.parent.is_dir():
                raise StoreError(
                    "the scratch folder has disappeared",
                    culprit=str(path.parent),
                    hint="nothing but tiergnn may remove it while it runs; start the run again",
                )
            handle, is_direct = _open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, direct)
        try:
            if num_bytes:
                os.posix_fallocate(handle, 0, num_bytes)
            if is_direct and num_bytes and not _answers(handle):
                os.close(handle)
                handle, is_direct = os.open(path, os.O_RDWR), False
        except OSError as error:
            os.close(handle)
            with suppress(OSError):
                os.unlink(path)
            raise _no_room(path, num_bytes, error) from error
        return cls(path, handle, direct=is_direct, calls=calls)

    @classmethod
    def open(cls, path: Path, *, direct: bool = True, calls: Calls) -> SectorFile:
        """An existing file, for reading only."""
        with store_errors("open", path):
            handle, is_direct = _open(path, os.O_RDONLY, direct)
            if is_direct and not _answers(handle):
                os.close(handle)
                handle, is_direct = os.open(path, os.O_RDONLY), False
        return cls(path, handle, direct=is_direct, calls=calls)

    @property
    def num_bytes(self) -> int:
        return os.fstat(self._handle).st_size

    def read(self, memory: memoryview, offset: int, needed: int) -> None:
        """Fill ``memory`` from ``offset`` on, both in whole sectors; blocks.

        The file may end after ``needed`` bytes. Raises StoreError where it ends before.
        """
        self._whole("read", self._calls.read, memory, offset, needed)

    def read_ranges(
        self, slab: np.ndarray, start: np.ndarray, end: np.ndarray, at: np.ndarray, file_end: int
    ) -> None:
        """Range i of the file, start[i] to end[i], into the slab from at[i] on; blocks.

        The last one may end after ``file_end``, where the file should end. Many are read without
        the GIL; whatever is not read whole there is read again by ``read``, which knows why.
        """
        memory, done, count = slab.data, 0, start.size
        while done < count:
            if self._calls == _SYSTEM and count - done >= _MANY:
                done = _read_whole(self._handle, slab, start, end, at, done)
                if done == count:
                    break
            first, last, place = int(start[done]), int(end[done]), int(at[done])
            self.read(memory[place : place + last - first], first, min(last, file_end) - first)
            done += 1
        if not self.direct:
            self.forget(int(start[0]), int(end[-1] - start[0]))

    def write(self, memory: memoryview, offset: int) -> None:
        """All of ``memory`` (whole sectors) to ``offset``; blocks."""
        self._whole("write", self._calls.write, memory, offset, len(memory))

    def _whole(
        self,
        action: str,
        call: Callable[[int, Any, int], int],
        memory: memoryview,
        offset: int,
        needed: int,
    ) -> None:
        done = stuck = 0
        while done < needed:
            # A short call may end within a sector, where direct I/O cannot go on.
            start = done // SECTOR_BYTES * SECTOR_BYTES
            reached = start + self._try(action, call, memory[start:], offset + start)
            if reached < needed:
                self.on_retry()
                stuck = 0 if reached > done else stuck + 1
                self._check_end(action, offset, needed, stuck)
            done = max(done, reached)
        if not self.direct:
            self.forget(offset, len(memory))

    def _check_end(self, action: str, offset: int, needed: int, stuck: int) -> None:
        """Raise StoreError where a call was short for good."""
        if action == "read" and self.num_bytes < offset + needed:
            raise StoreError(
                f"the file ends at byte {self.num_bytes}, wanted bytes up to {offset + needed}",
                culprit=str(self.path),
                hint="something cut it short; start the run again",
            )
        if stuck > _RETRIES:
            raise StoreError(
                f"{action}s of {needed} bytes at {offset} move nothing", culprit=str(self.path)
            )

    def forget(self, offset: int, num_bytes: int) -> None:
        """Let the page cache go of what passed through: it is memory beside our budgets.

        What it has to write yet, it begins to write.
        """
        with suppress(OSError):
            os.posix_fadvise(self._handle, offset, num_bytes, os.POSIX_FADV_DONTNEED)

    def close(self, *, remove: bool) -> None:
        os.close(self._handle)
        if remove:
            with store_errors("remove", self.path), suppress(FileNotFoundError):
                os.unlink(self.path)

    def _try(
        self, action: str, call: Callable[[int, Any, int], int], memory: memoryview, offset: int
    ) -> int:
        pause_s = _PAUSE_S
        for attempt in range(_RETRIES + 1):
            try:
                return call(self._handle, memory, offset)
            except OSError as error:
                if error.errno not in _PASSING or attempt == _RETRIES:
                    raise _failed(self.path, action, len(memory), offset, attempt, error) from error
                self.on_retry()
                time.sleep(pause_s)
                pause_s *= 4
        raise AssertionError("unreachable")


def _open(path: Path, flags: int, direct: bool) -> tuple[int, bool]:
    if direct and _DIRECT:
        try:
            return os.open(path, flags | _DIRECT, 0o600), True
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            flags &= ~os.O_EXCL  # some file systems have made the file before they refuse
    return os.open(path, flags, 0o600), False


def _answers(handle: int) -> bool:
    """Whether direct reads work: some file systems refuse only these."""
    with mmap.mmap(-1, SECTOR_BYTES) as memory:
        try:
            os.preadv(handle, [memory], 0)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            return False
    return True


def _no_room(path: Path, num_bytes: int, error: OSError) -> StoreError:
    free = "an unknown amount"
    with suppress(OSError):
        space = os.statvfs(path.parent)
        free = format_bytes(space.f_bavail * space.f_frsize)
    hint = {
        errno.ENOSPC: "free some space, or a disk folder elsewhere",
        errno.EDQUOT: "free some of your quota, or a disk folder elsewhere",
        errno.EFBIG: "raise the file size limit (ulimit -f)",
    }.get(error.errno or 0)
    return StoreError(
        f"the disk needs {format_bytes(num_bytes)} ({num_bytes:,} bytes), has {free} free: "
        f"{os.strerror(error.errno or 0)}",
        culprit=str(path),
        hint=hint,
    )


def _failed(
    path: Path, action: str, num_bytes: int, offset: int, attempts: int, error: OSError
) -> StoreError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return _no_room(path, num_bytes, error)
    tried = f" after {attempts} retries" if attempts else ""
    return StoreError(
        f"cannot {action} {num_bytes} bytes at {offset}{tried}: {os.strerror(error.errno or 0)}",
        culprit=str(path),
        hint="check the disk (dmesg, smartctl), or use a folder on another one"
        if error.errno == errno.EIO
        else None,
    )
