"""Parts: the parts of a graph as blocks, and where the rows that they read stand at their owners.

Legend: K parts, P rows of one part, S source rows it reads, H of them other parts', E its edges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numba
import numpy as np
import torch
from torch import Tensor

from tiergnn.graph.partition import Partition
from tiergnn.kernels.block import Block, Transposed
from tiergnn.kernels.table import Places as RowPlaces
from tiergnn.memory.pinning import page_bytes, process_pinning
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
                block = _bare(block)
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
            process_pinning().pin(memory)
            self._halo_places[part] = RowPlaces(there, shift)
        return self._halo_places[part]

    def close(self) -> None:
        """Give pinned memory back."""
        while self._halo_places:
            _, places = self._halo_places.popitem()
            process_pinning().unpin(places.at.view(torch.uint8))

    @property
    def sample(self) -> Block:
        """Any of the blocks, for what all of them know of the graph."""
        return self.blocks[0]

    def block(self, part: int) -> Block:
        return self.blocks[part]

    def keep(self, part: int, block: Block) -> None:
        """Another with the same edges, in the place of a part's."""
        self.blocks[part] = block

    def topology_bytes(self, part: int, *, out: bool) -> int:
        """Bytes of a part's in-edges, or out-edges, and of those without loops beside them."""
        block = self.blocks[part]
        bare = vars(block).get("without_loops", block)
        beside = () if bare is block else bare.transposed if out else (bare.rowptr, bare.col)
        return topology_bytes(block, out=out) + sum(a.numel() * a.element_size() for a in beside)

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


def _bare(block: Block) -> Block:
    """A block less its loops, whose other edges keep their place in the graph; itself where it has
    none."""
    if _has_loops(block.rowptr.numpy(), block.col.numpy()):
        kept = torch.nonzero(block.col != block.edge_dst).flatten()
        block = replace(block.only(kept), eid=None if block.eid is None else block.eid[kept])
    vars(block)["without_loops"] = block
    return block


def moved(block: Block, device: torch.device, *, out: bool = True) -> Block:
    """A block on ``device``, with its out-edges (``out``) where they were made; itself on the CPU.

    Copies are queued on the current stream, of pinned memory without waiting.
    """
    if device == block.device:
        return block
    there = _with(block, _on(device, _arrays(block, out=out)))
    bare = vars(block).get("without_loops")
    if bare is not None:
        vars(there)["without_loops"] = there if bare is block else moved(bare, device, out=out)
    return there


def add_out_edges(there: Block, block: Block) -> None:
    """Bring the out-edges of ``block`` to where its in-edges are already, if they are not there."""
    if "transposed" not in vars(there):
        vars(there)["transposed"] = Transposed(**_on(there.device, _out_arrays(block)))
    bare = vars(block).get("without_loops", block)
    if bare is not block:
        add_out_edges(there.without_loops, bare)


def _on(device: torch.device, arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: array.to(device, non_blocking=True) for name, array in arrays.items()}


def sort_edges(block: Block, *, out: bool, bare: bool) -> None:
    """Make on the CPU what a device would need several times its bytes for: edges without loops
    (``bare``, or where they were made), and out-edges."""
    if bare and not _has_loops(block.rowptr.numpy(), block.col.numpy()):
        vars(block)["without_loops"] = block
    if out:
        beside = block.without_loops if bare else vars(block).get("without_loops", block)
        for edges in {block, beside}:
            _ = edges.transposed


@numba.njit(cache=True, nogil=True)
def _has_loops(rowptr, col):
    for row in range(rowptr.size - 1):
        for e in range(rowptr[row], rowptr[row + 1]):
            if col[e] == row:
                return True
    return False


def pinned(block: Block) -> tuple[Block, Tensor]:
    """A block of host memory with its out-edges, where they were made, in memory to be pinned."""
    arrays = _arrays(block)
    starts = np.cumsum([0, *(-(-a.numel() * a.element_size() // 64) * 64 for a in arrays.values())])
    memory = page_bytes(int(starts[-1]))
    copies = {}
    for start, (name, array) in zip(starts.tolist(), arrays.items(), strict=False):
        place = memory[start : start + array.numel() * array.element_size()]
        copies[name] = place.view(array.dtype).view(array.shape).copy_(array)
    there, bare = _with(block, copies), vars(block).get("without_loops")
    if bare is not None:
        vars(there)["without_loops"] = there if bare is block else bare
    return there, memory


def _arrays(block: Block, *, out: bool = True) -> dict[str, Tensor]:
    """A block's tensors, and those of its out-edges where they were made."""
    found = {f.name: getattr(block, f.name) for f in fields(block)}
    own = {name: value for name, value in found.items() if isinstance(value, Tensor)}
    return own | _out_arrays(block) if out else own


def _out_arrays(block: Block) -> dict[str, Tensor]:
    return block.transposed._asdict() if "transposed" in vars(block) else {}


def _with(block: Block, arrays: Mapping[str, Tensor]) -> Block:
    """A block with others in the place of its ``_arrays``."""
    own = {f.name for f in fields(block)}
    made = replace(block, **{name: value for name, value in arrays.items() if name in own})
    out = {name: arrays[name] for name in Transposed._fields if name in arrays}
    if out:
        vars(made)["transposed"] = Transposed(**out)
    return made


def topology_bytes(block: Block, *, out: bool) -> int:
    """Bytes of a block's in-edges with what they stand for in the graph, or of its out-edges."""
    gid = block.dst_gid if block.src_gid is None else block.src_gid
    own = block.rowptr, block.col, gid, block.eid, block.reverses
    arrays = block.transposed if out else own
    return sum(a.numel() * a.element_size() for a in arrays if a is not None)
