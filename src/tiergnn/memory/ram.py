"""Rows in host memory, pinned where a GPU is there.

Legend: R rows of the table, D columns, N rows of one request.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from tiergnn.memory.moves import add_rows, ascending
from tiergnn.memory.pinning import Pinning, Pins, page_bytes
from tiergnn.memory.store import PIECE_BYTES, RowStore, convert, encode


class RamRows(RowStore):
    """``data`` [R, D] in host memory, zeros at first, or a CPU tensor of the caller's.

    ``data`` may be read in place by kernels. ``pin`` False leaves it pageable.
    """

    def __init__(
        self,
        num_rows: int,
        width: int,
        dtype: torch.dtype,
        *,
        name: str = "rows",
        data: Tensor | None = None,
        pin: bool = True,
        pinning: Pinning | None = None,
    ):
        super().__init__(num_rows, width, dtype, name=name)
        if data is None:
            data = page_bytes(self.num_bytes).view(dtype).view(num_rows, width)
        assert data is not None
        assert data.is_contiguous()
        assert (*data.shape, data.dtype) == (num_rows, width, dtype)
        self.data = data
        self._pins = Pins(pinning if pin else Pinning(None, None))
        starts = self._pins.add(data, grain_bytes=max(1, self.row_bytes))
        self.pinned = bool(starts)
        borders = {0, num_rows, *(start // max(1, self.row_bytes) for start in starts)}
        self._borders = sorted(borders)

    def _chunks(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The pieces of a slice that lie in one registered chunk each: one copy must not do two."""
        for low, high in pairwise(self._borders):
            if max(low, first) < min(high, last):
                yield max(low, first), min(high, last)

    def _read(self, first: int, last: int, out: Tensor) -> None:
        for low, high in self._chunks(first, last):
            convert(self.data[low:high], out[low - first : high - first])

    def _write(self, first: int, last: int, values: Tensor) -> None:
        for low, high in self._chunks(first, last):
            encode(values[low - first : high - first], self.data[low:high], self.name)

    def _gather(self, index: Tensor, out: Tensor) -> int:
        """Reads a row as often as it is asked for: memory is near, sorting costs more."""
        step = max(1, PIECE_BYTES // self.row_bytes)
        if out.dtype == self.dtype and out.is_contiguous() and out.device.type == "cpu":
            torch.index_select(self.data, 0, index, out=out)
            return index.numel()
        for low in range(0, index.numel(), step):
            convert(self.data.index_select(0, index[low : low + step]), out[low : low + step])
        return index.numel()

    def _scatter(self, index: Tensor, values: Tensor) -> None:
        stored = torch.empty(values.shape, dtype=self.dtype)
        encode(values, stored, self.name)
        self.data.index_copy_(0, index, stored)

    def _accumulate_slice(self, first: int, last: int, values: Tensor) -> None:
        if self._wide(values) != self.dtype or values.device.type != "cpu":
            super()._accumulate_slice(first, last, values)
            return
        self.data[first:last] += values

    def _accumulate(self, index: Tensor, values: Tensor) -> int:
        if values.dtype != self.dtype or self._wide(values) != self.dtype:
            return super()._accumulate(index, values)
        rows, order = ascending(index)
        source = torch.arange(index.numel()) if order is None else order
        add_rows(self.data, rows, values.to("cpu"), source)
        return 1 + int((rows[1:] != rows[:-1]).sum())

    def _close(self) -> None:
        self._pins.close()
        self.data = torch.empty(0, self.width, dtype=self.dtype)
