"""Aggregation of rows that lie in several tables: read in place, gradients table by table.

The sources of a block are the rows of all tables, one table after the other. Backward goes over the
out-edges of each table's rows by itself, so that a table that needs no gradient costs none, and
what belongs to another rank comes back as a tensor of its own, to be sent there.

Legend: P destinations, E edges, D columns, B tables.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tiergnn.errors import ConfigError
from tiergnn.kernels import backend
from tiergnn.kernels.aggregate.ops import by_degree, heads_of
from tiergnn.kernels.aggregate.reference import wide
from tiergnn.kernels.block import Block
from tiergnn.kernels.library import define
from tiergnn.kernels.table import RowTable


def _given(block: Block, tables: list[Tensor], name: str) -> tuple[Any, Any, int]:
    """Columns, rows and shift as a backend wants them; plain torch takes the tables joined."""
    table = RowTable(tables)
    if name == "reference":
        return block.col, table.joined(), 0
    at, shift = block.places(table.sizes)
    return at, table.tables, shift


def _shift(name: str, shift: int) -> dict[str, int]:
    return {} if name == "reference" else {"shift": shift}


def _run(
    handle: int, reduce: str, tables: list[Tensor], weight_E: Tensor | None, name: str
) -> tuple[Tensor, Tensor]:
    """The result, and the number of ties of a maximum."""
    block, module = Block.ready(handle), backend.load("aggregate", name)
    col, rows, shift = _given(block, tables, name)
    plan, more = block.plan("aggregate", name), _shift(name, shift)
    if reduce == "max":
        return module.maximum(block.rowptr, col, plan, rows, weight_E, **more)
    mean = reduce == "mean"
    out = module.weighted_sum(block.rowptr, col, plan, rows, weight_E, None, mean, **more)
    return out, out.new_empty(0, dtype=torch.int32)


def _fake(
    handle: int, reduce: str, tables: list[Tensor], weight_E: Tensor | None, name: str
) -> tuple[Tensor, Tensor]:
    out = tables[0].new_empty(Block.by_handle(handle).num_dst, tables[0].shape[1])
    return out, out.new_empty(out.shape if reduce == "max" else (0,), dtype=torch.int32)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    handle, ctx.reduce, tables, weight_E, ctx.name = inputs
    ctx.block = Block.by_handle(handle)
    ctx.mark_non_differentiable(output[1])
    if ctx.reduce != "max" and not ctx.needs_input_grad[3]:
        # Of sums backward asks for no values: what stands for rows takes no memory.
        output = output[0].new_empty(()), output[1].new_empty(())
        tables = [table.new_empty(()).expand(table.shape) for table in tables]
    ctx.save_for_backward(weight_E, *output, *tables)


def _backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Any, ...]:
    weight_E, out, ties, *tables = ctx.saved_tensors
    asked = ctx.needs_input_grad[2]
    needs = list(asked) if isinstance(asked, list | tuple) else [bool(asked)] * len(tables)
    needs.append(bool(ctx.needs_input_grad[3]))
    given = ctx.block.handle, ctx.reduce, grad, out, ties, tables, weight_E, needs, ctx.name
    *grads, grad_weight = _table_grad_op(*given)
    of_tables = [grad if need else None for grad, need in zip(grads, needs, strict=False)]
    return None, None, of_tables, grad_weight if needs[-1] else None, None


table_op = define(
    "aggregate_tables",
    "(int block, str reduce, Tensor[] tables, Tensor? weight, str backend) -> (Tensor, Tensor)",
    run=_run,
    fake=_fake,
    keep=_keep,
    backward=_backward,
)


def _grad(
    handle: int,
    reduce: str,
    grad_PD: Tensor,
    out_PD: Tensor,
    ties_PD: Tensor,
    tables: list[Tensor],
    weight_E: Tensor | None,
    needs: list[bool],
    name: str,
) -> list[Tensor]:
    """Gradients of the tables, then of the weights; empty where none is needed."""
    block, module, first = Block.ready(handle), backend.load("aggregate", name), 0
    if reduce == "max":
        grad_PD = grad_PD.to(wide(grad_PD.dtype)) / ties_PD.clamp(min=1)
    elif reduce == "mean":
        grad_PD = by_degree(block, grad_PD)
    grads = []
    for table, need in zip(tables, needs, strict=False):
        rows = first, first + table.shape[0]
        first = rows[1]
        if not need:
            grads.append(table.new_empty(0, device=grad_PD.device))
            continue
        rowptr, dst, edge = block.transposed_rows(*rows)
        plan = block.plan("aggregate", name, True, rows)
        if reduce == "max":
            own = table.to(grad_PD.device)
            made = module.maximum_grad_x(rowptr, dst, edge, plan, grad_PD, out_PD, own, weight_E)
        else:
            which = edge if weight_E is not None else None
            made = module.weighted_sum(rowptr, dst, plan, grad_PD, weight_E, which, False)
        grads.append(made.to(table.device, table.dtype))
    if not needs[-1] or weight_E is None:
        return [*grads, grad_PD.new_empty(0)]
    col, rows, shift = _given(block, tables, name)
    plan, more = block.plan("aggregate", name), _shift(name, shift)
    if reduce == "max":
        given = block.rowptr, col, plan, grad_PD, out_PD, rows, weight_E
        made = module.maximum_grad_weight(*given, **more)
    else:
        heads = heads_of(weight_E)
        made = module.edge_dot(block.rowptr, col, plan, grad_PD, rows, heads, **more)
    return [*grads, made.to(weight_E.dtype)]


def _grad_fake(handle: int, reduce: str, grad_PD: Tensor, *given: Any) -> list[Tensor]:
    _, _, tables, weight_E, needs, _ = given
    grads = [t if t is not None else grad_PD for t in (*tables, weight_E)]
    return [
        torch.empty_like(t, memory_format=torch.contiguous_format) if need else t.new_empty(0)
        for t, need in zip(grads, needs, strict=True)
    ]


def _once(ctx: Any, *grads: Any) -> None:
    raise ConfigError(
        "the aggregation of a RowTable is differentiable once",
        hint="one tensor, which is differentiable any number of times",
    )


_table_grad_op = define(
    "aggregate_tables_grad",
    "(int block, str reduce, Tensor grad, Tensor out, Tensor ties, Tensor[] tables, "
    "Tensor? weight, bool[] needs, str backend) -> Tensor[]",
    run=_grad,
    fake=_grad_fake,
    keep=lambda ctx, inputs, output: None,
    backward=_once,
)
