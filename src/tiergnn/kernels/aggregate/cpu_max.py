"""The loops of maxima. A maximum and its ties are exact in any order, so that parts merge freely.

Legend: P destinations, S sources, E edges, T tasks, W columns of a tile.
"""

from __future__ import annotations

import numpy as np

from tiergnn.kernels.aggregate.cpu_factors import factor, put
from tiergnn.kernels.aggregate.cpu_sum import CHUNK, HEAD, TAIL, WHOLE
from tiergnn.kernels.aggregate.cpu_tasks import AHEAD, cut
from tiergnn.kernels.lanes import (
    add,
    add_to_double,
    count_ties,
    from_double,
    full,
    larger,
    load,
    multiply,
    multiply_add,
    no_ties,
    prefetch,
    rounded,
    scale,
    store,
    store_as_is,
    where_reached,
    zeros,
)
from tiergnn.kernels.rows import njit, row_at


@njit(inline="always")
def _message(tile, row, weight, e, count):
    """A source's row times the edge's weight, as it would be stored."""
    if weight is None:
        return row
    return rounded(tile, scale(row, factor(tile, weight, e, count)))


@njit
def max_fwd_kernel(
    first, last, step, tile, count, rowptr, col, weight, x, x_stride, out, out_stride,
    ties, ties_stride, best_T2W, ties_T2W,
):  # fmt: skip
    """Tasks first..last-1: writes rows that lie inside one task, keeps the parts of the others."""
    for task in range(first, last):
        row_0, edge_0 = cut(rowptr, step, task)
        row_1, edge_1 = cut(rowptr, step, task + 1)
        for row in range(row_0, min(row_1 + 1, rowptr.size - 1)):
            start, stop = max(rowptr[row], edge_0), min(rowptr[row + 1], edge_1)
            best, num_ties = full(tile, -np.inf), no_ties(tile)
            for e in range(start, stop):
                prefetch(tile, row_at(x, x_stride, col[np.uintp(min(e + AHEAD, col.size - 1))]))
                row_x = load(tile, row_at(x, x_stride, col[np.uintp(e)]), count)
                value = _message(tile, row_x, weight, e, count)
                num_ties = count_ties(num_ties, best, value)
                best = larger(best, value)
            if row < row_1 and rowptr[row] >= edge_0:
                if start == stop:
                    best = zeros(tile)
                store(tile, out + out_stride * row, count, best)
                store_as_is(tile, ties + ties_stride * row, count, num_ties)
            else:
                part = HEAD if row < row_1 else TAIL
                best_T2W[task, part] = 0
                add_to_double(tile, best_T2W[task, part].ctypes.data, best)
                store_as_is(tile, ties_T2W[task, part].ctypes.data, count, num_ties)


@njit
def max_close_kernel(
    step, tile, count, rowptr, out, out_stride, ties_PD, first_column, best_T2W, ties_T2W
):
    """Writes the rows that several tasks share."""
    best, ties = np.empty(best_T2W.shape[2]), np.zeros(best_T2W.shape[2], np.int32)
    best[:] = -np.inf
    for task in range(best_T2W.shape[0]):
        row_0, edge_0 = cut(rowptr, step, task)
        row_1, edge_1 = cut(rowptr, step, task + 1)
        if row_0 < row_1 and rowptr[row_0] < edge_0:
            _merge(best, ties, best_T2W[task, HEAD], ties_T2W[task, HEAD], count)
            store(tile, out + out_stride * row_0, count, from_double(tile, best.ctypes.data))
            ties_PD[row_0, first_column : first_column + count] = ties[:count]
            best[:] = -np.inf
            ties[:] = 0
        if row_1 < rowptr.size - 1 and max(rowptr[row_1], edge_0) < edge_1:
            _merge(best, ties, best_T2W[task, TAIL], ties_T2W[task, TAIL], count)


@njit
def _merge(best, ties, part_best, part_ties, count):
    for c in range(count):
        old, new = best[c], part_best[c]
        if new == old or (np.isnan(new) and np.isnan(old)):
            ties[c] += part_ties[c]
        elif new > old or np.isnan(new):
            best[c], ties[c] = new, part_ties[c]


@njit(inline="always")
def _gather_shares(
    tile, share_tile, dst_t, weight, own, share, share_stride, out, out_stride, count, first, last
):
    """Sum over out-edges first..last-1 of weight * share where the message reached the maximum."""
    grad = zeros(tile)
    for e in range(first, last):
        ahead = dst_t[np.uintp(min(e + AHEAD, dst_t.size - 1))]
        prefetch(tile, out + out_stride * ahead)
        prefetch(share_tile, share + share_stride * ahead)
        row = dst_t[np.uintp(e)]
        best = load(tile, out + out_stride * row, count)
        value = _message(tile, own, weight, e, count)
        passed = where_reached(value, best, load(share_tile, share + share_stride * row, count))
        if weight is None:
            grad = add(grad, passed)
        else:
            grad = multiply_add(grad, passed, factor(tile, weight, e, count))
    return grad


@njit
def max_bwd_kernel(
    first, last, step, tile, share_tile, count, rowptr_t, dst_t, weight, x, x_stride,
    share, share_stride, out, out_stride, grad, grad_stride, carry,
):  # fmt: skip
    """The gradient in x over out-edges; tasks and parts as in ``sum_fwd_kernel``."""
    for task in range(first, last):
        row_0, edge_0 = cut(rowptr_t, step, task)
        row_1, edge_1 = cut(rowptr_t, step, task + 1)
        for row in range(row_0, min(row_1 + 1, rowptr_t.size - 1)):
            start, stop = max(rowptr_t[row], edge_0), min(rowptr_t[row + 1], edge_1)
            whole = row < row_1 and rowptr_t[row] >= edge_0
            part = WHOLE if whole else (HEAD if row < row_1 else TAIL)
            own = load(tile, x + x_stride * row, count)
            carry[task, part] = 0
            where = carry[task, part].ctypes.data
            for chunk in range(start, stop, CHUNK):
                lanes = _gather_shares(
                    tile, share_tile, dst_t, weight, own, share, share_stride,
                    out, out_stride, count, chunk, min(chunk + CHUNK, stop),
                )  # fmt: skip
                add_to_double(tile, where, lanes)
            if whole:
                store(tile, grad + grad_stride * row, count, from_double(tile, where))


@njit
def max_weight_kernel(
    first, last, step, tile, share_tile, count, rowptr, col, weight, x, x_stride,
    share, share_stride, out, out_stride, grad_E, further,
):  # fmt: skip
    """The gradient in the weights: <share, x> where the message reached the maximum."""
    for task in range(first, last):
        row_0, edge_0 = cut(rowptr, step, task)
        row_1, edge_1 = cut(rowptr, step, task + 1)
        for row in range(row_0, min(row_1 + 1, rowptr.size - 1)):
            start, stop = max(rowptr[row], edge_0), min(rowptr[row + 1], edge_1)
            if start >= stop:
                continue
            best = load(tile, out + out_stride * row, count)
            own = load(share_tile, share + share_stride * row, count)
            for e in range(start, stop):
                prefetch(tile, row_at(x, x_stride, col[np.uintp(min(e + AHEAD, col.size - 1))]))
                row_x = load(tile, row_at(x, x_stride, col[np.uintp(e)]), count)
                value = _message(tile, row_x, weight, e, count)
                passed = where_reached(value, best, multiply(own, row_x))
                put(tile, grad_E, e, count, passed, further)
