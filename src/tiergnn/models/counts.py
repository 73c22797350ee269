"""Counts: of a block's rows and edges, as numbers and as ones of each.

Legend: P own rows, E edges.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tiergnn.kernels.block import Block
from tiergnn.models.operation import operation


@operation(kind="structure")
def row_ones(block: Block, *, dtype: torch.dtype) -> Tensor:
    """A column of ones, [P, 1]."""
    return torch.ones(block.num_dst, 1, dtype=dtype, device=block.device)


@operation(kind="structure", of="edges")
def edge_ones(block: Block, *, dtype: torch.dtype) -> Tensor:
    """A weight of 1 for every edge, [E]."""
    return torch.ones(block.num_edges, dtype=dtype, device=block.device)


@operation(kind="structure", of="count")
def num_rows(block: Block) -> int:
    """The number of own rows."""
    return block.num_dst


@operation(kind="structure", of="edge count")
def num_edges(block: Block) -> int:
    """The number of edges."""
    return block.num_edges
