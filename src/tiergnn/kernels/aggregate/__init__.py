"""Neighbour aggregation: sum, mean or maximum over in-edges, with optional edge weights.

Legend: P destinations, S sources, E edges, D columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tiergnn.errors import ConfigError, unknown
from tiergnn.kernels import backend
from tiergnn.kernels.aggregate.reference import wide
from tiergnn.kernels.block import Block

REDUCTIONS = ("sum", "mean", "max")


def aggregate(
    block: Block, x_SD: Tensor, *, reduce: str = "sum", weight_E: Tensor | None = None
) -> Tensor:
    """out[i] = reduce over the in-edges (j, i) of weight * x[j], [P, D] in the dtype of x.

    x [S, D] of float64, 32, 16 or bfloat16; weight [E], one number an edge. A row without in-edges
    gets exactly 0. The mean divides by the number of in-edges, whatever their weights. Sums in a
    fixed order, in float32 (float64 for float64) with float64 partial sums, and rounds once.
    Differentiable in x and weight; the gradient of a maximum is split evenly among ties.
    Raises ConfigError for an unknown reduction, a wrong shape, dtype or device.
    """
    if reduce not in REDUCTIONS:
        raise unknown("reduce", reduce, REDUCTIONS)
    check_rows(block, x_SD, weight_E)
    if reduce == "max":
        return _Maximum.apply(block, x_SD, weight_E)
    return _Sum.apply(block, False, x_SD, weight_E, reduce == "mean")


def check_rows(block: Block, x_SD: Tensor, weight_E: Tensor | None) -> None:
    """Raise ConfigError unless x and weight fit the block."""
    if x_SD.dim() != 2 or x_SD.shape[0] != block.num_src:
        raise ConfigError(f"x needs shape [{block.num_src}, D], has {list(x_SD.shape)}")
    if not x_SD.is_floating_point():
        raise ConfigError(f"x needs float rows, has {x_SD.dtype}", hint="x.float()")
    if weight_E is not None and weight_E.shape != (block.num_edges,):
        raise ConfigError(
            f"edge weights need shape [{block.num_edges}], have {list(weight_E.shape)}"
        )
    for name, tensor in (("x", x_SD), ("edge weights", weight_E)):
        if tensor is not None and tensor.device != block.device:
            raise ConfigError(
                f"the graph is on {block.device}, {name} on {tensor.device}",
                hint="move both to one device",
            )


class _Sum(torch.autograd.Function):
    """Sums over in-edges, or over out-edges when ``flipped``: each is the other's gradient in x."""

    @staticmethod
    def forward(
        ctx: Any, block: Block, flipped: bool, x: Tensor, weight_E: Tensor | None, mean: bool
    ) -> Tensor:
        ctx.block, ctx.flipped, ctx.mean = block, flipped, mean
        ctx.backend = backend.choose(x.device)
        ctx.save_for_backward(x if ctx.needs_input_grad[3] else None, weight_E)
        module = backend.load("aggregate", ctx.backend)
        if flipped:
            rowptr, col, edge = block.transposed
            if weight_E is not None and not weight_E.requires_grad:
                weight_E, edge = block.transposed_weight(weight_E), None
        else:
            rowptr, col, edge = block.rowptr, block.col, None
        plan = block.plan("aggregate", ctx.backend, flipped)
        return module.weighted_sum(rowptr, col, plan, x, weight_E, edge, mean)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        x, weight_E = ctx.saved_tensors
        (grad,) = grads
        dtype = grad.dtype
        if ctx.mean:  # in float32 or better: degrees and quotients do not fit 16 bits
            grad = grad.to(wide(dtype)) / ctx.block.in_degree.clamp(min=1)[:, None]
        grad_x = grad_weight = None
        with backend.use(ctx.backend):
            if ctx.needs_input_grad[2]:
                grad_x = _Sum.apply(ctx.block, not ctx.flipped, grad, weight_E, False).to(dtype)
            if ctx.needs_input_grad[3]:
                rows = (x, grad) if ctx.flipped else (grad, x)
                grad_weight = _EdgeDot.apply(ctx.block, *rows).to(weight_E.dtype)
        return None, None, grad_x, grad_weight, None


class _EdgeDot(torch.autograd.Function):
    """The gradient of a sum in its weights; its own gradients are sums again."""

    @staticmethod
    def forward(ctx: Any, block: Block, g_PD: Tensor, x_SD: Tensor) -> Tensor:
        ctx.block = block
        ctx.backend = backend.choose(x_SD.device)
        ctx.save_for_backward(g_PD, x_SD)
        module = backend.load("aggregate", ctx.backend)
        plan = block.plan("aggregate", ctx.backend, False)
        return module.edge_dot(block.rowptr, block.col, plan, g_PD, x_SD)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        g_PD, x_SD = ctx.saved_tensors
        grad_g = grad_x = None
        with backend.use(ctx.backend):
            if ctx.needs_input_grad[1]:
                grad_g = _Sum.apply(ctx.block, False, x_SD, grads[0], False)
            if ctx.needs_input_grad[2]:
                grad_x = _Sum.apply(ctx.block, True, g_PD, grads[0], False)
        return None, grad_g, grad_x


class _Maximum(torch.autograd.Function):
    """Keeps the maximum and the number of ties, and finds the edges that reach it again."""

    @staticmethod
    def forward(ctx: Any, block: Block, x_SD: Tensor, weight_E: Tensor | None) -> Tensor:
        ctx.block = block
        ctx.backend = backend.choose(x_SD.device)
        module = backend.load("aggregate", ctx.backend)
        plan = block.plan("aggregate", ctx.backend, False)
        out_PD, ties_PD = module.maximum(block.rowptr, block.col, plan, x_SD, weight_E)
        ctx.save_for_backward(x_SD, weight_E, out_PD, ties_PD)
        return out_PD

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor):
        x_SD, weight_E, out_PD, ties_PD = ctx.saved_tensors
        block: Block = ctx.block
        module = backend.load("aggregate", ctx.backend)
        share_PD = grads[0].to(wide(x_SD.dtype)) / ties_PD.clamp(min=1)
        grad_x = grad_weight = None
        if ctx.needs_input_grad[1]:
            plan_t = block.plan("aggregate", ctx.backend, True)
            grad_x = module.maximum_grad_x(
                *block.transposed, plan_t, share_PD, out_PD, x_SD, weight_E
            )
        if ctx.needs_input_grad[2]:
            plan = block.plan("aggregate", ctx.backend, False)
            grad_weight = module.maximum_grad_weight(
                block.rowptr, block.col, plan, share_PD, out_PD, x_SD, weight_E
            ).to(weight_E.dtype)
        return None, grad_x, grad_weight
