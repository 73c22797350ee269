"""edge_index tensors as Blocks, for layers called as PyG's are.

Legend: P destinations, S sources, E edges.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Proxy
from torch.utils.weak import WeakTensorKeyDictionary

from tiergnn.errors import ConfigError, GraphError
from tiergnn.graph.order import csr_order
from tiergnn.kernels.block import Block, wrap


class Edges(NamedTuple):
    """A Block, and the order that takes rows of edges as the caller has them to the block's."""

    block: Any  # a Block, or its Proxy while a model is traced
    order: Tensor | None  # int64 [E]; None: they are in the block's order

    def rows(self, value: Any) -> Any:
        """Rows of edges [E, ...] in the block's order; None stays None."""
        if value is None or self.order is None:
            return value
        if value.shape[0] != self.order.numel():
            raise ConfigError(
                f"there are {self.order.numel()} edges, their weights or features have "
                f"{value.shape[0]} rows"
            )
        return value.index_select(0, self.order)


# The blocks of edge_index tensors that are still alive, with the version they were made from.
_made: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


_GIVEN = "the edge_index that forward is given"


def edges_of(graph: Any, num_src: Any, num_dst: int | None = None) -> Edges:
    """The Block of a Block (in whose order rows of edges are) or of an edge_index [2, E].

    ``num_dst`` defaults to ``num_src``. A block is made once for a tensor that is not changed.
    Raises GraphError for ids out of range, ConfigError for what is no edge_index.
    """
    if isinstance(graph, Block) or issubclass(type(graph), Proxy):
        return Edges(graph, None)
    if issubclass(type(num_src), Proxy):
        num_src.tracer.refuse("a layer is called on edges that are not the graph's", hint=_GIVEN)
    count: int = num_src if num_dst is None else num_dst
    if not isinstance(graph, Tensor) or graph.layout != torch.strided:
        raise ConfigError(
            f"edge_index needs an integer tensor [2, num_edges] or a Block, had {_name(graph)}",
            hint="torch_geometric.utils.to_edge_index(adj_t), rows swapped",
        )
    version = graph._version, num_src, count
    if graph in _made and _made[graph][0] == version:
        return _made[graph][1]
    # PyG's EdgeIndex wraps a tensor and has no memory of its own.
    plain = graph.as_tensor() if hasattr(graph, "as_tensor") else graph  # pyright: ignore[reportAttributeAccessIssue]
    edges = _build(plain, num_src, count)
    _made[graph] = version, edges
    return edges


def _build(edge_index: Tensor, num_src: int, num_dst: int) -> Edges:
    if edge_index.is_floating_point() or edge_index.dtype in (torch.bool, torch.complex64):
        raise ConfigError(f"edge_index needs integers, has {edge_index.dtype}")
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        turned = edge_index.dim() == 2 and edge_index.shape[1] == 2
        raise ConfigError(
            f"edge_index needs shape [2, num_edges], has {list(edge_index.shape)}",
            hint="edge_index.t()" if turned else None,
        )
    src, dst = edge_index[0].long(), edge_index[1].long()
    _check("source", src, num_src)
    _check("destination", dst, num_dst)
    rows = max(num_src, num_dst)
    if edge_index.device.type == "cpu":
        rowptr, order = map(wrap, csr_order(src.numpy(), dst.numpy(), rows))
        order = order.long()
    else:
        by_src = torch.sort(src, stable=True).indices
        order = by_src[torch.sort(dst[by_src], stable=True).indices]
        counts = torch.bincount(dst, minlength=rows)
        rowptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    block = Block(
        rowptr=rowptr[: num_dst + 1],
        col=src[order].to(torch.int32 if rows < 2**31 else torch.int64),
        num_src=num_src,
        eid=order,
    )
    return Edges(block, order)


def _check(name: str, ids: Tensor, count: int) -> None:
    bad = torch.nonzero((ids < 0) | (ids >= count))
    if bad.numel():
        position = int(bad[0])
        raise GraphError(
            f"edge_index: {name} {position} is {int(ids[position])}; "
            f"with {count} rows of x ids must be 0..{count - 1}"
        )


def _name(graph: Any) -> str:
    if isinstance(graph, Tensor):
        return f"a {str(graph.layout).removeprefix('torch.')} tensor"
    return type(graph).__name__
