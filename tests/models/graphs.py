"""Graphs of tests as tensors in an order of edges that is nobody's."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch


class Given(NamedTuple):
    num_nodes: int
    edge_index: torch.Tensor  # int64 [2, E], shuffled
    weight: torch.Tensor  # float64 [E], positive
    attr: torch.Tensor  # float64 [E, 3]
    has_double_loops: bool


def given(graph, seed=0):
    """A Graph's edges shuffled, with weights and features of their own."""
    src = torch.from_numpy(graph.col.astype(np.int64))
    dst = torch.from_numpy(np.repeat(np.arange(graph.num_nodes), np.diff(graph.rowptr)))
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(graph.num_edges, generator=generator)
    loops = src[src == dst]
    return Given(
        graph.num_nodes,
        torch.stack([src, dst])[:, order],
        torch.rand(graph.num_edges, generator=generator, dtype=torch.float64) + 0.1,
        torch.randn(graph.num_edges, 3, generator=generator, dtype=torch.float64),
        loops.unique().numel() < loops.numel(),
    )


def rows(num_nodes, width, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_nodes, width, generator=generator, dtype=torch.float64)


def assert_close(got, want, rel):
    """Equal to ``rel`` of the largest value of ``want``."""
    assert got.shape == want.shape
    got, want = got.detach().double(), want.detach().double()
    if want.numel():
        scale = float(want.abs().max())
        worst = float((got - want).abs().max())
        assert worst <= rel * max(scale, 1.0), f"off by {worst} of {scale}"
        assert torch.isfinite(got).all()
