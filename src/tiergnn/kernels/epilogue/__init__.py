"""What follows a graph operation row by row, in one pass over the rows and one back.

Legend: P rows, D columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tiergnn.errors import ConfigError, unknown
from tiergnn.kernels import backend
from tiergnn.kernels.aggregate.reference import wide
from tiergnn.kernels.arguments import (
    check_device,
    check_draws,
    check_floats,
    check_ids,
    check_numbers,
    told,
)
from tiergnn.kernels.dropout import Key, dropout, threshold
from tiergnn.kernels.dropout import scale as kept_factor
from tiergnn.kernels.epilogue import reference
from tiergnn.kernels.epilogue.reference import ACTS, SLOPED, Grads, Options, Terms
from tiergnn.kernels.library import define

_TERMS = (
    "Tensor? other, Tensor? loop, Tensor? scale, Tensor? shift, Tensor? gain, Tensor? bias, "
    "Tensor? post, Tensor? gid"
)
_OPTIONS = "str act, float slope, float p, Tensor? key, int site"
_NUM_TERMS, _NUM_OPTIONS = 8, 5
_ALL_DROPPED = 2**32


def _options(act: str, slope: float, p: float, key: Tensor | None, site: int) -> Options:
    return Options(act, slope, threshold(p), kept_factor(p), key, site)


def _run(x_PD: Tensor, *given: Any) -> Tensor:
    terms, options = Terms(*given[:_NUM_TERMS]), _options(*given[_NUM_TERMS:-1])
    return backend.load("epilogue", given[-1]).epilogue(x_PD, terms, options)


def _fake(x_PD: Tensor, *given: Any) -> Tensor:
    return torch.empty_like(x_PD, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Of rows, those that were activated, and what gain multiplied where it needs a gradient."""
    x, terms = inputs[0], Terms(*inputs[1 : 1 + _NUM_TERMS])
    ctx.options = inputs[1 + _NUM_TERMS :]
    flows = dict(zip(Terms._fields, ctx.needs_input_grad[1:], strict=False))
    if not flows["gain"]:
        x = None
        terms = terms._replace(other=None, shift=None)
    activated = ctx.options[0] != "none"
    ctx.save_for_backward(output if activated else None, x, *terms._replace(bias=None))


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    out, x, *kept = ctx.saved_tensors
    terms = Terms(*kept)
    needs_x, *flows = ctx.needs_input_grad[: 1 + _NUM_TERMS]
    flow = Terms(*flows)
    # What changes no number has its gradient already; so has other where it is added as it is.
    same = ctx.options[0] == "none" and ctx.options[2] == 0
    same = same and terms.scale is None and terms.gain is None and terms.post is None
    alone = flow.other and (terms.loop is not None or not (needs_x or same))
    needs = bool(needs_x and not same), bool(alone and not (same and terms.loop is None))
    grads = Grads(None, None, grad)
    if any(needs) or flow.shift or flow.gain or flow.bias:
        grads = _grads(ctx, grad, out, x, terms, needs)
    of_x = grad if same else grads.x
    of_other = grads.other if needs[1] else of_x
    found = Terms(*(None,) * _NUM_TERMS)._replace(
        other=of_other if flow.other else None,
        shift=_of_shift(terms.gain, grads.sums[0]) if flow.shift else None,
        gain=grads.sums[1] if flow.gain else None,
        bias=grads.sums[0] if flow.bias else None,
    )
    return of_x if needs_x else None, *found, *(None,) * (_NUM_OPTIONS + 1)


def _of_shift(gain_D: Tensor | None, total_D: Tensor) -> Tensor:
    return -total_D if gain_D is None else -total_D * gain_D


def _grads(
    ctx: Any,
    grad: Tensor,
    out: Tensor | None,
    x: Tensor | None,
    terms: Terms,
    needs: tuple[bool, bool],
) -> Grads:
    if torch.is_grad_enabled():  # differentiable once more
        options = _options(*ctx.options[:-1])
        return reference.epilogue_grad(grad, out, x, terms, options, needs)
    given = terms._replace(bias=None)
    *rows, sums = _grad_op(grad, out, x, *given, list(needs), *ctx.options)
    of_x = rows.pop(0) if needs[0] else None
    return Grads(of_x, rows.pop(0) if needs[1] else None, sums)


_op = define(
    "epilogue",
    f"(Tensor x, {_TERMS}, {_OPTIONS}, str backend) -> Tensor",
    run=_run,
    fake=_fake,
    keep=_keep,
    backward=_backward,
)


def _run_grad(grad: Tensor, out: Tensor | None, x: Tensor | None, *given: Any) -> list[Tensor]:
    terms, needs = Terms(*given[:_NUM_TERMS]), given[_NUM_TERMS]
    options = _options(*given[_NUM_TERMS + 1 : -1])
    module = backend.load("epilogue", given[-1])
    found = module.epilogue_grad(grad, out, x, terms, options, tuple(needs))
    return [tensor for tensor in found if tensor is not None]


