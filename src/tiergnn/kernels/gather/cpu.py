"""Rows moved on the CPU by Numba: a piece of a row is one vector value, threads take rows.

Legend: N rows, M indices, D columns.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from tiergnn.kernels.lanes import add as plus
from tiergnn.kernels.lanes import as_wide, load, prefetch, store
from tiergnn.kernels.rows import Columns, dense, njit, row_at
from tiergnn.kernels.table import uniform
from tiergnn.kernels.threads import spread
from tiergnn.kernels.tile import ELEMENTS, Tile, tiles

_AHEAD = 16  # rows between asking for one and reading it


@njit
def move_kernel(
    first, last, tile, out_tile, count, at, x, x_stride, target, out, out_stride, add, num_indices
):
    """Indices first..last-1 of one piece of the columns."""
    for m in range(first, last):
        if at is not None:
            ahead = at[min(m + _AHEAD, num_indices - 1)]
            prefetch(tile, row_at(x, x_stride, ahead))
            source = row_at(x, x_stride, at[m])
        else:
            source = row_at(x, x_stride, m)
        place = out + out_stride * (m if target is None else target[m])
        value = as_wide(out_tile, load(tile, source, count))
        if add is not None:
            value = plus(load(out_tile, place, count), value)
        store(out_tile, place, count, value)


def move(
    tables: tuple[Tensor, ...],
    at_M: Tensor | None,
    shift: int,
    out_ND: Tensor,
    target_M: Tensor | None,
    add: bool,
) -> None:
    """As the reference."""
    tables = uniform(tables) if shift else (dense(tables[0]),)
    index = target_M if at_M is None else at_M
    assert index is not None
    num_indices = index.numel()
    at, target = (None if t is None else t.contiguous().numpy() for t in (at_M, target_M))
    pieces = [
        (tile, out_tile, count, at, *Columns.of(tables, first, shift), target,
         *Columns.of(out_ND, first), True if add else None, num_indices)
        for tile, out_tile, first, count in _pieces(tables[0].dtype, out_ND.dtype, out_ND.shape[1])
    ]  # fmt: skip

    def work(first: int, last: int) -> None:
        for piece in pieces:
            move_kernel(first, last, *piece)

    spread(work, num_indices, 2 * num_indices * out_ND.shape[1] * out_ND.element_size())


def _pieces(
    dtype: torch.dtype, out_dtype: torch.dtype, num_columns: int
) -> Iterator[tuple[Tile, Tile, int, int]]:
    """The tiles of both, equally wide, first column and number of columns of each piece."""
    widest = torch.float64 if torch.float64 in (dtype, out_dtype) else torch.float32
    for tile, first, count in tiles(widest, num_columns):
        source = Tile(ELEMENTS[dtype], tile.width, tile.masked)
        yield source, Tile(ELEMENTS[out_dtype], tile.width, tile.masked), first, count
