"""Graph: the in-edges of every node, and the rows that belong to nodes and edges.

Legend: V nodes, E edges, D columns, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from tiergnn.errors import GraphError, unknown
from tiergnn.graph.table import Table

if TYPE_CHECKING:
    from tiergnn.graph.ids import NodeIds

TASKS = ("class", "multilabel", "real")
DUPLICATES = ("keep", "sum", "refuse")
SELF_LOOPS = ("keep", "remove", "add")


def index_dtype(num_nodes: int) -> np.dtype:
    """The narrowest of int32 and int64 that holds every node id."""
    return np.dtype(np.int32 if num_nodes <= 2**31 else np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Graph:
    """A directed graph as a CSR of in-edges; arrays may be memory-mapped and are never written.

    rowptr int64 [V+1]; col [E], int32 or int64: the sources of node v's in-edges are
    ``col[rowptr[v]:rowptr[v+1]]``, ascending, equal ones in input order.
    Raises GraphError when the parts contradict each other.
    """

    rowptr: np.ndarray
    col: np.ndarray
    edge_weight: np.ndarray | None = None  # float32 or float64 [E]
    edge_attr: Table | None = None  # [E, D]
    x: Table | None = None  # [V, D]
    y: np.ndarray | None = None  # class [V]; multilabel int8 [V, C]; real [V, T]
    task: str | None = None  # one of TASKS when there is a y
    num_classes: int | None = None  # of a class or multilabel task
    splits: Mapping[str, np.ndarray] = field(default_factory=dict)  # name -> ascending ids, int64
    node_ids: NodeIds | None = None  # the user's names of nodes; None: 0..V-1
    path: Path | None = None  # the folder it was opened from

    def __post_init__(self) -> None:
        if self.rowptr.ndim != 1 or self.rowptr.size == 0 or self.rowptr.dtype != np.int64:
            raise GraphError(
                "rowptr needs int64 [num_nodes+1], "
                f"has {self.rowptr.dtype} {list(self.rowptr.shape)}"
            )
        if self.col.ndim != 1 or self.col.dtype not in (np.int32, np.int64):
            raise GraphError(
                f"col needs int32 or int64 [num_edges], has {self.col.dtype} {list(self.col.shape)}"
            )
        if self.rowptr[0] != 0 or self.rowptr[-1] != self.num_edges:
            raise GraphError(
                f"rowptr must run from 0 to {self.num_edges} (the length of col), "
                f"runs from {self.rowptr[0]} to {self.rowptr[-1]}"
            )
        _check_rows("edge_weight", self.edge_weight, self.num_edges, "edges")
        _check_rows("edge_attr", self.edge_attr and self.edge_attr.data, self.num_edges, "edges")
        _check_rows("x", self.x and self.x.data, self.num_nodes, "nodes")
        _check_rows("y", self.y, self.num_nodes, "nodes")
        if (self.y is None) != (self.task is None):
            raise GraphError(f"y and task go together, had task {self.task!r}")
        if self.task is not None and self.task not in TASKS:
            raise unknown("task", self.task, TASKS)
        for name, ids in self.splits.items():
            check_split(name, ids, self.num_nodes)
        object.__setattr__(self, "splits", MappingProxyType(dict(self.splits)))

    @property
    def num_nodes(self) -> int:
        return self.rowptr.size - 1

    @property
    def num_edges(self) -> int:
        return int(self.col.size)

    @property
    def in_degree(self) -> np.ndarray:
        """int64 [V]; duplicates and self-loops count."""
        return np.diff(self.rowptr)

    @property
    def topology_bytes(self) -> int:
        return self.rowptr.nbytes + self.col.nbytes

    def __repr__(self) -> str:
        parts = [f"num_nodes={self.num_nodes:,}", f"num_edges={self.num_edges:,}"]
        if self.x is not None:
            parts.append(f"x={self.x.dtype}[{self.x.width}]")
        if self.edge_attr is not None:
            parts.append(f"edge_attr={self.edge_attr.dtype}[{self.edge_attr.width}]")
        if self.task is not None:
            parts.append(f"task={self.task}")
        if self.splits:
            parts.append("splits=" + ",".join(self.splits))
        return f"Graph({', '.join(parts)})"

    @classmethod
    def open(cls, path: str | Path, *, verify: bool | None = None) -> Graph:
        """Memory-map a graph folder. See ``graph.folder.open_folder``."""
        from tiergnn.graph.folder import open_folder

        return open_folder(path, verify=verify)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Graph:
        """Write a graph folder and return the graph opened from it. See ``graph.folder``."""
        from tiergnn.graph.folder import save_folder

        return save_folder(self, path, overwrite=overwrite)

    @classmethod
    def from_pyg(cls, data: Any, **options: Any) -> Graph:
        """A PyG Data, or an OGB ``(graph, labels)`` pair, as a Graph. See ``graph.pyg``."""
        from tiergnn.graph.pyg import from_pyg

        return from_pyg(data, **options)

    def to_pyg(self) -> Any:
        """A PyG Data in this graph's node order. See ``graph.pyg``."""
        from tiergnn.graph.pyg import to_pyg

        return to_pyg(self)


