"""Partition: which part owns each node, and what each part must read from the others.

Legend: V nodes, E edges, K parts, P rows of one part, H halo rows of one part, S = P + H.
Id spaces: gid names a node of the graph, lid a source row of one part (own rows, then halo).
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tiergnn.errors import ConfigError, GraphError, unknown
from tiergnn.graph import partition_text
from tiergnn.graph.balance import Criterion, blend, cut, read_balance, sum_by_part
from tiergnn.graph.choosing import choose
from tiergnn.graph.csr import Graph, check_ids, index_dtype
from tiergnn.graph.metis import metis
from tiergnn.graph.parts import Halo, PartCSR, group, list_halos, localise, tally
from tiergnn.graph.switching import switching
from tiergnn.units import parse_bytes

_log = logging.getLogger("tiergnn")


@dataclass(frozen=True, slots=True)
class Balance:
    """How evenly something is shared: ``found`` is its largest load over its mean load."""

    name: str
    asked: float | None  # the largest accepted value; None where nothing was asked
    found: float
    holds: bool | None  # with whole nodes; None where nothing was asked


@dataclass(frozen=True, kw_only=True, eq=False)
class Partition:
    """Every node of ``graph`` in exactly one of ``num_parts`` parts; the graph is untouched.

    part_of int32 [V]; parts may be empty. What follows from it is computed when first asked for
    and kept: one number a node, and the halos (one number a halo row).
    Raises GraphError when part_of does not fit the graph, ConfigError on a bad balance.
    """

    graph: Graph
    part_of: np.ndarray
    num_parts: int
    method: str = "given"
    seed: int = 0
    balance: tuple[tuple[str, float], ...] = ()  # what was asked: name, largest over mean load
    reason: str = ""  # why this method, where it was chosen for the user
    saved_halos: tuple[np.ndarray, np.ndarray] | None = None  # ``halos``, where a file has them

    def __post_init__(self) -> None:
        if self.num_parts < 1:
            raise ConfigError(f"a partition needs 1 part or more, had {self.num_parts}")
        if self.part_of.dtype != np.int32 or self.part_of.shape != (self.graph.num_nodes,):
            raise GraphError(
                f"part_of needs int32 [{self.graph.num_nodes}], "
                f"has {self.part_of.dtype} {list(self.part_of.shape)}"
            )
        if self.part_of.size and not 0 <= self.part_of.min() <= self.part_of.max() < self.num_parts:
            node = int(np.argmax((self.part_of < 0) | (self.part_of >= self.num_parts)))
            raise GraphError(
                f"part_of[{node}] is {self.part_of[node]}, parts are 0..{self.num_parts - 1}"
            )
        if self.balance:
            read_balance(self.graph, dict(self.balance))

    @cached_property
    def _groups(self) -> tuple[np.ndarray, np.ndarray]:
        order = np.empty(self.part_of.size, index_dtype(self.part_of.size))
        ptr = group(self.part_of, self.num_parts, order)
        return order, ptr

    @property
    def order(self) -> np.ndarray:
        """Node ids [V] by part, ascending within a part."""
        return self._groups[0]

    @property
    def part_ptr(self) -> np.ndarray:
        """int64 [K+1]: part p owns ``order[part_ptr[p]:part_ptr[p+1]]``."""
        return self._groups[1]

    @cached_property
    def position(self) -> np.ndarray:
        """[V]: where each node stands in ``order``."""
        position = np.empty_like(self.order)
        position[self.order] = np.arange(self.order.size, dtype=position.dtype)
        return position

    @cached_property
    def _tally(self) -> tuple[np.ndarray, np.ndarray]:
        graph = self.graph
        return tally(graph.rowptr, graph.col, self.part_of, self.order, self.part_ptr)

    @property
    def num_nodes(self) -> np.ndarray:
        """int64 [K]: nodes that each part owns."""
        return np.diff(self.part_ptr)

    @cached_property
    def num_edges(self) -> np.ndarray:
        """int64 [K]: in-edges of the nodes that each part owns."""
        return sum_by_part(self.part_of, self.graph.in_degree, self.num_parts)

    @property
    def num_cut(self) -> np.ndarray:
        """int64 [K]: in-edges of each part whose source another part owns."""
        return self._tally[0]

    @property
    def num_halo(self) -> np.ndarray:
        """int64 [K]: rows that each part reads and another part owns."""
        return self._tally[1] if self.saved_halos is None else np.diff(self.saved_halos[1])

    def split_sizes(self, name: str) -> np.ndarray:
        """int64 [K]: nodes of split ``name`` in each part. Raises ConfigError."""
        if name not in self.graph.splits:
            raise unknown("split", name, self.graph.splits)
        return np.bincount(self.part_of[self.graph.splits[name]], minlength=self.num_parts)

    @property
    def edge_cut(self) -> int:
        """Edges between parts; duplicates count, self-loops never do."""
        return int(self.num_cut.sum())

    @property
    def edge_cut_frac(self) -> float:
        return self.edge_cut / max(1, self.graph.num_edges)

    @property
    def expansion_ratio(self) -> float:
        """Rows read over rows owned: (V + all halo rows) / V."""
        num_nodes = self.graph.num_nodes
        return (num_nodes + int(self.num_halo.sum())) / num_nodes if num_nodes else 1.0

    def imbalance(self, name: str) -> float:
        """Largest over mean load of "nodes", "edges" or a split; 1.0 where there is none of it."""
        loads = self._loads(name)
        total = int(loads.sum())
        return int(loads.max()) * self.num_parts / total if total else 1.0

    def main_splits(self) -> list[str]:
        """All splits, but of families numbered NAME.0, NAME.1 ... only the first."""
        splits, shown = self.graph.splits, []
        for name in splits:
            family, _, number = name.rpartition(".")
            if not number.isdigit() or number == "0" or f"{family}.0" not in splits:
                shown.append(name)
        return shown

    def balances(self) -> list[Balance]:
        """Of nodes, edges and the main splits, and of everything that was asked for."""
        asked = dict(self.balance)
        criteria = {c.name: c for c in read_balance(self.graph, asked)} if asked else {}
        names = dict.fromkeys(["nodes", "edges", *self.main_splits(), *asked])
        return [
            Balance(
                name,
                asked.get(name),
                self.imbalance(name),
                criteria[name].holds(self._loads(name)) if name in criteria else None,
            )
            for name in names
        ]

    def _loads(self, name: str) -> np.ndarray:
        if name == "nodes":
            return self.num_nodes
        return self.num_edges if name == "edges" else self.split_sizes(name)

    @cached_property
    def halos(self) -> tuple[np.ndarray, np.ndarray]:
        """gids of the halo rows of all parts, one part after the other; pointers int64 [K+1]."""
        if self.saved_halos is not None:
            return self.saved_halos
        ptr = np.concatenate([[0], np.cumsum(self.num_halo)])
        graph, place = self.graph, np.empty(ptr[-1], self.order.dtype)
        list_halos(
            graph.rowptr,
            graph.col,
            self.part_of,
            self.order,
            self.part_ptr,
            self.position,
            place,
        )
        for part in range(self.num_parts):  # by place is by owner, then by gid
            place[ptr[part] : ptr[part + 1]].sort()
        return self.order[place], ptr

    def own(self, part: int) -> np.ndarray:
        """gid [P] of the nodes that ``part`` owns, ascending; a view."""
        self._check_part(part)
        ptr = self.part_ptr
        return self.order[ptr[part] : ptr[part + 1]]

    def halo(self, part: int) -> Halo:
        """The rows that ``part`` reads from others, grouped by owner."""
        self._check_part(part)
        gid, ptr = self.halos
        gid = gid[ptr[part] : ptr[part + 1]]
        return Halo(gid=gid, owner_ptr=np.searchsorted(self.position[gid], self.part_ptr))

    def part_csr(self, part: int) -> PartCSR:
        """The in-edges of ``part`` over its own rows and its halo; reads only its edges."""
        graph, own, halo = self.graph, self.own(part), self.halo(part)
        return localise(graph.rowptr, graph.col, own, int(self.num_edges[part]), halo)

    def gid_to_lid(self, part: int, gid: np.ndarray) -> np.ndarray:
        """Row in ``part`` of each node; GraphError on a node that it neither owns nor reads."""
        check_ids(gid, self.graph.num_nodes, name="gid")
        place, start, own = self.position[gid], self.part_ptr[part], self.own(part)
        halo_place = self.position[self.halo(part).gid]
        found = np.searchsorted(halo_place, place)
        mine = self.part_of[gid] == part
        inside = np.append(halo_place, -1)[found] == place
        if not (mine | inside).all():
            stranger = int(gid[np.argmin(mine | inside)])
            raise GraphError(
                f"part {part} neither owns nor reads node {stranger}",
                hint=f"part {self.part_of[stranger]} owns it",
            )
        return np.where(mine, place - start, own.size + found)

    def lid_to_gid(self, part: int, lid: np.ndarray) -> np.ndarray:
        """Node of each row of ``part``, own rows first. Raises GraphError on a row out of range."""
        own, halo = self.own(part), self.halo(part)
        num_rows = own.size + halo.gid.size
        if lid.size and not 0 <= lid.min() <= lid.max() < num_rows:
            raise GraphError(
                f"part {part} has rows 0..{num_rows - 1}, had {lid.min()}..{lid.max()}"
            )
        return np.concatenate([own, halo.gid])[lid]

    def assemble(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        """[V, ...]: own rows of parts 0, 1, ... put back in the graph's node order; copies.

        Raises GraphError when a part's rows are not as many as the nodes that it owns.
        """
        counts = [len(part) for part in rows]
        if counts != self.num_nodes.tolist():
            raise GraphError(
                f"{self.num_parts} parts own {self.num_nodes.tolist()} rows, had {counts}"
            )
        grouped = np.concatenate(list(rows))
        out = np.empty_like(grouped)
        out[self.order] = grouped
        return out

    def _check_part(self, part: int) -> None:
        if not 0 <= part < self.num_parts:
            raise ConfigError(f"there is no part {part}", hint=f"0..{self.num_parts - 1}")

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headers, and rows of text: one a part, the totals, and the largest load over the mean."""
        return partition_text.table(self)

    def summary(self) -> list[tuple[str, str]]:
        """(name, value) pairs for printing, what was asked for and missed among them."""
        return partition_text.summary(self)

    def to_json(self) -> dict[str, Any]:
        """Everything that the table and the summary say, as plain JSON values."""
        return partition_text.to_json(self)

    def __str__(self) -> str:
        return partition_text.text(self)

    def __repr__(self) -> str:
        return f"Partition({self.method}, {self.num_parts} parts of {self.graph!r})"

    def save(self, where: str | Path | None = None, *, overwrite: bool = False) -> Path:
        """Write to a folder. See ``graph.partition_folder.save_partition``."""
        from tiergnn.graph.partition_folder import save_partition

        return save_partition(self, where, overwrite=overwrite)

    @classmethod
    def open(cls, graph: Graph, where: str | Path) -> Partition:
        """A saved partition of ``graph``. See ``graph.partition_folder.open_partition``."""
        from tiergnn.graph.partition_folder import open_partition

        return open_partition(graph, where)


