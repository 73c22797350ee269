"""OwnPart: what one rank holds of the graph: its rows' in-edges, and who reads which rows of whom.

A rank reads its own edges only; which of its rows others read, those tell it.

Legend: V nodes, P own rows, H rows of others that they read, S = P + H, E own edges, N ranks.
"""

from __future__ import annotations

import numpy as np
import torch

from tiergnn.graph.csr import Graph
from tiergnn.graph.halo_counts import curve_of
from tiergnn.graph.partition import Partition
from tiergnn.graph.shape import PartShape
from tiergnn.kernels.block import Block
from tiergnn.schedule.contents import Content, What
from tiergnn.transport.transport import Transport

READ = "rows that are read"
_OF_SOURCES = (What.SOURCES, What.SOURCES_GRAD)
_OF_HALO = (What.HALO, What.HALO_GRAD)


class OwnPart:
    """The part of ``transport``'s rank, on ``device``. All ranks make theirs together.

    ``edge_ids``: the block knows its edges' place in the graph.
    """

    def __init__(
        self,
        graph: Graph,
        partition: Partition,
        transport: Transport,
        *,
        edge_ids: bool,
        device: torch.device,
    ):
        self.rank, self.device = transport.rank, device
        self.rows_of: list[int] = partition.num_nodes.tolist()  # of all ranks
        own = partition.own(self.rank)
        self.gid = torch.from_numpy(own.astype(np.int64))
        rowptr, eid = edges_of(graph.rowptr, own)
        self.eid = torch.from_numpy(eid)
        col = np.asarray(graph.col[as_slice(eid)])
        start = partition.part_ptr[self.rank]
        outside = partition.part_of[col] != self.rank
        position = partition.position[col]
        place, number = numbered(position[outside], graph.num_nodes)  # by owner, then by gid
        halo = partition.order[place]
        lid = position.astype(np.int64) - start
        lid[outside] = own.size + number
        owners = partition.part_of[halo]
        self.reads_of: list[int] = np.bincount(owners, minlength=transport.size).tolist()
        rows = torch.from_numpy((place - partition.part_ptr[owners]).astype(np.int64))
        # Rows of others where they lie there [H], and own rows that others read, by reader.
        self.halo_rows = rows.to(device)
        sent = transport.exchange(rows, self.reads_of, tag=READ)
        asked = transport.gather(self.reads_of, tag=READ)
        self.sent_to: list[int] = [each[self.rank] for each in asked]
        self.reads: list[list[int]] = asked  # reader -> owner -> rows
        self.sent_rows = sent.to(device)
        src_gid = np.concatenate([own, halo]).astype(np.int64)
        dtype = np.int32 if src_gid.size < 2**31 else np.int64
        self._serves = np.bincount(lid[outside] - own.size, minlength=halo.size)
        self.block = Block(
            rowptr=torch.from_numpy(rowptr),
            col=torch.from_numpy(lid.astype(dtype)),
            num_src=src_gid.size,
            dst_gid=self.gid,
            src_gid=torch.from_numpy(src_gid),
            eid=self.eid if edge_ids else None,
            num_graph_nodes=graph.num_nodes,
            num_graph_edges=graph.num_edges,
        ).to(device)

    @property
    def num_rows(self) -> int:
        return self.block.num_dst

    def shape(self, labelled: np.ndarray) -> PartShape:
        """Its counts; ``labelled`` are the graph's nodes that make the loss."""
        outside = int(self._serves.sum())
        return PartShape(
            rows=self.num_rows,
            edges=self.block.num_edges,
            local_edges=self.block.num_edges - outside,
            labelled=int(np.isin(self.gid.numpy(), labelled).sum()),
            halo_of=tuple(self.reads_of),
            served=curve_of(self._serves),
        )

    def count(self, content: Content, of: str) -> int:
        """Rows of what a buffer holds, of this part or another; ``of`` "nodes" or "edges"."""
        if content.rows is not None:
            return content.rows[1] - content.rows[0]
        if of == "edges":
            return self.block.num_edges
        if content.what in _OF_SOURCES:
            return self.rows_of[content.part] + sum(self.reads[content.part])
        if content.what in (What.ROWS, What.SUM, What.SUM_GRAD):
            return self.rows_of[content.part]
        if content.what in _OF_HALO:
            return self.block.num_src - self.block.num_dst
        if content.what is What.RETURNED:
            return len(self.sent_rows)
        return self.block.num_dst


def edges_of(rowptr: np.ndarray, own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Row pointers int64 [P+1] of own rows, and their edges' places in the graph int64 [E]."""
    starts = np.asarray(rowptr[own], np.int64)
    degree = np.asarray(rowptr[own + 1], np.int64) - starts
    ptr = np.concatenate([[0], np.cumsum(degree)]).astype(np.int64)
    return ptr, np.arange(ptr[-1], dtype=np.int64) + np.repeat(starts - ptr[:-1], degree)


def numbered(places: np.ndarray, num_places: int) -> tuple[np.ndarray, np.ndarray]:
    """The distinct ones of ``places``, ascending, int64, and the number of each of ``places`` among
    them. Linear, which a sort of all edges' sources is not."""
    there = np.zeros(num_places, np.bool_)
    there[places] = True
    number_of = np.cumsum(there, dtype=np.int64) - 1
    return np.flatnonzero(there), number_of[places]


def as_slice(index: np.ndarray) -> np.ndarray | slice:
    """Numbers as the slice that they are, if so: all from the first to the last, in order."""
    if not index.size:
        return slice(0, 0)
    first, last = int(index[0]), int(index[-1])
    whole = last - first + 1 == index.size and bool((index[1:] > index[:-1]).all())
    return slice(first, last + 1) if whole else index
