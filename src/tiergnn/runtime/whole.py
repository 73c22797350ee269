"""Whole: a graph as one block whose rows stand one part after the other, and its parts as views.

Legend: V nodes, E edges, K parts, P rows of one part.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numba
import numpy as np
import torch
from torch import Tensor

from tiergnn.graph.partition import Partition
from tiergnn.kernels.block import Block, wrap
from tiergnn.runtime.brought import less_loops
from tiergnn.schedule.contents import Content


class Whole:
    """``edge_ids``: blocks know their edges' place in the graph. ``chunks``: the parts' in-edges
    are kept as blocks of their own, in the place of the whole. ``without_loops``: as
    ``workload.Topology`` has it."""

    def __init__(
        self, partition: Partition, *, edge_ids: bool, chunks: bool, without_loops: str = ""
    ):
        graph, order = partition.graph, partition.order
        self.num_parts = partition.num_parts
        self.num_rows = partition.num_nodes.tolist()
        self._row_ptr = [int(start) for start in partition.part_ptr]
        rowptr, col, place = np.asarray(graph.rowptr), np.asarray(graph.col), None
        if not np.array_equal(order, np.arange(order.size)):
            degrees = np.diff(rowptr)[order]
            moved = np.concatenate([[0], np.cumsum(degrees)])
            place = np.repeat(rowptr[order] - moved[:-1], degrees) + np.arange(graph.num_edges)
            col = partition.position[col[place]].astype(col.dtype)
            rowptr = moved
        gid = self.gid = torch.from_numpy(order.astype(np.int64))
        self.gids = [gid[first:last] for first, last in map(self.rows, range(self.num_parts))]
        self._gid = gid if place is not None else None
        self._place = None if place is None or not edge_ids else torch.from_numpy(place)
        self._num_edges = graph.num_edges
        eid = self._place
        if eid is None and edge_ids and chunks:  # a chunk's first edge is not the graph's
            eid = torch.arange(graph.num_edges)
        block = Block(
            rowptr=wrap(rowptr),
            col=wrap(col),
            num_src=graph.num_nodes,
            dst_gid=gid,
            src_gid=gid,
            eid=eid,
        )
        self._blocks = {-1: block}
        if chunks:
            views = {part: block.rows(*self.rows(part)) for part in range(self.num_parts)}
            self._blocks = {part: replace(view, whole=None) for part, view in views.items()}
        if without_loops == "alone":
            _ = self.degrees  # which the graph's loops count for
            self._blocks = {
                part: less_loops(each, edge_ids=edge_ids) for part, each in self._blocks.items()
            }
        elif without_loops == "beside":
            for each in self._blocks.values():
                _ = each.without_loops
        if chunks:
            counts = [each.num_edges for each in self._blocks.values()]
            self._edge_ptr = [0, *np.cumsum(counts).tolist()]
        else:
            self._edge_ptr = self._blocks[-1].rowptr[self._row_ptr].tolist()

    @property
    def sample(self) -> Block:
        """Any of the blocks, for what all of them know of the graph."""
        return next(iter(self._blocks.values()))

    def block(self, part: int) -> Block:
        """The in-edges of all rows (-1), or with ``chunks`` of a part's."""
        return self._blocks[part]

    def reversed(self) -> Block:
        """The out-edges of all rows as the in-edges of a block, to take gradients of sums back;
        made anew."""
        block = self._blocks[-1]
        made = _reversed(block, self.degrees)
        if "loopless" in vars(block):
            bare = block.loopless
            vars(made)["loopless"] = None if bare is None else _reversed(bare, self.degrees)
        return made

    @cached_property
    def degrees(self) -> Tensor:
        """int32 [V, 2]: in-edges of every row, with and without loops."""
        found = torch.zeros(len(self.gid), 2, dtype=torch.int32)
        for part, block in self._blocks.items():
            first, last = self.rows(part)
            _count(block.rowptr.numpy(), block.col.numpy(), found[first:last].numpy())
        return found

    def bare(self, known: tuple[Tensor, Tensor], part: int) -> Block:
        """A part's rows without their edges, of the degrees and ids [V, ...] of all rows."""
        degrees, gid = (rows[slice(*self.rows(part))] for rows in known)
        return Block.bare(
            degrees.to(torch.int64),
            gid,
            num_graph_nodes=self._row_ptr[-1],
            num_graph_edges=self._num_edges,
        )

    def keep(self, part: int, block: Block) -> None:
        """Another with the same edges, in the place of one."""
        self._blocks[part] = block

    def rows(self, part: int) -> tuple[int, int]:
        """The first of a part's rows among all, and the one after its last; -1: of all."""
        if part < 0:
            return 0, self._row_ptr[-1]
        return self._row_ptr[part], self._row_ptr[part + 1]

    def edges(self, part: int) -> tuple[int, int]:
        """Likewise of its edges."""
        if part < 0:
            return 0, self._edge_ptr[-1]
        return self._edge_ptr[part], self._edge_ptr[part + 1]

    def count(self, content: Content, of: str) -> int:
        """Rows of what a buffer holds; ``of`` "nodes" or "edges"."""
        first, last = (self.edges if of == "edges" else self.rows)(content.part)
        return last - first

    def close(self) -> None:
        """Nothing is pinned here."""

    def take(self, rows: Tensor, part: int, of: str) -> Tensor:
        """A part's own of the graph's rows, of nodes or of edges."""
        if of == "edges":
            first, last = self.edges(part)
            return rows[first:last] if self._place is None else rows[self._place[first:last]]
        first, last = self.rows(part)
        return rows[first:last] if self._gid is None else rows[self._gid[first:last]]


def _reversed(block: Block, degrees: Tensor) -> Block:
    """Its out-edges as in-edges; where they stand among its own is forgotten."""
    rowptr_t, dst_t, _ = block.transposed
    del vars(block)["transposed"]
    return Block(rowptr=rowptr_t, col=dst_t, num_src=block.num_src, reverses=degrees)


@numba.njit(cache=True, nogil=True)
def _count(rowptr, col, out):
    """out [P, 2]: in-edges of every row, and those that are no loops. A block's own rows are its
    first sources."""
    for row in range(rowptr.size - 1):
        loops = 0
        for e in range(rowptr[row], rowptr[row + 1]):
            loops += col[e] == row
        out[row, 0] = rowptr[row + 1] - rowptr[row]
        out[row, 1] = out[row, 0] - loops
