"""Moments of all rows, from those of parts, and the row-local code that normalises by them.

Legend: P rows of one part, D columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tiergnn.kernels.block import Block
from tiergnn.models.operation import operation


@operation(kind="statistic")
def moments(x: Tensor) -> Tensor:
    """Count, mean and sum of squared deviations of every column of rows [P, D]: [3, D].

    In float32, or wider when the rows are. See ``combine_moments``.
    """
    moments: Any = _Moments.apply(x)
    return moments


class _Moments(torch.autograd.Function):
    """Keeps x alone, where autograd would keep the deviations, too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        rows = x.to(torch.promote_types(x.dtype, torch.float32))
        if rows.shape[0] == 0:
            values = rows.new_zeros(3, rows.shape[1])
        else:
            mean = rows.mean(0)
            count = torch.full_like(mean, rows.shape[0])
            values = torch.stack([count, mean, (rows - mean).square().sum(0)])
        ctx.save_for_backward(x, values)
        return values

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        x, values = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return moments_grad(x, values, grads[0])
        count, mean, _ = values  # differentiable once more
        _, of_mean, of_squares = grads[0]
        rows = x.to(values.dtype) - mean
        return (2 * of_squares * rows + of_mean / count.clamp(min=1)).to(x.dtype)


def combine_moments(parts: Sequence[Tensor]) -> Tensor:
    """Moments of all rows from those of their parts, in the order given (Chan et al., 1979)."""
    if len(parts) == 1:
        return parts[0]
    count, mean, squares = torch.stack(tuple(parts)).unbind(1)
    total = count.sum(0)
    whole = (count * mean).sum(0) / total.clamp(min=1)
    return torch.stack([total, whole, (squares + count * (mean - whole).square()).sum(0)])


def moments_grad(x: Tensor, values: Tensor, grad: Tensor) -> Tensor:
    """The gradient of a part's rows x [P, D] from that of the moments of all rows [3, D].

    The squares do not move with the mean: deviations from it add up to 0.
    """
    count, mean, _ = values.detach()
    out = x.detach().to(values.dtype) - mean
    return out.mul_(2 * grad[2]).add_(grad[1] / count.clamp(min=1)).to(x.dtype)


@operation(kind="structure", of="whole")
def unless_single(value: Tensor, running: Tensor, block: Block) -> Tensor:
    """``value``, or ``running`` when the whole graph has one node or none."""
    return running if (block.num_graph_nodes or 0) <= 1 else value
