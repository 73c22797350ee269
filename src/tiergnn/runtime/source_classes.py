"""SourceClasses: a part's edges cut into classes by where their sources lie, each a block.

Legend: P own rows, S source rows of a class, own ones first, E edges of a class.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tiergnn.graph.csr import Graph
from tiergnn.graph.halo_counts import curve_of
from tiergnn.graph.partition import Partition
from tiergnn.graph.shape import PartShape
from tiergnn.kernels.block import Block
from tiergnn.kernels.table import Places, places_of
from tiergnn.runtime.own_part import as_slice, edges_of
from tiergnn.schedule.contents import Content

_PIECE = 2**24  # edges looked at together

Edges = dict[str, Tensor]  # inputs of edges by name, [E, ...] each


@dataclass(frozen=True, slots=True, eq=False)
class SourceClass:
    """A block of some of the edges, and the inputs of those."""

    block: Block
    edges: Edges


SourceClasses = Mapping[Hashable, SourceClass]


def whole_graph(graph: Graph, partition: Partition) -> Block:
    """All edges, in host memory; rows are numbered part by part as they come from their owners."""
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
    )


class Cut(NamedTuple):
    """A class of edges: from the rows of ``parts``, in that order, where they lie, or from replicas
    of others' rows of these numbers."""

    parts: tuple[int, ...]
    replicas: tuple[int, int] | None


class Chosen(NamedTuple):
    """What edges a class has: those of its cut, less those from own rows, or from others' hottest
    rows, where other classes have these."""

    cut: Cut
    own: bool
    but: int


class Fetch(NamedTuple):
    """Replicas of some rows: where those lie among the rows of all other ranks, table by table, in
    ascending order, and which of these replicas each is, int64."""

    places: Places
    to: Tensor

    def on(self, device: torch.device) -> Fetch:
        places = self.places._replace(at=self.places.at.to(device))
        return self._replace(places=places, to=self.to.to(device))


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """A part's in-edges, or the edges that leave it, and the rows of others at their other ends.

    ``block`` is in host memory; its columns are places in the partition's order. ``hot`` are those
    of others, int64 [H]: first those at which most edges end.
    """

    block: Block
    part: int
    starts: tuple[int, ...]  # the place of each part's first row, and V
    hot: np.ndarray
    serves: np.ndarray  # int64 [H] edges of each of them

    @property
    def num_rows(self) -> int:
        return self.starts[self.part + 1] - self.starts[self.part]

    def loops(self) -> Tensor:
        """int64 [P]: the edges from each own row to itself."""
        row = np.repeat(np.arange(self.num_rows), self.block.in_degree.numpy())
        row = row[self.block.col.numpy() == row + self.starts[self.part]]
        return torch.from_numpy(np.bincount(row, minlength=self.num_rows))

    def shape(self, partition: Partition) -> PartShape:
        """Its counts; labels are not looked at."""
        owners = partition.part_of[partition.order[self.hot]]
        return PartShape(
            rows=self.num_rows,
            edges=self.block.num_edges,
            local_edges=self.block.num_edges - int(self.serves.sum()),
            labelled=0,
            halo_of=tuple(np.bincount(owners, minlength=len(self.starts) - 1).tolist()),
            served=curve_of(self.serves),
        )

    def over(self, parts: Sequence[int], *, own: bool = True, but: int = 0) -> Block:
        """The edges from the rows of these parts, which are the sources, part by part; without
        ``own`` not those from own rows, and not those from others' ``but`` hottest ones."""
        shift = np.zeros(len(self.starts) - 1, np.int64)  # from a place to its column
        num_src = 0
        for part in parts:
            shift[part] = num_src - self.starts[part]
            num_src += self.starts[part + 1] - self.starts[part]
        place = self.block.col.numpy()
        owner = np.searchsorted(self.starts, place, side="right") - 1
        wanted = np.isin(owner, parts) if own else np.isin(owner, parts) & (owner != self.part)
        if but:
            cached = np.zeros(self.starts[-1], np.bool_)
            cached[self.hot[:but]] = True
            wanted &= ~cached[place]
        return self._cut(wanted, place + shift[owner], num_src)

    def over_replicas(self, first: int, last: int) -> Block:
        """The edges from others' rows of these numbers, hottest first, which stand behind own ones
        as sources."""
        number = np.full(self.starts[-1], -1, np.int64)
        number[self.hot[first:last]] = np.arange(last - first) + self.num_rows
        column = number[self.block.col.numpy()]
        return self._cut(column >= 0, column, self.num_rows + last - first)

    def _cut(self, wanted: np.ndarray, column: np.ndarray, num_src: int) -> Block:
        kept = torch.from_numpy(np.flatnonzero(wanted))
        col = torch.from_numpy(
            column[kept.numpy()].astype(np.int32 if num_src < 2**31 else np.int64)
        )
        return replace(self.block.only(kept), col=col, num_src=max(num_src, self.num_rows))

    def brought(self, first: int, last: int) -> Tensor:
        """Where those of others of these numbers stand among all that their owners send, int64."""
        return torch.from_numpy(np.searchsorted(np.sort(self.hot), self.hot[first:last]))

    def fetch(self, first: int, last: int) -> Fetch:
        """How replicas of others' rows of these numbers are filled."""
        sizes = np.diff(self.starts)
        sizes = tuple(np.delete(sizes, self.part).tolist())
        place = self.hot[first:last]
        to = np.argsort(place)  # rows are read as they lie
        place = place[to]
        index = place - (place >= self.starts[self.part + 1]) * self.num_rows
        return Fetch(places_of(torch.from_numpy(index), sizes), torch.from_numpy(to))

    def edges(self, chosen: Chosen) -> Block:
        cut, own, but = chosen
        if cut.replicas is not None:
            return self.over_replicas(*cut.replicas)
        return self.over(cut.parts, own=own, but=but)


