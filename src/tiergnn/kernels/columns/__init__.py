"""Rows in slices of a few columns, and the same rows as a block of all of these columns.

Legend: P rows, K slices, W columns of a slice.
"""

from __future__ import annotations

from torch import Tensor

from tiergnn.errors import ConfigError
from tiergnn.kernels import backend
from tiergnn.kernels.arguments import FLOATS, check_device, told


def join(slices_KPW: Tensor, block: Tensor) -> None:
    """Write slices beside each other into block [P, K W], in its dtype. No gradients.

    Raises ConfigError for shapes or devices that do not fit.
    """
    _turn(slices_KPW, block, joins=True)


def split(block: Tensor, slices_KPW: Tensor) -> None:
    """Write columns of block [P, K W] into slices, in their dtype. No gradients.

    Raises ConfigError for shapes or devices that do not fit.
    """
    _turn(slices_KPW, block, joins=False)


def _turn(slices: Tensor, block: Tensor, *, joins: bool) -> None:
    if slices.dim() != 3:
        raise ConfigError(f"slices need [K, P, W], have {told(slices)}")
    num_slices, num_rows, width = slices.shape
    if tuple(block.shape) != (num_rows, num_slices * width):
        raise ConfigError(
            f"the block of slices {list(slices.shape)} needs "
            f"[{num_rows}, {num_slices * width}], has {told(block)}"
        )
    check_device("the block", block, slices.device, "the slices")
    known = slices.dtype in FLOATS and block.dtype in FLOATS
    whole = slices.is_contiguous() and block.stride(1) == 1
    if known and whole and slices.numel() and backend.choose(block.device) == "gpu":
        from tiergnn.kernels.columns import gpu

        gpu.turn(slices, block, joins)
        return
    turned = block.unflatten(1, (num_slices, width)).transpose(0, 1)
    (turned if joins else slices).copy_(slices if joins else turned)
