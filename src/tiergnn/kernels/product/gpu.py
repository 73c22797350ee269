"""Products of float32 rows on tensor cores, about as exact as in float32, in Triton.

Sums over rows are of shares of them, which are added up in their order, in float64: the same input
gives the same bits. No atomics.

Legend: P rows, D in-features, F out-features.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from tiergnn.kernels.aggregate.gpu import dense_rows, on
from tiergnn.kernels.launch import launch
from tiergnn.kernels.product.gpu_kernels import rows_kernel, split_kernel, weight_kernel
from tiergnn.kernels.product.shapes import Tile, rows_tile, shares_of, weight_tile

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
            **_of_tile(tile, out),
        }
        tiles = triton.cdiv(x.shape[0], tile.rows) * (parts.shape[1] // tile.columns)
        launch(rows_kernel, (tiles, 1), given, num_warps=tile.warps, num_stages=tile.stages)
    return out


def _parts_of(weight_NK: Tensor, tile: Tile) -> Tensor:
    """The parts [tile.parts, N, K] of a weight, N and K padded to whole tiles."""
    weight = weight_NK.detach()
    outer, inner = (
        triton.cdiv(size, by) * by
        for size, by in zip(weight.shape, (tile.columns, tile.depth), strict=True)
    )
    dtype = torch.float32 if tile.parts == 2 else torch.bfloat16
    parts = torch.empty(tile.parts, outer, inner, dtype=dtype, device=weight.device)
    given = {
        "weight": weight,
        "out": parts,
        "N_STEP": weight.stride(0),
        "K_STEP": weight.stride(1),
        "N": weight.shape[0],
        "K": weight.shape[1],
        "N_PADDED": outer,
        "K_PADDED": inner,
        "PARTS": tile.parts,
        "BLOCK": _SPLIT,
    }
    launch(split_kernel, (triton.cdiv(outer * inner, _SPLIT), 1), given, num_warps=4)
    return parts


def product_grad_weight(
    grad_PF: Tensor, x_PD: Tensor, with_bias: bool, tile: Tile | None = None
) -> tuple[Tensor, Tensor | None]:
    """The gradients of the weight and, ``with_bias``, of the bias, as the reference, of float32."""
    grad, x = dense_rows(grad_PF), dense_rows(x_PD)
    swapped = grad.shape[1] < x.shape[1]  # tensor cores take no less than 64 columns on the left
    left, right = (x, grad) if swapped else (grad, x)
    (num_rows, rows), columns = left.shape, right.shape[1]
    device = grad.device
    if not (num_rows and rows and columns):
        weight = torch.zeros(grad.shape[1], x.shape[1], dtype=grad.dtype, device=device)
        return weight, grad.sum(0) if with_bias else None
    tile = tile or weight_tile(rows, columns)
    tiles = triton.cdiv(rows, tile.rows) * triton.cdiv(columns, tile.columns)
    shares, share = shares_of(num_rows, tiles, tile.depth)
    part = torch.empty(shares, rows, columns, dtype=torch.float32, device=device)
    sums = None
    if with_bias:
        sums = torch.empty(shares, grad.shape[1], dtype=torch.float32, device=device)
    given = {
        "left": left,
        "right": right,
        "part": part,
        "sums": sums,
        "num_rows": num_rows,
        "share": share,
        "LEFT_STRIDE": left.stride(0),
        "RIGHT_STRIDE": right.stride(0),
        "LEFT": rows,
        "RIGHT": columns,
        "SUMS_LEFT": not swapped,
        **_of_tile(tile, grad),
    }
    with on(grad):
        launch(weight_kernel, (tiles, shares), given, num_warps=tile.warps, num_stages=tile.stages)
    weight = _added(part)
    return weight.T.contiguous() if swapped else weight, None if sums is None else _added(sums)


def _added(part: Tensor) -> Tensor:
    return part.sum(0, dtype=torch.float64).to(part.dtype)


def _of_tile(tile: Tile, like: Tensor) -> dict[str, int | bool]:
    return {
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "DEPTH": tile.depth,
        "PARTS": tile.parts,
        "APART": tile.apart,
        "CUT": is_interpreted(like.device),
    }


def is_interpreted(device: torch.device) -> bool:
    """Whether nothing cuts float32 off to tf32 where it is multiplied."""
    return device.type != "cuda"
