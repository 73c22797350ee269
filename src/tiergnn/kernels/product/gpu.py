"""Products of float32 rows on tensor cores, about as exact as in float32, in Triton.

Every number is one program's, in a fixed order: the same input gives the same bits.

Legend: P rows, D in-features, F out-features.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from tiergnn.kernels.aggregate.gpu import dense_rows, on
from tiergnn.kernels.launch import launch
from tiergnn.kernels.product.gpu_kernels import rows_kernel, split_kernel
from tiergnn.kernels.product.shapes import Tile, rows_tile

_SPLIT = 1024  # numbers of a weight that a program splits


def product(
    x_PD: Tensor, weight_FD: Tensor, bias_F: Tensor | None, tile: Tile | None = None
) -> Tensor:
    """As the reference, of float32."""
    return _rows_times(x_PD, weight_FD, bias_F, tile)


def product_grad_rows(grad_PF: Tensor, weight_FD: Tensor, tile: Tile | None = None) -> Tensor:
    """As the reference, of float32."""
    return _rows_times(grad_PF, weight_FD.T, None, tile)


def _rows_times(
    x_PK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, tile: Tile | None
) -> Tensor:
    """x weight^T + bias: [P, N]."""
    x, (outer, inner) = dense_rows(x_PK), weight_NK.shape
    out = torch.empty(x.shape[0], outer, dtype=x.dtype, device=x.device)
    if not out.numel():
        return out
    if not inner:
        return out.zero_() if bias_N is None else out.copy_(bias_N.expand_as(out))
    tile = tile or rows_tile(inner, outer)
    with on(out):
        parts = _parts_of(weight_NK, tile)
        given = {
            "x": x,
            "parts": parts,
            "bias": None if bias_N is None else bias_N.detach().contiguous(),
            "out": out,
            "num_rows": x.shape[0],
            "X_STRIDE": x.stride(0),
            "K": inner,
            "N": outer,
            "K_PADDED": parts.shape[2],
            "N_PADDED": parts.shape[1],
            "ROWS": tile.rows,
            "COLUMNS": tile.columns,
            "DEPTH": tile.depth,
            "CUT": is_interpreted(out.device),
        }
        tiles = triton.cdiv(x.shape[0], tile.rows) * (parts.shape[1] // tile.columns)
        launch(rows_kernel, (tiles, 1), given, num_warps=tile.warps, num_stages=tile.stages)
    return out


def _parts_of(weight_NK: Tensor, tile: Tile) -> Tensor:
    """The two parts [2, N, K] of a weight, N and K padded to whole tiles."""
    weight = weight_NK.detach()
    outer, inner = (
        triton.cdiv(size, by) * by
        for size, by in zip(weight.shape, (tile.columns, tile.depth), strict=True)
    )
    parts = torch.empty(2, outer, inner, dtype=weight.dtype, device=weight.device)
    given = {
        "weight": weight,
        "out": parts,
        "N_STEP": weight.stride(0),
        "K_STEP": weight.stride(1),
        "N": weight.shape[0],
        "K": weight.shape[1],
        "N_PADDED": outer,
        "K_PADDED": inner,
        "BLOCK": _SPLIT,
    }
    launch(split_kernel, (triton.cdiv(outer * inner, _SPLIT), 1), given, num_warps=4)
    return parts


def is_interpreted(device: torch.device) -> bool:
    """Whether nothing cuts float32 off to tf32 where it is multiplied."""
    return device.type != "cuda"
