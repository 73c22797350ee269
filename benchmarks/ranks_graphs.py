"""Graphs of `ranks.py`, by name: real ones, and R-MAT graphs in the shapes of published ones.

"amazon_photo" is a set of TIERGNN_DATA, "products/16" has a sixteenth of the nodes and edges of
products. Features and labels that a graph lacks are drawn: what is timed does not depend on them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import tiergnn as tg
from provenance import DATA
from tiergnn.graph.csr import Graph
from tiergnn.graph.generate import rmat
from tiergnn.graph.published import SHAPES
from tiergnn.graph.table import Table

WIDTH, CLASSES = 64, 16  # of a graph that says nothing of them


def graph_of(name: str, folder: Path) -> Graph:
    """The graph in its folder under ``folder``, made there where it is not yet."""
    path = folder / name.replace("/", "-")
    if not path.exists():
        shape, _, scale = name.partition("/")
        if scale:
            scaled(shape, int(scale)).save(path)
        elif name.startswith("rmat-"):
            _, nodes, edges = name.split("-")
            dressed(rmat(int(nodes), int(edges), seed=1)).save(path)
        else:
            made = dressed(tg.ingest(DATA / name, folder / f"{path.name}.raw"))
            made.save(path)
    return Graph.open(path, verify=False)


def scaled(shape: str, scale: int) -> Graph:
    """An R-MAT graph of a published one's widths, and of its nodes and edges over ``scale``."""
    known = SHAPES[shape]
    a, b, c = known.quarters
    graph = rmat(
        known.num_nodes // scale, known.num_edges // scale, seed=1, a=a, b=b, c=c
    )  # directed: half of its edges would be others' reverses
    return dressed(
        graph,
        width=known.num_features,
        classes=known.num_classes,
        labelled=known.num_labelled // scale,
    )


def dressed(
    graph: Graph, *, width: int = WIDTH, classes: int = CLASSES, labelled: int | None = None
) -> Graph:
    """A graph with features, labels and a training split, drawn where it has none."""
    draw, nodes = np.random.default_rng(1), graph.num_nodes
    added: dict[str, Any] = {}
    if graph.x is None:
        x = draw.standard_normal((nodes, width), dtype=np.float32)
        added["x"] = Table.from_array(x)
    if graph.y is None or graph.task != "class":
        added |= {"y": draw.integers(0, classes, nodes), "task": "class", "num_classes": classes}
    ids = draw.permutation(nodes)[: nodes // 2 if labelled is None else labelled]
    added["splits"] = {"train": np.sort(ids)}
    return replace(graph, **added)
