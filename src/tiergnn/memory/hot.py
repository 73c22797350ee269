"""The rows most read, in host memory beside a slower store that holds all.

Legend: R rows of the table, D columns, N rows of one request, H hot rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tiergnn.memory.pinning import Pinning
from tiergnn.memory.ram import RamRows
from tiergnn.memory.store import RowStore


class HotRows(RowStore):
    """``below`` with the rows ``hot`` [H] in host memory too: gathers find them there.

    Writes go to both. ``hits`` and ``misses`` count the rows that gathers asked for. ``close``
    leaves ``below`` open.
    """

    def __init__(self, below: RowStore, hot: Tensor, *, pinning: Pinning | None = None):
        super().__init__(below.num_rows, below.width, below.dtype, name=below.name)
        self._below = below
        self._hot = torch.unique(self._index(hot))
        self._rows = RamRows(
            self._hot.numel(), below.width, below.dtype, name=below.name, pinning=pinning
        )
        below.gather(self._hot, self._rows.data)

    @property
    def held_bytes(self) -> int:
        """Host memory that the rows and their list take."""
        return self._rows.num_bytes + 8 * self._hot.numel()

    def _places(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Where rows stand among the hot ones, and whether they do."""
        place = torch.searchsorted(self._hot, index)
        near = self._hot[place.clamp(max=max(0, self._hot.numel() - 1))] if place.numel() else place
        return place, (near == index) & (place < self._hot.numel())

    def _read(self, first: int, last: int, out: Tensor) -> None:
        self._below.read(slice(first, last), out)

    def _write(self, first: int, last: int, values: Tensor) -> None:
        self._below.write(slice(first, last), values)
        low, high = torch.searchsorted(self._hot, torch.tensor([first, last])).tolist()
        self._rows.write(slice(low, high), values[(self._hot[low:high] - first).to(values.device)])

    def _gather(self, index: Tensor, out: Tensor) -> int:
        if self._hot.numel() == 0:
            self.counters.add(misses=index.numel())
            self._below.gather(index, out)
            return torch.unique(index).numel()
        place, found = self._places(index)
        hits, misses = (torch.nonzero(mask).flatten() for mask in (found, ~found))
        for source, rows, at in (
            (self._rows, place[hits], hits),
            (self._below, index[misses], misses),
        ):
            if at.numel() == index.numel():
                source.gather(rows, out)
            elif at.numel():
                part = torch.empty(at.numel(), self.width, dtype=out.dtype)
                source.gather(rows, part)
                out[at.to(out.device)] = part.to(out.device)
        self.counters.add(hits=hits.numel(), misses=misses.numel())
        return torch.unique(index).numel()

    def _scatter(self, index: Tensor, values: Tensor) -> None:
        self._below._scatter(index, values)
        if self._hot.numel():
            place, found = self._places(index)
            if bool(found.any()):
                self._rows._scatter(place[found], values[found])

    def _close(self) -> None:
        self._rows.close()
