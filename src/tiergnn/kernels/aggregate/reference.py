"""Aggregation in plain torch: one row an edge, no cleverness, any dtype and device.

Legend: P destinations, S sources, E edges, D columns.
"""

from __future__ import annotations

import torch
from torch import Tensor


def wide(dtype: torch.dtype) -> torch.dtype:
    """What rows of ``dtype`` are summed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _edge_dst(rowptr: Tensor) -> Tensor:
    rows = torch.arange(rowptr.numel() - 1, device=rowptr.device)
    return torch.repeat_interleave(rows, rowptr.diff())


def _messages(col: Tensor, x_SD: Tensor, weight_E: Tensor | None) -> Tensor:
    rows_ED = x_SD[col.long()].to(wide(x_SD.dtype))
    if weight_E is None:
        return rows_ED
    return rows_ED * _of_columns(weight_E, x_SD.shape[1]).to(rows_ED.dtype)


def _of_columns(weight: Tensor, columns: int) -> Tensor:
    """Weights [E] or [E, K] for each column, [E, 1] or [E, D]."""
    if weight.dim() == 1:
        return weight[:, None]
    return weight.repeat_interleave(columns // max(1, weight.shape[1]), 1)


def _of_heads(product_ED: Tensor, heads: int) -> Tensor:
    """Sums over the columns of each head, [E, K], or of all, [E] (no heads)."""
    if not heads:
        return product_ED.sum(1)
    return product_ED.unflatten(1, (heads, product_ED.shape[1] // heads)).sum(2)


def plan(rowptr: Tensor) -> list[Tensor]:
    """What this backend wants to know about the rows of a CSR: nothing."""
    return []


def weighted_sum(
    rowptr: Tensor,
    col: Tensor,
    plan: list[Tensor],
    x_SD: Tensor,
    weight_E: Tensor | None,
    edge_E: Tensor | None,
    mean: bool,
) -> Tensor:
    """out[i] = sum over in-edges e of i of weight[edge[e]] * x[col[e]].

    weight is [E], or [E, K] for the columns of each of K heads (K = D: of each column). edge_E
    (None: e itself) says which weight belongs to an edge; ``mean`` divides by the number of
    in-edges. Other backends also take tables of rows in the place of x, with the ``shift`` of
    columns that are places (``kernels.table``). Summed in float64, so that the order of the sum
    does not show in float32.
    """
    if weight_E is not None and edge_E is not None:
        weight_E = weight_E[edge_E.long()]
    rows_ED = _messages(col, x_SD, weight_E).double()
    out = rows_ED.new_zeros(rowptr.numel() - 1, x_SD.shape[1])
    out.index_add_(0, _edge_dst(rowptr), rows_ED)
    if mean:
        out = out / rowptr.diff().clamp(min=1)[:, None]
    return out.to(x_SD.dtype)


def edge_dot(
    rowptr: Tensor, col: Tensor, plan: list[Tensor], g_PD: Tensor, x_SD: Tensor, heads: int = 0
) -> Tensor:
    """[E]: each edge's row of g (destination) times its row of x (source), in the wide dtype.

    With heads [E, K]: each head's columns by themselves.
    """
    dtype = wide(x_SD.dtype)
    return _of_heads(g_PD[_edge_dst(rowptr)].to(dtype) * x_SD[col.long()].to(dtype), heads)


def maximum(
    rowptr: Tensor, col: Tensor, plan: list[Tensor], x_SD: Tensor, weight_E: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The largest message [P, D] and how many in-edges reach it, int32 [P, D].

    Both are 0 without edges. A message is weight * x rounded to the dtype of x; NaN is the
    largest of all and ties with NaN.
    """
    dst_E = _edge_dst(rowptr)
    messages = _messages(col, x_SD, weight_E).to(x_SD.dtype)
    index = dst_E[:, None].expand_as(messages)
    shape = (rowptr.numel() - 1, x_SD.shape[1])
    out = torch.zeros(shape, dtype=x_SD.dtype, device=x_SD.device)
    out = out.scatter_reduce(0, index, messages, "amax", include_self=False)
    ties = torch.zeros(shape, dtype=torch.int32, device=x_SD.device)
    return out, ties.index_add(0, dst_E, _reaches(messages, out[dst_E]).int())


def _reaches(messages: Tensor, best: Tensor) -> Tensor:
    return (messages == best) | (messages.isnan() & best.isnan())


def maximum_grad_x(
    rowptr_t: Tensor,
    dst_t: Tensor,
    edge_t: Tensor,
    plan_t: list[Tensor],
    share_PD: Tensor,
    out_PD: Tensor,
    x_SD: Tensor,
    weight_E: Tensor | None,
) -> Tensor:
    """[S, D]: sum over out-edges of weight * share where the message reached the maximum.

    share is the gradient divided among the ties. In the dtype of x.
    """
    src_E, dst_E = _edge_dst(rowptr_t), dst_t.long()
    weight = None if weight_E is None else weight_E[edge_t.long()]
    messages = _messages(src_E, x_SD, weight).to(x_SD.dtype)
    passed = torch.where(_reaches(messages, out_PD[dst_E]), share_PD[dst_E].double(), 0.0)
    if weight is not None:
        passed = passed * _of_columns(weight, x_SD.shape[1]).double()
    grad = passed.new_zeros(rowptr_t.numel() - 1, x_SD.shape[1])
    return grad.index_add_(0, src_E, passed).to(x_SD.dtype)


def maximum_grad_weight(
    rowptr: Tensor,
    col: Tensor,
    plan: list[Tensor],
    share_PD: Tensor,
    out_PD: Tensor,
    x_SD: Tensor,
    weight_E: Tensor,
) -> Tensor:
    """[E] or [E, K]: <share, x> over the columns where the message reached the maximum."""
    dst_E = _edge_dst(rowptr)
    reaches = _reaches(_messages(col, x_SD, weight_E).to(x_SD.dtype), out_PD[dst_E])
    dtype = wide(x_SD.dtype)
    product = share_PD[dst_E].to(dtype) * x_SD[col.long()].to(dtype)
    heads = weight_E.shape[1] if weight_E.dim() > 1 else 0
    return _of_heads(torch.where(reaches, product, 0.0), heads)