def cut_of(holds: Iterable[Content]) -> Cut:
    """The class of an action by the rows that it gathers, own ones first."""
    holds = tuple(holds)
    numbers = next((each.rows for each in holds if each.rows is not None), None)
    return Cut(tuple(each.part for each in holds) if numbers is None else (), numbers)


def chosen_by(part: int, cuts: Collection[Cut]) -> dict[Cut, Chosen]:
    """The edges of each class of a part, which together are all."""
    alone = Cut((part,), None) in cuts
    but = max((cut.replicas[1] for cut in cuts if cut.replicas), default=0)
    found: dict[Cut, Chosen] = {}
    for cut in cuts:
        if cut.replicas is not None:
            found[cut] = Chosen(cut, own=False, but=0)
        else:
            found[cut] = Chosen(cut, own=cut.parts == (part,) or not alone, but=but)
    return found


def reach_of(graph: Graph, partition: Partition, rank: int, *, out: bool) -> Reach:
    """Of a part's in-edges or, with ``out``, of the edges from its rows, by those rows."""
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
    place = np.ascontiguousarray(partition.position[ends])
    counts = np.bincount(place, minlength=graph.num_nodes)
    counts[start : start + own.size] = 0
    others = np.flatnonzero(counts)
    hot = others[np.argsort(-counts[others], kind="stable")]
    block = Block(
        rowptr=torch.from_numpy(rowptr),
        col=torch.from_numpy(place),
        num_src=graph.num_nodes,
        dst_gid=torch.from_numpy(own),
        eid=torch.from_numpy(eid),
        num_graph_nodes=graph.num_nodes,
        num_graph_edges=graph.num_edges,
    )
    starts = tuple(int(first) for first in partition.part_ptr)
    return Reach(block, rank, starts, hot, counts[hot])


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


def own_and_halo(block: Block, edges: Edges) -> dict[Hashable, SourceClass]:
    """0: edges from own rows, which are all its sources; 1: edges from rows of others."""
    outside = block.col >= block.num_dst
    made: dict[Hashable, SourceClass] = {}
    for number, chosen in ((0, ~outside), (1, outside)):
        kept = torch.nonzero(chosen).flatten()
        part = block.only(kept)
        if number == 0:
            gid = None if part.src_gid is None else part.src_gid[: block.num_dst]
            part = replace(part, num_src=block.num_dst, src_gid=gid)
        made[number] = SourceClass(part, {name: rows[kept] for name, rows in edges.items()})
    return made
