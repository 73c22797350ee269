"""Rows in a file: records of whole sectors with a checksum each, or another program's packed rows.

A record holds as many rows as fill its sectors best; checksums are kept in memory, so that a write
that never reached the disk is seen as well as a bit that changed.

Legend: R rows of the table, D columns, N rows of one request.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from tiergnn.errors import ConfigError, StoreError
from tiergnn.memory.engine import Engine
from tiergnn.memory.file import SectorFile
from tiergnn.memory.moves import ascending, pick_rows, place_rows
from tiergnn.memory.records import GAP_BYTES, Fill, Records, fills_of_index, fills_of_slice
from tiergnn.memory.store import Counters, Damaged, RowStore, convert, encode


class DiskRows(RowStore):
    """A table in a file of its own, made by ``create`` or found by ``open``."""

    def __init__(
        self,
        num_rows: int,
        width: int,
        dtype: torch.dtype,
        *,
        name: str,
        file: SectorFile,
        engine: Engine,
        records: Records,
        own: bool,
        on_close: Callable[[], None] | None = None,
    ):
        super().__init__(num_rows, width, dtype, name=name)
        self._file, self._engine, self._records, self._own = file, engine, records, own
        self._on_close = on_close
        file.on_retry = lambda: self.counters.add(retries=1)
        self._crc = np.zeros(records.num_records if own else 0, np.uint32)
        self._written = np.zeros(self._crc.size, np.bool_)
        self._shared = threading.Lock()  # of records that are written in part
        self._end = records.file_bytes if own else file.num_bytes
        self.io = Counters()  # what the disk moved, in whole sectors

    @classmethod
    def create(
        cls,
        path: str | Path,
        num_rows: int,
        width: int,
        dtype: torch.dtype,
        *,
        engine: Engine,
        name: str = "",
        direct: bool = True,
        on_close: Callable[[], None] | None = None,
    ) -> DiskRows:
        """A table of zeros whose place on the disk is taken at once; ``close`` deletes its file.

        Raises StoreError: no room, no folder, a file of that name.
        """
        path = Path(path)
        records = Records.own(num_rows, width * dtype.itemsize)
        engine.check_row(max(records.row_bytes, records.record_bytes), name or path.name)
        file = SectorFile.create(path, records.file_bytes, direct=direct, calls=engine.calls)
        return cls(
            num_rows, width, dtype, name=name or str(path), file=file, engine=engine,
            records=records, own=True, on_close=on_close,
        )  # fmt: skip

    @classmethod
    def open(
        cls,
        path: str | Path,
        num_rows: int,
        width: int,
        dtype: torch.dtype,
        *,
        engine: Engine,
        offset_bytes: int = 0,
        name: str = "",
        direct: bool = True,
    ) -> DiskRows:
        """Rows that stand one after the other in a file of another's (a graph folder's, a .npy
        file's), from ``offset_bytes`` on: for reading only, and without checksums.

        Raises StoreError for a file that cannot be opened or is too short.
        """
        path = Path(path)
        if offset_bytes < 0 or offset_bytes % max(1, dtype.itemsize):
            raise ConfigError(
                f"{path}: rows start at a multiple of {dtype.itemsize} bytes, had {offset_bytes}"
            )
        records = Records.packed(num_rows, width * dtype.itemsize, offset_bytes)
        engine.check_row(records.row_bytes, name or path.name)
        file = SectorFile.open(path, direct=direct, calls=engine.calls)
        if file.num_bytes < records.end_bytes:
            had = file.num_bytes
            file.close(remove=False)
            raise StoreError(
                f"the file has {had} bytes; {num_rows} rows of {records.row_bytes} bytes from "
                f"byte {offset_bytes} on end at byte {records.end_bytes}",
                culprit=str(path),
            )
        return cls(
            num_rows, width, dtype, name=name or str(path), file=file, engine=engine,
            records=records, own=False,
        )  # fmt: skip

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def direct(self) -> bool:
        """Whether its I/O passes the page cache by."""
        return self._file.direct

    @property
    def file_bytes(self) -> int:
        """What the table takes of the disk."""
        return self._records.file_bytes

    def _read(self, first: int, last: int, out: Tensor) -> None:
        self._check_host(out)

        def take(fill: Fill, slab: np.ndarray) -> None:
            self._load(fill, slab)
            self._pick(fill, slab, out[fill.low - first : fill.high - first], None)

        self._engine.each(take, self._fills(first, last, cut=False))

    def _gather(self, index: Tensor, out: Tensor) -> int:
        self._check_host(out)
        rows, order = ascending(index)

        def take(fill: Fill, slab: np.ndarray) -> None:
            self._load(fill, slab)
            if order is None:
                self._pick(fill, slab, out[fill.low : fill.high], None)
            else:
                self._pick(fill, slab, out, order[fill.low : fill.high])

        self._engine.each(take, self._fills_of(rows, gap_bytes=GAP_BYTES))
        return 1 + int((rows[1:] != rows[:-1]).sum())

    def _write(self, first: int, last: int, values: Tensor) -> None:
        self._check_own(values)

        def give(fill: Fill, slab: np.ndarray) -> None:
            self._place(fill, slab, values[fill.low - first : fill.high - first])

        self._engine.each(give, self._fills(first, last, cut=True))

    def _scatter(self, index: Tensor, values: Tensor) -> None:
        self._check_own(values)

        def give(fill: Fill, slab: np.ndarray) -> None:
            self._place(fill, slab, values[fill.low : fill.high])

        self._engine.each(give, self._fills_of(index, gap_bytes=0))

    def _close(self) -> None:
        try:
            self._file.close(remove=self._own)
        finally:
            if self._on_close is not None:
                self._on_close()

    def _fills(self, first: int, last: int, *, cut: bool) -> Iterator[Fill]:
        engine = self._engine
        return fills_of_slice(
            self._records, first, last,
            slab_bytes=engine.slab_bytes, num_threads=engine.num_threads, cut=cut,
        )  # fmt: skip

    def _fills_of(self, rows: Tensor, *, gap_bytes: int) -> Iterator[Fill]:
        engine = self._engine
        return fills_of_index(
            self._records, rows.numpy(),
            slab_bytes=engine.slab_bytes, num_threads=engine.num_threads, gap_bytes=gap_bytes,
        )  # fmt: skip

    def _window(self, fill: Fill, slab: np.ndarray) -> Tensor | None:
        """A fill's rows in its slab as a tensor, where they lie there one after the other."""
        if not (
            fill.consecutive and (self._records.dense or fill.records(self._records).size == 1)
        ):
            return None
        start = int(fill.starts(self._records)[0])
        count = fill.high - fill.low
        memory = torch.from_numpy(slab[start : start + count * self.row_bytes])
        return memory.view(self.dtype).view(count, self.width)

    def _pick(self, fill: Fill, slab: np.ndarray, out: Tensor, order: Tensor | None) -> None:
        """A fill's rows from its slab to rows ``order`` of out, or to all of them in turn."""
        window = self._window(fill, slab)
        if window is not None and order is None:
            convert(window, out)
            return
        count = fill.high - fill.low
        places = np.arange(count) if order is None else order.numpy()
        starts = fill.starts(self._records)
        if out.dtype == self.dtype and (out.stride(1) == 1 or self.width == 1):
            pick_rows(slab, starts, _bits(out), places)
            return
        stored = torch.empty(count, self.width, dtype=self.dtype)
        pick_rows(slab, starts, _bits(stored), np.arange(count))
        if order is None:
            convert(stored, out)
        else:
            out[order] = stored.to(out.dtype)

    def _place(self, fill: Fill, slab: np.ndarray, values: Tensor) -> None:
        """Values into a fill's rows on the disk; what else its records hold is read first."""
        if fill.is_whole(self._records):
            slab[: fill.num_bytes] = 0
            self._put(fill, slab, values)
            return
        with self._shared:
            self._load(fill, slab, locked=True)
            self._put(fill, slab, values)

    def _put(self, fill: Fill, slab: np.ndarray, values: Tensor) -> None:
        """Values into a fill's rows in the slab, and the slab to the disk."""
        window = self._window(fill, slab)
        if window is not None:
            encode(values, window, self.name)
        else:
            stored = values
            if values.dtype != self.dtype or not values.is_contiguous():
                stored = torch.empty(values.shape, dtype=self.dtype)
                encode(values, stored, self.name)
            place_rows(slab, fill.starts(self._records), _bits(stored))
        memory = slab.data
        sums = [(record, crc32(memory[at : at + size])) for record, at, size in self._checked(fill)]
        ranges = zip(fill.start.tolist(), fill.end.tolist(), fill.at.tolist(), strict=True)
        for start, end, at in ranges:
            self._file.write(memory[at : at + end - start], start)
            self.io.add(write_calls=1, write_bytes=end - start)
        for record, crc in sums:
            self._crc[record] = crc
            self._written[record] = True

    def _load(self, fill: Fill, slab: np.ndarray, *, locked: bool = False) -> None:
        """A fill's sectors into its slab, checked."""
        self._file.read_ranges(slab, fill.start, fill.end, fill.at, self._end)
        self.io.add(read_calls=fill.start.size, read_bytes=fill.num_bytes)
        if not self._own:
            return
        memory = slab.data
        for record, at, size in self._checked(fill):
            if not self._written[record] or crc32(memory[at : at + size]) == self._crc[record]:
                continue
            # Another thread may be writing other rows of this record.
            with nullcontext() if locked else self._shared:
                self._load_again(record, memory[at : at + size])

    def _load_again(self, record: int, memory: memoryview) -> None:
        self.counters.add(retries=1)
        start = record * self._records.record_bytes
        self._file.read(memory, start, len(memory))
        self.io.add(read_calls=1, read_bytes=len(memory))
        if crc32(memory) != self._crc[record]:
            first, last = self._records.rows_of(record)
            raise Damaged(
                f"rows {first} to {last - 1} of {self.name} are not what was written there",
                culprit=f"{self.path}, bytes {start} to {start + len(memory) - 1}",
                store=self.name,
                first=first,
                last=last,
            )

    def _checked(self, fill: Fill) -> Iterator[tuple[int, int, int]]:
        """(record, at, bytes) of a fill's records in its slab."""
        touched = fill.records(self._records)
        start, end = self._records.sectors(touched, touched)
        at = fill.to_slab(start)
        return zip(touched.tolist(), at.tolist(), (end - start).tolist(), strict=True)

    def _check_host(self, values: Tensor) -> None:
        if values.device.type != "cpu":
            raise ConfigError(
                f"{self.name}: rows of a disk pass through host memory, had a tensor on "
                f"{values.device}"
            )

    def _check_own(self, values: Tensor) -> None:
        self._check_host(values)
        if not self._own:
            raise StoreError("this file is for reading only", culprit=str(self.path))


def _bits(rows: Tensor) -> np.ndarray:
    """The bytes of rows [N, D] as uint8 [N, B], not copied."""
    return rows.view(torch.uint8).numpy()
