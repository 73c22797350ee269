"""Sums whose order does not depend on the number of threads."""

from __future__ import annotations

import torch
from torch import Tensor

_RUN = 1024


def fixed_sum(values: Tensor) -> Tensor:
    """The sum of all elements, a scalar, in one fixed order; differentiable.

    torch splits a long full sum among its threads, so its last bits follow their number; a sum of
    the rows of a matrix it does not split within a row.
    """
    values = values.reshape(-1)
    while values.numel() > _RUN:
        short = -values.numel() % _RUN
        values = torch.nn.functional.pad(values, (0, short)).reshape(-1, _RUN).sum(dim=1)
    return values.sum()
