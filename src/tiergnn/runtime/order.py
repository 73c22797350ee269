"""Sums in one order: torch's own that follow the number of threads, done so that they do not.

Our kernels sum in a fixed order. On the CPU three kinds of torch's sums do not, and are replaced
while a model trains: full sums, which are split among threads; products with a thin gradient of a
Linear (fewer than 16 columns out), for which its library picks another loop by the number of
threads; and the gradients of LayerNorm's weight and bias.

Legend: N rows, D columns in, F columns out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

_RUN = 1024
_THIN = 16


def fixed_sum(values: Tensor) -> Tensor:
    """The sum of all elements, a scalar, in one fixed order; differentiable."""
    values = values.reshape(-1)
    while values.numel() > _RUN:
        short = -values.numel() % _RUN
        # Each row of a matrix is summed by one thread.
        values = F.pad(values, (0, short)).reshape(-1, _RUN).sum(dim=1)
    return values.sum()


class FixedOrder(TorchFunctionMode):
    """While entered, Linear and LayerNorm have gradients that do not follow the threads."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.linear:
            return _linear(*args, **kwargs)
        if func is F.layer_norm:
            return _layer_norm(*args, **kwargs)
        return func(*args, **kwargs)


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    thin = input.device.type == "cpu" and weight.dim() == 2 and weight.shape[0] < _THIN
    if not thin or not weight.requires_grad or not torch.is_grad_enabled():
        return F.linear(input, weight, bias)
    return _ThinLinear.apply(input, weight, bias)  # pyright: ignore[reportReturnType]


def _layer_norm(
    input: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    if input.device.type != "cpu":
        return F.layer_norm(input, normalized_shape, weight, bias, eps)
    out = F.layer_norm(input, normalized_shape, None, None, eps)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


class _ThinLinear(torch.autograd.Function):
    """x W^T + b, whose weight gradient is a product with 16 columns, the last ones 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_FD: Tensor, bias_F: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight_FD)
        return F.linear(x, weight_FD, bias_F)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight_FD = ctx.saved_tensors
        width, columns = weight_FD.shape
        grad = grads[0]
        grad_NF = grad.reshape(-1, width)
        grad_x = grad @ weight_FD if ctx.needs_input_grad[0] else None
        wide = F.pad(grad_NF, (0, _THIN - width))
        grad_weight = (wide.t() @ x.reshape(-1, columns))[:width]
        grad_bias = None
        if ctx.needs_input_grad[2]:
            grad_bias = wide.sum(dim=0)[:width]  # a lone column would be one full sum
        return grad_x, grad_weight, grad_bias
