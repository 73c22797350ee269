"""Passes over edges by ranges of nodes: the same counts and order, whatever the ranges."""

from __future__ import annotations

import numpy as np
import pytest

from tiergnn.graph import halo_counts, occurrences
from tiergnn.graph.csr import Graph
from tiergnn.graph.generate import rmat
from tiergnn.graph.partition import partition
from tiergnn.graph.shape import layout_of
from tiergnn.kernels import csr
from tiergnn.kernels.block import Block


@pytest.fixture(params=[1, 3, 8])
def threads(request, monkeypatch):
    """So many ranges, of graphs of any size."""
    monkeypatch.setattr(occurrences, "_RANGE", 4)
    for module in (occurrences, halo_counts):
        monkeypatch.setattr(module, "num_processors", lambda: request.param)
    return request.param


def of_width(graph: Graph, dtype: type) -> Graph:
    return Graph(rowptr=graph.rowptr, col=graph.col.astype(dtype))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_ranges_of_nodes(threads, dtype):
    graph = of_width(rmat(100, 3_000, seed=2), dtype)
    assert occurrences.node_ranges(100, 3_000) == threads
    counts = np.zeros(100, np.int64)
    occurrences.count_nodes(graph.col, counts)
    assert np.array_equal(counts, np.bincount(graph.col, minlength=100))
    degrees, loops = halo_counts.degrees_of(graph.rowptr, graph.col)
    assert np.array_equal(degrees, counts)
    dst = np.repeat(np.arange(100), np.diff(graph.rowptr))
    assert loops == (dst == graph.col).sum() > 0

    out = Block.from_graph(graph).transposed
    order = np.argsort(graph.col, kind="stable")
    assert np.array_equal(out.rowptr_t, np.concatenate([[0], np.cumsum(counts)]))
    assert np.array_equal(out.edge_t, order)
    assert np.array_equal(out.dst_t, dst[order])


def test_all_edges_at_one_source(threads):
    rowptr, col = np.arange(101), np.full(100, 57, np.int32)
    starts, dst, edge = np.zeros(102, np.int64), np.zeros(100, np.int32), np.zeros(100, np.int32)
    csr.transpose(rowptr, col, starts, dst, edge)
    assert starts[57] == 0
    assert starts[58] == 100
    assert np.array_equal(dst, np.arange(100))
    assert np.array_equal(edge, np.arange(100))


def test_parts_are_counted_by_any_number_of_threads(threads, monkeypatch):
    graph = rmat(100, 3_000, seed=2)
    parts = partition(graph, 7, "block")
    found = layout_of(parts, graph)
    monkeypatch.setattr(halo_counts, "num_processors", lambda: 1)
    assert layout_of(parts, graph) == found
    assert sum(part.edges for part in found.parts) == 3_000
