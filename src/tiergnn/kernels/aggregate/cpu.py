"""Aggregation on the CPU by Numba: rows are gathered as vector values, in even tasks.

Sums: at most CHUNK edges are added in the dtype of the sum (float32, or float64 for float64 rows),
one after the other. The chunks of a longer row are added in float64, in order, and so are the parts
of a row that several tasks share. So the bits do not depend on the number of threads, and a row of
2**24 ones sums to 2**24. The result is rounded to float32 and then to the rows' own dtype.

Bytes of a sum: E * (D * element + index [+ weight]) read, P * D * element written; 2 * E * D flops.

Legend: P destinations, S sources, E edges, D columns, T tasks.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tiergnn.kernels.aggregate import cpu_max, cpu_sum
from tiergnn.kernels.aggregate.cpu_tasks import even_tasks, in_order
from tiergnn.kernels.aggregate.reference import plan as plan
from tiergnn.kernels.aggregate.reference import wide
from tiergnn.kernels.memory import new_rows
from tiergnn.kernels.rows import Columns, dense
from tiergnn.kernels.threads import spread
from tiergnn.kernels.tile import tiles


def weighted_sum(
    rowptr: Tensor,
    col: Tensor,
    plan: list[Tensor],
    x_SD: Tensor,
    weight_E: Tensor | None,
    edge_E: Tensor | None,
    mean: bool,
) -> Tensor:
    """As the reference."""
    x = dense(x_SD)
    num_rows = rowptr.numel() - 1
    out = new_rows(num_rows, x.shape[1], x.dtype)
    if not out.numel():
        return out
    weight = in_order(weight_E, edge_E, wide(x.dtype))
    starts, cols = rowptr.numpy(), col.numpy()
    num_tasks, step = even_tasks(num_rows, cols.size)
    pieces = [
        (tile, count, Columns.of(x, at), Columns.of(out, at), _sums(num_tasks, 3, tile.width))
        for tile, at, count in tiles(x.dtype, x.shape[1])
    ]

    def work(first: int, last: int) -> None:
        for tile, count, x_at, out_at, carry in pieces:
            cpu_sum.sum_fwd_kernel(
                first, last, step, tile, count, starts, cols, weight, *x_at, *out_at, mean, carry
            )

    spread(work, num_tasks)
    for tile, count, _, out_at, carry in pieces:
        cpu_sum.sum_close_kernel(step, tile, count, starts, *out_at, mean, carry)
    return out


def edge_dot(rowptr: Tensor, col: Tensor, plan: list[Tensor], g_PD: Tensor, x_SD: Tensor) -> Tensor:
    """As the reference."""
    dtype = torch.promote_types(g_PD.dtype, x_SD.dtype)
    x, g = dense(x_SD.to(dtype)), dense(g_PD.to(dtype))
    out = torch.zeros(col.numel(), dtype=wide(x.dtype))
    if not out.numel():
        return out
    starts, cols, out_E = rowptr.numpy(), col.numpy(), out.numpy()
    num_tasks, step = even_tasks(starts.size - 1, cols.size)
    pieces = [
        (tile, count, Columns.of(g, at), Columns.of(x, at), at > 0)
        for tile, at, count in tiles(x.dtype, x.shape[1])
    ]

    def work(first: int, last: int) -> None:
        for tile, count, g_at, x_at, further in pieces:
            cpu_sum.edge_dot_kernel(
                first, last, step, tile, count, starts, cols, *g_at, *x_at, out_E, further
            )

    spread(work, num_tasks)
    return out


def maximum(
    rowptr: Tensor, col: Tensor, plan: list[Tensor], x_SD: Tensor, weight_E: Tensor | None
) -> tuple[Tensor, Tensor]:
    """As the reference."""
    x = dense(x_SD)
    shape = rowptr.numel() - 1, x.shape[1]
    out, ties = new_rows(*shape, x.dtype), new_rows(*shape, torch.int32)
    if not out.numel():
        return out, ties
    weight = in_order(weight_E, None, wide(x.dtype))
    starts, cols = rowptr.numpy(), col.numpy()
    num_tasks, step = even_tasks(shape[0], cols.size)
    pieces = []
    for tile, at, count in tiles(x.dtype, x.shape[1]):
        parts = num_tasks, 2, tile.width
        best, num_ties = _sums(*parts), torch.empty(parts, dtype=torch.int32).numpy()
        pieces.append((tile, at, count, Columns.of(x, at), Columns.of(out, at), best, num_ties))

    def work(first: int, last: int) -> None:
        for tile, at, count, x_at, out_at, best, num_ties in pieces:
            ties_at = Columns.of(ties, at)
            cpu_max.max_fwd_kernel(
                first, last, step, tile, count, starts, cols, weight, *x_at, *out_at, *ties_at,
                best, num_ties,
            )  # fmt: skip

    spread(work, num_tasks)
    for tile, at, count, _, out_at, best, num_ties in pieces:
        cpu_max.max_close_kernel(
            step, tile, count, starts, *out_at, ties.numpy(), at, best, num_ties
        )
    return out, ties


def maximum_grad_x(
    rowptr_t: Tensor,
    dst_t: Tensor,
    edge_t: Tensor,
    plan_t: list[Tensor],
    share_PD: Tensor,
    out_PD: Tensor,
    x_SD: Tensor,
    weight_E: Tensor | None,
) -> Tensor:
    """As the reference."""
    x, out, share = dense(x_SD), dense(out_PD), dense(share_PD)
    grad = new_rows(x.shape[0], x.shape[1], x.dtype)
    if not grad.numel():
        return grad
    weight = in_order(weight_E, edge_t, wide(x.dtype))
    starts, dst = rowptr_t.numpy(), dst_t.numpy()
    num_tasks, step = even_tasks(starts.size - 1, dst.size)
    pieces = []
    for (tile, at, count), (share_tile, _, _) in _pair_tiles(x, share):
        columns = [Columns.of(rows, at) for rows in (x, share, out, grad)]
        carry = _sums(num_tasks, 3, tile.width)
        pieces.append((tile, share_tile, count, columns, carry))

    def work(first: int, last: int) -> None:
        for tile, share_tile, count, columns, carry in pieces:
            flat = [number for column in columns for number in column]
            cpu_max.max_bwd_kernel(
                first, last, step, tile, share_tile, count, starts, dst, weight, *flat, carry
            )

    spread(work, num_tasks)
    for tile, _, count, columns, carry in pieces:
        cpu_sum.sum_close_kernel(step, tile, count, starts, *columns[-1], False, carry)
    return grad


def maximum_grad_weight(
    rowptr: Tensor,
    col: Tensor,
    plan: list[Tensor],
    share_PD: Tensor,
    out_PD: Tensor,
    x_SD: Tensor,
    weight_E: Tensor,
) -> Tensor:
    """As the reference."""
    x, out, share = dense(x_SD), dense(out_PD), dense(share_PD)
    grad = torch.zeros(col.numel(), dtype=wide(x.dtype))
    if not grad.numel():
        return grad
    weight = in_order(weight_E, None, wide(x.dtype))
    starts, cols, grad_E = rowptr.numpy(), col.numpy(), grad.numpy()
    num_tasks, step = even_tasks(starts.size - 1, cols.size)
    pieces = []
    for (tile, at, count), (share_tile, _, _) in _pair_tiles(x, share):
        columns = [Columns.of(rows, at) for rows in (x, share, out)]
        pieces.append((tile, share_tile, count, columns, at > 0))

    def work(first: int, last: int) -> None:
        for tile, share_tile, count, columns, further in pieces:
            flat = [number for column in columns for number in column]
            cpu_max.max_weight_kernel(
                first, last, step, tile, share_tile, count, starts, cols, weight, *flat,
                grad_E, further,
            )  # fmt: skip

    spread(work, num_tasks)
    return grad


def _sums(*shape: int) -> np.ndarray:
    """Room for partial sums, float64, of torch's memory: whoever counts that counts it, too."""
    return torch.empty(shape, dtype=torch.float64).numpy()


def _pair_tiles(x: Tensor, share: Tensor):
    """The same pieces of both: rows of 16 bits are as many columns wide as their float32 sums."""
    return zip(tiles(x.dtype, x.shape[1]), tiles(share.dtype, share.shape[1]), strict=True)
