"""Moments of every column of rows in one pass over them, and their gradient in one.

Legend: P rows, D columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tiergnn.errors import ConfigError
from tiergnn.kernels import backend
from tiergnn.kernels.aggregate.reference import wide
from tiergnn.kernels.arguments import check_device, check_floats, told
from tiergnn.kernels.library import define
from tiergnn.kernels.moments import reference


def _run(x_PD: Tensor, name: str) -> Tensor:
    return backend.load("moments", name).moments(x_PD)


def _fake(x_PD: Tensor, name: str) -> Tensor:
    return x_PD.new_empty(3, x_PD.shape[1], dtype=wide(x_PD.dtype))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """The rows alone, where autograd would keep their deviations, too."""
    x, ctx.name = inputs
    ctx.save_for_backward(x, output)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, values = ctx.saved_tensors
    return _grad(x, values, grad, None, ctx.name), None


def _grad(x_PD: Tensor, values: Tensor, grad: Tensor, more: Tensor | None, name: str) -> Tensor:
    if torch.is_grad_enabled():  # differentiable once more
        return reference.moments_grad(x_PD, values, grad, more)
    return _grad_op(x_PD, values, grad, more, name)


_op = define(
    "moments",
    "(Tensor x, str backend) -> Tensor",
    run=_run,
    fake=_fake,
    keep=_keep,
    backward=_backward,
)


def _run_grad(x_PD: Tensor, values: Tensor, grad: Tensor, more: Tensor | None, name: str) -> Tensor:
    return backend.load("moments", name).moments_grad(x_PD, values, grad, more)


def _fake_grad(x_PD: Tensor, *given: Any) -> Tensor:
    return torch.empty_like(x_PD, memory_format=torch.contiguous_format)


def _nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """There is no second backward to keep anything for."""


def _once(ctx: Any, *grads: Any) -> None:
    raise AssertionError("a gradient that is to be differentiated is the reference's")


_grad_op = define(
    "moments_grad",
    "(Tensor x, Tensor values, Tensor grad, Tensor? more, str backend) -> Tensor",
    run=_run_grad,
    fake=_fake_grad,
    keep=_nothing,
    backward=_once,
)


class _Joined(torch.autograd.Function):
    """Backward is given what flows to the rows beside the moments, and adds to it in its pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        values = _op(x, name)
        ctx.name = name
        ctx.save_for_backward(x, values)
        return values, x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None]:
        grad, more = grads
        if grad is None:
            return more, None
        x, values = ctx.saved_tensors
        return _grad(x, values, grad, more, ctx.name), None


def moments(x_PD: Tensor) -> Tensor:
    """Count, mean and sum of squared deviations of every column of rows: [3, D].

    x is [P, D] of floats; the result float32, float64 for float64. Rows are read once, block by
    block, each of which takes deviations from its own mean; blocks are combined in float64, in a
    fixed order. Backward keeps x, reads it once, and is differentiable once more. No rows have
    moments of 0. Raises ConfigError for what are not rows of floats.
    """
    _check(x_PD)
    return _op(x_PD, backend.choose(x_PD.device))


def moments_beside(x_PD: Tensor) -> tuple[Tensor, Tensor]:
    """``moments(x)``, and x itself for whatever reads it further.

    What flows back to the second is then added in the pass that makes the gradient of the first,
    where autograd would write both and add them in another pass.
    """
    _check(x_PD)
    found: Any = _Joined.apply(x_PD, backend.choose(x_PD.device))
    return found


def moments_grad(
    x_PD: Tensor, values: Tensor, grad: Tensor, *, add_to: Tensor | None = None
) -> Tensor:
    """The gradient of a part's rows from that of the moments ``values`` of all rows, both [3, D].

    The squares do not move with the mean: deviations from it add up to 0. ``add_to`` [P, D], of
    the dtype of x, has the gradient added in place, rounded once, and is returned. Not
    differentiable. Raises ConfigError for what does not fit.
    """
    _check(x_PD)
    form = (3, x_PD.shape[1]), wide(x_PD.dtype)
    for what, given in (("values", values), ("grad", grad)):
        if (tuple(given.shape), given.dtype) != form:
            raise ConfigError(f"{what} need {form[1]} {list(form[0])}, have {told(given)}")
        check_device(what, given, x_PD.device, "x")
    name = backend.choose(x_PD.device)
    x, values, grad = x_PD.detach(), values.detach(), grad.detach()
    if add_to is None:
        return _grad_op(x, values, grad, None, name)
    if add_to.shape != x.shape or add_to.dtype != x.dtype:
        raise ConfigError(f"add_to needs {told(x)}, has {told(add_to)}")
    check_device("add_to", add_to, x.device, "x")
    apart, within = add_to.stride()
    if (add_to.shape[1] > 1 and within != 1) or (add_to.shape[0] > 1 and apart < add_to.shape[1]):
        raise ConfigError(f"add_to needs contiguous rows of its own, has strides {(apart, within)}")
    total = add_to.detach()
    with torch.no_grad():
        backend.load("moments", name).moments_grad(x, values, grad, total, total)
    return add_to


def _check(x_PD: Tensor) -> None:
    check_floats("x of moments", x_PD, "float rows [P, D]", 2)