def _fake_grad(grad: Tensor, out: Tensor | None, x: Tensor | None, *given: Any) -> list[Tensor]:
    rows = [_fake(grad) for need in given[_NUM_TERMS] if need]
    return [*rows, grad.new_empty(2, grad.shape[1], dtype=wide(grad.dtype))]


def _once(ctx: Any, *grads: Any) -> None:
    raise AssertionError("a gradient that is to be differentiated is the reference's")


def _nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """There is no second backward to keep anything for."""


_grad_op = define(
    "epilogue_grad",
    f"(Tensor grad, Tensor? out, Tensor? x, {_TERMS}, bool[] needs, {_OPTIONS}, str backend)"
    " -> Tensor[]",
    run=_run_grad,
    fake=_fake_grad,
    keep=_nothing,
    backward=_once,
)


def epilogue(
    x_PD: Tensor,
    *,
    other: Tensor | None = None,
    loop: Tensor | None = None,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    gain: Tensor | None = None,
    bias: Tensor | None = None,
    act: str = "none",
    slope: float = 0.0,
    p: float = 0.0,
    key: Key | None = None,
    site: int = 0,
    gid: Tensor | None = None,
    post: Tensor | None = None,
) -> Tensor:
    """post * dropout(act((scale * (x + loop * other) - shift) * gain + bias)): [P, D].

    x and other [P, D] share a float dtype, which the result has; loop, scale, post are [P, 1], or
    [1] for all rows; shift, gain, bias [D]; what is None is left out. act is none, relu,
    leaky_relu (slope, 0 or more, below 0) or elu (slope is its alpha). Dropout is that of
    ``dropout(x, p, key, site, gid)``. Computes in float32 (float64 for float64) and rounds once.
    Backward keeps the result if it was activated, and x and other if gain needs a gradient; what
    is not a float of rows is computed anew. Sums of columns are added in a fixed order.
    Raises ConfigError for what does not fit.
    """
    if act not in ACTS:
        raise unknown("act", act, ACTS)
    if act in SLOPED and not slope >= 0:
        raise ConfigError(f"{act} of rows needs a slope of 0 or more, has {slope}")
    rows, columns = (
        {"loop": loop, "scale": scale, "post": post},
        {"shift": shift, "gain": gain, "bias": bias},
    )
    _check(x_PD, other, rows, columns, gid)
    dtype = wide(x_PD.dtype)
    dropped = threshold(p) == _ALL_DROPPED
    # Numbers of rows that need gradients, which is rare, are left to torch.
    if _flows(loop, scale):
        x_PD, other, loop = _added(x_PD, other, loop), None, None
    if scale is not None and _flows(scale):
        x_PD, scale = (x_PD * scale).to(x_PD.dtype), None
    last = post if _flows(post) or dropped else None
    given = (
        other,
        *(_flat(number, dtype) for number in (loop, scale)),
        *(None if numbers is None else numbers.to(dtype) for numbers in (shift, gain, bias)),
        None if last is not None else _flat(post, dtype),
        gid,
    )
    drops = 0.0, None, 0
    if threshold(p):
        check_draws(key, site=site)
        assert key is not None
        key = key.to(x_PD.device)
        drops = drops if dropped else (p, key, site)
    out = _op(x_PD, *given, act, slope, *drops, backend.choose(x_PD.device))
    if dropped and key is not None:
        out = dropout(out, p, key, site, gid)
    return out if last is None else (out * last).to(out.dtype)


def _flat(number: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if number is None else number.detach().reshape(-1).to(dtype)


def _flows(*numbers: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(n is not None and n.requires_grad for n in numbers)


def _added(x_PD: Tensor, other: Tensor | None, loop: Tensor | None) -> Tensor:
    if other is None:
        return x_PD
    return x_PD + (other if loop is None else (other * loop).to(other.dtype))


def _check(
    x_PD: Tensor,
    other: Tensor | None,
    of_rows: dict[str, Tensor | None],
    of_columns: dict[str, Tensor | None],
    gid: Tensor | None,
) -> None:
    check_floats("x of an epilogue", x_PD, "float rows [P, D]", 2)
    if other is not None and (other.shape != x_PD.shape or other.dtype != x_PD.dtype):
        raise ConfigError(f"rows to be added need {told(x_PD)}, have {told(other)}")
    rows, columns = x_PD.shape
    for name, number in {"other": other, **of_rows, **of_columns}.items():
        if number is not None:
            check_numbers(name, number)
            check_device(name, number, x_PD.device, "x")
    for name, number in of_rows.items():
        if number is not None and tuple(number.shape) not in ((rows, 1), (1,), (1, 1)):
            raise ConfigError(f"{name} needs [{rows}, 1] or [1], has {told(number)}")
    for number in of_columns.values():
        if number is not None and tuple(number.shape) != (columns,):
            raise ConfigError(f"shift, gain and bias need [{columns}], have {told(number)}")
    if gid is not None:
        check_ids("gid", gid, rows, x_PD.device)
