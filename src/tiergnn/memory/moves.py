"""Rows moved and added in compiled code, without the GIL.

Legend: R rows of a table, D columns, N rows of one request, U units of a row (1 to 8 bytes each).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numba
import numpy as np
import torch
from torch import Tensor

from tiergnn import threads

_PIECE_BYTES = 2**18  # a smaller one is not worth another thread's look
_ADDED_BYTES = 2**20  # likewise, where each piece is called from Python
_UNITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def ascending(index: Tensor) -> tuple[Tensor, Tensor | None]:
    """``index`` [N] sorted, and where each came from; None where it was sorted already.

    Equal rows keep their order.
    """
    if bool((index[1:] >= index[:-1]).all()):
        return index, None
    order = torch.sort(index, stable=True)
    return order.values, order.indices


def add_rows(target: Tensor, slot: Tensor, values: Tensor, source: Tensor) -> None:
    """target[slot[i]] += values[source[i]], one after the other where rows repeat.

    target [R, D] and values are CPU tensors of one dtype, float32 or float64; slot [N] ascends.
    """
    arrays = target.numpy(), slot.numpy(), values.numpy(), source.numpy()
    _spread(
        lambda low, high: _add_rows(arrays[0], arrays[1][low:high], arrays[2], arrays[3][low:high]),
        arrays[1],
        target.shape[1] * target.element_size(),
    )


class Addend(NamedTuple):
    """Rows ``values`` [N, D] for the rows ``slot`` [N] of ``target`` [R, D], or for all of them
    (None). CPU tensors of one dtype, float32 or float64."""

    target: Tensor
    slot: Tensor | None
    values: Tensor


def add_all(addends: Sequence[Addend]) -> None:
    """target[slot[i]] += values[i] of each, side by side: no row may be added to twice."""
    arrays = [tuple(None if t is None else t.numpy() for t in addend) for addend in addends]
    pieces: list[tuple[int, int, int]] = []
    for number, addend in enumerate(addends):
        count, row_bytes = len(addend.values), addend.values[:1].nbytes
        step = max(1, _ADDED_BYTES // max(1, row_bytes))
        pieces += [(number, low, min(low + step, count)) for low in range(0, count, step)]

    def add(first: int, last: int) -> None:
        for number, low, high in pieces[first:last]:
            target, slot, values = arrays[number]
            _add_given(target, slot, values, low, high)

    threads.spread(add, len(pieces), torch.get_num_threads())


def _spread(work: Callable[[int, int], None], rows: np.ndarray, row_bytes: int) -> None:
    """Call ``work(low, high)`` on even pieces of ascending ``rows``, no row in two of them."""
    num_pieces = max(1, rows.size * row_bytes // _PIECE_BYTES)
    middles = [rows.size * i // num_pieces for i in range(1, num_pieces)]
    cuts = [0, *np.searchsorted(rows, rows[middles]).tolist(), rows.size]
    threads.spread(
        lambda first, last: work(cuts[first], cuts[last]), num_pieces, torch.get_num_threads()
    )


def pick_rows(memory: np.ndarray, starts: np.ndarray, out: np.ndarray, into: np.ndarray) -> None:
    """out[into[i]] = the bytes of ``memory`` from starts[i] on, as many as a row of ``out`` has.

    memory uint8 [M]; out uint8 [R, B], rows contiguous; starts are multiples of the unit that
    divides B and the alignment of ``memory``.
    """
    unit = _unit(out.shape[1], starts)
    _pick(memory.view(_UNITS[unit]), starts // unit, out.view(_UNITS[unit]), into)


def place_rows(memory: np.ndarray, starts: np.ndarray, rows: np.ndarray) -> None:
    """The other way: row i of uint8 [N, B] to the bytes of ``memory`` from starts[i] on."""
    unit = _unit(rows.shape[1], starts)
    _place(memory.view(_UNITS[unit]), starts // unit, rows.view(_UNITS[unit]))


def _unit(row_bytes: int, starts: np.ndarray) -> int:
    """The most bytes that can be moved at once, whatever row."""
    bits = int(np.bitwise_or.reduce(starts)) | row_bytes | 8
    return bits & -bits


@numba.njit(cache=True, nogil=True)
def _add_rows(target, slot, values, source):
    for i in range(slot.size):
        total, given = target[slot[i]], values[source[i]]
        for d in range(total.size):
            total[d] += given[d]


@numba.njit(cache=True, nogil=True)
def _add_given(target, slot, values, low, high):
    for i in range(low, high):
        total, given = target[i if slot is None else slot[i]], values[i]
        for d in range(total.size):
            total[d] += given[d]


@numba.njit(cache=True, nogil=True)
def _pick(memory, starts, out, into):
    for i in range(starts.size):
        row, start = out[into[i]], starts[i]
        for u in range(row.size):
            row[u] = memory[start + u]


@numba.njit(cache=True, nogil=True)
def _place(memory, starts, rows):
    for i in range(starts.size):
        row, start = rows[i], starts[i]
        for u in range(row.size):
            memory[start + u] = row[u]
