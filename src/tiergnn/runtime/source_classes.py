"""SourceClasses: a part's edges cut into classes by where their sources lie, each a block.

Legend: P own rows, S source rows of a class, own ones first, E edges of a class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from tiergnn.graph.csr import Graph
from tiergnn.graph.halo_counts import curve_of
from tiergnn.graph.partition import Partition
from tiergnn.graph.shape import PartShape
from tiergnn.kernels.block import Block
from tiergnn.runtime.own_part import as_slice, edges_of

_PIECE = 2**24  # edges looked at together

Edges = dict[str, Tensor]  # inputs of edges by name, [E, ...] each


@dataclass(frozen=True, slots=True, eq=False)
class SourceClass:
    """A block of some of the edges, and the inputs of those."""

    block: Block
    edges: Edges


SourceClasses = Mapping[int, SourceClass]


def whole_graph(graph: Graph, partition: Partition, rank: int, device: torch.device) -> Block:
    """All edges, rows being numbered part by part as they come from their owners."""
    order = partition.order.astype(np.int64)
    rowptr, eid = edges_of(graph.rowptr, order)
    col = partition.position[np.asarray(graph.col)[as_slice(eid)]]
    gid = torch.from_numpy(order)
    return Block(
        rowptr=torch.from_numpy(rowptr),
        col=torch.from_numpy(np.ascontiguousarray(col)),
        num_src=order.size,
        dst_gid=gid,
        src_gid=gid,
        eid=torch.from_numpy(eid),
    ).to(device)


def in_place(
    graph: Graph, partition: Partition, rank: int, device: torch.device, *, out: bool
) -> dict[int, Block]:
    """A part's in-edges, or the edges that leave it (``out``: from their sources, which are its
    rows): 0: those within the part; 3: those from (to) other parts, whose rows stand behind the own
    ones, rank by rank."""
    own, start = partition.own(rank).astype(np.int64), int(partition.part_ptr[rank])
    if out:
        eid = np.concatenate(_leaving(graph, partition, rank))
        row = partition.position[np.asarray(graph.col[as_slice(eid)])] - start
        ends = _destinations(graph.rowptr, eid)
        order = np.argsort(row, kind="stable")
        eid, ends = eid[order], ends[order]
        counts = np.bincount(row, minlength=own.size)
        rowptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    else:
        rowptr, eid = edges_of(graph.rowptr, own)
        ends = np.asarray(graph.col[as_slice(eid)])
    place = partition.position[ends].astype(np.int64)
    inside = (place >= start) & (place < start + own.size)
    col = np.where(inside, place - start, np.where(place < start, place + own.size, place))
    gid = torch.from_numpy(own)
    num_nodes = graph.num_nodes
    whole = Block(
        rowptr=torch.from_numpy(rowptr),
        col=torch.from_numpy(col.astype(np.int32 if num_nodes < 2**31 else np.int64)),
        num_src=num_nodes,
        dst_gid=gid,
        eid=torch.from_numpy(eid),
        num_graph_nodes=num_nodes,
        num_graph_edges=graph.num_edges,
    )
    within = torch.from_numpy(inside)
    local = replace(whole.only(torch.nonzero(within).flatten()), num_src=own.size)
    return {0: local.to(device), 3: whole.only(torch.nonzero(~within).flatten()).to(device)}


def leaving_shape(blocks: Mapping[int, Block], partition: Partition, rank: int) -> PartShape:
    """The counts of a part's edges that leave it, as ``in_place`` cuts them."""
    local, outer = blocks[0], blocks[3]
    rows, start = local.num_dst, int(partition.part_ptr[rank])
    serves = np.bincount(outer.col.cpu().numpy(), minlength=partition.graph.num_nodes)
    column = np.flatnonzero(serves)
    serves = serves[column]
    place = np.where(column < start + rows, column - rows, column)
    owners = partition.part_of[partition.order[place]]
    return PartShape(
        rows=rows,
        edges=local.num_edges + outer.num_edges,
        local_edges=local.num_edges,
        labelled=0,
        halo_of=tuple(np.bincount(owners, minlength=partition.num_parts).tolist()),
        served=curve_of(serves),
    )


def _leaving(graph: Graph, partition: Partition, rank: int) -> list[np.ndarray]:
    """Places in the graph of the edges that leave a part's rows, ascending, piece by piece."""
    found = [np.empty(0, np.int64)]
    for first in range(0, graph.num_edges, _PIECE):
        owners = partition.part_of[np.asarray(graph.col[first : first + _PIECE])]
        found.append(np.flatnonzero(owners == rank) + first)
    return found


def _destinations(rowptr: np.ndarray, eid: np.ndarray) -> np.ndarray:
    """The rows int64 [E] of ascending places of edges: how many of them lie before each row's end
    says it, without a search for each edge."""
    counts = np.diff(np.searchsorted(eid, rowptr))
    return np.repeat(np.arange(len(counts), dtype=np.int64), counts)


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
