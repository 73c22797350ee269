"""SourceClasses: a part's edges cut into classes by where their sources lie, each a block.

Legend: P own rows, S source rows of a class, own ones first, E edges of a class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tiergnn.kernels.block import Block

Edges = dict[str, Tensor]  # inputs of edges by name, [E, ...] each


@dataclass(frozen=True, slots=True, eq=False)
class SourceClass:
    """A block of some of the edges, and the inputs of those."""

    block: Block
    edges: Edges


SourceClasses = Mapping[int, SourceClass]


def own_and_halo(block: Block, edges: Edges) -> SourceClasses:
    """0: edges from own rows, which are all its sources; 1: edges from rows of others."""
    outside = block.col >= block.num_dst
    made = {}
    for number, chosen in ((0, ~outside), (1, outside)):
        kept = torch.nonzero(chosen).flatten()
        part = block.only(kept)
        if number == 0:
            gid = None if part.src_gid is None else part.src_gid[: block.num_dst]
            part = replace(part, num_src=block.num_dst, src_gid=gid)
        made[number] = SourceClass(part, {name: rows[kept] for name, rows in edges.items()})
    return made
