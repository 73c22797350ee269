"""Attention as ops that torch knows. Backward is one more op, which cannot be differentiated again.

Legend: P destinations, S sources, E edges, K heads, F features, D edge features.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tiergnn.errors import ConfigError
from tiergnn.kernels import backend
from tiergnn.kernels.block import Block
from tiergnn.kernels.library import define

_OPTIONS = (
    "float slope, bool self_loop, int threshold, float scale, Tensor? key, int site, int head"
)
_GAT = "Tensor h, Tensor src, Tensor dst, Tensor? edge, Tensor? loop"
_GATV2 = "Tensor src, Tensor dst, Tensor att, Tensor? edge, Tensor? weight, Tensor? loop"


class Options(NamedTuple):
    """What a kernel needs besides tensors; edges are dropped when ``threshold`` is above 0.

    ``head`` is the number of the first head among all of the layer's, by which dropout draws.
    """

    negative_slope: float
    self_loop: bool
    threshold: int
    scale: float
    key: Tensor | None
    site: int
    head: int


def needs_grad(*tensors: Tensor | None) -> bool:
    """Whether the gradient of some tensor will be asked for."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _outputs(
    tensors: tuple[Tensor | None, ...], needs: list[bool], grads: tuple[Tensor | None, ...]
) -> list[Tensor]:
    """An op's outputs are tensors: an empty one stands for a gradient that was not asked for."""
    first = tensors[0]
    assert first is not None
    return [
        grad if grad is not None and need else first.new_empty(0)
        for need, grad in zip(needs, grads, strict=True)
    ]


def _asked(needs: tuple[bool, ...], grads: list[Tensor]) -> tuple[Tensor | None, ...]:
    return tuple(grad if need else None for need, grad in zip(needs, grads, strict=True))


def _fakes(tensors: tuple[Tensor | None, ...], needs: list[bool]) -> list[Tensor]:
    grads = (
        None if t is None else torch.empty_like(t, memory_format=torch.contiguous_format)
        for t in tensors
    )
    return _outputs(tensors, needs, tuple(grads))


def _once(ctx: Any, *grads: Any) -> None:
    raise ConfigError(
        "attention is differentiable once",
        hint="backend.use('reference'), which is differentiable any number of times",
    )


def _nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """There is no second backward to keep anything for."""


def _gat(handle: int, *given: Any) -> tuple[Tensor, ...]:
    tensors, options, train, name = given[:5], Options(*given[5:12]), given[12], given[13]
    module = backend.load("attention", name)
    out, state = module.gat_forward(Block.ready(handle), *tensors, options, train=train)
    return out, *(state or (out.new_empty(0) for _ in range(4)))


def _gat_fake(handle: int, h_SKF: Tensor, src_SK: Tensor, dst_PK: Tensor, *rest: Any):
    out = h_SKF.new_empty(Block.by_handle(handle).num_dst, *h_SKF.shape[1:])
    if not rest[-2]:
        return out, *(out.new_empty(0) for _ in range(4))
    heads = (torch.empty_like(dst_PK, memory_format=torch.contiguous_format) for _ in range(3))
    best, inverse, steep_total = heads
    return out, best, inverse, out.new_empty(out.shape, dtype=dst_PK.dtype), steep_total


def _gat_keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.block, ctx.options = Block.by_handle(inputs[0]), (*inputs[6:13], inputs[14])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # of what is kept: zeros as large as it
    ctx.save_for_backward(*inputs[1:6], *output)


def _gat_backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
    if grad is None:
        return (None,) * len(ctx.needs_input_grad)
    tensors, outputs = ctx.saved_tensors[:5], ctx.saved_tensors[5:]
    needs = ctx.needs_input_grad[1:6]
    grads = _gat_grad_op(ctx.block.handle, grad, *outputs, *tensors, list(needs), *ctx.options)
    return None, *_asked(needs, grads), *(None,) * 9


gat_op = define(
    "gat_attention",
    f"(int block, {_GAT}, {_OPTIONS}, bool train, str backend)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    run=_gat,
    fake=_gat_fake,
    keep=_gat_keep,
    backward=_gat_backward,
)


def _gat_grad(handle: int, grad_PKF: Tensor, out_PKF: Tensor, *given: Any) -> list[Tensor]:
    state, tensors, needs = given[:4], given[4:9], given[9]
    module = backend.load("attention", given[-1])
    grads = module.gat_backward(
        Block.ready(handle),
        grad_PKF,
        out_PKF,
        state,
        *tensors,
        Options(*given[10:17]),
        tuple(needs),
    )
    return _outputs(tensors, needs, grads)


