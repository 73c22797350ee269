"""Rows in slices of a few columns, and the same rows as a block of all of these columns.

Legend: P rows, K slices, W columns of a slice.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tiergnn.kernels import backend

_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def join(slices_KPW: Tensor, block: Tensor) -> None:
    """Write slices beside each other into block [P, K W], in its dtype. No gradients."""
    _turn(slices_KPW, block, joins=True)


def split(block: Tensor, slices_KPW: Tensor) -> None:
    """Write columns of block [P, K W] into slices, in their dtype. No gradients."""
    _turn(slices_KPW, block, joins=False)


def _turn(slices: Tensor, block: Tensor, *, joins: bool) -> None:
    num_slices, _, width = slices.shape
    known = slices.dtype in _FLOATS and block.dtype in _FLOATS
    whole = slices.is_contiguous() and block.stride(1) == 1
    if known and whole and slices.numel() and backend.choose(block.device) == "gpu":
        from tiergnn.kernels.columns import gpu

        gpu.turn(slices, block, joins)
        return
    turned = block.unflatten(1, (num_slices, width)).transpose(0, 1)
    (turned if joins else slices).copy_(slices if joins else turned)