def block(graph: Graph, num_parts: int, criteria: list[Criterion], seed: int) -> np.ndarray:
    """int32 [V]: contiguous ranges of node ids.

    One criterion is level to within a node; of several, their sum is. Nothing is random.
    """
    ptr = cut(criteria[0].weight if len(criteria) == 1 else blend(criteria), num_parts)
    return np.repeat(np.arange(num_parts, dtype=np.int32), np.diff(ptr))


METHODS = {"block": block, "metis": metis, "switching": switching}


def partition(
    graph: Graph,
    num_parts: int,
    method: str = "block",
    *,
    seed: int = 0,
    balance: Mapping[str, float | None] | Iterable[str] | str = ("nodes",),
    memory: int | str | None = None,
    num_threads: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Partition:
    """Share the nodes of ``graph`` out over parts. The same arguments give the same parts.

    method: "block" (contiguous ranges of node ids), "metis" (few edges cut; needs pymetis),
    "switching" (few rows read from other parts, a quarter of the graph's memory beside it) or
    "auto", which takes one of them by size and memory and says why in ``reason``.
    METIS sees the graph without directions, loops and duplicates; edges count as often as they
    occur. More parts than nodes leave some empty.
    seed: of METIS and switching; block uses none.
    balance: "nodes", "edges" (in-edges) and names of splits, or a mapping from those to the
    largest accepted load over mean load (1.03 for nodes, 1.05 for edges, splits to the node). What
    a method cannot hold is logged and shown by ``summary``.
    memory: what "auto" may take, as "8GiB" or in bytes; by default what is free.
    num_threads: of switching, whose parts do not depend on it; by default all processors that
    this process may use.
    progress: called by switching with (phase, done, total) now and then.
    Raises ConfigError on unknown names, and for METIS without pymetis.
    """
    if method not in METHODS and method != "auto":
        raise unknown("partition method", method, [*METHODS, "auto"])
    try:
        num_parts, seed = operator.index(num_parts), operator.index(seed)
        num_threads = None if num_threads is None else operator.index(num_threads)
    except TypeError as error:
        raise ConfigError(
            "num_parts, seed and num_threads are whole numbers, "
            f"had {num_parts!r}, {seed!r} and {num_threads!r}"
        ) from error
    if not 1 <= num_parts < 2**31:
        raise ConfigError(f"a partition needs 1 part or more, had {num_parts}")
    if num_threads is not None and num_threads < 1:
        raise ConfigError(f"num_threads is 1 or more, had {num_threads}")
    criteria = read_balance(graph, balance)
    reason = ""
    if method == "auto":
        method, reason = choose(
            graph.num_nodes,
            graph.num_edges,
            graph.topology_bytes,
            num_parts,
            free_bytes=psutil.virtual_memory().available if memory is None else parse_bytes(memory),
            has_metis=find_spec("pymetis") is not None,
        )
        _log.info("auto takes %s: %s", method, reason)
    if method == "switching":
        part_of = switching(
            graph, num_parts, criteria, seed, num_threads=num_threads, progress=progress
        )
    else:
        part_of = METHODS[method](graph, num_parts, criteria, seed)
    made = Partition(
        graph=graph,
        part_of=part_of,
        num_parts=num_parts,
        method=method,
        seed=seed,
        balance=tuple((c.name, c.tolerance) for c in criteria),
        reason=reason,
    )
    missed = [b for b in made.balances() if b.holds is False]
    if missed:
        found = ", ".join(f"{b.name} {b.found:.3f} (asked {b.asked:g})" for b in missed)
        way_out = "method='metis' or 'switching', or " if method == "block" else ""
        _log.warning(
            "%s into %d parts leaves the largest part above the mean: %s. Try %sfewer parts, "
            "or a wider balance",
            method,
            num_parts,
            found,
            way_out,
        )
    return made
