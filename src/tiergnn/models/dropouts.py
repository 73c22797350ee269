"""Dropouts: of own rows, of edges and of self-loops, each by ids of the whole graph.

Legend: P own rows, E edges.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tiergnn.kernels.block import Block
from tiergnn.kernels.dropout import Key, dropout, make_key
from tiergnn.models.operation import operation


@operation(kind="dropout")
def drop_rows(
    x: Tensor, block: Block | None, *, p: float, key: Key | None = None, site: int = 0
) -> Tensor:
    """Dropout of own rows [P, ...], by their ids in the graph; of rows 0..N-1 without a block."""
    return dropout(
        x, p, draw_key(p) if key is None else key, site, None if block is None else block.dst_gid
    )


@operation(kind="dropout", of="edges")
def drop_edges(
    x: Tensor, block: Block, *, p: float, key: Key | None = None, site: int = 0
) -> Tensor:
    """Dropout of rows of edges [E, ...], by their ids in the graph."""
    return dropout(x, p, draw_key(p) if key is None else key, site, block.eid)


@operation(kind="dropout")
def drop_loops(
    x: Tensor, block: Block, *, p: float, key: Key | None = None, site: int = 0
) -> Tensor:
    """Dropout of own rows [P, ...] that stand for self-loops: their ids follow the edges'."""
    gid = block.dst_gid
    if gid is None:
        gid = torch.arange(block.num_dst, device=x.device)
    return dropout(
        x, p, draw_key(p) if key is None else key, site, gid + (block.num_graph_edges or 0)
    )


def draw_key(p: float) -> Key | None:
    """A key from torch's generator, for layers that are called outside a traced model."""
    if p == 0:
        return None
    return make_key(*torch.randint(2**32, (2,)).tolist())
