"""The loops of sums and of their weights' gradient. ``cpu`` says in which order they add.

Legend: P destinations, S sources, E edges, T tasks, W columns of a tile.
"""

from __future__ import annotations

import numpy as np

from tiergnn.kernels.aggregate.cpu_factors import factor, prefetch_factor, put
from tiergnn.kernels.aggregate.cpu_tasks import AHEAD, cut
from tiergnn.kernels.lanes import (
    add,
    add_to_double,
    divide,
    from_double,
    load,
    multiply,
    multiply_add,
    prefetch,
    store,
    zeros,
)
from tiergnn.kernels.rows import njit, row_at

CHUNK = 512  # edges summed without a partial sum
HEAD, TAIL, WHOLE = 0, 1, 2  # the partial sums of a task: [T, 3, W] in float64


@njit(inline="always")
def _gather(tile, col, weight, x, stride, count, first, last):
    """Sum of the rows of edges first..last-1, in order. Unsigned indices skip a sign check."""
    out = zeros(tile)
    for e in range(first, last):
        ahead = min(e + AHEAD, col.size - 1)
        prefetch(tile, row_at(x, stride, col[np.uintp(ahead)]))
        prefetch_factor(tile, weight, ahead)
        row = load(tile, row_at(x, stride, col[np.uintp(e)]), count)
        if weight is None:
            out = add(out, row)
        else:
            out = multiply_add(out, row, factor(tile, weight, e, count))
    return out


@njit
def sum_fwd_kernel(
    first, last, step, tile, count, rowptr, col, weight, x, x_stride, out, out_stride, mean, carry
):
    """Tasks first..last-1: writes rows that lie inside one task, keeps the parts of the others."""
    for task in range(first, last):
        row_0, edge_0 = cut(rowptr, step, task)
        row_1, edge_1 = cut(rowptr, step, task + 1)
        for row in range(row_0, min(row_1 + 1, rowptr.size - 1)):
            start, stop = max(rowptr[row], edge_0), min(rowptr[row + 1], edge_1)
            whole = row < row_1 and rowptr[row] >= edge_0
            if whole and stop - start <= CHUNK:
                lanes = _gather(tile, col, weight, x, x_stride, count, start, stop)
            else:
                part = WHOLE if whole else (HEAD if row < row_1 else TAIL)
                carry[task, part] = 0
                where = carry[task, part].ctypes.data
                for chunk in range(start, stop, CHUNK):
                    end = min(chunk + CHUNK, stop)
                    lanes = _gather(tile, col, weight, x, x_stride, count, chunk, end)
                    add_to_double(tile, where, lanes)
                lanes = from_double(tile, where)
            if whole:
                if mean:
                    lanes = divide(lanes, max(stop - start, 1))
                store(tile, out + out_stride * row, count, lanes)


@njit
def sum_close_kernel(step, tile, count, rowptr, out, out_stride, mean, carry):
    """Writes the rows that several tasks share."""
    shared = np.zeros(carry.shape[2])
    for task in range(carry.shape[0]):
        row_0, edge_0 = cut(rowptr, step, task)
        row_1, edge_1 = cut(rowptr, step, task + 1)
        if row_0 < row_1 and rowptr[row_0] < edge_0:
            shared += carry[task, HEAD]
            lanes = from_double(tile, shared.ctypes.data)
            if mean:
                lanes = divide(lanes, rowptr[row_0 + 1] - rowptr[row_0])
            store(tile, out + out_stride * row_0, count, lanes)
            shared[:] = 0
        if row_1 < rowptr.size - 1 and max(rowptr[row_1], edge_0) < edge_1:
            shared += carry[task, TAIL]


@njit
def edge_dot_kernel(
    first, last, step, tile, count, rowptr, col, g, g_stride, x, x_stride, out_E, further
):
    """Tasks first..last-1: out[e] = <g[row], x[col]> over one piece; added when ``further``.

    Where out has a number a column, [E, D], nothing is summed.
    """
    for task in range(first, last):
        row_0, edge_0 = cut(rowptr, step, task)
        row_1, edge_1 = cut(rowptr, step, task + 1)
        for row in range(row_0, min(row_1 + 1, rowptr.size - 1)):
            start, stop = max(rowptr[row], edge_0), min(rowptr[row + 1], edge_1)
            if start >= stop:
                continue
            own = load(tile, g + g_stride * row, count)
            for e in range(start, stop):
                prefetch(tile, row_at(x, x_stride, col[np.uintp(min(e + AHEAD, col.size - 1))]))
                row_x = load(tile, row_at(x, x_stride, col[np.uintp(e)]), count)
                put(tile, out_E, e, count, multiply(own, row_x), further)
