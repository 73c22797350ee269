"""Feature rows on a device: they travel as stored, and are decoded there.

Legend: R rows, D columns.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tiergnn.errors import ConfigError
from tiergnn.graph.csr import Graph
from tiergnn.graph.table import Table
from tiergnn.kernels.block import wrap


class Rows:
    """A table's rows on ``device``, read as ``dtype``; the device keeps the narrower of the two.

    normalize divides every row by the sum of its absolute values (rows of zeros stay).
    Memory of a table whose rows need no change is shared on the CPU, and never written.
    """

    def __init__(
        self, table: Table, device: torch.device, dtype: torch.dtype, *, normalize: bool = False
    ):
        self._dtype, self._normalize = dtype, normalize
        self._table = table
        self._stored = stored_tensor(table).to(device)
        self._scale = None
        if table.scale is not None:
            self._scale = torch.from_numpy(table.scale.copy()).to(device)
        if self._stored.dtype.itemsize >= dtype.itemsize:
            self._stored = self._decode(self._stored)
            self._scale, self._normalize = None, False
        self._stored = aligned(self._stored)

    @property
    def held_bytes(self) -> int:
        return self._stored.numel() * self._stored.element_size()

    def values(self, rows: slice = slice(None)) -> Tensor:
        """Rows [R, D] as ``dtype``: the held tensor itself where that needs no change."""
        return self._decode(self._stored[rows])

    def forget(self) -> None:
        """Hold the rows no longer."""
        self._stored = self._stored.new_empty(0, self._stored.shape[1])

    @property
    def plain(self) -> bool:
        """Whether rows are read as they are held."""
        return self._stored.dtype == self._dtype and self._scale is None and not self._normalize

    @property
    def stored(self) -> Tensor:
        """Rows [R, D] as they are held; ``decode`` makes of any of them what is read."""
        return self._stored

    def decode(self, stored: Tensor, columns: slice = slice(None)) -> Tensor:
        """Rows [N, D] as ``dtype`` of some ``columns`` of stored ones, on whatever device.

        Raises ConfigError where a column cannot be told without the others.
        """
        if self._scale is not None and self._scale.device != stored.device:
            self._scale = self._scale.to(stored.device)
        if self._normalize and stored.shape[1] < self._stored.shape[1]:
            raise ConfigError(
                f"rows of features stored as {self._table.dtype} are normalised whole, and were "
                f"asked for {stored.shape[1]} of {self._stored.shape[1]} columns",
                hint="features stored as float32, or normalised beforehand",
            )
        return self._decode(stored, columns)

    def first_not_finite(self, block_bytes: int = 2**24) -> tuple[int, int, float] | None:
        """(row, column, value) of the first NaN or infinity, before any normalising.

        Looks at the table on the host, a block at a time.
        """
        step = max(1, block_bytes // (8 * max(1, self._table.width)))
        for start in range(0, self._table.num_rows, step):
            values = torch.from_numpy(self._table.decode(slice(start, start + step)))
            values = values.to(self._dtype)
            if (found := first_not_finite(values)) is not None:
                row, column, value = found
                return start + row, column, value
        return None

    def _decode(self, stored: Tensor, columns: slice = slice(None)) -> Tensor:
        if self.plain:
            return stored
        wide = torch.float64 if stored.dtype == torch.float64 else torch.float32
        values = stored.to(wide)
        if self._scale is not None:
            one = self._scale.dim() == 0  # one scale for all columns
            values = values * (self._scale if one else self._scale[columns])
        values = values.to(self._dtype) if self._dtype.itemsize > wide.itemsize else values
        if self._normalize:
            total = values.abs().sum(dim=1, keepdim=True)
            values = values / torch.where(total > 0, total, 1.0)
        return values.to(self._dtype)


def bad_value(graph: Graph, name: str, row: int, column: int, value: float) -> str:
    """What is wrong with an input, in words: of node ``row`` for x, else of that edge."""
    if name == "x":
        return f"x[{row}, {column}], of node {row}, is {value}"
    place = f"{row}" if name == "edge_weight" else f"{row}, {column}"
    end = int(np.searchsorted(graph.rowptr, row, side="right")) - 1
    return f"{name}[{place}], of edge {int(graph.col[row])} -> {end}, is {value}"


def first_not_finite(rows: Tensor) -> tuple[int, int, float] | None:
    """(row, column, value) of the first NaN or infinity in [R] or [R, ...]."""
    flat = rows.reshape(len(rows), rows.shape[1:].numel())
    bad = torch.nonzero(~torch.isfinite(flat))
    if not len(bad):
        return None
    row, column = bad[0].tolist()
    return row, column, float(flat[row, column])


def aligned(values: Tensor) -> Tensor:
    """The same values; a copy where they lie at an odd place of the CPU's memory.

    MKL starts its vectors at addresses that 16 divides, so last bits of a product would depend on
    where in a user's array or in a file the rows begin.
    """
    odd = values.device.type == "cpu" and values.data_ptr() % 16 != 0
    return values.clone() if odd else values


def stored_tensor(table: Table) -> Tensor:
    """The table's bits as a tensor of their own dtype, sharing its memory."""
    if table.dtype == "bfloat16":
        return wrap(table.data.view("int16")).view(torch.bfloat16)
    return wrap(table.data)
