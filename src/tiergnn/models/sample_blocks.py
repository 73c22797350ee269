"""Small blocks of different sizes, to meter stages on.

Legend: P rows, S sources, E edges, L loops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from tiergnn.kernels.block import Block
from tiergnn.workload import Extent


class SampleBlock(NamedTuple):
    """A block, its counts, and how many of its edges are loops."""

    block: Block
    extent: Extent
    loops: int


# P, S, E, L: in no proportion to each other; kernels cut the last ones into several tasks.
_COUNTS = (
    (307, 523, 4001, 11),
    (1013, 1319, 2203, 47),
    (401, 1787, 9007, 23),
    (797, 907, 17011, 5),
    (1511, 2609, 23003, 31),
    (601, 2203, 30011, 59),
    (1201, 1409, 13007, 17),
)


def sample_blocks(inputs: Mapping[str, Tensor], *, loops: bool) -> Iterator[SampleBlock]:
    """Random blocks, some edges of which are loops (at most one a row) where ``loops`` says so.

    They carry weights and features of edges where ``inputs`` do, as the block of a graph does.
    """
    device = inputs["x"].device
    for rows, sources, edges, some in _COUNTS:
        num_loops = some if loops else 0
        generator = torch.Generator().manual_seed(rows)
        dst = torch.randint(rows, (edges,), generator=generator)
        # A source of its own number would be a loop: it takes the next one.
        src = torch.randint(sources - 1, (edges,), generator=generator)
        src += src >= dst
        dst[:num_loops] = src[:num_loops] = torch.arange(num_loops)
        dst, order = dst.sort(stable=True)
        degree = torch.bincount(dst, minlength=rows)
        values = {
            name: torch.ones(edges, *inputs[name].shape[1:], dtype=inputs[name].dtype)
            for name in ("edge_weight", "edge_attr")
            if name in inputs
        }
        block = Block(
            rowptr=torch.cat([degree.new_zeros(1), degree.cumsum(0)]),
            col=src[order].to(torch.int32),
            num_src=sources,
            edge_weight=values.get("edge_weight"),
            edge_attr=values.get("edge_attr"),
        ).to(device)
        yield SampleBlock(block, Extent(rows, sources, edges), num_loops)
