"""Graphs that every suite tests on: the odd little ones, and hypothesis' own.

@pytest.mark.parametrize("graph", ODD_GRAPHS)
@given(edge_list=edge_lists())
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import strategies as st

from tiergnn.graph.csr import Graph, from_edges
from tiergnn.graph.odd import ODD

ODD_GRAPHS = [pytest.param(make(), id=name) for name, make in ODD.items()]


class EdgeList(NamedTuple):
    """src -> dst int64 [E]; any number of duplicates and loops."""

    num_nodes: int
    src: np.ndarray
    dst: np.ndarray

    def graph(self, **options) -> Graph:
        return from_edges(self.src, self.dst, self.num_nodes, **options)


@st.composite
def edge_lists(draw, max_nodes: int = 12, max_edges: int = 40, min_nodes: int = 0) -> EdgeList:
    """Edge lists of 0 to max_edges edges over min_nodes to max_nodes nodes."""
    num_nodes = draw(st.integers(min_nodes, max_nodes))
    if num_nodes == 0:
        pairs = []
    else:
        node = st.integers(0, num_nodes - 1)
        pairs = draw(st.lists(st.tuples(node, node), max_size=max_edges))
    src, dst = np.array(pairs, np.int64).reshape(-1, 2).T
    return EdgeList(num_nodes, src, dst)
