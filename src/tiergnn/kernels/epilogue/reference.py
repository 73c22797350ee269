"""What follows a graph operation row by row, in plain torch, and its gradient: as the README says.

Numbers of rows (loop, scale, post) and of columns (shift, gain, bias) are float64 for float64 rows,
else float32, as is all arithmetic; results are rounded once.

Legend: P rows, D columns.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tiergnn.kernels.aggregate.reference import wide
from tiergnn.kernels.dropout.reference import keep_mask

ACTS = ("none", "relu", "leaky_relu", "elu")
SLOPED = ("leaky_relu", "elu")


class Terms(NamedTuple):
    """Everything but the rows themselves; None is left out. A number a row is [P], or [1]."""

    other: Tensor | None  # [P, D], of the dtype of the rows
    loop: Tensor | None
    scale: Tensor | None
    shift: Tensor | None  # [D]
    gain: Tensor | None  # [D]
    bias: Tensor | None  # [D]
    post: Tensor | None
    gid: Tensor | None  # int64 [P]: ids of the rows for dropout; None: 0..P-1


class Options(NamedTuple):
    act: str  # one of ACTS
    slope: float  # of leaky_relu below 0; elu's alpha
    threshold: int  # of words that are kept; 0: no dropout
    factor: float  # of what is kept; 1 without dropout
    key: Tensor | None
    site: int


class Grads(NamedTuple):
    x: Tensor | None
    other: Tensor | None
    sums: Tensor  # [2, D]: of gradients of the bias, and of those times what gain multiplies


def epilogue(x_PD: Tensor, terms: Terms, options: Options) -> Tensor:
    """post * dropout(act((scale * (x + loop * other) - shift) * gain + bias)): [P, D]."""
    value = _before_gain(x_PD, terms)
    if terms.gain is not None:
        value = value * terms.gain
    if terms.bias is not None:
        value = value + terms.bias
    if options.act == "relu":
        value = torch.relu(value)
    elif options.act == "leaky_relu":
        value = torch.where(value > 0, value, value * options.slope)
    elif options.act == "elu":
        value = torch.where(value > 0, value, torch.expm1(value) * options.slope)
    if options.threshold:
        kept = _kept(x_PD, terms, options)
        value = torch.where(kept, value * options.factor, 0.0)
    if terms.post is not None:
        value = value * terms.post[:, None]
    return value.to(x_PD.dtype)


def epilogue_grad(
    grad_PD: Tensor,
    out_PD: Tensor | None,
    x_PD: Tensor | None,
    terms: Terms,
    options: Options,
    needs: tuple[bool, bool],
) -> Grads:
    """The gradients of x and of other, where ``needs`` says so, and the sums of columns.

    ``out`` is the result, and there where it was activated; x and other are there where the second
    sum is wanted. What an activation did is told from its sign, so that relu needs no mask.
    """
    dtype = grad_PD.dtype
    grad = grad_PD.to(wide(dtype))
    post = None if terms.post is None else terms.post[:, None]
    if post is not None:
        grad = grad * post
    if options.threshold:
        grad = grad * options.factor
        if options.act != "relu":
            grad = torch.where(_kept(grad, terms, options), grad, 0.0)
    if out_PD is not None:
        out = out_PD.to(grad.dtype)
        out = out if post is None else torch.where(post < 0, -out, out)
        if options.act == "elu":
            made = out if post is None else out / torch.where(post == 0, 1.0, post.abs())
            less = grad * (made / options.factor + options.slope)
        else:
            less = grad * options.slope if options.act == "leaky_relu" else 0.0
        grad = torch.where(out > 0, grad, less)
    zero = grad.new_zeros(grad.shape[1])
    second = zero if x_PD is None else (grad * _before_gain(x_PD, terms)).sum(0)
    sums = torch.stack([grad.sum(0), second])
    if terms.gain is not None:
        grad = grad * terms.gain
    if terms.scale is not None:
        grad = grad * terms.scale[:, None]
    of_other = grad if terms.loop is None else grad * terms.loop[:, None]
    return Grads(
        grad.to(dtype) if needs[0] else None, of_other.to(dtype) if needs[1] else None, sums
    )


def _before_gain(x_PD: Tensor, terms: Terms) -> Tensor:
    value = x_PD.to(wide(x_PD.dtype))
    if terms.other is not None:
        other = terms.other.to(value.dtype)
        value = value + (other if terms.loop is None else other * terms.loop[:, None])
    if terms.scale is not None:
        value = value * terms.scale[:, None]
    return value if terms.shift is None else value - terms.shift


def _kept(rows_PD: Tensor, terms: Terms, options: Options) -> Tensor:
    gid = terms.gid
    gid = torch.arange(rows_PD.shape[0], device=rows_PD.device) if gid is None else gid
    assert options.key is not None
    return keep_mask(gid, rows_PD.shape[1], options.threshold, options.key, options.site)