def _gat_grad_fake(handle: int, grad_PKF: Tensor, out_PKF: Tensor, *given: Any) -> list[Tensor]:
    return _fakes(given[4:9], given[9])


_gat_grad_op = define(
    "gat_attention_grad",
    "(int block, Tensor grad, Tensor out, Tensor best, Tensor inverse, Tensor steep, "
    f"Tensor steep_total, {_GAT}, bool[] needs, {_OPTIONS}, str backend) -> Tensor[]",
    run=_gat_grad,
    fake=_gat_grad_fake,
    keep=_nothing,
    backward=_once,
)


def _gatv2(handle: int, *given: Any) -> tuple[Tensor, ...]:
    module = backend.load("attention", given[-1])
    block, options = Block.ready(handle), Options(*given[6:13])
    out, state = module.gatv2_forward(block, *given[:6], options)
    return out, *state


def _gatv2_fake(handle: int, src_SKF: Tensor, dst_PKF: Tensor, att_KF: Tensor, *rest: Any):
    heads = (att_KF.new_empty(dst_PKF.shape[:2]) for _ in range(2))
    return torch.empty_like(dst_PKF, memory_format=torch.contiguous_format), *heads


def _gatv2_keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.block, ctx.options = Block.by_handle(inputs[0]), inputs[7:]
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # of what is kept: zeros as large as it
    ctx.save_for_backward(*inputs[1:7], *output)


def _gatv2_backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
    if grad is None:
        return (None,) * len(ctx.needs_input_grad)
    tensors, outputs = ctx.saved_tensors[:6], ctx.saved_tensors[6:]
    needs = ctx.needs_input_grad[1:7]
    grads = _gatv2_grad_op(ctx.block.handle, grad, *outputs, *tensors, list(needs), *ctx.options)
    return None, *_asked(needs, grads), *(None,) * 8


gatv2_op = define(
    "gatv2_attention",
    f"(int block, {_GATV2}, {_OPTIONS}, str backend) -> (Tensor, Tensor, Tensor)",
    run=_gatv2,
    fake=_gatv2_fake,
    keep=_gatv2_keep,
    backward=_gatv2_backward,
)


def _gatv2_grad(handle: int, grad_PKF: Tensor, out_PKF: Tensor, *given: Any) -> list[Tensor]:
    state, tensors, needs = given[:2], given[2:8], given[8]
    module = backend.load("attention", given[-1])
    grads = module.gatv2_backward(
        Block.ready(handle),
        grad_PKF,
        out_PKF,
        state,
        *tensors,
        Options(*given[9:16]),
        tuple(needs),
    )
    return _outputs(tensors, needs, grads)


def _gatv2_grad_fake(handle: int, grad_PKF: Tensor, out_PKF: Tensor, *given: Any) -> list[Tensor]:
    return _fakes(given[2:8], given[8])


_gatv2_grad_op = define(
    "gatv2_attention_grad",
    "(int block, Tensor grad, Tensor out, Tensor best, Tensor inverse, "
    f"{_GATV2}, bool[] needs, {_OPTIONS}, str backend) -> Tensor[]",
    run=_gatv2_grad,
    fake=_gatv2_grad_fake,
    keep=_nothing,
    backward=_once,
)


def _edge_mean(handle: int, value_ED: Tensor, name: str) -> Tensor:
    """Aggregation whose sources are the edges themselves."""
    block = Block.ready(handle)
    rows = block.without_loops
    edges = torch.nonzero(block.col != block.edge_dst).flatten()
    plan = rows.plan("aggregate", name)
    module = backend.load("aggregate", name)
    return module.weighted_sum(rows.rowptr, edges, plan, value_ED.contiguous(), None, None, True)


def _edge_mean_fake(handle: int, value_ED: Tensor, name: str) -> Tensor:
    return value_ED.new_empty(Block.by_handle(handle).num_dst, value_ED.shape[1])


def _edge_mean_keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.block = Block.by_handle(inputs[0])


def _edge_mean_backward(ctx: Any, grad_PD: Tensor) -> tuple[Any, ...]:
    block: Block = ctx.block
    dst_E = block.edge_dst
    share_PD = grad_PD / block.without_loops.in_degree.clamp(min=1).to(grad_PD.dtype)[:, None]
    return None, share_PD[dst_E].masked_fill((block.col == dst_E)[:, None], 0), None


edge_mean_op = define(
    "edge_mean",
    "(int block, Tensor value, str backend) -> Tensor",
    run=_edge_mean,
    fake=_edge_mean_fake,
    keep=_edge_mean_keep,
    backward=_edge_mean_backward,
)
