"""Dropout in Triton, bit for bit the reference's.

Legend: N rows, D columns.
"""

from __future__ import annotations

import struct

import torch
import triton
import triton.language as tl
from torch import Tensor

from tiergnn.kernels.aggregate.gpu import dense_rows, on
from tiergnn.kernels.aggregate.shapes import power_of_two
from tiergnn.kernels.launch import launch

_QUADS = 256  # groups of four columns of a program
_WIDEST = 64  # of them in a row


@triton.jit(do_not_specialize=["num_rows", "scale_bits", "threshold", "site"])
def dropout_kernel(
    x,
    gid,
    out,
    num_rows,
    scale_bits,
    threshold,
    key,
    site,
    STRIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    QUADS: tl.constexpr,
):
    """out [N, D] = x * scale where the element's word is at least the threshold, else 0.

    ``scale_bits`` are those of a float64, since a float that is passed has 32 bits.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    own = row < num_rows
    if gid is None:
        row_id = row
    else:
        row_id = tl.load(gid + row, mask=own, other=0)
    quad = tl.program_id(1) * QUADS + tl.arange(0, QUADS)
    zero = tl.zeros((ROWS, QUADS), tl.uint32)
    low = zero + (row_id & 0xFFFFFFFF).to(tl.uint32)[:, None]
    high = zero + ((row_id >> 32) & 0xFFFFFFFF).to(tl.uint32)[:, None]
    place = zero + quad.to(tl.uint32)[None, :]
    a, b, c, d = tl.philox(tl.load(key), low, high, place, zero + site.to(tl.uint32))
    word = tl.interleave(tl.interleave(a, c), tl.interleave(b, d))  # a b c d, a b c d ...
    column = tl.program_id(1) * QUADS * 4 + tl.arange(0, QUADS * 4)
    mask = own[:, None] & (column < COLUMNS)[None, :]
    value = tl.load(x + row[:, None] * STRIDE + column[None, :], mask=mask, other=0)
    scale = scale_bits.to(tl.float64, bitcast=True)
    if value.dtype == tl.float64:
        kept = value * scale
    else:
        kept = value.to(tl.float32) * scale.to(tl.float32)
    kept = tl.where(word.to(tl.int64) >= threshold, kept, 0.0)
    tl.store(out + row[:, None] * COLUMNS + column[None, :], kept.to(value.dtype), mask=mask)


def dropout(
    x_ND: Tensor,
    gid_N: Tensor | None,
    threshold: int,
    scale: float,
    key: Tensor,
    site: int,
) -> Tensor:
    """As the reference; reads and writes every element once."""
    x = dense_rows(x_ND)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not out.numel():
        return out
    columns = x.shape[1]
    quads = min(power_of_two(triton.cdiv(columns, 4)), _WIDEST)
    rows = _QUADS // quads
    given = {
        "x": x,
        "gid": None if gid_N is None else gid_N.contiguous(),
        "out": out,
        "num_rows": x.shape[0],
        "scale_bits": struct.unpack("<q", struct.pack("<d", scale or 1.0))[0],  # see the kernel
        "threshold": threshold,
        "key": key,
        "site": site,
        "STRIDE": x.stride(0),
        "COLUMNS": columns,
        "ROWS": rows,
        "QUADS": quads,
    }
    grid = triton.cdiv(x.shape[0], rows), triton.cdiv(columns, 4 * quads)
    with on(out):
        launch(dropout_kernel, grid, given, num_warps=4)
    return out
