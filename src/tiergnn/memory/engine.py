"""The disk's threads and their slabs: memory that direct I/O goes through, used again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TypeVar

import numpy as np

from tiergnn.errors import PlanError
from tiergnn.memory.file import SECTOR_BYTES, Calls
from tiergnn.memory.pinning import Pinning, Pins, page_bytes
from tiergnn.units import format_bytes

Job = TypeVar("Job")
SLAB_BYTES = 8 * 2**20
NUM_THREADS = 4  # with which Python's reads of small blocks peak


class Engine:
    """``num_threads`` threads, each with one slab of ``slab_bytes`` (pinned where a GPU is there).

    Shared by all tables of a scratch folder: the slabs are the memory that disk I/O takes.
    """

    def __init__(
        self,
        *,
        num_threads: int = NUM_THREADS,
        slab_bytes: int = SLAB_BYTES,
        calls: Calls | None = None,
        pinning: Pinning | None = None,
    ):
        if num_threads < 1 or slab_bytes < 4 * SECTOR_BYTES or slab_bytes % SECTOR_BYTES:
            raise PlanError(
                f"wanted 1 thread or more and slabs of a multiple of {SECTOR_BYTES} bytes, at "
                f"least {4 * SECTOR_BYTES}, had {num_threads} threads and {slab_bytes} bytes"
            )
        self.num_threads, self.slab_bytes = num_threads, slab_bytes
        self.calls = calls or Calls()
        self._memory = page_bytes(num_threads * slab_bytes)
        self._pins = Pins(pinning)
        self._pins.add(self._memory)
        self._slabs: SimpleQueue[np.ndarray] = SimpleQueue()
        whole = self._memory.numpy()
        for start in range(0, whole.size, slab_bytes):
            self._slabs.put(whole[start : start + slab_bytes])
        self._pool = ThreadPoolExecutor(num_threads, "tiergnn-disk")
        self._closing = threading.Lock()
        self._closed = False

    @property
    def num_bytes(self) -> int:
        """Host memory that the slabs take."""
        return self.num_threads * self.slab_bytes

    def check_row(self, row_bytes: int, name: str) -> None:
        """Raise PlanError for rows that no slab holds."""
        room = self.slab_bytes - 2 * SECTOR_BYTES
        if row_bytes > room:
            raise PlanError(
                f"{name}: a row of {format_bytes(row_bytes)} does not pass through slabs of "
                f"{format_bytes(self.slab_bytes)}",
                hint=f"slab_bytes={-(-row_bytes // SECTOR_BYTES + 2) * SECTOR_BYTES}",
            )

    @contextmanager
    def slab(self) -> Iterator[np.ndarray]:
        """A slab, uint8 [slab_bytes]; blocks until one is free. One at a time for each thread."""
        slab = self._slabs.get()
        try:
            yield slab
        finally:
            self._slabs.put(slab)

    def each(self, work: Callable[[Job, np.ndarray], None], jobs: Iterable[Job]) -> None:
        """``work(job, slab)`` for all jobs, on the engine's threads; blocks.

        Raises the first error. Not to be called from within ``work``.
        """

        def run(job: Job) -> None:
            with self.slab() as slab:
                work(job, slab)

        jobs = list(jobs)
        if len(jobs) == 1:
            run(jobs[0])
            return
        futures: list[Future[None]] = [self._pool.submit(run, job) for job in jobs]
        try:
            for future in futures:
                future.result()
        finally:
            for future in futures:
                future.cancel()
            wait(futures)

    def close(self) -> None:
        """End the threads and give the slabs back."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self._pool.shutdown(wait=True)
        self._pins.close()
