"""External sort: sorted runs on disk, read back one key range after the other under a memory cap.

A run holds keys uint64 [n] ascending, the columns of its rows in the same order, and every
FENCE-th key again (the fences, kept in memory). A key range is cut from every run by binary search,
so ranges need no plan made beforehand: not the largest id, not the distribution of ids.
Equal keys stay in input order: runs are read in the order of their writing, every sort is stable.

Legend: n rows of a run, R runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tiergnn.graph.radix import sort_keys, sort_with_order
from tiergnn.graph.staging import store_errors

FENCE = 512  # rows between fences: one disk page of keys
_KEY = np.dtype(np.uint64)
KEY_LIMIT = 2**64


class Column(NamedTuple):
    """What a row carries beside its key: ``width`` values of ``dtype``."""

    name: str
    dtype: np.dtype
    width: int

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * self.width


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cut:
    """Rows with ``low <= key < high``: rows starts[r] to ends[r] of run r."""

    low: int
    high: int
    starts: np.ndarray  # int64 [R]
    ends: np.ndarray  # int64 [R]

    @property
    def num_rows(self) -> int:
        return int((self.ends - self.starts).sum())

    @property
    def is_one_key(self) -> bool:
        return self.high - self.low == 1


class Runs:
    """Runs one after the other in one file. Not safe for several threads at once."""

    def __init__(self, path: Path, columns: Sequence[Column] = (), sizes: Sequence[int] = ()):
        """``sizes``: the runs that an earlier process wrote, as ``add`` returned them."""
        self._path = path
        self.columns = tuple(columns)
        self._sizes: list[int] = []
        self._fences: list[np.ndarray] = []
        self._offsets = [0]
        with store_errors("open", path):
            # A file object closes itself when an error leaves it behind.
            self._file = open(path, "a+b", buffering=0)  # noqa: SIM115
        self._handle = self._file.fileno()
        for num_rows in sizes:
            fences = np.empty(-(-num_rows // FENCE), _KEY)
            with store_errors("read", path):
                read_all(self._handle, self._offsets[-1] + num_rows * self.row_bytes, fences)
            self._note(num_rows, fences)
        with store_errors("write", path):
            os.ftruncate(self._handle, self._offsets[-1])

    @property
    def num_rows(self) -> int:
        return sum(self._sizes)

    @property
    def row_bytes(self) -> int:
        return _KEY.itemsize + sum(column.row_bytes for column in self.columns)

    def add(self, keys: np.ndarray, rows: Sequence[np.ndarray] = ()) -> int:
        """Sort rows (one array a column, [n] or [n, width]) and write them as the next run.

        Uses ``keys`` as scratch. Returns n.
        """
        order = None
        if self.columns:
            keys, order = sort_with_order(keys)
        else:
            keys = sort_keys(keys)
        fences = keys[::FENCE].copy()
        with store_errors("write", self._path):
            write_all(self._handle, keys)
            for column, values in zip(self.columns, rows, strict=True):
                assert values.dtype == column.dtype
                assert values.size == keys.size * column.width
                write_all(self._handle, values if order is None else values[order])
            write_all(self._handle, fences)
        self._note(keys.size, fences)
        return keys.size

    def sync(self) -> None:
        """Force what was added to the disk. Blocks."""
        with store_errors("write", self._path):
            os.fdatasync(self._handle)

    def _note(self, num_rows: int, fences: np.ndarray) -> None:
        self._sizes.append(num_rows)
        self._fences.append(fences)
        self._offsets.append(self._offsets[-1] + num_rows * self.row_bytes + fences.nbytes)

    def cuts(self, max_rows: int, max_span: int, start: int, end: int) -> Iterator[Cut]:
        """Key ranges in ascending order that cover start <= key < end.

        None has more than ``max_rows`` rows, unless it is of a single key; none spans more than
        ``max_span`` of the keys' high words (destinations).
        """
        pending = []
        if start < end:
            pending.append(Cut(low=start, high=end, starts=self._find(start), ends=self._find(end)))
        while pending:
            cut = pending.pop()
            span = ((cut.high - 1) >> 32) - (cut.low >> 32) + 1
            if cut.is_one_key or (cut.num_rows <= max_rows and span <= max_span):
                yield cut
                continue
            middle = self._middle(cut, max_rows)
            at = self._find(middle)
            pending.append(replace(cut, low=middle, starts=at))
            pending.append(replace(cut, high=middle, ends=at))

    def load(self, cut: Cut) -> tuple[np.ndarray, list[np.ndarray]]:
        """Keys and columns of a cut, run after run: not sorted across runs."""
        counts = cut.ends - cut.starts
        keys = np.empty(cut.num_rows, _KEY)
        rows = [np.empty((keys.size, column.width), column.dtype) for column in self.columns]
        at = 0
        for r in np.flatnonzero(counts):
            count, start = int(counts[r]), int(cut.starts[r])
            self._read(int(r), start, keys[at : at + count], None)
            for c, values in enumerate(rows):
                self._read(int(r), start, values[at : at + count], c)
            at += count
        return keys, rows

    def pieces(self, cut: Cut, max_rows: int) -> Iterator[Cut]:
        """A cut of a single key, taken apart run by run into cuts of at most ``max_rows``."""
        for r in np.flatnonzero(cut.ends > cut.starts):
            for start in range(int(cut.starts[r]), int(cut.ends[r]), max_rows):
                starts = cut.ends.copy()
                ends = cut.ends.copy()
                starts[r], ends[r] = start, min(start + max_rows, int(cut.ends[r]))
                yield replace(cut, starts=starts, ends=ends)

    def close(self) -> None:
        self._file.close()

    def _middle(self, cut: Cut, max_rows: int) -> int:
        """A key strictly between the ends of a cut, near its median where fences tell it."""
        inside = np.concatenate(
            [
                fences[-(-start // FENCE) : -(-end // FENCE)]
                for fences, start, end in zip(self._fences, cut.starts, cut.ends, strict=True)
            ]
            or [np.empty(0, _KEY)]
        )
        inside = inside[inside > np.uint64(cut.low)]
        if cut.num_rows > max_rows and inside.size:
            return int(np.partition(inside, inside.size // 2)[inside.size // 2])
        return (cut.low + cut.high) // 2

    def _find(self, key: int) -> np.ndarray:
        """int64 [R]: the first row of each run whose key is at least ``key``."""
        found = np.zeros(len(self._sizes), np.int64)
        if key >= KEY_LIMIT:
            found[:] = self._sizes
            return found
        wanted = np.uint64(key)
        for r, fences in enumerate(self._fences):
            block = int(np.searchsorted(fences, wanted)) - 1
            if block < 0:
                continue  # every key of the run is at least `key`
            start = block * FENCE
            keys = np.empty(min(FENCE, self._sizes[r] - start), _KEY)
            self._read(r, start, keys, None)
            found[r] = start + int(np.searchsorted(keys, wanted))
        return found

    def _read(self, run: int, row: int, out: np.ndarray, column: int | None) -> None:
        """Rows of the keys (None) or of a column into ``out``."""
        before, row_bytes = 0, _KEY.itemsize
        if column is not None:
            before = _KEY.itemsize + sum(c.row_bytes for c in self.columns[:column])
            row_bytes = self.columns[column].row_bytes
        offset = self._offsets[run] + before * self._sizes[run] + row * row_bytes
        with store_errors("read", self._path):
            read_all(self._handle, offset, out)


def write_all(handle: int, data: np.ndarray | bytes) -> None:
    """Write all bytes of ``data``; a single write may be short."""
    if isinstance(data, np.ndarray):
        left = np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
    else:
        left = memoryview(data)
    while left.nbytes:
        left = left[os.write(handle, left) :]


def read_all(handle: int, offset: int, out: np.ndarray) -> None:
    """Fill a contiguous array from a file. Raises OSError when the file ends before it is full."""
    if out.size == 0:
        return
    left = out.reshape(-1).view(np.uint8).data
    while left.nbytes:
        count = os.preadv(handle, [left], offset)
        if count == 0:
            raise OSError("the file ends too early")
        left, offset = left[count:], offset + count
