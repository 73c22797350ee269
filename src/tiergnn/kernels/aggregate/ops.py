"""Aggregation as ops that torch knows: what each computes, and the gradients of each by the others.

Legend: P destinations, S sources, E edges, D columns, K heads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tiergnn.errors import ConfigError
from tiergnn.kernels import backend
from tiergnn.kernels.aggregate.reference import wide
from tiergnn.kernels.block import Block
from tiergnn.kernels.library import define


def heads_of(weight_E: Tensor | None) -> int:
    """K of weights [E, K]; 0 of weights [E]."""
    return weight_E.shape[1] if weight_E is not None and weight_E.dim() > 1 else 0


def _rows_of(block: Block, flipped: bool) -> int:
    return block.num_src if flipped else block.num_dst


def by_degree(block: Block, rows_PD: Tensor) -> Tensor:
    """Rows of destinations over their in-degrees, which do not fit 16 bits."""
    return rows_PD.to(wide(rows_PD.dtype)) / block.in_degree.clamp(min=1)[:, None]


def _sum(
    handle: int, flipped: bool, mean: bool, x: Tensor, weight_E: Tensor | None, name: str
) -> Tensor:
    """Sums over in-edges, or over out-edges when ``flipped``: each is the other's gradient in x.

    mean divides by the in-degrees: a flipped one divides what it gathers.
    """
    block, dtype = Block.ready(handle), x.dtype
    module = backend.load("aggregate", name)
    plan = block.plan("aggregate", name, flipped)
    if not flipped:
        return module.weighted_sum(block.rowptr, block.col, plan, x, weight_E, None, mean)
    rowptr, dst, edge = block.transposed
    if weight_E is None:
        edge = None
    elif weight_E.dim() == 1 and not weight_E.requires_grad:
        weight_E, edge = block.transposed_weight(weight_E), None
    x = by_degree(block, x) if mean else x
    return module.weighted_sum(rowptr, dst, plan, x, weight_E, edge, False).to(dtype)


def _sum_fake(
    handle: int, flipped: bool, mean: bool, x: Tensor, weight_E: Tensor | None, name: str
) -> Tensor:
    return x.new_empty(_rows_of(Block.by_handle(handle), flipped), x.shape[1])


def _sum_keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    handle, ctx.flipped, ctx.mean, x, weight_E, ctx.name = inputs
    ctx.block = Block.by_handle(handle)
    ctx.save_for_backward(x if ctx.needs_input_grad[4] else None, weight_E)


def _sum_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, weight_E = ctx.saved_tensors
    grad_x = grad_weight = None
    if ctx.needs_input_grad[3]:
        grad_x = sum_op(ctx.block.handle, not ctx.flipped, ctx.mean, grad, weight_E, ctx.name)
    if ctx.needs_input_grad[4]:
        rows = (x, grad) if ctx.flipped else (grad, x)
        heads = heads_of(weight_E)
        given = ctx.block.handle, ctx.mean, heads, *rows, ctx.name
        grad_weight = dot_op(*given).to(weight_E.dtype)
    return None, None, None, grad_x, grad_weight, None


sum_op = define(
    "aggregate_sum",
    "(int block, bool flipped, bool mean, Tensor x, Tensor? weight, str backend) -> Tensor",
    run=_sum,
    fake=_sum_fake,
    keep=_sum_keep,
    backward=_sum_backward,
)


def _dot(handle: int, mean: bool, heads: int, g_PD: Tensor, x_SD: Tensor, name: str) -> Tensor:
    """The gradient of a sum in its weights; its own gradients are sums again."""
    block = Block.ready(handle)
    plan = block.plan("aggregate", name, False)
    g_PD = by_degree(block, g_PD) if mean else g_PD
    module = backend.load("aggregate", name)
    return module.edge_dot(block.rowptr, block.col, plan, g_PD, x_SD, heads)


def _dot_fake(handle: int, mean: bool, heads: int, g_PD: Tensor, x_SD: Tensor, name: str) -> Tensor:
    num_edges = Block.by_handle(handle).num_edges
    return x_SD.new_empty((num_edges, heads) if heads else num_edges, dtype=wide(x_SD.dtype))


def _dot_keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    handle, ctx.mean, _, g_PD, x_SD, ctx.name = inputs
    ctx.block = Block.by_handle(handle)
    ctx.save_for_backward(g_PD, x_SD)


def _dot_backward(ctx: Any, grad_E: Tensor) -> tuple[Any, ...]:
    g_PD, x_SD = ctx.saved_tensors
    grad_g = grad_x = None
    if ctx.needs_input_grad[3]:
        grad_g = sum_op(ctx.block.handle, False, ctx.mean, x_SD, grad_E, ctx.name)
    if ctx.needs_input_grad[4]:
        grad_x = sum_op(ctx.block.handle, True, ctx.mean, g_PD, grad_E, ctx.name)
    return None, None, None, grad_g, grad_x, None


dot_op = define(
    "aggregate_edge_dot",
    "(int block, bool mean, int heads, Tensor g, Tensor x, str backend) -> Tensor",
    run=_dot,
    fake=_dot_fake,
    keep=_dot_keep,
    backward=_dot_backward,
)


def _max(handle: int, x_SD: Tensor, weight_E: Tensor | None, name: str) -> tuple[Tensor, Tensor]:
    """The maximum and the number of ties."""
    block = Block.ready(handle)
    plan = block.plan("aggregate", name, False)
    module = backend.load("aggregate", name)
    return module.maximum(block.rowptr, block.col, plan, x_SD, weight_E)


def _max_fake(
    handle: int, x_SD: Tensor, weight_E: Tensor | None, name: str
) -> tuple[Tensor, Tensor]:
    out = x_SD.new_empty(Block.by_handle(handle).num_dst, x_SD.shape[1])
    return out, torch.empty_like(out, dtype=torch.int32)


def _max_keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    handle, x_SD, weight_E, ctx.name = inputs
    ctx.block = Block.by_handle(handle)
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(x_SD, weight_E, *output)


def _max_backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Any, ...]:
    x_SD, weight_E, out_PD, ties_PD = ctx.saved_tensors
    share_PD = grad.to(wide(x_SD.dtype)) / ties_PD.clamp(min=1)
    given = share_PD, out_PD, x_SD, weight_E, ctx.name
    grad_x = grad_weight = None
    if ctx.needs_input_grad[1]:
        grad_x = max_grad_op(ctx.block.handle, False, *given)
    if ctx.needs_input_grad[2]:
        grad_weight = max_grad_op(ctx.block.handle, True, *given).to(weight_E.dtype)
    return None, grad_x, grad_weight, None


max_op = define(
    "aggregate_max",
    "(int block, Tensor x, Tensor? weight, str backend) -> (Tensor, Tensor)",
    run=_max,
    fake=_max_fake,
    keep=_max_keep,
    backward=_max_backward,
)


def _max_grad(
    handle: int,
    of_weight: bool,
    share_PD: Tensor,
    out_PD: Tensor,
    x_SD: Tensor,
    weight_E: Tensor | None,
    name: str,
) -> Tensor:
    """Finds the edges that reached the maximum again; in x, or in the weights."""
    block = Block.ready(handle)
    module = backend.load("aggregate", name)
    plan = block.plan("aggregate", name, not of_weight)
    if of_weight:
        rows = block.rowptr, block.col
        return module.maximum_grad_weight(*rows, plan, share_PD, out_PD, x_SD, weight_E)
    return module.maximum_grad_x(*block.transposed, plan, share_PD, out_PD, x_SD, weight_E)


def _max_grad_fake(
    handle: int,
    of_weight: bool,
    share_PD: Tensor,
    out_PD: Tensor,
    x_SD: Tensor,
    weight_E: Tensor | None,
    name: str,
) -> Tensor:
    if of_weight:
        assert weight_E is not None
        return torch.empty_like(weight_E, dtype=share_PD.dtype)
    return torch.empty_like(x_SD, memory_format=torch.contiguous_format)


def _max_grad_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    raise ConfigError(
        "the gradient of reduce='max' is differentiable once",
        hint="sum or mean, which are differentiable any number of times",
    )


max_grad_op = define(
    "aggregate_max_grad",
    "(int block, bool of_weight, Tensor share, Tensor out, Tensor x, Tensor? weight, str backend)"
    " -> Tensor",
    run=_max_grad,
    fake=_max_grad_fake,
    keep=lambda ctx, inputs, output: None,
    backward=_max_grad_backward,
)
