"""Rows in slices of a few columns, and the same rows as a block of all of these columns.

Legend: P rows, K slices, W columns of a slice.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tiergnn.errors import ConfigError
from tiergnn.kernels import backend
from tiergnn.kernels.arguments import FLOATS, check_device, told


def join(slices: Tensor | Sequence[Tensor], block: Tensor) -> None:
    """Write slices [K, P, W] beside each other into block [P, K W], in its dtype; or one or more
    [P, W] of one dtype, of any widths. No gradients.

    Raises ConfigError for shapes or devices that do not fit.
    """
    _turn(slices, block, joins=True)


def split(block: Tensor, slices: Tensor | Sequence[Tensor]) -> None:
    """Write the columns of a block into slices, in their dtype; all as for ``join``.

    Raises ConfigError for shapes or devices that do not fit.
    """
    _turn(slices, block, joins=False)


def _turn(slices: Tensor | Sequence[Tensor], block: Tensor, *, joins: bool) -> None:
    stacked = isinstance(slices, Tensor)
    if stacked and slices.dim() != 3:
        raise ConfigError(f"slices need [K, P, W], have {told(slices)}")
    apart = list(slices)
    one, widths = apart[0], [each.shape[-1] for each in apart]
    if any(each.dim() != 2 or len(each) != len(one) or each.dtype != one.dtype for each in apart):
        raise ConfigError(f"slices need [P, W] of one dtype, have {', '.join(map(told, apart))}")
    if tuple(block.shape) != (len(one), sum(widths)):
        raise ConfigError(
            f"the block of slices {told(one)} ... needs [{len(one)}, {sum(widths)}], "
            f"has {told(block)}"
        )
    for each in apart:
        check_device("the block", block, each.device, "the slices")
    known = one.dtype in FLOATS and block.dtype in FLOATS and block.stride(1) == 1
    runs = backend.choose(block.device) if known and block.numel() else "reference"
    if runs == "gpu" and stacked and slices.is_contiguous():
        from tiergnn.kernels.columns import gpu

        gpu.turn(slices, block, joins)
    elif runs == "cpu" and all(each.stride(1) == 1 for each in apart):
        from tiergnn.kernels.columns import cpu

        cpu.turn(apart, block, joins)
    else:
        for each, columns in zip(apart, block.split(widths, 1), strict=True):
            (columns if joins else each).copy_(each if joins else columns)
