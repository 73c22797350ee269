"""The two sides of a layer's input: one set of nodes, or sources and destinations.

Legend: V nodes, P destinations, S sources, D columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor
from torch.fx import Proxy
from torch.nn.functional import pad

from tiergnn.errors import ConfigError
from tiergnn.models import functional as ops
from tiergnn.models.edges import Edges, edges_of


class Sides(NamedTuple):
    """x_src [S, D] and x_dst [P, D'] (None: destinations have no features) over ``edges``."""

    x_src: Any
    x_dst: Any
    edges: Edges

    @property
    def block(self) -> Any:
        return self.edges.block


def sides_of(x: Any, graph: Any, size: tuple[int, int] | None = None) -> Sides:
    """The sides of x [V, D] or of a pair, over an edge_index or a Block.

    x [S, D] over a Block has the destinations as its first rows. Raises ConfigError when sizes
    contradict each other.
    """
    if not isinstance(x, (tuple, list)):
        count = x.shape[0]
        if size is not None and tuple(size) != (count, count):
            raise ConfigError(
                f"size {tuple(size)} of a graph with one x of {count} rows",
                hint="a pair (x_src, x_dst) for a bipartite graph",
            )
        edges = edges_of(graph, count)
        return Sides(x, ops.own(x, edges.block), edges)
    x_src, x_dst = x
    if issubclass(type(graph), Proxy):
        return Sides(x_src, x_dst, edges_of(graph, 0))
    num_src = x_src.shape[0]
    num_dst = x_dst.shape[0] if x_dst is not None else size[1] if size else num_src
    if size is not None and tuple(size) != (num_src, num_dst):
        raise ConfigError(f"size {tuple(size)}, but x has {num_src} and {num_dst} rows")
    return Sides(_padded(x_src, num_dst), x_dst, edges_of(graph, max(num_src, num_dst), num_dst))


def _padded(x_src: Tensor, num_dst: int) -> Tensor:
    """A block has at least as many sources as destinations: rows that no edge reads."""
    missing = num_dst - x_src.shape[0]
    return pad(x_src, (0, 0, 0, missing)) if missing > 0 else x_src
