"""A part of a block: some of its rows, all of their in-edges, and the sources of those.

Legend: P rows of the block, S its sources, E its edges.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tiergnn.kernels.block import Block


class Part(NamedTuple):
    """A block over some rows of another, and where its sources and edges stand in that one."""

    block: Block
    sources: Tensor  # int64, the rows first
    edges: Tensor  # int64


def part_of(block: Block, rows: Tensor) -> Part:
    """The part of ``block`` that owns ``rows`` (int64, distinct, in any order)."""
    starts, degree = block.rowptr[rows], block.in_degree[rows]
    rowptr = torch.cat([degree.new_zeros(1), degree.cumsum(0)])
    total = int(rowptr[-1])
    shift = torch.repeat_interleave(starts - rowptr[:-1], degree, output_size=total)
    edges = torch.arange(total, device=rows.device) + shift
    column = block.col[edges].long()
    slot = torch.full((block.num_src,), -1, dtype=torch.int64, device=rows.device)
    slot[rows] = torch.arange(rows.numel(), device=rows.device)
    halo = torch.unique(column[slot[column] < 0])
    slot[halo] = torch.arange(rows.numel(), rows.numel() + halo.numel(), device=rows.device)
    sources = torch.cat([rows, halo])
    part = Block(
        rowptr=rowptr,
        col=slot[column].to(block.col.dtype),
        num_src=sources.numel(),
        dst_gid=rows if block.dst_gid is None else block.dst_gid[rows],
        src_gid=sources if block.src_gid is None else block.src_gid[sources],
        eid=edges if block.eid is None else block.eid[edges],
        edge_weight=None if block.edge_weight is None else block.edge_weight[edges],
        edge_attr=None if block.edge_attr is None else block.edge_attr[edges],
        num_graph_nodes=block.num_graph_nodes,
        num_graph_edges=block.num_graph_edges,
    )
    return Part(part, sources, edges)
