"""Summary: what a graph holds, counted in one pass over its edges.

Legend: V nodes, E edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from tiergnn.graph.csr import Graph
from tiergnn.graph.table import Table


@numba.njit(cache=True, nogil=True)
def _scan(rowptr, col):
    """Out-degree [V], loops, repeats of an edge before it, and whether the reverses are all there.

    Sources ascend, so while rows are walked in order the next unseen destination of node u must
    be the row at hand whenever u is met: u's own row, read from its start, is that list exactly
    when the graph equals its transpose.
    """
    out_degree = np.zeros(rowptr.size - 1, np.int64)
    loops = repeats = 0
    symmetric = True
    for v in range(rowptr.size - 1):
        for e in range(rowptr[v], rowptr[v + 1]):
            u = col[e]
            loops += u == v
            repeats += e > rowptr[v] and col[e - 1] == u
            at = rowptr[u] + out_degree[u]
            symmetric = symmetric and at < rowptr[u + 1] and col[at] == v
            out_degree[u] += 1
    return out_degree, loops, repeats, symmetric


@dataclass(frozen=True, slots=True)
class Degrees:
    """Smallest, median, mean and largest number of edges of a node; zeros without nodes."""

    min: int
    median: float
    mean: float
    max: int

    @classmethod
    def of(cls, degree: np.ndarray) -> Degrees:
        if degree.size == 0:
            return cls(0, 0.0, 0.0, 0)
        return cls(
            int(degree.min()), float(np.median(degree)), float(degree.mean()), int(degree.max())
        )


@dataclass(frozen=True, slots=True)
class Stored:
    """One array of a graph: its values' dtype, shape and bytes."""

    dtype: str
    shape: tuple[int, ...]
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Counts of a graph: ``isolated`` nodes have no edge, ``repeats`` follow an equal edge."""

    num_nodes: int
    num_edges: int
    in_degree: Degrees
    out_degree: Degrees
    isolated: int
    self_loops: int
    repeats: int
    symmetric: bool  # every edge has its reverse, as often
    task: str | None
    num_classes: int | None
    num_labelled: int | None  # nodes with a known label or target
    class_counts: tuple[int, ...] | None  # nodes of each class (multilabel: with each label)
    splits: dict[str, int]
    node_ids: str  # "0..V-1", "numbers" or "strings"
    arrays: dict[str, Stored]

    @property
    def num_bytes(self) -> int:
        return sum(array.num_bytes for array in self.arrays.values())

    @classmethod
    def of(cls, graph: Graph) -> Summary:
        """Read the whole topology and the labels once. Holds one count a node."""
        out_degree, loops, repeats, symmetric = _scan(graph.rowptr, graph.col)
        in_degree = graph.in_degree
        labelled, counts = _labels(graph)
        return cls(
            num_nodes=graph.num_nodes,
            num_edges=graph.num_edges,
            in_degree=Degrees.of(in_degree),
            out_degree=Degrees.of(out_degree),
            isolated=int(((in_degree == 0) & (out_degree == 0)).sum()),
            self_loops=int(loops),
            repeats=int(repeats),
            symmetric=bool(symmetric),
            task=graph.task,
            num_classes=graph.num_classes,
            num_labelled=labelled,
            class_counts=counts,
            splits={name: int(ids.size) for name, ids in graph.splits.items()},
            node_ids="0..V-1"
            if graph.node_ids is None
            else "numbers"
            if graph.node_ids.are_numbers
            else "strings",
            arrays=_arrays(graph),
        )


def _labels(graph: Graph) -> tuple[int | None, tuple[int, ...] | None]:
    y = graph.y
    if y is None:
        return None, None
    if graph.task == "real":
        return int((~np.isnan(y)).any(axis=1).sum()), None
    if graph.task == "multilabel":
        return int((y >= 0).any(axis=1).sum()), tuple(int(n) for n in (y == 1).sum(axis=0))
    known = y[y >= 0]
    return int(known.size), tuple(
        int(n) for n in np.bincount(known, minlength=graph.num_classes or 0)
    )


def _arrays(graph: Graph) -> dict[str, Stored]:
    found: dict[str, Any] = {
        "rowptr": graph.rowptr,
        "col": graph.col,
        "edge_weight": graph.edge_weight,
        "edge_attr": graph.edge_attr,
        "x": graph.x,
        "y": graph.y,
    }
    found |= {f"splits/{name}": ids for name, ids in graph.splits.items()}
    if graph.node_ids is not None:
        found |= graph.node_ids.arrays()
    stored: dict[str, Stored] = {}
    for name, rows in found.items():
        if isinstance(rows, Table):
            stored[name] = Stored(rows.dtype, rows.data.shape, rows.data.nbytes)
            if rows.scale is not None:
                scale = rows.scale
                stored[f"{name}_scale"] = Stored(str(scale.dtype), scale.shape, scale.nbytes)
        elif rows is not None:
            stored[name] = Stored(str(rows.dtype), rows.shape, rows.nbytes)
    return stored
