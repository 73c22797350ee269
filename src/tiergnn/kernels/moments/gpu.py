"""Moments in Triton: one pass over tiles of rows, a merge of what programs found, one pass back.

A tile stays in registers for its mean and its deviations. Every program takes one stretch of the
rows; their number depends on nothing, nor does the order in which they are merged.

Legend: P rows, D columns.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tiergnn.kernels.aggregate.gpu import dense_rows, on
from tiergnn.kernels.aggregate.reference import wide
from tiergnn.kernels.aggregate.shapes import power_of_two
from tiergnn.kernels.launch import launch
from tiergnn.kernels.moments.gpu_kernels import merge_kernel, moments_grad_kernel, moments_kernel

PROGRAMS = 512  # that take moments: a power of two; all of them are at work at once
ELEMENTS = 4096  # of a tile; half of float64
_GRAD_ELEMENTS = 1024
_WIDEST = 64  # columns of a tile
_MERGED = 4  # columns that a program merges
_WARPS, _MERGE_WARPS = 4, 8


def moments(x_PD: Tensor) -> Tensor:
    """As the reference, as the head of this file says."""
    x = dense_rows(x_PD.detach())
    num_rows, columns = x.shape
    if not x.numel():
        return x.new_zeros(3, columns, dtype=wide(x.dtype))
    values = torch.empty(3, columns, dtype=wide(x.dtype), device=x.device)
    part = torch.empty(PROGRAMS, 2, columns, dtype=torch.float64, device=x.device)
    rows, width = _tile(columns, ELEMENTS // (2 if x.dtype == torch.float64 else 1))
    given = {
        "x": x,
        "part": part,
        "values": values,
        "num_rows": num_rows,
        "share": rows * triton.cdiv(triton.cdiv(num_rows, rows), PROGRAMS),
        "SUM": _sum(x),
        "X_STRIDE": x.stride(0),
        "COLUMNS": columns,
        "PROGRAMS": PROGRAMS,
        "ROWS": rows,
        "WIDTH": width,
    }
    with on(x):
        grid = PROGRAMS, triton.cdiv(columns, width)
        launch(moments_kernel, grid, given, num_warps=_WARPS)
        grid = 1, triton.cdiv(columns, _MERGED)
        launch(merge_kernel, grid, given | {"WIDTH": _MERGED}, num_warps=_MERGE_WARPS)
    return values


def moments_grad(
    x_PD: Tensor,
    values: Tensor,
    grad: Tensor,
    more_PD: Tensor | None = None,
    out_PD: Tensor | None = None,
) -> Tensor:
    """As the reference."""
    x, more = dense_rows(x_PD), None if more_PD is None else dense_rows(more_PD)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out_PD is None else out_PD
    if not out.numel():
        return out
    rows, width = _tile(x.shape[1], _GRAD_ELEMENTS)
    given = {
        "x": x,
        "more": more,
        "values": values.contiguous(),
        "grad": grad.contiguous(),
        "out": out,
        "num_rows": x.shape[0],
        "SUM": _sum(x),
        "X_STRIDE": x.stride(0),
        "MORE_STRIDE": 0 if more is None else more.stride(0),
        "OUT_STRIDE": out.stride(0),
        "COLUMNS": x.shape[1],
        "ROWS": rows,
        "WIDTH": width,
    }
    with on(x):
        grid = triton.cdiv(x.shape[0], rows), triton.cdiv(x.shape[1], width)
        launch(moments_grad_kernel, grid, given, num_warps=_WARPS)
    return out


def _sum(x: Tensor) -> tl.dtype:
    return tl.float64 if x.dtype == torch.float64 else tl.float32


def _tile(columns: int, elements: int) -> tuple[int, int]:
    """Rows and columns of a tile."""
    width = min(power_of_two(columns), _WIDEST)
    return elements // width, width
