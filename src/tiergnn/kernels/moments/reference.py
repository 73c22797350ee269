"""Moments of rows in plain torch, and their gradient: as the README says.

Legend: P rows, D columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tiergnn.kernels.aggregate.reference import wide


def moments(x_PD: Tensor) -> Tensor:
    """Count, mean and sum of squared deviations of every column: [3, D], float32 or float64."""
    x = x_PD.to(wide(x_PD.dtype))
    if x.shape[0] == 0:
        return x.new_zeros(3, x.shape[1])
    mean = x.mean(0)
    off = x - mean
    rest = off.mean(0)  # what the mean's rounding left
    count = torch.full_like(mean, x.shape[0])
    return torch.stack([count, mean + rest, (off - rest).square().sum(0)])


def moments_grad(
    x_PD: Tensor,
    values: Tensor,
    grad: Tensor,
    more_PD: Tensor | None = None,
    out_PD: Tensor | None = None,
) -> Tensor:
    """The gradient of rows from ``grad`` [3, D], that of the moments ``values`` of all rows; more.

    ``more``, of the dtype of x, is added before the one rounding. Written to ``out`` where it is
    given, which may be ``more`` itself; without it this is differentiable once more.
    """
    count, mean, _ = values
    _, of_mean, of_squares = grad
    found = 2 * of_squares * (x_PD.to(values.dtype) - mean) + of_mean / count.clamp(min=1)
    found = found if more_PD is None else found + more_PD
    return found.to(x_PD.dtype) if out_PD is None else out_PD.copy_(found)
