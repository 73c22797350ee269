"""Products of rows with a weight: float32 on a GPU's tensor cores, and otherwise torch's own.

Legend: P rows, D in-features, F out-features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tiergnn.kernels import backend
from tiergnn.kernels.library import define
from tiergnn.kernels.product import reference
from tiergnn.kernels.product.shapes import LEAST_ROWS

# GPUs (major and minor version) that multiply tf32 so much faster than float32 that three products
# pay; those of workstations do not.
_FAST = ((8, 0), (9, 0))


def linear_rows(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., D] @ weight [F, D] transposed + bias [F], as torch.nn.functional.linear.

    Rows [P, D] of float32 on a GPU of the kernels' backend are multiplied by tensor cores, with
    about the error of float32: below 2^-20 of each product. Anything else is torch's: the gradient
    of the weight, other dtypes, few rows, a bias of another shape, under autocast, and where a
    lower precision of float32 products was asked for (torch.set_float32_matmul_precision).
    Differentiable any number of times.
    """
    if _fits(x, weight, bias) and _on_tensor_cores(x, weight, bias):
        return _product_op(x, weight, bias)
    return functional.linear(x, weight, bias)


def unread_rows(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """What ``linear_rows`` gives, where its gradients are wanted and its numbers are not: for rows
    [P, D] they are not computed, and take no memory. The gradients have the same bits."""
    alike = all(t is None or t.dtype == x.dtype for t in (weight, bias))
    plain = x.dim() == 2 and alike and not torch.is_autocast_enabled(x.device.type)
    if not (plain and _fits(x, weight, bias)):
        return linear_rows(x, weight, bias)
    unread: Any = _Unread.apply(x, weight, bias, _on_tensor_cores(x, weight, bias))
    return unread


def _fits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    fits = weight.dim() == 2 and x.shape[-1:] == weight.shape[1:]
    return fits and (bias is None or bias.shape == weight.shape[:1])


def _on_tensor_cores(x: Tensor, *others: Tensor | None) -> bool:
    given = [x, *(other for other in others if other is not None)]
    if x.dim() != 2 or x.shape[0] < LEAST_ROWS:
        return False
    if any(t.dtype != torch.float32 or t.device != x.device for t in given):
        return False
    if torch.is_autocast_enabled(x.device.type) or _is_less_precise():
        return False
    return backend.choose(x.device) == "gpu" and _is_fast(x.device)


@torch.compiler.assume_constant_result
def _is_less_precise() -> bool:
    """Whether a lower precision of float32 products than float32's was asked for."""
    return torch.backends.cuda.matmul.fp32_precision not in ("none", "ieee")


@torch.compiler.assume_constant_result
def _is_fast(device: torch.device) -> bool:
    """Whether three products of tf32 pay; the interpreter is asked for by tests alone."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) in _FAST


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return backend.load("product", "gpu").product(x, weight, bias)


def _product_fake(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


def _product_keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _ = inputs
    needs_x, needs_weight = ctx.needs_input_grad[:2]
    ctx.save_for_backward(x if needs_weight else None, weight if needs_x else None)


def _product_backward(
    ctx: Any, grad: Tensor, *, fast: bool = True
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    x, weight = ctx.saved_tensors
    needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
    of_x = of_weight = of_bias = None
    if needs_x and fast and not torch.is_grad_enabled():
        of_x = _grad_rows_op(grad, weight)
    elif needs_x:  # differentiable once more, too
        of_x = reference.product_grad_rows(grad, weight)
    if needs_weight:
        of_weight = reference.product_grad_weight(grad, x)
    if needs_bias:
        of_bias = reference.product_grad_bias(grad)
    return of_x, of_weight, of_bias


_product_op = define(
    "product",
    "(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
    run=_product,
    fake=_product_fake,
    keep=_product_keep,
    backward=_product_backward,
)


def _once(ctx: Any, *grads: Any) -> None:
    raise AssertionError("a gradient that is to be differentiated is the reference's")


def _nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """There is no second backward to keep anything for."""


def _grad_rows(grad: Tensor, weight: Tensor) -> Tensor:
    return backend.load("product", "gpu").product_grad_rows(grad, weight)


def _grad_rows_fake(grad: Tensor, weight: Tensor) -> Tensor:
    return grad.new_empty(grad.shape[0], weight.shape[1])


_grad_rows_op = define(
    "product_grad_rows",
    "(Tensor grad, Tensor weight) -> Tensor",
    run=_grad_rows,
    fake=_grad_rows_fake,
    keep=_nothing,
    backward=_once,
)


class _Unread(torch.autograd.Function):
    """A product that is there for its backward; its rows all lie in one number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, fast: bool) -> Tensor:
        _product_keep(ctx, (x, weight, bias), x)
        ctx.fast = fast
        return x.new_empty(()).expand(x.shape[0], weight.shape[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return *_product_backward(ctx, *grads, fast=ctx.fast), None
