"""Rates of the disk under a folder by the size of a block, read at random by several threads."""

from __future__ import annotations

import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from tiergnn.hardware.disk import DIRECT, open_unnamed, read_disk
from tiergnn.hardware.machine import Curve

_KIB, _MIB = 1024, 1024**2
_READS = (4 * _KIB, 64 * _KIB, _MIB, 4 * _MIB)
_WRITES = (64 * _KIB, 4 * _MIB)
_FILE_BYTES = 64 * _MIB
_THREADS = 4  # with which reads of small blocks peak
_EACH_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskRates:
    """Latencies are of one small block, alone."""

    read: Curve
    write: Curve
    read_latency_s: float
    total_bytes: int
    free_bytes: int


def measure_disk(folder: str | Path) -> DiskRates | str:
    """Rates, or why there are none. Takes at most some 4 s; leaves nothing behind."""
    whole = read_disk(folder)
    if whole.write_Bps is None or whole.read_Bps is None:
        return whole.error or "it was not measured"
    assert whole.total_bytes is not None
    assert whole.free_bytes is not None
    try:
        reads, writes, latency_s = _by_block(whole.folder, DIRECT if whole.direct else 0)
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)
    reads[_READS[-1]] = max(reads.get(_READS[-1], 0.0), whole.read_Bps)
    writes[_WRITES[-1]] = max(writes[_WRITES[-1]], whole.write_Bps)
    return DiskRates(
        read=_rising(reads),
        write=_rising(writes),
        read_latency_s=latency_s,
        total_bytes=whole.total_bytes,
        free_bytes=whole.free_bytes,
    )


def _by_block(folder: str, direct: int) -> tuple[dict[int, float], dict[int, float], float]:
    handle = open_unnamed(folder, direct or os.O_DSYNC)
    try:
        writes = {size: _write(handle, size) for size in reversed(_WRITES)}
        if not direct:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        num_bytes = os.fstat(handle).st_size
        with ThreadPoolExecutor(_THREADS) as pool:
            reads = {}
            for size in (size for size in _READS if _THREADS * size <= num_bytes):
                done = list(
                    pool.map(lambda i, s=size: _read(handle, s, num_bytes, i), range(_THREADS))
                )
                reads[size] = sum(count * size for count, _ in done) / max(s for _, s in done)
        alone, seconds = _read(handle, _READS[0], num_bytes, 0)
        return reads, writes, seconds / alone
    finally:
        os.close(handle)


def _write(handle: int, block_bytes: int) -> float:
    """Bytes a second, in order; the first blocks make the file that is read afterwards."""
    block = mmap.mmap(-1, block_bytes)  # page-aligned, as O_DIRECT wants it
    block.write(os.urandom(block_bytes))  # some file systems compress
    written, start = 0, time.perf_counter()
    while written < _FILE_BYTES and (not written or time.perf_counter() - start < _EACH_S):
        if os.pwrite(handle, block, written) != block_bytes:
            raise OSError("a write moved less than it should")
        written += block_bytes
    os.fsync(handle)
    return written / (time.perf_counter() - start)


def _read(handle: int, block_bytes: int, num_bytes: int, thread: int) -> tuple[int, float]:
    """Blocks that one thread read in random order, none twice, and in how long."""
    places = np.random.default_rng(0).permutation(num_bytes // block_bytes)
    blocks = places[thread::_THREADS].tolist()
    buffer = mmap.mmap(-1, block_bytes)
    start, count = time.perf_counter(), 0
    while not count or (time.perf_counter() - start < _EACH_S and count < len(blocks)):
        if os.preadv(handle, [buffer], blocks[count] * block_bytes) != block_bytes:
            raise OSError("a read moved less than it should")
        count += 1
    seconds = time.perf_counter() - start
    with suppress(BufferError):
        buffer.close()
    return count, max(seconds, 1e-9)


def _rising(rates: dict[int, float]) -> Curve:
    """By size: a larger block is never slower a byte (several small ones could be read instead)."""
    points = sorted(rates.items())
    best = 0.0
    kept = []
    for size, rate in points:
        best = max(best, rate)
        kept.append((float(size), best))
    assert all(a < b for (a, _), (b, _) in pairwise(kept))
    return Curve(tuple(kept))
