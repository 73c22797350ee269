"""Graphs for GPU benchmarks, made on the device in a second: R-MAT, uniform and star shapes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tiergnn.kernels.block import Block

# nodes, edges, chances of the quarters, features, classes
RMAT = {
    "reddit": (232_965, 114_615_892, (0.57, 0.19, 0.19, 0.05), 602, 41),
    "products": (2_449_029, 123_718_280, (0.45, 0.22, 0.22, 0.11), 100, 47),
    "products/8": (306_128, 15_464_785, (0.45, 0.22, 0.22, 0.11), 100, 47),
    "orkut": (3_072_441, 234_370_166, (0.57, 0.19, 0.19, 0.05), 128, 64),
}


def rmat(name: str, device: str, seed: int = 1, shrink: int = 1) -> Block:
    """The R-MAT graph of a row of ``RMAT``, node ids shuffled, with 1 / shrink of its size."""
    num_nodes, num_edges, chances, _, _ = RMAT[name]
    num_nodes, num_edges = num_nodes // shrink, num_edges // shrink
    generator = torch.Generator(device=device).manual_seed(seed)
    src, dst = _draw(num_nodes, num_edges, chances, generator)
    while (outside := torch.nonzero((src >= num_nodes) | (dst >= num_nodes)).flatten()).numel():
        src[outside], dst[outside] = _draw(num_nodes, outside.numel(), chances, generator)
    name_of = torch.randperm(num_nodes, generator=generator, device=device)
    return as_block(num_nodes, name_of[src], name_of[dst])


def _draw(
    num_nodes: int, count: int, chances: tuple[float, ...], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    a, b, c, _ = chances
    src = torch.zeros(count, dtype=torch.int64, device=generator.device)
    dst = torch.zeros_like(src)
    for _ in range((num_nodes - 1).bit_length()):
        chance = torch.rand(count, generator=generator, device=generator.device)
        low = chance >= a + b
        right = ((chance >= a) & ~low) | (chance >= a + b + c)
        src, dst = src * 2 + low, dst * 2 + right
    return src, dst


def as_block(num_nodes: int, src: Tensor, dst: Tensor) -> Block:
    """The block of an edge list: rows by destination, sources ascending."""
    key = (dst * num_nodes + src).sort().values
    dst = torch.div(key, num_nodes, rounding_mode="floor")
    rowptr = torch.zeros(num_nodes + 1, dtype=torch.int64, device=key.device)
    rowptr[1:] = torch.bincount(dst, minlength=num_nodes).cumsum(0)
    return Block(rowptr=rowptr, col=(key - dst * num_nodes).int(), num_src=num_nodes)


def uniform(device: str, shrink: int = 1) -> Block:
    """2 million nodes of in-degree 50 from sources at random."""
    num_nodes, degree = 2_000_000 // shrink, 50
    generator = torch.Generator(device=device).manual_seed(2)
    shape = num_nodes, degree
    src = torch.randint(num_nodes, shape, generator=generator, device=device)
    dst = torch.arange(num_nodes, device=device)[:, None].expand(shape)
    return as_block(num_nodes, src.flatten(), dst.flatten())


def star(device: str, shrink: int = 1) -> Block:
    """A hub of a million in-edges, and a million rows of in-degree one that read the hub."""
    leaf = torch.arange(1, 1_000_000 // shrink + 1, device=device)
    hub = torch.zeros_like(leaf)
    return as_block(leaf.numel() + 1, torch.cat([leaf, hub]), torch.cat([hub, leaf]))


GRAPHS: dict[str, Callable[..., Block]] = {
    **{name: (lambda device, shrink=1, n=name: rmat(n, device, shrink=shrink)) for name in RMAT},
    "uniform": uniform,
    "star": star,
}
