"""The epilogue in Triton: one pass over tiles of rows, and one back.

Backward's programs walk the rows in strides and add columns in float64; what each found is added up
in their order. Their number depends on nothing, so that the same input gives the same bits.

Legend: P rows, D columns.
"""

from __future__ import annotations

import struct
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tiergnn.kernels.aggregate.gpu import dense_rows, on
from tiergnn.kernels.aggregate.reference import wide
from tiergnn.kernels.aggregate.shapes import power_of_two
from tiergnn.kernels.epilogue.gpu_kernels import epilogue_grad_kernel, epilogue_kernel
from tiergnn.kernels.epilogue.reference import ACTS, Grads, Options, Terms
from tiergnn.kernels.launch import launch

PROGRAMS = 1024  # that add up columns
_QUADS = 256  # groups of four columns of a tile
_WIDEST = 64  # of them in a row
_WARPS = 4


def epilogue(x_PD: Tensor, terms: Terms, options: Options) -> Tensor:
    """As the reference."""
    x = dense_rows(x_PD)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not out.numel():
        return out
    rows, quads = _tile(x.shape[1])
    given = _given(x.shape, x.dtype, terms, options) | _rows(x=x) | {"out": out}
    grid = triton.cdiv(x.shape[0], rows), triton.cdiv(x.shape[1], 4 * quads)
    with on(out):
        launch(epilogue_kernel, grid, given, num_warps=_WARPS)
    return out


def epilogue_grad(
    grad_PD: Tensor,
    out_PD: Tensor | None,
    x_PD: Tensor | None,
    terms: Terms,
    options: Options,
    needs: tuple[bool, bool],
) -> Grads:
    """As the reference."""
    grad = dense_rows(grad_PD)
    of_x, of_other = (
        torch.empty(grad.shape, dtype=grad.dtype, device=grad.device) if need else None
        for need in needs
    )
    columns, sums = grad.shape[1], 2 if x_PD is not None else 1
    part = torch.zeros(PROGRAMS, sums, columns, dtype=torch.float64, device=grad.device)
    if grad.numel():
        given = _given(grad.shape, grad.dtype, terms, options)
        given |= _rows(grad=grad, out=out_PD, x=x_PD)
        given |= {"grad_x": of_x, "grad_other": of_other, "part": part, "SUMS": sums}
        with on(grad):
            grid = PROGRAMS, triton.cdiv(columns, 4 * _tile(columns)[1])
            launch(epilogue_grad_kernel, grid, given, num_warps=_WARPS)
    total = part.sum(0).to(wide(grad.dtype))
    if sums == 1:
        total = torch.cat([total, torch.zeros_like(total)])
    return Grads(of_x, of_other, total)


def _tile(columns: int) -> tuple[int, int]:
    """Rows of a tile and its groups of four columns."""
    quads = min(power_of_two(triton.cdiv(columns, 4)), _WIDEST)
    return _QUADS // quads, quads


def _rows(**rows: Tensor | None) -> dict[str, Any]:
    """Tensors of rows by name, and their strides."""
    dense = {name: None if x is None else dense_rows(x) for name, x in rows.items()}
    strides = {
        f"{name.upper()}_STRIDE": x.stride(0) if x is not None else 0 for name, x in dense.items()
    }
    return dense | strides


def _given(shape: torch.Size, dtype: torch.dtype, terms: Terms, options: Options) -> dict[str, Any]:
    """What both kernels take of the terms, the options and the shape of a tile."""
    num_rows, columns = shape
    rows, quads = _tile(columns)
    given: dict[str, Any] = _rows(other=terms.other)
    for name in ("loop", "scale", "post"):
        number = getattr(terms, name)
        given[name] = None if number is None else number.detach().contiguous()
        given[f"{name.upper()}_STEP"] = 0 if number is None or number.numel() == 1 else 1
    for name in ("shift", "gain", "bias", "gid"):
        number = getattr(terms, name)
        given[name] = None if number is None else number.detach().contiguous()
    return given | {
        "num_rows": num_rows,
        "factor_bits": struct.unpack("<q", struct.pack("<d", options.factor))[0],
        "threshold": options.threshold,
        "key": options.key,
        "site": options.site,
        "ACT": ACTS.index(options.act),
        "SLOPE": float(options.slope),
        "DROPS": options.threshold > 0,
        "SUM": tl.float64 if dtype == torch.float64 else tl.float32,
        "COLUMNS": columns,
        "ROWS": rows,
        "QUADS": quads,
    }
