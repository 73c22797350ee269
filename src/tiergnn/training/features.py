"""What a model reads of a node: its stored features, or some made from the graph.

Legend: V nodes, D columns.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from tiergnn.errors import ConfigError, GraphError, unknown
from tiergnn.graph.csr import Graph
from tiergnn.graph.table import Table

KINDS = ("auto", "stored", "degree", "constant", "onehot", "embedding:WIDTH")
_log = logging.getLogger("tiergnn")


@dataclass(frozen=True, slots=True)
class Features:
    """``kind`` is one of KINDS, decided; ``width`` its number of columns."""

    kind: str
    width: int


def check_nodes(num_nodes: int) -> None:
    """Raises GraphError for a graph of none: nothing can be planned or trained on it."""
    if not num_nodes:
        raise GraphError("the graph has no nodes", hint="a graph of 1 node or more")


def choose_features(graph: Graph, features: str) -> Features:
    """Decide "auto" and count the columns. Raises ConfigError for what the graph does not have."""
    kind, _, width = features.partition(":")
    if kind == "auto":
        if graph.x is None:
            _log.warning("the graph has no features: its nodes' degrees stand in for them")
        kind = "degree" if graph.x is None else "stored"
    if kind == "embedding":
        if not width.isdecimal() or int(width) < 1:
            raise ConfigError(
                f"{features!r}: learned rows need a width", hint="features='embedding:64'"
            )
        return Features(kind, int(width))
    if width or kind not in KINDS:
        raise unknown("features", features, KINDS)
    if kind == "stored":
        if graph.x is None:
            raise ConfigError(
                "the graph has no stored features", hint="features='degree', or another kind"
            )
        return Features(kind, graph.x.width)
    return Features(kind, {"degree": 3, "constant": 1, "onehot": graph.num_nodes}[kind])


def feature_table(graph: Graph, features: Features) -> Table | None:
    """The rows [V, D]; None for "embedding", whose rows are parameters.

    degree: log(1 + in-degree), log(1 + out-degree), 1. onehot: the identity, a byte an element.
    """
    if features.kind == "stored":
        return graph.x
    if features.kind == "embedding":
        return None
    if features.kind == "constant":
        return Table.from_array(np.ones((graph.num_nodes, 1), np.float32))
    if features.kind == "onehot":
        return Table.from_array(np.eye(graph.num_nodes, dtype=np.bool_))
    rows = np.ones((graph.num_nodes, 3), np.float32)
    rows[:, 0] = np.log1p(graph.in_degree)
    rows[:, 1] = np.log1p(np.bincount(graph.col, minlength=graph.num_nodes))
    return Table.from_array(rows)
