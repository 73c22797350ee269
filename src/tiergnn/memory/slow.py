"""A store behind a slow link, for tests of what overlaps and of what waits."""

from __future__ import annotations

import time

from torch import Tensor

from tiergnn.memory.store import RowStore


class Slow(RowStore):
    """``store``, whose every request takes its bytes over ``rate_Bps`` seconds or longer."""

    def __init__(self, store: RowStore, *, rate_Bps: float):
        super().__init__(store.num_rows, store.width, store.dtype, name=store.name)
        self._store, self._rate_Bps = store, rate_Bps

    def _wait(self, num_rows: int) -> None:
        time.sleep(num_rows * self.row_bytes / self._rate_Bps)

    def _read(self, first: int, last: int, out: Tensor) -> None:
        self._wait(last - first)
        self._store.read(slice(first, last), out)

    def _write(self, first: int, last: int, values: Tensor) -> None:
        self._wait(last - first)
        self._store.write(slice(first, last), values)

    def _gather(self, index: Tensor, out: Tensor) -> int:
        before = self._store.counters.read_bytes
        self._store.gather(index, out)
        count = (self._store.counters.read_bytes - before) // self.row_bytes
        self._wait(count)
        return count

    def _scatter(self, index: Tensor, values: Tensor) -> None:
        self._wait(index.numel())
        self._store._scatter(index, values)

    def _close(self) -> None:
        self._store.close()
