"""Slices turned into a block and back by Triton: a program takes some rows of all slices, so that
what it reads and writes of either are whole cache lines.

Legend: P rows, K slices, W columns of a slice.
"""

# Triton's annotations do not know what a kernel's numbers are.
# pyright: reportArgumentType=false, reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from tiergnn.kernels.aggregate.gpu import on
from tiergnn.kernels.aggregate.shapes import power_of_two
from tiergnn.kernels.launch import launch

_NUMBERS = 4096  # of a program: rows by columns
_WIDEST = 256  # columns
_WARPS = 4


@triton.jit(do_not_specialize=["num_rows", "block_stride"])
def turn_kernel(
    slices,
    block,
    num_rows,
    block_stride,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    JOINS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """block[p, k W + w] = slices[k, p, w], or the other way."""
    p = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = (p < num_rows)[:, None] & (d < COLUMNS)[None, :]
    starts = (d // WIDTH).to(tl.int64) * num_rows * WIDTH + d % WIDTH
    apart = slices + starts[None, :] + (p * WIDTH)[:, None]
    beside = block + (p * block_stride)[:, None] + d[None, :]
    value = tl.load(apart if JOINS else beside, mask=mask, other=0)
    out = beside if JOINS else apart
    if out.dtype.element_ty != tl.float64:  # no direct way from float64 to 16 bits
        value = value.to(tl.float32)
    tl.store(out, value.to(out.dtype.element_ty), mask=mask)


def turn(slices_KPW: Tensor, block: Tensor, joins: bool) -> None:
    """From slices to block [P, K W] (``joins``), or back."""
    _, num_rows, width = slices_KPW.shape
    columns = block.shape[1]
    size = min(power_of_two(columns), _WIDEST)
    rows = _NUMBERS // size
    given = {
        "slices": slices_KPW,
        "block": block,
        "num_rows": num_rows,
        "block_stride": block.stride(0),
        "COLUMNS": columns,
        "WIDTH": width,
        "JOINS": joins,
        "ROWS": rows,
        "BLOCK": size,
    }
    with on(block):
        grid = triton.cdiv(num_rows, rows), triton.cdiv(columns, size)
        launch(turn_kernel, grid, given, num_warps=_WARPS)
