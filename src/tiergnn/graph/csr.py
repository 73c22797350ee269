"""Graph: the in-edges of every node, and the rows that belong to nodes and edges.

Legend: V nodes, E edges, D columns, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from tiergnn.errors import GraphError, unknown
from tiergnn.graph.edges import (
    DUPLICATES,
    SELF_LOOPS,
    follow,
    order_edges,
    refuse_duplicate,
    sum_duplicates,
    sum_rows,
)
from tiergnn.graph.labels import check_labels, read_labels, read_masks
from tiergnn.graph.order import first_fault
from tiergnn.graph.table import Table

if TYPE_CHECKING:
    from tiergnn.graph.ids import NodeIds


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
    y: np.ndarray | None = None  # class int64 [V]; multilabel int8 [V, C]; real [V, T]
    task: str | None = None  # one of labels.TASKS when there is a y
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
        if self.edge_weight is not None and (
            self.edge_weight.ndim != 1 or self.edge_weight.dtype not in (np.float32, np.float64)
        ):
            raise GraphError(
                "edge_weight needs float32 or float64 [num_edges], "
                f"has {self.edge_weight.dtype} {list(self.edge_weight.shape)}"
            )
        if (self.y is None) != (self.task is None):
            raise GraphError(f"y and task go together, had task {self.task!r}")
        if self.y is not None and self.task is not None:
            check_labels(self.y, self.task, self.num_classes)
        for name, ids in self.splits.items():
            check_split(name, ids, self.num_nodes)
        if self.node_ids is not None and len(self.node_ids) != self.num_nodes:
            raise GraphError(
                f"node_ids name {len(self.node_ids)} nodes, the graph has {self.num_nodes}"
            )
        if self.path is None:  # reading memory is cheap; a folder has checksums instead
            check_topology(self.rowptr, self.col)
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
    def from_pyg(
        cls,
        data: Any,
        *,
        num_nodes: int | None = None,
        splits: Mapping[str, Any] | None = None,
        task: str | None = None,
        num_classes: int | None = None,
        undirected: bool = False,
        duplicates: str = "keep",
        self_loops: str = "keep",
    ) -> Graph:
        """A PyG Data, an OGB ``(graph, labels)`` pair or a data set of one graph as a Graph.

        Floats in y are real targets unless task="class" says otherwise. See ``graph.pyg``.
        """
        from tiergnn.graph.pyg import from_pyg

        return from_pyg(
            data,
            num_nodes=num_nodes,
            splits=splits,
            task=task,
            num_classes=num_classes,
            undirected=undirected,
            duplicates=duplicates,
            self_loops=self_loops,
        )

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
    """Raise GraphError naming the first id of ``ids`` (any shape) outside 0..num_nodes-1.

    Whole numbers of any width are ids; floats and booleans are refused, even when empty of values.
    """
    if ids.dtype.kind not in "iu":
        raise GraphError(
            f"{name} needs whole numbers, has {ids.dtype}",
            hint="cast it to int64 where that is exact",
        )
    if ids.size == 0:
        return
    low, high = int(ids.min()), int(ids.max())
    if low >= 0 and high < num_nodes:
        return
    position = np.unravel_index(int(np.argmax((ids < 0) | (ids >= num_nodes))), ids.shape)
    where = ", ".join(str(int(axis)) for axis in position)
    allowed = f"ids must be 0..{num_nodes - 1}" if num_nodes else "there is no node to name"
    if low < 0:
        hint = "ingest with ids='relabel', which maps any ids to 0..V-1 and keeps the map"
    elif low == 1 and high == num_nodes:
        hint = "these ids look 1-based: subtract 1"
    else:
        hint = f"num_nodes={high + 1}, or ingest with ids='relabel' when ids have gaps"
    raise GraphError(
        f"{name}[{where}] is {ids[position]}; with num_nodes={num_nodes} {allowed}", hint=hint
    )


def check_topology(rowptr: np.ndarray, col: np.ndarray) -> None:
    """Raise GraphError at the first row or source that breaks the CSR. One pass over everything."""
    row, edge = first_fault(rowptr, col)
    if row < 0:
        return
    if edge < 0:
        raise GraphError(
            f"rowptr[{row + 1}] is {rowptr[row + 1]}; it must be "
            f"{rowptr[row]} (the one before it) to {col.size} (the length of col)"
        )
    if 0 <= col[edge] < rowptr.size - 1:
        raise GraphError(
            f"col[{edge}] is {col[edge]}, after {col[edge - 1]}: "
            f"the sources of node {row} must be ascending",
            hint="from_edges, which sorts",
        )
    raise GraphError(f"col[{edge}] is {col[edge]}; sources must be 0..{rowptr.size - 2}")


def from_edges(
    src: np.ndarray,
    dst: np.ndarray,
    num_nodes: int,
    *,
    edge_weight: np.ndarray | None = None,
    edge_attr: Table | np.ndarray | None = None,
    undirected: bool = False,
    duplicates: str = "keep",
    self_loops: str = "keep",
    x: Table | np.ndarray | None = None,
    y: np.ndarray | None = None,
    task: str | None = None,
    num_classes: int | None = None,
    splits: Mapping[str, np.ndarray] | None = None,
    node_ids: NodeIds | None = None,
) -> Graph:
    """A Graph from an edge list src -> dst, [E] whole numbers of any width, in any order.

    In this order: ``self_loops="remove"`` drops loops; ``undirected`` adds the reverse of every
    edge that is not a loop, at the same input position; ``self_loops="add"`` gives each node that
    has no loop one of weight 1 and edge features 0; then edges are sorted by (dst, src, position).
    ``duplicates``: "keep" them; "sum" their weights (an unweighted edge counts 1, so the result
    always has weights) and edge features, in float64 in input order, rounded once to the stored
    dtype; "refuse" raises GraphError with the first pair.
    edge_weight [E] becomes float32 unless float64 is needed to hold it; edge_attr keeps its dtype.
    y goes through ``read_labels``, splits are masks or ids; x and edge_attr may be plain arrays.
    Raises GraphError on ids out of range, wrong lengths, weights that are not finite.
    """
    if duplicates not in DUPLICATES:
        raise unknown("duplicates", duplicates, DUPLICATES)
    if self_loops not in SELF_LOOPS:
        raise unknown("self_loops", self_loops, SELF_LOOPS)
    if num_nodes < 0:
        raise GraphError(f"num_nodes must be 0 or more, had {num_nodes}")
    src, dst = np.asarray(src), np.asarray(dst)
    if src.ndim != 1 or src.shape != dst.shape:
        raise GraphError(
            "source and destination need one length [E], "
            f"have {list(src.shape)} and {list(dst.shape)}"
        )
    check_ids(src, num_nodes, name="source")
    check_ids(dst, num_nodes, name="destination")
    index = index_dtype(num_nodes)
    edges = order_edges(
        np.ascontiguousarray(src, dtype=index),
        np.ascontiguousarray(dst, dtype=index),
        num_nodes,
        undirected=undirected,
        self_loops=self_loops,
    )
    if duplicates == "refuse":
        refuse_duplicate(edges)
    weight = None
    if edge_weight is not None:
        weight = follow(_weights(np.asarray(edge_weight), src.size), edges.given, 1)
    attr = Table.from_array(edge_attr) if isinstance(edge_attr, np.ndarray) else edge_attr
    if attr is not None:
        _check_rows("edge_attr", attr.data, src.size, "edges in its list")
        attr = replace(attr, data=follow(attr.data, edges.given, 0))
    if duplicates == "sum":
        attr = attr and sum_rows(attr, edges.first)
        edges, weight = sum_duplicates(edges, weight)
    labels = None if y is None else read_labels(y, task, num_classes)
    return Graph(
        rowptr=edges.rowptr,
        col=edges.col,
        edge_weight=weight,
        edge_attr=attr,
        x=Table.from_array(x) if isinstance(x, np.ndarray) else x,
        y=labels and labels.y,
        task=labels and labels.task,
        num_classes=labels and labels.num_classes,
        splits=read_masks(splits or {}, num_nodes),
        node_ids=node_ids,
    )


def _weights(weight: np.ndarray, num_edges: int) -> np.ndarray:
    if weight.shape != (num_edges,) or weight.dtype.kind not in "biuf":
        raise GraphError(
            f"edge_weight needs numbers [{num_edges}], has {weight.dtype} {list(weight.shape)}"
        )
    out = weight if weight.dtype in (np.float32, np.float64) else weight.astype(np.float32)
    if weight.dtype.kind in "iu" and (out.astype(np.float64) != weight).any():
        out = weight.astype(np.float64)
    bad = ~np.isfinite(out)
    if bad.any():
        at = int(np.argmax(bad))
        raise GraphError(f"edge_weight[{at}] is {weight[at]}", hint="finite weights")
    return out


def _check_rows(name: str, rows: np.ndarray | None, count: int, of: str) -> None:
    if rows is not None and rows.shape[0] != count:
        raise GraphError(f"{name} has {rows.shape[0]} rows, the graph has {count} {of}")
