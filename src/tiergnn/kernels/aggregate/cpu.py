"""Aggregation on the CPU by Numba: rows are gathered as vector values, in even tasks.

Sums: at most CHUNK edges are added in the dtype of the sum (float32, or float64 for float64 rows),
one after the other. The chunks of a longer row are added in float64, in order, and so are the parts
of a row that several tasks share. So the bits do not depend on the number of threads, and a row of
2**24 ones sums to 2**24. The result is rounded to float32 and then to the rows' own dtype.

Bytes of a sum: E * (D * element + index [+ weight]) read, P * D * element written; 2 * E * D flops.

Legend: P destinations, S sources, E edges, D columns, K heads, T tasks.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from tiergnn.kernels.aggregate import cpu_max, cpu_sum
from tiergnn.kernels.aggregate.cpu_factors import EdgeRows, Factors
from tiergnn.kernels.aggregate.cpu_tasks import even_tasks, in_order
from tiergnn.kernels.aggregate.reference import plan as plan
from tiergnn.kernels.aggregate.reference import wide
from tiergnn.kernels.memory import new_rows
from tiergnn.kernels.rows import Columns, dense
from tiergnn.kernels.span import Span
from tiergnn.kernels.table import uniform
from tiergnn.kernels.threads import spread
from tiergnn.kernels.tile import Tile, tiles

Rows = Tensor | tuple[Tensor, ...]  # [S, D], or tables of such: see ``reference.weighted_sum``


def weighted_sum(
    rowptr: Tensor,
    col: Tensor,
    plan: list[Tensor],
    x_SD: Rows,
    weight_E: Tensor | None,
    edge_E: Tensor | None,
    mean: bool,
    shift: int = 0,
) -> Tensor:
    """As the reference."""
    x, columns, dtype = _rows_of(x_SD)
    num_rows = rowptr.numel() - 1
    out = new_rows(num_rows, columns, dtype)
    if not out.numel():
        return out
    starts, cols = rowptr.numpy(), col.numpy()
    num_tasks, step = even_tasks(num_rows, cols.size)
    pieces = [
        (tile, count, Columns.of(x, at, shift), Columns.of(out, at), weight,
         _sums(num_tasks, 3, tile.width))
        for tile, at, count, weight in _pieces(dtype, columns, weight_E, edge_E)
    ]  # fmt: skip

    def work(first: int, last: int) -> None:
        for tile, count, x_at, out_at, weight, carry in pieces:
            cpu_sum.sum_fwd_kernel(
                first, last, step, tile, count, starts, cols, weight, *x_at, *out_at, mean, carry
            )

    spread(work, num_tasks, cols.size * columns * dtype.itemsize)
    for tile, count, _, out_at, _, carry in pieces:
        cpu_sum.sum_close_kernel(step, tile, count, starts, *out_at, mean, carry)
    return out


def edge_dot(
    rowptr: Tensor,
    col: Tensor,
    plan: list[Tensor],
    g_PD: Tensor,
    x_SD: Rows,
    heads: int = 0,
    shift: int = 0,
) -> Tensor:
    """As the reference."""
    x, columns, dtype = _rows_of(x_SD)
    g, to = dense(g_PD), torch.promote_types(g_PD.dtype, dtype)
    g, x, dtype = g.to(to), x.to(to) if isinstance(x, Tensor) else x, to
    if isinstance(x, tuple) and x[0].dtype != to:
        x = tuple(table.to(to) for table in x)
    out = _edge_gradient(col, wide(dtype), heads)
    if not out.numel() or not columns:
        return out.zero_()
    starts, cols = rowptr.numpy(), col.numpy()
    num_tasks, step = even_tasks(starts.size - 1, cols.size)
    pieces = [
        (tile, count, Columns.of(g, at), Columns.of(x, at, shift), *to_edges)
        for tile, at, count, *to_edges in _edge_pieces(dtype, columns, out)
    ]

    def work(first: int, last: int) -> None:
        for tile, count, g_at, x_at, out_E, further in pieces:
            cpu_sum.edge_dot_kernel(
                first, last, step, tile, count, starts, cols, *g_at, *x_at, out_E, further
            )

    spread(work, num_tasks, cols.size * columns * dtype.itemsize)
    return out


def maximum(
    rowptr: Tensor,
    col: Tensor,
    plan: list[Tensor],
    x_SD: Rows,
    weight_E: Tensor | None,
    shift: int = 0,
) -> tuple[Tensor, Tensor]:
    """As the reference."""
    x, columns, dtype = _rows_of(x_SD)
    shape = rowptr.numel() - 1, columns
    out, ties = new_rows(*shape, dtype), new_rows(*shape, torch.int32)
    if not out.numel():
        return out, ties
    starts, cols = rowptr.numpy(), col.numpy()
    num_tasks, step = even_tasks(shape[0], cols.size)
    pieces = []
    for tile, at, count, weight in _pieces(dtype, columns, weight_E, None):
        parts = num_tasks, 2, tile.width
        best, num_ties = _sums(*parts), torch.empty(parts, dtype=torch.int32).numpy()
        where = Columns.of(x, at, shift), Columns.of(out, at)
        pieces.append((tile, at, count, weight, *where, best, num_ties))

    def work(first: int, last: int) -> None:
        for tile, at, count, weight, x_at, out_at, best, num_ties in pieces:
            ties_at = Columns.of(ties, at)
            cpu_max.max_fwd_kernel(
                first, last, step, tile, count, starts, cols, weight, *x_at, *out_at, *ties_at,
                best, num_ties,
            )  # fmt: skip

    spread(work, num_tasks)
    for tile, at, count, _, _, out_at, best, num_ties in pieces:
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
    starts, dst = rowptr_t.numpy(), dst_t.numpy()
    num_tasks, step = even_tasks(starts.size - 1, dst.size)
    pieces = []
    for tile, at, count, weight in _pieces(x.dtype, x.shape[1], weight_E, edge_t):
        columns = [Columns.of(rows, at) for rows in (x, share, out, grad)]
        carry = _sums(num_tasks, 3, tile.width)
        pieces.append((tile, _wide_tile(tile), count, weight, columns, carry))

    def work(first: int, last: int) -> None:
        for tile, share_tile, count, weight, columns, carry in pieces:
            flat = [number for column in columns for number in column]
            cpu_max.max_bwd_kernel(
                first, last, step, tile, share_tile, count, starts, dst, weight, *flat, carry
            )

    spread(work, num_tasks)
    for tile, _, count, _, columns, carry in pieces:
        cpu_sum.sum_close_kernel(step, tile, count, starts, *columns[-1], False, carry)
    return grad


def maximum_grad_weight(
    rowptr: Tensor,
    col: Tensor,
    plan: list[Tensor],
    share_PD: Tensor,
    out_PD: Tensor,
    x_SD: Rows,
    weight_E: Tensor,
    shift: int = 0,
) -> Tensor:
    """As the reference."""
    x, columns, dtype = _rows_of(x_SD)
    best, share = dense(out_PD), dense(share_PD)
    grad = _edge_gradient(col, wide(dtype), weight_E.shape[1] if weight_E.dim() > 1 else 0)
    if not grad.numel() or not columns:
        return grad.zero_()
    starts, cols = rowptr.numpy(), col.numpy()
    num_tasks, step = even_tasks(starts.size - 1, cols.size)
    pieces = []
    for (tile, at, count, weight), (*_, grad_E, further) in zip(
        _pieces(dtype, columns, weight_E, None), _edge_pieces(dtype, columns, grad), strict=True
    ):
        where = Columns.of(x, at, shift), Columns.of(share, at), Columns.of(best, at)
        pieces.append((tile, _wide_tile(tile), count, weight, where, grad_E, further))

    def work(first: int, last: int) -> None:
        for tile, share_tile, count, weight, where, grad_E, further in pieces:
            flat = [number for column in where for number in column]
            cpu_max.max_weight_kernel(
                first, last, step, tile, share_tile, count, starts, cols, weight, *flat,
                grad_E, further,
            )  # fmt: skip

    spread(work, num_tasks)
    return grad


def _rows_of(x: Rows) -> tuple[Rows, int, torch.dtype]:
    """Rows as kernels walk them, their columns and dtype."""
    if isinstance(x, tuple):
        tables = uniform(x)
        return tables, tables[0].shape[1], tables[0].dtype
    x = dense(x)
    return x, x.shape[1], x.dtype


def _pieces(
    dtype: torch.dtype, columns: int, weight: Tensor | None, edge_E: Tensor | None
) -> Iterator[tuple[Tile, int, int, Factors]]:
    """The pieces of rows (tile, first column, number of columns), and what multiplies each."""
    if weight is None or weight.dim() == 1:
        numbers = in_order(weight, edge_E, wide(dtype))
        yield from ((*piece, numbers) for piece in tiles(dtype, columns))
    elif weight.shape[1] == columns:
        rows = weight.detach().to(wide(dtype)).contiguous()
        order = None if edge_E is None else edge_E.numpy()
        for tile, at, count in tiles(dtype, columns):
            yield tile, at, count, EdgeRows(Span(rows), at, rows.stride(0), order)
    else:
        ordered = in_order(weight, edge_E, wide(dtype))
        assert ordered is not None
        for tile, at, count, head in _of_heads(dtype, columns, weight.shape[1]):
            yield tile, at, count, ordered[:, head]


def _edge_pieces(
    dtype: torch.dtype, columns: int, out: Tensor
) -> Iterator[tuple[Tile, int, int, Factors, bool]]:
    """The pieces of rows, where the gradients of edges go, and whether they are added there."""
    if out.dim() == 1:
        yield from ((*piece, out.numpy(), piece[1] > 0) for piece in tiles(dtype, columns))
    elif out.shape[1] == columns:
        for tile, at, count in tiles(dtype, columns):
            yield tile, at, count, EdgeRows(Span(out), at, out.stride(0), None), False
    else:
        width = columns // out.shape[1]
        for tile, at, count, head in _of_heads(dtype, columns, out.shape[1]):
            yield tile, at, count, out.numpy()[:, head], at > head * width


def _of_heads(dtype: torch.dtype, columns: int, heads: int) -> Iterator[tuple[Tile, int, int, int]]:
    """Pieces that lie within the columns of one head, and the head."""
    width = columns // heads
    for head in range(heads):
        for tile, at, count in tiles(dtype, width):
            yield tile, head * width + at, count, head


def _edge_gradient(col: Tensor, dtype: torch.dtype, heads: int) -> Tensor:
    shape = (col.numel(), heads) if heads else (col.numel(),)
    return torch.empty(shape, dtype=dtype)


def _wide_tile(tile: Tile) -> Tile:
    """The same piece of rows that are stored as they are computed with."""
    element = "float64" if tile.element == "float64" else "float32"
    return Tile(element, tile.width, tile.masked)


def _sums(*shape: int) -> np.ndarray:
    """Room for partial sums, float64, of torch's memory: whoever counts that counts it, too."""
    return torch.empty(shape, dtype=torch.float64).numpy()
