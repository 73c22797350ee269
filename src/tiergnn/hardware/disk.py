"""Speed and space of the disk under a folder."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

_BLOCK_BYTES = 4 * 1024**2  # of one write: a multiple of every disk's sector
_MOST_BYTES = 256 * 1024**2
_LEAST_FREE_BYTES = 64 * 1024**2  # with less, nothing is written
_WRITE_S, _READ_S = 1.2, 1.0
DIRECT = getattr(os, "O_DIRECT", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskReading:
    """None where it could not be measured; ``error`` says why."""

    folder: str
    file_system: str | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None  # for this user
    write_Bps: float | None = None
    read_Bps: float | None = None
    direct: bool = False  # past the page cache, by O_DIRECT
    error: str | None = None


def read_disk(folder: str | Path) -> DiskReading:
    """Measure the disk under ``folder`` with up to 256 MiB, written and read once. Blocks for at
    most about 3 seconds on a disk that answers. Nothing stays behind: the file never has a name,
    or loses it before its first byte. Never raises on what is wrong with the disk.
    """
    folder = os.path.realpath(folder)
    reading = DiskReading(folder=folder, file_system=file_system(folder))
    try:
        space = os.statvfs(folder)
        free_bytes = space.f_bavail * space.f_frsize
        total_bytes = space.f_blocks * space.f_frsize
        reading = replace(reading, total_bytes=total_bytes, free_bytes=free_bytes)
        if free_bytes < _LEAST_FREE_BYTES:
            return replace(reading, error="too little space to measure its speed")
        num_bytes = min(_MOST_BYTES, free_bytes // 4 // _BLOCK_BYTES * _BLOCK_BYTES)
        write_Bps, read_Bps, direct = _speed(folder, num_bytes)
        return replace(reading, write_Bps=write_Bps, read_Bps=read_Bps, direct=direct)
    except OSError as error:
        return replace(reading, error=os.strerror(error.errno) if error.errno else str(error))


def _speed(folder: str, num_bytes: int) -> tuple[float, float, bool]:
    """Rates of writing and reading, and whether they are past the page cache, where that goes."""
    try:
        return (*_timed(folder, num_bytes, DIRECT), DIRECT != 0)
    except OSError as error:
        if not DIRECT or error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
    return (*_timed(folder, num_bytes, 0), False)


def _timed(folder: str, num_bytes: int, direct: int) -> tuple[float, float]:
    # Through the page cache each block waits for the disk: a slow one is found out in time.
    handle = open_unnamed(folder, direct or os.O_DSYNC)
    block = mmap.mmap(-1, _BLOCK_BYTES)  # page-aligned, as O_DIRECT wants it
    try:
        block.write(os.urandom(_BLOCK_BYTES))  # some file systems compress
        written, start = 0, time.perf_counter()
        while written < num_bytes and (not written or time.perf_counter() - start < _WRITE_S):
            _whole(os.pwrite(handle, block, written))
            written += _BLOCK_BYTES
        os.fsync(handle)
        write_s = time.perf_counter() - start
        if not direct:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        read, start = 0, time.perf_counter()
        while read < written and (not read or time.perf_counter() - start < _READ_S):
            _whole(os.preadv(handle, [block], read))
            read += _BLOCK_BYTES
        read_s = time.perf_counter() - start
    finally:
        os.close(handle)
        block.close()
    return written / write_s, read / read_s


def _whole(num_bytes: int) -> None:
    if num_bytes != _BLOCK_BYTES:
        raise OSError(f"moved {num_bytes} of {_BLOCK_BYTES} bytes")


def open_unnamed(folder: str, flag: int) -> int:
    """A new file for reading and writing, already without a name."""
    with suppress(OSError):
        return os.open(folder, os.O_RDWR | os.O_TMPFILE | flag, 0o600)
    named, name = tempfile.mkstemp(prefix=".tiergnn-disk-", dir=folder)
    try:
        return os.open(name, os.O_RDWR | flag)
    finally:
        os.unlink(name)
        os.close(named)


def file_system(folder: str) -> str | None:
    """Type of the file system that ``folder`` is on, as the mount table says."""
    best, found = "", None
    with suppress(OSError):
        for mount in psutil.disk_partitions(all=True):
            place = mount.mountpoint
            if os.path.commonpath([place, folder]) == place and len(place) >= len(best):
                best, found = place, mount.fstype
    return found
