"""Moments of all rows, from those of parts, and the row-local code that normalises by them.

Legend: P rows of one part, D columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tiergnn.kernels.block import Block
from tiergnn.kernels.moments import moments as of_rows
from tiergnn.kernels.moments import moments_beside, moments_grad
from tiergnn.models.operation import operation

__all__ = ["combine_moments", "moments", "moments_beside", "moments_grad", "unless_single"]


@operation(kind="statistic")
def moments(x: Tensor) -> Tensor:
    """Count, mean and sum of squared deviations of every column of rows [P, D]: [3, D].

    In float32, or wider when the rows are. See ``kernels.moments`` and ``combine_moments``.
    """
    return of_rows(x)


def combine_moments(parts: Sequence[Tensor]) -> Tensor:
    """Moments of all rows from those of their parts, in the order given (Chan et al., 1979)."""
    if len(parts) == 1:
        return parts[0]
    count, mean, squares = torch.stack(tuple(parts)).unbind(1)
    total = count.sum(0)
    whole = (count * mean).sum(0) / total.clamp(min=1)
    return torch.stack([total, whole, (squares + count * (mean - whole).square()).sum(0)])


@operation(kind="structure", of="whole")
def unless_single(value: Tensor, running: Tensor, block: Block) -> Tensor:
    """``value``, or ``running`` when the whole graph has one node or none."""
    return running if (block.num_graph_nodes or 0) <= 1 else value
