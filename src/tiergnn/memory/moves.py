"""Rows moved and added in compiled code, without the GIL.

Legend: R rows of a table, D columns, N rows of one request, U units of a row (1 to 8 bytes each).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

import numba
import numpy as np
import torch
from torch import Tensor

_SPREAD_BYTES = 2**20  # less than this is not worth a second thread
_UNITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_pools: dict[int, ThreadPoolExecutor] = {}
# A child process has its parent's pools but not their threads.
os.register_at_fork(after_in_child=_pools.clear)


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
    spread(
        lambda low, high: _add_rows(arrays[0], arrays[1][low:high], arrays[2], arrays[3][low:high]),
        arrays[1],
        target.shape[1] * target.element_size(),
    )


def spread(work: Callable[[int, int], None], rows: np.ndarray, row_bytes: int) -> None:
    """Call ``work(low, high)`` on even pieces of ascending ``rows``, no row in two of them."""
    num_threads = min(torch.get_num_threads(), 1 + rows.size * row_bytes // _SPREAD_BYTES)
    if num_threads <= 1:
        work(0, rows.size)
        return
    middles = [rows.size * i // num_threads for i in range(1, num_threads)]
    cuts = [0, *(int(np.searchsorted(rows, rows[at])) for at in middles), rows.size]
    if num_threads not in _pools:
        _pools[num_threads] = ThreadPoolExecutor(num_threads - 1, "tiergnn-rows")
    pool = _pools[num_threads]
    others = [pool.submit(work, cuts[i], cuts[i + 1]) for i in range(1, num_threads)]
    try:
        work(0, cuts[1])
    finally:
        wait(others)
    for other in others:
        other.result()


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
        for d in range(target.shape[1]):
            target[slot[i], d] += values[source[i], d]


@numba.njit(cache=True, nogil=True)
def _pick(memory, starts, out, into):
    for i in range(starts.size):
        for u in range(out.shape[1]):
            out[into[i], u] = memory[starts[i] + u]


@numba.njit(cache=True, nogil=True)
def _place(memory, starts, rows):
    for i in range(starts.size):
        for u in range(rows.shape[1]):
            memory[starts[i] + u] = rows[i, u]
