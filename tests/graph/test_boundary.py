"""Boundary rows by class against sets counted edge by edge."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data import data_dir
from tiergnn.errors import ConfigError, GraphError
from tiergnn.graph.boundary import Boundary, Demand, boundary_of, expected_demands
from tiergnn.graph.csr import from_edges
from tiergnn.graph.distributions import rmat_shape
from tiergnn.graph.generate import rmat
from tiergnn.graph.partition import Partition, partition
from tiergnn.graph.shape import expected_layout


def random_partition(seed: int, num_parts: int) -> Partition:
    rng = np.random.default_rng(seed)
    num_nodes = int(rng.integers(1, 60))
    num_edges = int(rng.integers(0, 200))
    graph = from_edges(
        rng.integers(num_nodes, size=num_edges), rng.integers(num_nodes, size=num_edges),
        num_nodes,
    )  # fmt: skip
    part_of = rng.integers(num_parts, size=num_nodes).astype(np.int32)
    return Partition(graph=graph, part_of=part_of, num_parts=num_parts)


def readers_of(parts: Partition) -> dict[int, set[int]]:
    graph, found = parts.graph, {}
    for v in range(graph.num_nodes):
        for u in graph.col[graph.rowptr[v] : graph.rowptr[v + 1]].tolist():
            if parts.part_of[u] != parts.part_of[v]:
                found.setdefault(u, set()).add(int(parts.part_of[v]))
    return found


def listed(boundary: Boundary, parts: Partition) -> list[tuple[int, tuple[int, ...]]]:
    """(node, readers) of each row of each class."""
    found = []
    for i, need in enumerate(boundary.demands):
        rows = boundary.row[boundary.ptr[i] : boundary.ptr[i + 1]]
        assert rows.size == need.rows
        assert (np.diff(rows) > 0).all()
        found += [(int(gid), need.readers) for gid in parts.own(need.owner)[rows]]
    return found


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), num_parts=st.sampled_from((1, 2, 3, 8, 63, 64)))
def test_classes_are_those_of_the_edges(seed, num_parts):
    parts = random_partition(seed, num_parts)
    boundary, want = boundary_of(parts), readers_of(parts)
    assert dict(listed(boundary, parts)) == {u: tuple(sorted(who)) for u, who in want.items()}
    assert boundary.row.size == len(want)
    keys = [(need.owner, sum(1 << r for r in need.readers)) for need in boundary.demands]
    assert keys == sorted(set(keys))
    for part in range(num_parts):
        read = sum(need.rows for need in boundary.demands if part in need.readers)
        assert read == parts.num_halo[part]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), most=st.sampled_from((1, 5, 20, 10**6)))
def test_cut_classes_ask_for_the_same_rows(seed, most):
    parts = random_partition(seed, 9)
    whole = boundary_of(parts)
    cut = whole.within(most)
    asked = Counter((u, r) for u, readers in listed(whole, parts) for r in readers)
    assert Counter((u, r) for u, readers in listed(cut, parts) for r in readers) == asked
    assert cut.num_classes <= whole.num_classes
    if whole.num_classes <= most:
        assert cut is whole
    pairs = {(parts.part_of[u], reader) for u, reader in asked}
    assert cut.num_classes <= max(most, len(pairs))


def test_real_graph_has_few_classes():
    edges = np.load(data_dir("cora") / "edge_index.npz")["edge_index"]
    graph = from_edges(edges[0], edges[1], 2708)
    parts = partition(graph, 4)
    boundary = boundary_of(parts)
    assert boundary.num_classes <= 4 * 7
    assert boundary.row.size == len(readers_of(parts))


@pytest.mark.parametrize("num_parts", [1, 2, 3, 8])
def test_expected_classes_add_up_to_the_expected_halos(num_parts):
    shape = rmat_shape(20_000, 300_000)
    demands = expected_demands(shape, num_parts)
    for part, expected in enumerate(expected_layout(shape, num_parts).parts):
        read = sum(need.rows for need in demands if part in need.readers)
        assert read == pytest.approx(expected.halo, rel=0.01, abs=2)


def test_expected_classes_are_those_of_random_parts():
    graph = rmat(4000, 40_000, seed=1)
    part_of = np.random.default_rng(0).integers(4, size=4000).astype(np.int32)
    counted = boundary_of(Partition(graph=graph, part_of=part_of, num_parts=4)).demands
    by_fanout = Counter()
    for need in counted:
        by_fanout[len(need.readers)] += need.rows
    expected = Counter()
    for need in expected_demands(rmat_shape(4000, 40_000), 4):
        expected[len(need.readers)] += need.rows
    for fanout in (1, 2, 3):
        assert by_fanout[fanout] == pytest.approx(expected[fanout], rel=0.1)


def test_refusals():
    with pytest.raises(GraphError, match="64 parts"):
        boundary_of(random_partition(0, 65))
    with pytest.raises(ConfigError, match="1 to 12"):
        expected_demands(rmat_shape(100, 100), 13)
    for fields in (
        {"readers": ()}, {"readers": (1, 0)}, {"readers": (2,)}, {"rows": 0}, {"owner": -1},
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            Demand(**{"owner": 2, "readers": (0, 1), "rows": 3} | fields)
    need = Demand(owner=2, readers=(0, 1), rows=3)
    assert Demand.parse(str(need)) == need
    for text in ("", "demand 2", "demand 2 readers 0,x rows 3"):
        with pytest.raises(ConfigError):
            Demand.parse(text)
