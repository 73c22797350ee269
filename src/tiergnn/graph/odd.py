"""The odd little graphs: each breaks something that a graph library might take for granted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tiergnn.graph.csr import Graph, from_edges
from tiergnn.graph.draws import normals
from tiergnn.graph.generate import path, rmat_edges, star

_WIDTH = 5
_CLASSES = 3


def _rows(num_nodes: int) -> dict:
    """Features, labels (every seventh node unlabelled) and splits that leave some nodes out."""
    node = np.arange(num_nodes)
    y = np.where(node % 7 == 6, -1, node % _CLASSES)
    splits = {"train": node[::2], "val": node[1::4], "test": node[3::8]}
    x = normals(num_nodes, _WIDTH, seed=num_nodes)
    return {"x": x, "y": y, "num_classes": _CLASSES, "splits": splits}


def _listed(num_nodes: int, pairs: list[tuple[int, int]], **options) -> Graph:
    src, dst = np.array(pairs, np.int64).reshape(-1, 2).T
    return from_edges(src, dst, num_nodes, **{**_rows(num_nodes), **options})


def _isolated() -> Graph:
    """Edges only among 0..4 of 10 nodes; node 9, the highest, is the only test node."""
    ring = [(v, (v + 1) % 5) for v in range(5)]
    splits = {"train": np.arange(4), "val": np.array([5]), "test": np.array([9])}
    return _listed(10, ring, undirected=True, splits=splits)


def _random(num_nodes: int, num_edges: int, seed: int, **options) -> Graph:
    src, dst = rmat_edges(num_nodes, num_edges, seed=seed)
    return from_edges(src, dst, num_nodes, **{**_rows(num_nodes), **options})


def _half() -> Graph:
    """No edge points to nodes 8..15."""
    src, dst = rmat_edges(16, 50, seed=3)
    return from_edges(src, dst % 8, 16, **_rows(16))


def _weighted() -> Graph:
    """Weights of both signs and 0, edge features, loops and duplicates among them."""
    weight = normals(120, 1, seed=5)[:, 0]
    weight[::9] = 0
    return _random(23, 120, 4, edge_weight=weight, edge_attr=normals(120, 3, seed=6))


ODD: dict[str, Callable[[], Graph]] = {
    "empty": lambda: _listed(0, []),
    "one_node": lambda: _listed(1, []),
    "one_loop": lambda: _listed(1, [(0, 0)]),
    "no_edges": lambda: _listed(4, []),
    "isolated": _isolated,
    "path": lambda: path(17, **_rows(17)),
    "star_in": lambda: star(62, direction="in", **_rows(63)),
    "star_out": lambda: star(62, direction="out", **_rows(63)),
    "hub": lambda: star(300, direction="both", **_rows(301)),
    "half": _half,
    "two_components": lambda: _listed(
        7, [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3)], undirected=True
    ),
    "duplicates": lambda: _listed(6, [(0, 1), (0, 1), (2, 1), (0, 1), (3, 4), (3, 4), (5, 0)]),
    "loops": lambda: _listed(6, [(0, 0), (0, 1), (1, 1), (1, 1), (2, 1), (3, 3), (4, 3)]),
    "random": lambda: _random(37, 300, 1),
    "weighted": _weighted,
}
"""Name -> maker. All but weighted are unweighted; all have x float32 [V, 5], 3 classes, splits."""
