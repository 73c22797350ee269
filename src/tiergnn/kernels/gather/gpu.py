"""Rows moved by Triton: a program takes some rows and a piece of their columns.

Legend: N rows, M indices, D columns.
"""

# Triton's annotations do not know what a kernel's numbers are.
# pyright: reportArgumentType=false, reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from tiergnn.kernels.aggregate.gpu import dense_rows, on
from tiergnn.kernels.aggregate.shapes import power_of_two
from tiergnn.kernels.gpu_rows import beside, most_programs, places_at, table_of
from tiergnn.kernels.launch import launch

NUMBERS = 2048  # of a program: rows by columns
_WIDEST = 512  # columns
_WARPS = 4
_FAR = 0.25  # programs: see ``most_programs``


@triton.jit(do_not_specialize=["num_indices"])
def move_kernel(
    x,
    at,
    target,
    out,
    num_indices,
    STRIDE: tl.constexpr,
    OUT_STRIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
    SHIFT: tl.constexpr,
    ELEMENT: tl.constexpr,
    VECTOR: tl.constexpr,
    ADD: tl.constexpr,
    SUM: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out[target[m]] = the row of x at place at[m], or += in SUM with ADD; None: m itself.

    Programs that are fewer than the tiles of rows take them in turns.
    """
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    for tile in range(tl.program_id(0), tl.cdiv(num_indices, ROWS), tl.num_programs(0)):
        m = (tl.zeros((ROWS,), tl.int64) + tile) * ROWS + tl.arange(0, ROWS)
        own = m < num_indices
        mask = own[:, None] & (d < COLUMNS)[None, :]
        source, place = m, m
        if at is not None:
            source = tl.load(at + m, mask=own, other=0)
        if target is not None:
            place = tl.load(target + m, mask=own, other=0).to(tl.int64)
        rows = places_at(x, source, own, STRIDE, SHIFT, ELEMENT, VECTOR)
        value = tl.load(rows[:, None] + d[None, :], mask=mask, other=0)
        to = out + (place * OUT_STRIDE)[:, None] + d[None, :]
        if ADD:
            value = value.to(SUM) + tl.load(to, mask=mask, other=0).to(SUM)
        if out.dtype.element_ty != tl.float64:  # no direct way from float64 to 16 bits
            value = value.to(tl.float32)
        tl.store(to, value.to(out.dtype.element_ty), mask=mask)


def move(
    tables: tuple[Tensor, ...],
    at_M: Tensor | None,
    shift: int,
    out_ND: Tensor,
    target_M: Tensor | None,
    add: bool,
) -> None:
    """As the reference; tables and out may lie in pinned host memory."""
    index = target_M if at_M is None else at_M
    assert index is not None
    if not shift:
        tables = (dense_rows(tables[0]),)
    columns = out_ND.shape[1]
    block = min(power_of_two(columns), _WIDEST)
    rows = max(1, NUMBERS // block)
    wide = tl.float64 if out_ND.element_size() == 8 else tl.float32
    given = table_of(tables, shift, index.device, columns)
    given |= {
        "at": None if at_M is None else at_M.contiguous(),
        "target": None if target_M is None else target_M.contiguous(),
        "out": out_ND,
        "num_indices": index.numel(),
        "OUT_STRIDE": out_ND.stride(0),
        "COLUMNS": columns,
        "ADD": add,
        "SUM": wide,
        "ROWS": rows,
        "BLOCK": block,
    }
    grid = triton.cdiv(index.numel(), rows), triton.cdiv(columns, block)
    most = most_programs((*tables, out_ND), index.device, _FAR)
    with on(index):
        launch(move_kernel, beside(grid, most), given, num_warps=_WARPS)
