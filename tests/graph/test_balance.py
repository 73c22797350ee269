"""Balancing: the undirected view, cuts of an order, bounds, and what rebalancing promises."""

from __future__ import annotations

import ctypes
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.odd import edge_lists
from tiergnn.errors import ConfigError, PlanError
from tiergnn.graph import metis
from tiergnn.graph.balance import blend, cut, cut_weight, read_balance, rebalance
from tiergnn.graph.csr import from_edges
from tiergnn.graph.generate import rmat, sbm
from tiergnn.graph.partition import partition
from tiergnn.graph.undirected import undirected_view


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@settings(max_examples=40, deadline=None)
@given(edge_list=edge_lists(max_edges=80))
def test_undirected_view(dtype, edge_list):
    graph = edge_list.graph()
    pairs = Counter()
    for u, v in zip(edge_list.src.tolist(), edge_list.dst.tolist(), strict=True):
        if u != v:
            pairs[u, v] += 1
            pairs[v, u] += 1
    view = undirected_view(graph.rowptr, graph.col, dtype)
    assert view.xadj.dtype == view.adjncy.dtype == dtype
    owner = np.repeat(np.arange(graph.num_nodes), np.diff(view.xadj)).tolist()
    assert list(zip(owner, view.adjncy.tolist(), strict=True)) == sorted(pairs)
    if len(set(pairs.values())) > 1:
        assert view.eweight.tolist() == [pairs[pair] for pair in sorted(pairs)]
    else:
        assert view.eweight.size == 0


def test_a_view_too_large_for_its_dtype_is_refused():
    graph = rmat(300, 2000)
    with pytest.raises(ConfigError, match="counts in int8"):
        undirected_view(graph.rowptr, graph.col, np.int8)


@settings(max_examples=50, deadline=None)
@given(
    weight=st.lists(st.integers(0, 2**45), max_size=30),
    num_parts=st.integers(1, 40),
)
def test_cut_puts_each_node_where_its_middle_falls(weight, num_parts):
    ptr = cut(np.array(weight, np.int64), num_parts)
    assert ptr[0] == 0
    assert ptr[-1] == len(weight)
    assert ptr.size == num_parts + 1
    if not any(weight):
        weight = [1] * len(weight)
    before = 0
    for node, one in enumerate(weight):
        part = (2 * before + one) * num_parts // (2 * sum(weight))
        if part < num_parts:
            assert ptr[part] <= node < ptr[part + 1]
        before += one


def test_bounds_are_widened_to_whole_nodes():
    graph = from_edges(np.zeros(7, np.int64), np.arange(7), 10, splits={"train": np.arange(4)})
    balance = {"nodes": 1.03, "edges": 1.5, "train": 1.0}
    nodes, edges, train = read_balance(graph, balance)
    assert (nodes.bounds(3), edges.bounds(3), train.bounds(3)) == ((1, 4), (0, 3), (1, 2))
    assert (nodes.bounds(20), train.bounds(4), train.bounds(5)) == ((0, 1), (1, 1), (0, 1))
    assert edges.bounds(1) == (0, 10)
    assert nodes.holds(np.array([4, 4, 2]))
    assert not nodes.holds(np.array([5, 4, 1]))
    assert not nodes.holds(np.array([4, 4, 2, 0]))
    assert not train.holds(np.array([2, 2, 0]))


def test_splits_alone_bring_nodes_with_them():
    graph = sbm(100, 2, degree=4)
    assert [c.name for c in read_balance(graph, "train")] == ["nodes", "train"]
    assert [c.name for c in read_balance(graph, ("train", "edges"))] == ["train", "edges"]
    assert [c.tolerance for c in read_balance(graph, ("nodes", "edges", "val"))] == [1.03, 1.05, 1]


@settings(max_examples=50, deadline=None)
@given(
    edge_list=edge_lists(max_nodes=40, max_edges=120, min_nodes=8),
    num_parts=st.integers(1, 6),
    names=st.sampled_from([("nodes",), ("nodes", "train"), ("train", "val"), ("nodes", "val")]),
    seed=st.integers(0, 2**40),
)
def test_rebalancing_always_levels_nodes_and_splits(edge_list, num_parts, names, seed):
    """Disjoint splits and node counts can always be levelled, from whatever start."""
    node = np.arange(edge_list.num_nodes)
    graph = edge_list.graph(splits={"train": node[::3], "val": node[1::3]})
    criteria = read_balance(graph, names)
    view = undirected_view(graph.rowptr, graph.col, np.int64)
    rng = np.random.default_rng(seed)
    start = (rng.random(node.size) ** 4 * num_parts).astype(np.int32)
    before = start.copy()
    done = rebalance(start, num_parts, criteria, view)
    assert (start == before).all()
    for criterion in criteria:
        assert criterion.holds(criterion.loads(done, num_parts)), criterion.name
    again = rebalance(start, num_parts, criteria, view)
    assert (done == again).all()


def test_rebalancing_something_level_only_lowers_the_cut():
    graph = sbm(800, 4, degree=8, seed=3)
    criteria = read_balance(graph, ("nodes", "edges"))
    view = undirected_view(graph.rowptr, graph.col, np.int64)
    start = np.arange(800, dtype=np.int32) % 4
    done = rebalance(start, 4, criteria, view)
    cut_before, cut_after = (
        cut_weight(part_of, view.xadj, view.adjncy, view.eweight) for part_of in (start, done)
    )
    assert cut_after < cut_before
    assert all(c.holds(c.loads(done, 4)) for c in criteria)