def check_split(name: str, ids: np.ndarray, num_nodes: int) -> None:
    """Raise GraphError unless ``ids`` are ascending int64 node ids without repeats."""
    if ids.ndim != 1 or ids.dtype != np.int64:
        raise GraphError(f"split {name!r} needs int64 node ids [N], has {ids.dtype} {ids.shape}")
    if ids.size and (ids[0] < 0 or ids[-1] >= num_nodes or (np.diff(ids) <= 0).any()):
        raise GraphError(
            f"split {name!r} needs ascending node ids in 0..{num_nodes - 1}, each once",
            hint="a boolean mask, or numpy.unique(ids)",
        )


def check_ids(ids: np.ndarray, num_nodes: int, *, name: str) -> None:
    """Raise GraphError naming the first id of ``ids`` (any shape) outside 0..num_nodes-1."""
    if ids.size == 0 or (int(ids.min()) >= 0 and int(ids.max()) < num_nodes):
        return
    bad = (ids < 0) | (ids >= num_nodes)
    position = tuple(int(axis[0]) for axis in np.nonzero(bad))
    raise GraphError(
        f"{name}[{', '.join(map(str, position))}] is {ids[position]}; "
        f"with num_nodes={num_nodes} ids must be 0..{num_nodes - 1}",
        hint=f"num_nodes={int(ids.max()) + 1}"
        if int(ids.min()) >= 0
        else "ingest with ids='relabel', which maps any ids to 0..V-1 and keeps the map",
    )


def _check_rows(name: str, rows: np.ndarray | None, count: int, of: str) -> None:
    if rows is not None and rows.shape[0] != count:
        raise GraphError(f"{name} has {rows.shape[0]} rows, the graph has {count} {of}")


def from_edges(
    src: np.ndarray,
    dst: np.ndarray,
    num_nodes: int,
    *,
    edge_weight: np.ndarray | None = None,
    edge_attr: Table | None = None,
    undirected: bool = False,
    duplicates: str = "keep",
    self_loops: str = "keep",
    **rows: Any,
) -> Graph:
    """A Graph from an edge list in memory, in any order.

    undirected adds the reverse of every edge that is not a loop. self_loops "add" gives each node
    that has none one loop of weight 1 (and edge features 0). duplicates "sum" adds weights (an
    unweighted edge counts 1) and edge features; "refuse" raises GraphError with the first pair.
    ``rows`` are Graph's other fields. Raises GraphError on ids out of range.
    """
    if duplicates not in DUPLICATES:
        raise unknown("duplicates", duplicates, DUPLICATES)
    if self_loops not in SELF_LOOPS:
        raise unknown("self_loops", self_loops, SELF_LOOPS)
    src, dst = np.asarray(src), np.asarray(dst)
    check_ids(src, num_nodes, name="source")
    check_ids(dst, num_nodes, name="destination")
    raise NotImplementedError
