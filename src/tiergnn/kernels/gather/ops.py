"""Gathering as an op that torch knows: its gradient adds what came of a row up, table by table.

Legend: S rows of all tables, M indices, D columns, B tables.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tiergnn.errors import ConfigError
from tiergnn.kernels.gather.moves import Groups, add_up, check_places, move
from tiergnn.kernels.library import define
from tiergnn.kernels.table import Places


def _gather(
    tables: list[Tensor], at: Tensor, shift: int, dtype: torch.dtype | None, name: str
) -> Tensor:
    places = Places(at, shift)
    check_places(places, tuple(table.shape[0] for table in tables))
    out = _gather_fake(tables, at, shift, dtype, name)
    move(tables, places, out, None, add=False, name=name)
    return out


def _gather_fake(
    tables: list[Tensor], at: Tensor, shift: int, dtype: torch.dtype | None, name: str
) -> Tensor:
    shape = at.shape[0], *tables[0].shape[1:]
    return torch.empty(shape, dtype=dtype or tables[0].dtype, device=at.device)


def _gather_keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """The places, and of the tables what backward's results are to look like."""
    tables, at, ctx.shift, _, ctx.name = inputs
    ctx.save_for_backward(at, *(table.new_empty(()).expand(table.shape) for table in tables))


def _gather_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    at, *tables = ctx.saved_tensors
    asked = ctx.needs_input_grad[0]
    needs = list(asked) if isinstance(asked, list | tuple) else [bool(asked)] * len(tables)
    grads = _gather_grad_op(grad, tables, at, ctx.shift, needs, ctx.name)
    of_tables = [g if need else None for g, need in zip(grads, needs, strict=True)]
    return of_tables, None, None, None, None


gather_op = define(
    "gather",
    "(Tensor[] tables, Tensor at, int shift, ScalarType? dtype, str backend) -> Tensor",
    run=_gather,
    fake=_gather_fake,
    keep=_gather_keep,
    backward=_gather_backward,
)


def _gather_grad(
    grad: Tensor, tables: list[Tensor], at: Tensor, shift: int, needs: list[bool], name: str
) -> list[Tensor]:
    """Gradients of the tables; empty where none is needed. Rows of each are summed in order."""
    grads = []
    for number, (table, need) in enumerate(zip(tables, needs, strict=True)):
        if not need:
            grads.append(table.new_empty(0))
            continue
        rows, own = at, grad
        if shift:
            here = torch.nonzero(at >> shift == number).flatten()
            rows, own = at[here] - (number << shift), grad[here]
        total = torch.zeros(table.shape, dtype=table.dtype, device=grad.device)
        add_up(own, Groups.of(rows), total, name)
        grads.append(total.to(table.device))
    return grads


def _gather_grad_fake(
    grad: Tensor, tables: list[Tensor], at: Tensor, shift: int, needs: list[bool], name: str
) -> list[Tensor]:
    return [
        torch.empty_like(t, memory_format=torch.contiguous_format) if need else t.new_empty(0)
        for t, need in zip(tables, needs, strict=True)
    ]


def _once(ctx: Any, *grads: Any) -> None:
    raise ConfigError(
        "a gather is differentiable once", hint="x[index], differentiable any number of times"
    )


_gather_grad_op = define(
    "gather_grad",
    "(Tensor grad, Tensor[] tables, Tensor at, int shift, bool[] needs, str backend) -> Tensor[]",
    run=_gather_grad,
    fake=_gather_grad_fake,
    keep=lambda ctx, inputs, output: None,
    backward=_once,
)
