"""Aggregation in Triton: rows as even tasks, gathered in tiles and summed in registers.

Within a task (at most ``tasks.MOST_DENSE`` edges) the dtype of the sum is float32, or float64 for
float64 rows. Sums of tasks that share a row are merged in float64, in a fixed order, so that a row
of 2**24 and more ones sums exactly. No atomics: the same input gives the same bits. Offsets of rows
have 64 bits.

Legend: P destinations, S sources, E edges, D columns, Q parts.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from tiergnn.kernels.aggregate.gpu_kernels import edge_kernel, sum_kernel
from tiergnn.kernels.aggregate.gpu_max import max_grad_kernel, max_kernel
from tiergnn.kernels.aggregate.reference import wide
from tiergnn.kernels.aggregate.shapes import (
    LINE_BYTES,
    VECTOR_BYTES,
    power_of_two,
    shape_of,
    vector_of,
)
from tiergnn.kernels.gpu_rows import beside, most_programs, table_of, vector_bytes
from tiergnn.kernels.launch import launch
from tiergnn.kernels.table import typical
from tiergnn.kernels.tasks import Tasks, cut_rows, launches

plan = cut_rows
Rows = Tensor | tuple[Tensor, ...]  # [S, D], or tables of such: see ``reference.weighted_sum``

LOADS = 8  # of rows that a thread has on their way at once
FEW_LOADS = 4  # the same where a kernel reads several rows an edge, or sums in float64
_FAR_SUMS = 4  # programs, of a warp each: see ``most_programs``
_REUSE = 8  # edges a row from which on a copy pays that aligns the rows


def weighted_sum(
    rowptr: Tensor,
    col: Tensor,
    plan: Tasks,
    x_SD: Rows,
    weight_E: Tensor | None,
    edge_E: Tensor | None,
    mean: bool,
    shift: int = 0,
) -> Tensor:
    """As the reference; summed as the head of this file says."""
    like = x_SD[0] if isinstance(x_SD, tuple) else x_SD
    columns = like.shape[1]
    out = torch.empty(rowptr.numel() - 1, columns, dtype=like.dtype, device=col.device)
    if not out.numel():
        return out
    x = x_SD if isinstance(x_SD, tuple) else aligned(dense_rows(x_SD), col.numel())
    x, rows = _rows_of(x, shift, col.device)
    weight = None if weight_E is None else weight_E.detach().contiguous()
    edge = None if weight is None else edge_E
    with on(out):
        part = _parts_of(plan, x.shape[1], wide(x.dtype), out.device)
        more = rows | {"col": col, "weight": weight, "edge": edge, "out": out, "part": part}
        more |= {"rowptr": None, "COLUMNS": columns, "MEAN": mean, **_heads(weight, columns)}
        tables = x_SD if isinstance(x_SD, tuple) else ()
        most = most_programs(tables, out.device, _FAR_SUMS)
        more["FAR"] = most is not None
        for grid, given in over(plan, x, LOADS, vector=rows["LOAD"]):
            launch(sum_kernel, beside(grid, most), given | more)
        merge_sums(plan, part, rowptr if mean else None, out)
    return out


def merge_sums(tasks: Tasks, part: Tensor | None, rowptr: Tensor | None, out: Tensor) -> None:
    """Add up the parts [Q, D] of rows of out [P, D] that several tasks share, in float64.

    Columns of ``part`` beyond those of out are padding. With ``rowptr`` sums become means.
    """
    while tasks.merge is not None:
        assert part is not None
        order, tasks, table = tasks.order, tasks.merge, part
        part = _parts_of(tasks, table.shape[1], torch.float64, out.device)
        more = {"col": order, "weight": None, "edge": None, "out": out, "part": part}
        more |= _heads(None, 0) | table_of((table,), 0, out.device, table.shape[1])
        more |= {"rowptr": rowptr, "COLUMNS": out.shape[1], "MEAN": rowptr is not None}
        more["FAR"] = False
        for grid, given in over(tasks, table, FEW_LOADS, merge=True):
            launch(sum_kernel, grid, given | more)


def edge_dot(
    rowptr: Tensor,
    col: Tensor,
    plan: Tasks,
    g_PD: Tensor,
    x_SD: Rows,
    heads: int = 0,
    shift: int = 0,
) -> Tensor:
    """As the reference."""
    return _edge_products(col, plan, g_PD, x_SD, None, None, heads, shift)


def maximum_grad_weight(
    rowptr: Tensor,
    col: Tensor,
    plan: Tasks,
    share_PD: Tensor,
    out_PD: Tensor,
    x_SD: Rows,
    weight_E: Tensor,
    shift: int = 0,
) -> Tensor:
    """As the reference."""
    heads = weight_E.shape[1] if weight_E.dim() > 1 else 0
    return _edge_products(col, plan, share_PD, x_SD, weight_E, out_PD, heads, shift)


def _edge_products(
    col: Tensor,
    tasks: Tasks,
    g_PD: Tensor,
    x_SD: Rows,
    weight_E: Tensor | None,
    best_PD: Tensor | None,
    heads: int,
    shift: int,
) -> Tensor:
    g = dense_rows(g_PD)
    x = x_SD if isinstance(x_SD, tuple) else dense_rows(x_SD)
    x, rows = _rows_of(x, shift, col.device)
    shape, columns = (col.numel(), heads) if heads else (col.numel(),), x.shape[1]
    out = torch.empty(shape, dtype=wide(x.dtype), device=col.device)
    if not columns or not out.numel():
        return out.zero_()
    weight = None if weight_E is None else weight_E.detach().contiguous()
    with on(out):
        more = rows | {"g": g, "col": col, "weight": weight, "best": best_PD, "out": out}
        more |= {"G_STRIDE": g.stride(0), "HEADS": heads, "FEATURES": columns // max(1, heads)}
        for (programs, blocks), given in over(tasks, x, FEW_LOADS, vector=rows["LOAD"]):
            across = blocks if heads == columns else max(1, heads)
            launch(edge_kernel, (programs, across), given | more)
    return out


def maximum(
    rowptr: Tensor,
    col: Tensor,
    plan: Tasks,
    x_SD: Rows,
    weight_E: Tensor | None,
    shift: int = 0,
) -> tuple[Tensor, Tensor]:
    """As the reference."""
    x = x_SD if isinstance(x_SD, tuple) else dense_rows(x_SD)
    table, rows = _rows_of(x, shift, col.device)
    columns = table.shape[1]
    out = torch.empty(rowptr.numel() - 1, columns, dtype=table.dtype, device=col.device)
    ties = torch.empty(out.shape, dtype=torch.int32, device=out.device)
    if not out.numel():
        return out, ties
    weight = None if weight_E is None else weight_E.detach().contiguous()
    tasks, count, sources = plan, None, col
    with on(out):
        while True:
            part_out = _parts_of(tasks, columns, out.dtype, out.device)
            part_ties = _parts_of(tasks, columns, torch.int32, out.device)
            more = rows | {"col": sources, "weight": weight, "count": count, "out": out}
            more |= {"ties": ties, "part_out": part_out, "part_ties": part_ties}
            more |= _heads(weight, columns)
            for grid, given in over(tasks, table, FEW_LOADS, vector=rows["LOAD"]):
                launch(max_kernel, grid, given | more)
            if tasks.merge is None or part_out is None:
                return out, ties
            sources, tasks = tasks.order, tasks.merge
            table, rows = _rows_of(part_out, 0, col.device)
            count, weight = part_ties, None


def maximum_grad_x(
    rowptr_t: Tensor,
    dst_t: Tensor,
    edge_t: Tensor,
    plan_t: Tasks,
    share_PD: Tensor,
    out_PD: Tensor,
    x_SD: Tensor,
    weight_E: Tensor | None,
) -> Tensor:
    """As the reference."""
    x, share = dense_rows(x_SD), share_PD.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not out.numel():
        return out
    weight = None if weight_E is None else weight_E.detach().contiguous()
    edge = None if weight is None else edge_t
    with on(out):
        part = _parts_of(plan_t, out.shape[1], wide(x.dtype), out.device)
        more = {"share": share, "best": out_PD, "x": x, "dst": dst_t, "weight": weight}
        more |= {"edge": edge, "out": out, "part": part, **_heads(weight, out.shape[1])}
        for grid, given in over(plan_t, x, FEW_LOADS):
            launch(max_grad_kernel, grid, given | more)
        merge_sums(plan_t, part, None, out)
    return out


def over(
    tasks: Tasks, x: Tensor, loads: int, *, merge: bool = False, vector: int | None = None
) -> list[tuple[tuple[int, int], dict[str, Any]]]:
    """The grid and arguments of each launch over all tasks of a kernel that gathers rows of x.

    ``vector``: elements that one load takes of rows, where x is not all that is read. ``merge``: x
    holds parts, to be summed in float64; few to a row, so that one tile suits all.
    The arguments are kept, and not to be written.
    """
    columns, vector = x.shape[1], vector or vector_of(x, x.shape[1])
    key = "aggregate", columns, x.stride(0), x.dtype, vector, loads, merge
    if key not in tasks.kept:
        tasks.kept[key] = [
            (
                (triton.cdiv(span.last - span.first, tile.rows), triton.cdiv(columns, tile.block)),
                {
                    "row": tasks.row,
                    "start": tasks.start,
                    "size": tasks.size,
                    "first": span.first,
                    "last": span.last,
                    "num_parts": tasks.num_parts,
                    "STRIDE": x.stride(0),
                    "WIDTH": columns,
                    "SUM": tl.float64 if merge or x.dtype == torch.float64 else tl.float32,
                    "BLOCK": tile.block,
                    "ROWS": tile.rows,
                    "UNROLL": tile.unroll,
                    "LANES": tile.lanes,
                },
            )
            for span, tile in launches(
                tasks,
                lambda longest: shape_of(
                    columns, x.element_size(), vector, 0 if merge else longest, loads
                ),
            )
        ]
    return tasks.kept[key]


def _rows_of(x: Rows, shift: int, device: torch.device) -> tuple[Tensor, dict[str, Any]]:
    """A tensor like all that is read, what kernels are given, and elements of a load (LOAD)."""
    tables = x if isinstance(x, tuple) else (x,)
    like = typical(tables) if shift else tables[0]
    size, columns = like.element_size(), like.shape[1]
    addresses = tuple(table.data_ptr() for table in tables)
    load = vector_bytes(addresses, like.stride(0) * size, columns * size) // size
    return like, table_of(tables, shift, device, columns) | {"LOAD": load}


def _heads(weight: Tensor | None, columns: int) -> dict[str, int]:
    heads = 0 if weight is None or weight.dim() == 1 else weight.shape[1]
    return {"HEADS": heads, "FEATURES": columns // max(1, heads)}


def dense_rows(x: Tensor) -> Tensor:
    """x itself when its rows are contiguous (whatever lies between them), else a copy."""
    return x if x.stride(1) == 1 or x.shape[1] <= 1 else x.contiguous()


def aligned(x: Tensor, num_edges: int) -> Tensor:
    """x, or a copy whose rows do not straddle cache lines, where its gathers pay for it.

    The result has columns of zeros added up to whole vectors; its rows are whole lines apart, or a
    power of two when they are shorter than one.
    """
    size = x.element_size()
    width = x.shape[1] * size
    apart = power_of_two(width) if width < LINE_BYTES else -(-width // LINE_BYTES) * LINE_BYTES
    straddles = x.stride(0) * size % min(apart, LINE_BYTES) or x.data_ptr() % VECTOR_BYTES
    if not straddles or num_edges < _REUSE * x.shape[0]:
        return x
    vector = min(apart, VECTOR_BYTES)
    return pad(x, (0, apart // size - x.shape[1]))[:, : -(-width // vector) * vector // size]


def _parts_of(
    tasks: Tasks, columns: int, dtype: torch.dtype, device: torch.device
) -> Tensor | None:
    if not tasks.num_parts:
        return None
    return torch.empty(tasks.num_parts, columns, dtype=dtype, device=device)


def on(tensor: Tensor) -> AbstractContextManager:
    """Triton launches on the current device, which must be the tensor's."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()