def test_edges_are_levelled_on_a_power_law():
    graph = rmat(3000, 40_000, seed=1)
    criteria = read_balance(graph, ("nodes", "edges"))
    view = undirected_view(graph.rowptr, graph.col, np.int64)
    start = np.repeat(np.arange(8, dtype=np.int32), np.diff(cut(blend(criteria[:1]), 8)))
    done = rebalance(start, 8, criteria, view)
    assert not criteria[1].holds(criteria[1].loads(start, 8))
    assert all(c.holds(c.loads(done, 8)) for c in criteria)


@pytest.mark.parametrize("seed", [0, 4, 23, 38, 48, 84])
def test_edges_are_levelled_where_nodes_are_heavy(seed):
    """50 nodes a part, of very different degrees: full parts must give and take at once."""
    graph = rmat(400, 4000, seed=seed)
    criteria = read_balance(graph, ("nodes", "edges"))
    view = undirected_view(graph.rowptr, graph.col, np.int64)
    done = rebalance(np.repeat(np.arange(8, dtype=np.int32), 50), 8, criteria, view)
    assert all(c.holds(c.loads(done, 8)) for c in criteria)


def test_splits_come_before_edges():
    """Training nodes that are hubs are shared out even where that overfills a part with edges."""
    rng = np.random.default_rng(5577)
    dst = (40 * rng.random(200) ** 5).astype(np.int64)
    graph = from_edges(rng.integers(0, 40, 200), dst, 40, splits={"train": np.arange(20)})
    edges, train = read_balance(graph, ("edges", "train"))
    view = undirected_view(graph.rowptr, graph.col, np.int64)
    start = (rng.random(40) ** 4 * 5).astype(np.int32)
    done = rebalance(start, 5, [edges, train], view)
    assert train.holds(train.loads(done, 5))


def test_what_must_leave_a_part_leaves_where_fewest_edges_are_cut():
    """Nodes 0 and 1 share nine edges, 2 and 3 one: one of the latter goes."""
    src = np.array([0] * 9 + [2, 4])
    dst = np.array([1] * 9 + [3, 5])
    graph = from_edges(src, dst, 6)
    view = undirected_view(graph.rowptr, graph.col, np.int64)
    start = np.array([0, 0, 0, 0, 1, 1], np.int32)
    done = rebalance(start, 2, read_balance(graph, {"nodes": 1.0}), view)
    assert np.bincount(done).tolist() == [3, 3]
    assert done[0] == done[1]
    assert done[4] == done[5]


def test_a_blend_adds_each_criterion_once():
    graph = rmat(50, 700, seed=2)
    nodes, edges = read_balance(graph, ("nodes", "edges"))
    got = blend([nodes, edges], 1 << 30).astype(np.float64)
    want = (1 << 30) * (1 / 50 + graph.in_degree / 700)
    np.testing.assert_allclose(got, want, rtol=1e-6)


class Hidden:
    """A METIS library that shows no functions."""

    def __init__(self, _: str):
        pass


class Failing:
    def __init__(self, _: str):
        self.METIS_PartGraphKway = lambda *_: -3


def test_without_metis_own_entry_weights_are_blended_and_said(monkeypatch, caplog):
    graph = rmat(2000, 20_000, seed=1)
    monkeypatch.setattr(ctypes, "CDLL", Hidden)
    parts = partition(graph, 4, "metis", balance=("nodes", "edges"))
    assert "nodes and edges are blended" in caplog.text
    assert all(found.holds is not False for found in parts.balances())


def test_what_makes_metis_give_up_is_said(monkeypatch):
    graph = rmat(2000, 20_000, seed=1)
    monkeypatch.setattr(ctypes, "CDLL", Failing)
    with pytest.raises(PlanError, match=r"METIS gave up on a graph of \d+ entries: status -3"):
        partition(graph, 4, "metis", balance=("nodes", "edges"))


@pytest.mark.parametrize(
    "graph", [sbm([300] * 4, degree=16, seed=1), rmat(2000, 20_000)], ids=["blocks", "power_law"]
)
def test_nodes_and_edges_take_the_better_of_two_starts(graph):
    """Communities are found by nodes alone, power laws are cut better with both weights."""
    criteria = read_balance(graph, ("nodes", "edges"))
    view = undirected_view(graph.rowptr, graph.col, np.int64)
    starts = (
        metis._call_several(3, view, criteria, 0),
        metis._call(3, view, criteria[:1], 0),
    )
    cuts = [
        cut_weight(rebalance(start, 3, criteria, view), view.xadj, view.adjncy, view.eweight)
        for start in starts
    ]
    assert cuts[0] != cuts[1]
    made = partition(graph, 3, "metis", balance=("nodes", "edges")).part_of
    assert cut_weight(made, view.xadj, view.adjncy, view.eweight) == min(cuts)


def test_metis_counts_an_edge_as_often_as_it_occurs():
    """Blocks that only the number of parallel edges tells of."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 1000, (2, 20_000))
    inside = src % 10 == dst % 10
    times = np.where(inside, 4, 1)
    graph = from_edges(np.repeat(src, times), np.repeat(dst, times), 1000)
    assert partition(graph, 10, "metis").edge_cut <= 1.02 * (~inside).sum()


def test_seeds_0_and_1_differ():
    """The C library takes seed 0 for 1."""
    graph = sbm(600, 3, degree=8, seed=2)
    first, second = (partition(graph, 6, "metis", seed=seed).part_of for seed in (0, 1))
    assert (first != second).any()
    assert partition(graph, 6, "metis", seed=2**63).num_parts == 6
