"""Row stores: tables of rows in some memory, read and written by slices and by lists of rows.

A table keeps its rows in a storage dtype; what is asked of it comes in the caller's dtype and is
converted at the border. Sums are float32, or float64 where the table or the values are.

Legend: R rows of the table, D columns, N rows of one request.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

from tiergnn.errors import ConfigError, StoreError
from tiergnn.memory.moves import add_rows, ascending

PIECE_BYTES = 8 * 2**20  # most that a request holds beside its rows


class Damaged(StoreError):  # noqa: N818 - it says what the rows are
    """Rows that are not what was written: ``store`` lost rows ``first`` to ``last``, exclusive.

    What they came from is still there: an executor makes them again.
    """

    def __init__(self, problem: str, *, culprit: str, store: str, first: int, last: int):
        super().__init__(
            problem,
            culprit=culprit,
            hint="check the disk (dmesg, smartctl), or use a folder on another one",
        )
        self.store, self.first, self.last = store, first, last


@dataclass(slots=True)
class Counters:
    """What was asked of a store, in bytes of its rows as stored, and what answered it.

    A row asked for twice in one request counts as often as it was read: once, but in host memory.
    ``hits`` and ``misses`` are a cache's, in rows; ``retries`` a disk's.
    """

    read_calls: int = 0
    read_bytes: int = 0
    write_calls: int = 0
    write_bytes: int = 0
    hits: int = 0
    misses: int = 0
    retries: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, **counts: int) -> None:
        """Thread-safe."""
        with self._lock:
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)

    def read(self) -> dict[str, int]:
        """All counts by name, of one moment."""
        with self._lock:
            return {f.name: getattr(self, f.name) for f in fields(self) if f.name[0] != "_"}


class RowStore(ABC):
    """A table [R, D]; ``name`` is the buffer's of a schedule, or a file's.

    Requests may come from several threads, as long as none writes rows that another one reads or
    writes. They block until done, but for copies from or to a GPU, which are queued on the current
    stream where the memory is pinned. Raises ConfigError for requests that do not fit the table,
    StoreError for a store that fails or is closed.
    """

    def __init__(self, num_rows: int, width: int, dtype: torch.dtype, *, name: str):
        if num_rows < 0 or width < 0:
            raise ConfigError(f"{name}: wanted 0 rows and columns or more, had {num_rows}, {width}")
        self.num_rows, self.width, self.dtype, self.name = num_rows, width, dtype, name
        self.counters = Counters()
        self._closed = False

    @property
    def row_bytes(self) -> int:
        return self.width * self.dtype.itemsize

    @property
    def num_bytes(self) -> int:
        return self.num_rows * self.row_bytes

    def read(self, rows: slice, out: Tensor) -> None:
        """Rows [N, D] into ``out``, of any strides."""
        first, last = self._range(rows)
        self._check(out, last - first)
        if first < last and self.width:
            self._read(first, last, out.detach())
        self.counters.add(read_calls=1, read_bytes=(last - first) * self.row_bytes)

    def write(self, rows: slice, values: Tensor) -> None:
        """``values`` [N, D], of any strides, into rows.

        Raises ConfigError where float16 cannot hold a value (looked at where values lie on the
        CPU; on a GPU that would wait for it).
        """
        first, last = self._range(rows)
        self._check(values, last - first)
        if first < last and self.width:
            self._write(first, last, values.detach())
        self.counters.add(write_calls=1, write_bytes=(last - first) * self.row_bytes)

    def gather(self, index: Tensor, out: Tensor) -> None:
        """Rows ``index`` [N], in any order, into out [N, D]. A disk reads duplicates once."""
        index = self._index(index)
        self._check(out, index.numel())
        count = 0
        if index.numel() and self.width:
            count = self._gather(index, out.detach())
        self.counters.add(read_calls=1, read_bytes=count * self.row_bytes)

    def accumulate(self, where: slice | Tensor, values: Tensor) -> None:
        """Add ``values`` [N, D] to rows: those of a row in the order given, rounded once.

        Reads and writes each row once. Raises ConfigError for a table of whole numbers.
        """
        if not (self.dtype.is_floating_point and values.dtype.is_floating_point):
            raise ConfigError(
                f"{self.name}: sums are of floats, the table is {short(self.dtype)} "
                f"and the values are {short(values.dtype)}"
            )
        if isinstance(where, slice):
            first, last = self._range(where)
            self._check(values, last - first)
            count = last - first
            if count and self.width:
                self._accumulate_slice(first, last, values.detach())
        else:
            index = self._index(where)
            self._check(values, index.numel())
            count = 0
            if index.numel() and self.width:
                count = self._accumulate(index, values.detach())
        moved = count * self.row_bytes
        self.counters.add(read_calls=1, read_bytes=moved, write_calls=1, write_bytes=moved)

    def close(self) -> None:
        """Give the memory back; further requests are refused. Twice is as once."""
        if not self._closed:
            self._closed = True
            self._close()

    # What a store does itself. Requests are checked, of at least one row and column.

    @abstractmethod
    def _read(self, first: int, last: int, out: Tensor) -> None: ...

    @abstractmethod
    def _write(self, first: int, last: int, values: Tensor) -> None: ...

    @abstractmethod
    def _gather(self, index: Tensor, out: Tensor) -> int:
        """Gives how many rows were read."""

    @abstractmethod
    def _scatter(self, index: Tensor, values: Tensor) -> None:
        """Values into rows ``index``, which are strictly ascending."""

    @abstractmethod
    def _close(self) -> None: ...

    def _accumulate_slice(self, first: int, last: int, values: Tensor) -> None:
        wide = self._wide(values)
        step = max(1, PIECE_BYTES // (self.width * wide.itemsize))
        for start in range(first, last, step):
            stop = min(start + step, last)
            total = torch.empty(stop - start, self.width, dtype=wide)
            self._read(start, stop, total)
            total += values[start - first : stop - first].to(total.device)
            self._write(start, stop, total)

    def _accumulate(self, index: Tensor, values: Tensor) -> int:
        """As the public one; gives how many different rows were touched."""
        wide = self._wide(values)
        index, order = ascending(index)
        rows, slot = torch.unique_consecutive(index, return_inverse=True)
        starts = torch.searchsorted(index, rows)
        step = max(1, PIECE_BYTES // (self.width * wide.itemsize))
        for begin in range(0, rows.numel(), step):
            end = min(begin + step, rows.numel())
            low = int(starts[begin])
            high = int(starts[end]) if end < rows.numel() else index.numel()
            total = torch.empty(end - begin, self.width, dtype=wide)
            self._gather(rows[begin:end], total)
            source = torch.arange(low, high) if order is None else order[low:high]
            given = values
            if values.dtype != wide or values.device.type != "cpu":
                given = values[source.to(values.device)].to("cpu", wide)
                source = torch.arange(high - low)
            add_rows(total, slot[low:high] - begin, given, source)
            self._scatter(rows[begin:end], total)
        return rows.numel()

    def _wide(self, values: Tensor) -> torch.dtype:
        """The dtype of sums."""
        double = torch.float64 in (self.dtype, values.dtype)
        return torch.float64 if double else torch.float32

    def _range(self, rows: slice) -> tuple[int, int]:
        self._check_open()
        first = 0 if rows.start is None else int(rows.start)
        last = self.num_rows if rows.stop is None else int(rows.stop)
        if rows.step not in (None, 1) or not 0 <= first <= last <= self.num_rows:
            raise ConfigError(
                f"{self.name}: wanted a slice of rows 0 to {self.num_rows} in steps of 1, "
                f"had {rows.start}:{rows.stop}:{rows.step}"
            )
        return first, last

    def _index(self, index: Tensor) -> Tensor:
        self._check_open()
        whole = index.dtype in (torch.int32, torch.int64)
        if not whole or index.dim() != 1:
            raise ConfigError(
                f"{self.name}: wanted rows as int32 or int64 [N], "
                f"had {short(index.dtype)} {list(index.shape)}"
            )
        index = index.to("cpu", torch.int64)
        if index.numel():
            low, high = (int(end) for end in torch.aminmax(index))
            if low < 0 or high >= self.num_rows:
                raise ConfigError(
                    f"{self.name}: has rows 0 to {self.num_rows - 1}, "
                    f"was asked for {low if low < 0 else high}"
                )
        return index

    def _check(self, values: Tensor, count: int) -> None:
        if tuple(values.shape) != (count, self.width):
            raise ConfigError(
                f"{self.name}: wanted a tensor [{count}, {self.width}], had {list(values.shape)}"
            )
        floats = self.dtype.is_floating_point and values.dtype.is_floating_point
        if values.dtype != self.dtype and not floats:
            raise ConfigError(
                f"{self.name}: a table of {short(self.dtype)} has no {short(values.dtype)} rows"
            )

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("this table is closed", culprit=self.name)


def encode(values: Tensor, stored: Tensor, name: str) -> None:
    """Values into storage of the same shape, rounded to its dtype. Raises ConfigError."""
    convert(values, stored)
    check_range(values, stored, name)


def check_range(values: Tensor, stored: Tensor, name: str) -> None:
    """Raises ConfigError where ``stored`` lost values of the CPU that float16 cannot hold."""
    narrow = stored.dtype == torch.float16 and values.dtype != torch.float16
    if narrow and values.device.type == stored.device.type == "cpu":
        lost = torch.isinf(stored) & torch.isfinite(values)
        if bool(lost.any()):
            lost, wide = lost.reshape(len(lost), -1), values.reshape(len(lost), -1)
            row, column = torch.nonzero(lost)[0].tolist()
            raise ConfigError(
                f"{name}: float16 holds values up to 65504, had {float(wide[row, column]):g} "
                f"in column {column}",
                hint="bfloat16 or float32 storage",
            )


def convert(source: Tensor, target: Tensor) -> None:
    """Copy, cast on the GPU where one of the two lies on one: only stored bytes cross the link."""
    if source.device != target.device and source.dtype != target.dtype:
        if source.device.type == "cpu":
            source = source.to(target.device, non_blocking=True)
        else:
            source = source.to(target.dtype)
    target.copy_(source, non_blocking=True)


def short(dtype: torch.dtype) -> str:
    """``torch.float32`` -> ``"float32"``."""
    return str(dtype).removeprefix("torch.")
