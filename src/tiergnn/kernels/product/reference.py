"""Products of rows with a weight in plain torch, and their gradients: any float dtype and device.

Legend: P rows, D in-features, F out-features.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def product(x_PD: Tensor, weight_FD: Tensor, bias_F: Tensor | None) -> Tensor:
    """x weight^T + bias: [P, F]."""
    return F.linear(x_PD, weight_FD, bias_F)


def product_grad_rows(grad_PF: Tensor, weight_FD: Tensor) -> Tensor:
    """The gradient [P, D] of the rows, from that of the product."""
    return grad_PF @ weight_FD


def product_grad_weight(grad_PF: Tensor, x_PD: Tensor) -> Tensor:
    """The gradient [F, D] of the weight."""
    return grad_PF.T @ x_PD


def product_grad_bias(grad_PF: Tensor) -> Tensor:
    """The gradient [F] of the bias."""
    return torch.sum(grad_PF, 0)
