"""RowTable: rows that lie in several places, read as if they stood one after another.

A rank's sources are its own rows, replicas on the device and in host memory, and rows of its peers.
Kernels read each where it lies: by a table of base pointers, and by places, into which columns are
translated once. A place is one number, ``table << shift | row``, int32 where it fits: an edge costs
no more bytes than its column did, and places stay right when the tables move. (An address an edge
would be 8 bytes and wrong after every reallocation; a byte and a number would be two streams.)

Legend: S rows of all tables, B tables, N rows of one, M indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from tiergnn.errors import ConfigError
from tiergnn.kernels.arguments import check_dense, check_index, check_within, told

_CHUNK = 2**24  # columns translated at once: their 64-bit forms stay small


class Places(NamedTuple):
    """Where rows lie: ``at`` >> ``shift`` is the table, the bits below are the row."""

    at: Tensor  # int32 or int64 [M]
    shift: int


@dataclass(frozen=True, eq=False)
class RowTable:
    """Tables [N, ...] of one dtype and one width, in a fixed order; their rows are 0..S-1.

    All on one CPU device, in shared memory of other processes, too; or, for kernels on a GPU, in
    the memory of any GPU that the kernel's may read, and in pinned host memory. Nothing is copied;
    the tables live as long as this. Raises ConfigError for tables that do not fit each other.
    """

    tables: tuple[Tensor, ...]

    def __init__(self, tables: Sequence[Tensor]) -> None:
        object.__setattr__(self, "tables", tuple(tables))
        if not self.tables:
            raise ConfigError("a RowTable needs at least one table, has none")
        first = self.tables[0]
        for number, table in enumerate(self.tables):
            check_dense(f"table {number}", table, "rows")
            if table.dim() < 2:
                raise ConfigError(f"table {number} needs rows [N, ...], has {told(table)}")
            if table.shape[1:] != first.shape[1:] or table.dtype != first.dtype:
                raise ConfigError(
                    f"tables need rows of one shape and dtype: table 0 has {told(first)}, "
                    f"table {number} has {told(table)}"
                )
            host = table.device.type == "cpu"
            if host and first.device.type != "cpu" and not table.is_pinned():
                raise ConfigError(
                    f"table {number} lies in pageable memory, which {first.device} cannot read",
                    hint="pin_memory()",
                )
            if not host and first.device.type == "cpu":
                raise ConfigError(f"table 0 lies in host memory, table {number} on {table.device}")

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(table.shape[0] for table in self.tables)

    @property
    def starts(self) -> tuple[int, ...]:
        """The first row of each table, and S."""
        return tuple(accumulate(self.sizes, initial=0))

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.starts[-1], *self.tables[0].shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        return self.tables[0].dtype

    @property
    def device(self) -> torch.device:
        return self.tables[0].device

    def joined(self) -> Tensor:
        """All rows in one new tensor [S, ...] on the device of the first table."""
        return torch.cat([table.to(self.device) for table in self.tables])

    def places(self, index: Tensor) -> Places:
        """Where the rows ``index`` [M] lie, int32 or int64 within 0..S-1.

        Raises ConfigError for another dtype, and in host memory for an index beyond the tables.
        """
        check_index(index)
        check_within(index, self.shape[0], "the tables")
        return places_of(index, self.sizes)


def places_of(index: Tensor, sizes: tuple[int, ...]) -> Places:
    """Where rows ``index`` [M] of tables of ``sizes`` lie. Linear in M."""
    shift = max(1, (max(sizes) - 1).bit_length())
    narrow = shift + (len(sizes) - 1).bit_length() < 32
    starts = torch.tensor([0, *accumulate(sizes)], device=index.device)
    at = index.new_empty(index.shape, dtype=torch.int32 if narrow else torch.int64)
    for first in range(0, index.numel(), _CHUNK):
        rows = index[first : first + _CHUNK].long()
        table = torch.bucketize(rows, starts[1:-1], right=True)
        at[first : first + _CHUNK] = (table << shift) + (rows - starts[table])
    return Places(at, shift)


def uniform(tables: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The tables as rows [N, D] that a kernel walks by one stride, which it takes from the first.

    Raises ConfigError where they have rows that are not contiguous, or lie differently far apart.
    """
    rows = tuple(
        table.detach().flatten(1) if table.dim() > 2 else table.detach() for table in tables
    )
    strides = {table.stride(0) for table in rows if table.shape[0] > 1}
    columns = {table.stride(1) for table in rows if table.numel() and table.shape[1] > 1}
    if len(strides) > 1 or columns - {1}:
        raise ConfigError(
            "tables read in place need contiguous rows, equally far apart; rows are "
            f"{sorted(strides)} and columns {sorted(columns)} elements apart",
            hint="make the others contiguous, or rows of one width of memory",
        )
    return rows


def typical(rows: tuple[Tensor, ...]) -> Tensor:
    """One of ``uniform`` tables that has their stride."""
    return next((table for table in rows if table.shape[0] > 1), rows[0])


def stride_of(rows: tuple[Tensor, ...]) -> int:
    """Elements from row to row of ``uniform`` tables."""
    return typical(rows).stride(0)
