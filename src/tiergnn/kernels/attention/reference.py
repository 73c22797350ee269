"""Attention in plain torch, any dtype: what the fused kernels must compute.

Legend: P destination rows, S source rows, E stored edges, K heads, F features, D edge features;
L edges attended over: the stored ones, or the stored ones without loops and then one loop a
destination.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from tiergnn.kernels.block import Block
from tiergnn.kernels.dropout.reference import keep_mask

if TYPE_CHECKING:
    from tiergnn.kernels.attention import Options


class Attended(NamedTuple):
    """The edges that a softmax runs over."""

    src: Tensor  # int64 [L]
    dst: Tensor  # int64 [L]
    row_id: Tensor  # int64 [L], for dropout
    stored: Tensor  # int64: positions in the block of the stored edges among them


def attended(block: Block, *, self_loop: bool) -> Attended:
    dst_E, src_E = block.edge_dst, block.col.long()
    stored = torch.arange(block.num_edges, device=block.device)
    id_E = stored if block.eid is None else block.eid
    if not self_loop:
        return Attended(src_E, dst_E, id_E, stored)
    stored = stored[src_E != dst_E]
    rows_P = torch.arange(block.num_dst, device=block.device)
    assert block.num_graph_edges is not None
    gid_P = rows_P if block.dst_gid is None else block.dst_gid
    return Attended(
        torch.cat([src_E[stored], rows_P]),
        torch.cat([dst_E[stored], rows_P]),
        torch.cat([id_E[stored], block.num_graph_edges + gid_P]),
        stored,
    )


def gat_attention(
    block: Block,
    h_SKF: Tensor,
    score_src_SK: Tensor,
    score_dst_PK: Tensor,
    score_edge_EK: Tensor | None,
    score_loop_PK: Tensor | None,
    options: Options,
) -> Tensor:
    """See ``kernels.attention.gat_attention``."""
    edges = attended(block.check(), self_loop=options.self_loop)
    wide = _wide(h_SKF)
    logit_LK = score_src_SK.to(wide)[edges.src] + score_dst_PK.to(wide)[edges.dst]
    if score_edge_EK is not None:
        logit_LK = logit_LK + _edge_rows(edges, score_edge_EK, score_loop_PK).to(wide)
    logit_LK = leaky_relu(logit_LK, options.negative_slope)
    return _weighted_sum(block, edges, logit_LK, h_SKF, options)


def gatv2_attention(
    block: Block,
    x_src_SKF: Tensor,
    x_dst_PKF: Tensor,
    att_KF: Tensor,
    edge_attr_ED: Tensor | None,
    edge_weight_DKF: Tensor | None,
    loop_attr_PD: Tensor | None,
    options: Options,
) -> Tensor:
    """See ``kernels.attention.gatv2_attention``."""
    edges = attended(block.check(), self_loop=options.self_loop)
    wide = _wide(x_src_SKF)
    pre_LKF = x_src_SKF.to(wide)[edges.src] + x_dst_PKF.to(wide)[edges.dst]
    if edge_attr_ED is not None:
        assert edge_weight_DKF is not None
        attr_LD = _edge_rows(edges, edge_attr_ED, loop_attr_PD).to(wide)
        pre_LKF = pre_LKF + torch.einsum("ed,dkf->ekf", attr_LD, edge_weight_DKF.to(wide))
    logit_LK = (leaky_relu(pre_LKF, options.negative_slope) * att_KF.to(wide)).sum(-1)
    return _weighted_sum(block, edges, logit_LK, x_src_SKF, options)


def _wide(x: Tensor) -> torch.dtype:
    """What sums are kept in."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _edge_rows(edges: Attended, stored_ED: Tensor, loop_PD: Tensor | None) -> Tensor:
    rows = stored_ED[edges.stored]
    return rows if loop_PD is None else torch.cat([rows, loop_PD.to(rows.dtype)])


def _weighted_sum(
    block: Block,
    edges: Attended,
    logit_LK: Tensor,
    x_SKF: Tensor,
    options: Options,
) -> Tensor:
    """Sum over in-edges of the dropped-out softmax of the logits times the source rows."""
    index_LK = edges.dst[:, None].expand_as(logit_LK)
    lowest_PK = logit_LK.new_full((block.num_dst, logit_LK.shape[1]), -torch.inf)
    max_PK = lowest_PK.scatter_reduce(0, index_LK, logit_LK.detach(), "amax")
    exp_LK = (logit_LK - max_PK[edges.dst]).exp()
    total_PK = torch.zeros_like(max_PK).index_add(0, edges.dst, exp_LK)
    alpha_LK = exp_LK / (total_PK + 1e-16)[edges.dst]
    if options.threshold:
        assert options.key is not None
        columns = options.head + alpha_LK.shape[1]
        kept = keep_mask(edges.row_id, columns, options.threshold, options.key, options.site)
        alpha_LK = torch.where(kept[:, options.head :], alpha_LK * options.scale, 0.0)
    message_LKF = alpha_LK[..., None] * x_SKF.to(alpha_LK.dtype)[edges.src]
    out_PKF = message_LKF.new_zeros(block.num_dst, *x_SKF.shape[1:])
    return out_PKF.index_add(0, edges.dst, message_LKF).to(x_SKF.dtype)
