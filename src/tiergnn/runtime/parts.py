"""Parts: the parts of a graph as blocks, and where the rows that they read stand at their owners.

Legend: K parts, P rows of one part, S source rows it reads, H of them other parts', E its edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tiergnn.graph.partition import Partition
from tiergnn.kernels.block import Block
from tiergnn.kernels.table import Places as RowPlaces
from tiergnn.memory.pinning import Pins, page_bytes
from tiergnn.runtime.brought import less_loops
from tiergnn.runtime.hot import Hot
from tiergnn.schedule.contents import Content, What


@dataclass(frozen=True, slots=True)
class Places:
    """Rows that one part reads of another: sources ``low`` to ``high`` of the one are rows
    ``rows`` [N] of the other, ascending; None: all of them, in order."""

    low: int
    high: int
    rows: Tensor | None


class Parts:
    """Blocks in host memory, made once. ``edge_ids``: blocks know their edges' place in the graph.
    ``hot`` says of each node (bool [V]) whether its row stays on the device: a part's sources are
    its own rows, then hot rows of others by owner, then their other rows by owner.
    ``without_loops``: as ``workload.Topology`` has it.

    They share no memory with the graph, whose arrays are not needed any more.
    """

    def __init__(
        self,
        partition: Partition,
        *,
        edge_ids: bool,
        hot: np.ndarray | None = None,
        without_loops: str = "",
    ):
        self.num_parts = partition.num_parts
        self.num_rows = partition.num_nodes.tolist()
        self.gids: list[Tensor] = []  # int64 [P] each
        self.blocks: list[Block] = []
        self._rows: list[Tensor] = []  # [H] of each part: rows at their owners
        self._hot_ptr: list[list[int]] = []  # [K+1] of each part, by owner: its sources that stay
        self._cold_ptr: list[list[int]] = []  # likewise those that are brought
        self._edges: list[Tensor | slice] = []  # [E] of each part: their place in the graph
        self._halo_places: dict[int, RowPlaces] = {}
        self._pins = Pins()
        self.hot = Hot(partition, hot)
        self._numbers: list[Tensor] = []  # of each part: of the hot rows that it reads, among all
        graph = partition.graph
        for part in range(partition.num_parts):
            csr = partition.part_csr(part)
            count, owners = csr.num_dst, np.arange(partition.num_parts + 1)
            first = self.hot.first(csr.src_gid[count:])
            src_gid, col = csr.src_gid, csr.col
            if first is not None:
                lid = np.arange(src_gid.size, dtype=col.dtype)
                lid[count + first] = np.arange(count, src_gid.size)
                src_gid, col = src_gid.copy(), lid[col]
                src_gid[count:] = csr.src_gid[count:][first]
            halo = src_gid[count:]
            owner = partition.part_of[halo]
            rows = partition.position[halo] - partition.part_ptr[owner]
            self._rows.append(torch.from_numpy(rows.astype(partition.order.dtype)))
            numbers = self.hot.among(halo)
            self._numbers.append(torch.from_numpy(numbers))
            middle = numbers.size
            for ptr, found, start in (
                (self._hot_ptr, owner[:middle], count),
                (self._cold_ptr, owner[middle:], count + middle),
            ):
                ptr.append((start + np.searchsorted(found, owners)).tolist())
            src_gid, eid = torch.from_numpy(src_gid).to(torch.int64), torch.from_numpy(csr.eid)
            gid = src_gid[:count]
            self.gids.append(gid)
            self._edges.append(_as_slice(eid) if edge_ids else slice(0, 0))
            block = Block(
                rowptr=torch.from_numpy(csr.rowptr),
                col=torch.from_numpy(col),
                num_src=csr.num_src,
                dst_gid=gid,
                src_gid=src_gid,
                eid=eid if edge_ids else None,
                num_graph_nodes=graph.num_nodes,
                num_graph_edges=graph.num_edges,
            )
            if without_loops == "alone":
                block = less_loops(block, edge_ids=edge_ids)
            elif without_loops == "beside":
                _ = block.without_loops
            self.blocks.append(block)

    def places(self, part: int, owner: int) -> tuple[Places, ...]:
        """Where the rows that ``part`` reads of ``owner`` stand: its own, or hot and other ones."""
        if part == owner:
            return (Places(0, self.num_rows[part], None),)
        return self._places(self._hot_ptr, part, owner), self.brought(part, owner)

    def brought(self, part: int, owner: int) -> Places:
        """Those of them that do not stay on the device."""
        if part == owner:
            return Places(0, self.num_rows[part], None)
        return self._places(self._cold_ptr, part, owner)

    def _places(self, ptr: list[list[int]], part: int, owner: int) -> Places:
        low, high = ptr[part][owner : owner + 2]
        start = self.num_rows[part]
        return Places(low, high, self._rows[part][low - start : high - start])

    def stays(self, part: int) -> tuple[int, int, Tensor]:
        """The first of the hot sources of a part, the one after the last, and the numbers that
        they have among all hot rows."""
        return self._hot_ptr[part][0], self._hot_ptr[part][-1], self._numbers[part]

    def num_owners(self, part: int) -> int:
        """How many other parts a part is brought rows of."""
        return int(np.count_nonzero(np.diff(self._cold_ptr[part])))

    def halo(self, part: int) -> slice:
        """The sources that it is brought of others."""
        return slice(self._cold_ptr[part][0], self._cold_ptr[part][-1])

    def halo_places(self, part: int) -> RowPlaces:
        """Where all rows that a part is brought of others stand in the tables of these, one table
        for each that has some: in pinned memory, for kernels that read rows in place."""
        if part not in self._halo_places:
            counts = np.diff(self._cold_ptr[part])
            slots = np.cumsum(counts > 0) - 1
            shift = max(1, (max(self.num_rows) - 1).bit_length())
            narrow = shift + int(slots.max(initial=0)).bit_length() < 32
            dtype = np.int32 if narrow else np.int64
            rows = self._rows[part][self.halo(part).start - self.num_rows[part] :].numpy()
            at = np.repeat(slots.astype(dtype) << shift, counts) + rows
            memory = page_bytes(at.nbytes)
            there = memory.view(torch.int32 if narrow else torch.int64)
            there.copy_(torch.from_numpy(at.astype(dtype)))
            self._pins.add(memory)
            self._halo_places[part] = RowPlaces(there, shift)
        return self._halo_places[part]

    def close(self) -> None:
        """Give pinned memory back."""
        self._halo_places.clear()
        self._pins.close()

    @property
    def sample(self) -> Block:
        """Any of the blocks, for what all of them know of the graph."""
        return self.blocks[0]

    def block(self, part: int) -> Block:
        return self.blocks[part]

    def keep(self, part: int, block: Block) -> None:
        """Another with the same edges, in the place of a part's."""
        self.blocks[part] = block

    def count(self, content: Content, of: str) -> int:
        """Rows of what a buffer holds; ``of`` "nodes" or "edges"."""
        if content.what is What.HOT:
            return len(self.hot.gids)
        block = self.blocks[content.part]
        if of == "edges":
            return block.num_edges
        if content.what in (What.SOURCES, What.SOURCES_GRAD):
            return block.num_src
        if content.what is What.BUCKET:
            return sum(p.high - p.low for p in self.places(content.part, content.owner))
        return block.num_dst

    def take(self, rows: Tensor, part: int, of: str) -> Tensor:
        """A part's own of the graph's rows, of nodes or (``edge_ids``) of edges: a view where they
        stand together."""
        where = self._edges[part] if of == "edges" else _as_slice(self.gids[part])
        return rows[where]


def _as_slice(index: Tensor) -> Tensor | slice:
    """Ascending, distinct numbers as the slice that they are, if so."""
    if not index.numel():
        return slice(0, 0)
    first, last = int(index[0]), int(index[-1])
    return slice(first, last + 1) if last - first + 1 == index.numel() else index
