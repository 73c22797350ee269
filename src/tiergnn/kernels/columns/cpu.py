"""Slices turned into a block and back by Numba: rows of all slices pass as vector values, so that
what is read and written of either are whole cache lines.

Legend: P rows, C columns of a slice, D of the block.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tiergnn.kernels.lanes import as_wide, load, store
from tiergnn.kernels.rows import njit
from tiergnn.kernels.threads import spread
from tiergnn.kernels.tile import ELEMENTS, Tile, tiles


@njit
def _turn_kernel(
    first, last, from_tile, to_tile, count, source, source_stride, target, target_stride
):
    """Rows first..last-1 of pieces of ``count`` columns; an address and a stride of each."""
    for row in range(first, last):
        for i in range(source.size):
            lanes = load(from_tile, source[i] + source_stride[i] * row, count)
            lanes = as_wide(to_tile, lanes)
            store(to_tile, target[i] + target_stride[i] * row, count, lanes)


def turn(slices: Sequence[Tensor], block: Tensor, joins: bool) -> None:
    """From slices [P, C], of one dtype, to block [P, D] (``joins``), or back. Columns of either
    stand beside each other in memory."""
    dtype = slices[0].dtype
    wider = torch.float64 if torch.float64 in (dtype, block.dtype) else torch.float32
    alike: dict[tuple[int, bool, int], list[tuple[int, ...]]] = {}
    firsts = accumulate((one.shape[1] for one in slices), initial=0)
    for one, first in zip(slices, firsts, strict=False):
        for tile, at, count in tiles(wider, one.shape[1]):
            places = _place(one, at), _place(block, first + at)
            source, target = places if joins else places[::-1]
            alike.setdefault((tile.width, tile.masked, count), []).append((*source, *target))
    elements = [ELEMENTS[t] for t in ((dtype, block.dtype) if joins else (block.dtype, dtype))]
    pieces: list[tuple[Any, ...]] = []
    for (width, masked, count), places in alike.items():
        kinds = (Tile(element, width, masked) for element in elements)
        pieces.append((*kinds, count, *np.array(places, np.int64).T.copy()))

    def work(first: int, last: int) -> None:
        for piece in pieces:
            _turn_kernel(first, last, *piece)

    spread(work, block.shape[0], 2 * block.nbytes)


def _place(rows: Tensor, at: int) -> tuple[int, int]:
    """The address of the first row's column ``at``, and bytes from row to row."""
    size = rows.element_size()
    return rows.data_ptr() + at * size, rows.stride(0) * size
