"""The switching-aware partitioner: what it promises exactly, and how few rows its parts read."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.test_partition import real_graph
from tests.odd import edge_lists
from tiergnn.errors import ConfigError
from tiergnn.graph import level as level_module
from tiergnn.graph import switching
from tiergnn.graph.balance import read_balance
from tiergnn.graph.choosing import choose
from tiergnn.graph.clusters import cluster
from tiergnn.graph.contraction import contract
from tiergnn.graph.copies import spare_copies
from tiergnn.graph.csr import Graph, from_edges
from tiergnn.graph.generate import grid, rmat, sbm
from tiergnn.graph.level import Level, Loads, is_two_way
from tiergnn.graph.partition import Partition, partition
from tiergnn.graph.refinement import Shares

GRAPHS = st.tuples(edge_lists(max_nodes=60, max_edges=250), st.booleans())


def make(drawn) -> Graph:
    edge_list, undirected = drawn
    return from_edges(
        edge_list.src,
        edge_list.dst,
        edge_list.num_nodes,
        undirected=undirected,
        splits={"train": np.arange(0, edge_list.num_nodes, 3)},
    )


def finest(graph: Graph, *, shift: int = 1, num_threads: int = 1) -> Level:
    load = Loads.of(np.ones((graph.num_nodes, 1), np.int32))
    two_way = is_two_way(graph.rowptr, graph.col, 1)
    return Level(
        rowptr=graph.rowptr,
        col=graph.col,
        weight=np.empty(0, np.int32),
        load=load,
        two_way=two_way,
        shift=shift,
        num_threads=num_threads,
    )


@settings(max_examples=40, deadline=None)
@given(
    drawn=GRAPHS,
    num_parts=st.integers(1, 70),
    seed=st.integers(0, 2**40),
    balance=st.sampled_from(["nodes", "edges", ("nodes", "edges"), ("nodes", "train")]),
)
def test_every_node_once_and_loads_in_bounds(drawn, num_parts, seed, balance):
    graph = make(drawn)
    parts = partition(graph, num_parts, "switching", seed=seed, balance=balance)
    assert parts.num_nodes.sum() == graph.num_nodes
    assert parts.part_of.min(initial=0) >= 0
    assert parts.part_of.max(initial=0) < num_parts
    for criterion in read_balance(graph, balance):
        if criterion.name != "edges" and balance != ("nodes", "edges"):
            loads = criterion.loads(parts.part_of, num_parts)
            assert criterion.holds(loads), (criterion.name, loads)


@settings(max_examples=30, deadline=None)
@given(drawn=GRAPHS, num_parts=st.integers(2, 9), seed=st.integers(0, 100))
def test_the_same_parts_for_any_number_of_threads(drawn, num_parts, seed):
    graph = make(drawn)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(level_module, "_SMALL", 0)  # or such little graphs take one thread
        found = [
            partition(graph, num_parts, "switching", seed=seed, num_threads=threads).part_of
            for threads in (1, 2, 4, 1)
        ]
    found.append(partition(graph, num_parts, "switching", seed=seed).part_of)  # in a few calls
    assert all((found[0] == other).all() for other in found[1:])


@pytest.mark.parametrize("undirected", [False, True])
def test_threads_and_seeds_on_a_power_law(undirected, monkeypatch):
    graph = rmat(20_000, 120_000, undirected=undirected)
    in_few_calls = partition(graph, 8, "switching", seed=3).part_of
    monkeypatch.setattr(level_module, "_SMALL", 0)
    first, *others = [
        partition(graph, 8, "switching", seed=3, num_threads=threads).part_of
        for threads in (2, 1, 4, 2)
    ]
    assert all((first == other).all() for other in [*others, in_few_calls])
    assert (first != partition(graph, 8, "switching", seed=4).part_of).any()


def test_planted_communities_are_found():
    """Parts of a block model come near to its blocks, which read this many rows."""
    graph = sbm(24_000, 8, degree=16, homophily=0.9, num_features=1, seed=5)
    assert graph.y is not None
    planted = Partition(graph=graph, part_of=graph.y.astype(np.int32), num_parts=8)
    found = partition(graph, 8, "switching")
    assert found.expansion_ratio < 1.02 * planted.expansion_ratio
    assert found.edge_cut < 1.05 * planted.edge_cut
    assert found.imbalance("nodes") <= 1.03 + 1e-9


def test_more_communities_than_parts_are_packed():
    graph = sbm(20_000, 40, degree=14, homophily=0.9, num_features=1, seed=6)
    found = partition(graph, 4, "switching")
    assert found.edge_cut_frac < 0.085  # tenths of edges leave blocks, of those a quarter stays


@pytest.mark.parametrize(
    ("name", "num_parts", "most"),
    [
        ("cora", 8, 1.1),
        ("coauthor_cs", 16, 1.1),
        ("facebook_pagepage", 8, 1.1),
        ("snap_cit_hepth", 8, 1.1),
        ("polblogs", 4, 1.12),
        ("minesweeper", 8, 1.08),
    ],
)
def test_about_as_few_rows_as_metis_on_real_graphs(name, num_parts, most):
    pytest.importorskip("pymetis")
    graph = real_graph(name)
    metis, found = (partition(graph, num_parts, method) for method in ("metis", "switching"))
    assert found.expansion_ratio < most * metis.expansion_ratio
    assert all(balance.holds is not False for balance in found.balances())


def test_a_grid_is_cut_along_short_lines():
    found = partition(grid(64, 64), 16, "switching")
    assert found.edge_cut < 2 * (6 * 64) * 1.6  # of sixteen squares: six lines of 64, both ways
    assert found.imbalance("nodes") <= 1.03 + 1e-9


def test_edges_are_held_in_bounds_unasked():
    """A part's memory follows its edges, too: a dense core is not left to one part."""
    rng = np.random.default_rng(0)
    core = rng.integers(0, 1000, (2, 60_000))
    rest = rng.integers(1000, 20_000, (2, 20_000))
    src, dst = np.concatenate([core, rest], axis=1)
    graph = from_edges(src, dst, 20_000, undirected=True)
    parts = partition(graph, 16, "switching")
    assert parts.imbalance("edges") <= 3.05
    assert partition(graph, 16, "switching", balance=("nodes", "edges")).imbalance("edges") <= 1.06


@settings(max_examples=30, deadline=None)
@given(drawn=GRAPHS)
def test_two_way_is_seen(drawn):
    graph = make(drawn)
    dst = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    there, back = sorted(zip(graph.col, dst, strict=True)), sorted(zip(dst, graph.col, strict=True))
    assert is_two_way(graph.rowptr, graph.col, 2) == (there == back)


@settings(max_examples=30, deadline=None)
@given(
    drawn=GRAPHS,
    num_parts=st.integers(1, 5),
    balance=st.sampled_from(["nodes", "edges", ("edges", "nodes"), ("nodes", "train", "edges")]),
)
def test_loads_are_those_of_criteria_and_only_splits_are_stored(drawn, num_parts, balance):
    graph = make(drawn)
    criteria = read_balance(graph, balance)
    loads = switching._loads(graph, criteria)
    assert loads.stored.nbytes == graph.num_nodes * ("train" in balance)
    part_of = (np.arange(graph.num_nodes) % num_parts).astype(np.int32)
    found = loads.by_part(part_of, num_parts)
    assert len(found) == len(criteria) + (balance == "nodes")  # edges join unasked
    for row, criterion in zip(found, [*criteria, *read_balance(graph, "edges")], strict=False):
        assert row.tolist() == criterion.loads(part_of, num_parts).tolist()


@settings(max_examples=30, deadline=None)
@given(drawn=GRAPHS, shift=st.integers(0, 3), num_threads=st.integers(1, 3), keep=st.booleans())
def test_readers_of_chunks(drawn, shift, num_threads, keep):
    graph = make(drawn)
    level = replace(finest(graph, shift=shift, num_threads=num_threads), keep=keep)
    if level.two_way:
        return
    dst = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    seen = 0
    for chunk, count in level.chunks():
        ptr, reader = level.readers(chunk, count)
        assert (level.readers(chunk, count)[1] is reader) == keep
        for i in range(count):
            v = chunk + (i << shift)
            row = v if keep else i
            assert reader[ptr[row] : ptr[row + 1]].tolist() == dst[graph.col == v].tolist()
            seen += 1
    assert seen == graph.num_nodes


@settings(max_examples=30, deadline=None)
@given(drawn=GRAPHS, seed=st.integers(0, 50), most=st.integers(1, 30))
def test_clusters_keep_their_size_and_edges_their_weight(drawn, seed, most):
    graph = make(drawn)
    level = finest(graph)
    size = np.ones(graph.num_nodes, np.int32)
    label, count = cluster(level, size, most, 3, seed, lambda: None)
    assert sorted(set(label.tolist())) == list(range(count))
    assert np.bincount(label, minlength=1).max() <= most
    load = Loads.of(np.bincount(label, minlength=count)[:, None].astype(np.int64))
    coarse = contract(level, label, load, 1 << 30)
    want: dict[tuple[int, int], int] = {}
    for v in range(graph.num_nodes):
        for u in graph.col[graph.rowptr[v] : graph.rowptr[v + 1]]:
            a, b = int(label[v]), int(label[u])
            if a != b:
                want[a, b] = want.get((a, b), 0) + 1
                if not level.two_way:
                    want[b, a] = want.get((b, a), 0) + 1
    got = {}
    for a in range(count):
        for e in range(coarse.rowptr[a], coarse.rowptr[a + 1]):
            assert (a, int(coarse.col[e])) not in got
            got[a, int(coarse.col[e])] = int(coarse.weight[e])
    assert got == want


def test_the_lightest_edges_are_left_out_where_memory_is_short():
    graph = rmat(3000, 40_000, undirected=True)
    level = finest(graph)
    label, count = cluster(level, np.ones(3000, np.int32), 30, 3, 0, lambda: None)
    load = Loads.of(np.ones((count, 1), np.int64))
    whole = contract(level, label, load, 1 << 30)
    some = contract(level, label, load, whole.col.size * 8 // 2)
    assert 0 < some.col.size <= whole.col.size // 2
    least = int(some.weight.min())
    assert some.col.size == (whole.weight >= least).sum()
    assert partition(graph, 4, "switching").expansion_ratio > 1  # and parts come of either


@settings(max_examples=40, deadline=None)
@given(drawn=GRAPHS, num_parts=st.integers(2, 70), seed=st.integers(0, 100))
def test_sparing_copies_never_adds_any(drawn, num_parts, seed):
    graph = make(drawn)
    rng = np.random.default_rng(seed)
    part_of = rng.integers(0, num_parts, graph.num_nodes, np.int32)
    before = Partition(graph=graph, part_of=part_of.copy(), num_parts=num_parts)
    bounds = np.array([[0, max(1, graph.num_nodes)]], np.int64)
    level = finest(graph, shift=0)
    shares = Shares.of(level, part_of, num_parts, bounds)
    spare_copies(shares, 1, lambda: None)
    after = Partition(graph=graph, part_of=shares.part_of, num_parts=num_parts)
    if graph.num_nodes:
        assert (shares.load[0] == after.num_nodes).all()
    assert after.num_halo.sum() <= before.num_halo.sum()


def test_hubs_loops_and_pieces():
    hub = from_edges(np.arange(1, 5001), np.zeros(5000, np.int64), 5001)
    assert partition(hub, 7, "switching").imbalance("nodes") <= 1.03 + 1e-3
    loops = from_edges(np.arange(4000), np.arange(4000), 4000)
    assert partition(loops, 8, "switching").imbalance("nodes") <= 1.03 + 1e-9
    rings = np.arange(6000)
    ring = from_edges(rings, rings // 100 * 100 + (rings + 1) % 100, 6000, undirected=True)
    found = partition(ring, 6, "switching")
    assert found.imbalance("nodes") <= 1.03 + 1e-9
    assert found.edge_cut_frac < 0.02  # of 60 rings, ten a part


def test_progress_is_told_and_an_interrupt_goes_through(monkeypatch):
    graph = rmat(5000, 30_000, undirected=True)
    told = []
    partition(graph, 4, "switching", progress=lambda *step: told.append(step))
    phases = list(dict.fromkeys(phase for phase, _, _ in told))
    assert phases == ["cluster", "refine", "copies"]
    assert all(1 <= done <= total for _, done, total in told)
    before = threading.active_count()

    def interrupt(phase: str, done: int, total: int) -> None:
        if phase == "refine":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        partition(graph, 4, "switching", progress=interrupt)
    assert threading.active_count() <= before + 1


def test_bad_threads_and_memory_are_refused():
    graph = sbm(50, 2, degree=4)
    with pytest.raises(ConfigError, match="1 or more, had 0"):
        partition(graph, 2, "switching", num_threads=0)
    some: Any = 1.5
    with pytest.raises(ConfigError, match="whole numbers"):
        partition(graph, 2, "switching", num_threads=some)
    with pytest.raises(ConfigError, match="not a number of bytes"):
        partition(graph, 2, "auto", memory="lots")


@pytest.mark.parametrize(
    ("sizes", "options", "method", "why"),
    [
        ((1000, 5000, 28_000, 1), {}, "block", "one part"),
        ((1000, 0, 8000, 4), {}, "block", "no edges"),
        ((1000, 5000, 28_000, 1000), {}, "block", "a part a node"),
        ((1000, 5000, 28_000, 4), {}, "metis", "5,000 edges"),
        ((1000, 5000, 28_000, 4), {"has_metis": False}, "switching", "not installed"),
        ((10**6, 10**8, 4 * 10**8, 4), {}, "switching", "up to 2,000,000"),
        ((10**5, 10**6, 4 * 10**6, 4), {"free_bytes": 10**8}, "switching", "METIS takes up to"),
        ((1000, 5000, 28_000, 4), {"free_bytes": 10**6}, "block", "switching takes up to"),
    ],
)
def test_auto_chooses_by_size_and_memory(sizes, options, method, why):
    chosen, reason = choose(*sizes, **{"free_bytes": 10**10, "has_metis": True, **options})
    assert chosen == method
    assert why in reason
    assert "\n" not in reason


def test_auto_says_why():
    graph = sbm(200, 2, degree=6)
    parts = partition(graph, 2, "auto", memory="100MiB")
    assert parts.method in ("metis", "switching")
    assert parts.reason in dict(parts.summary())["method"]
    assert parts.to_json()["reason"] == parts.reason
    assert partition(graph, 2, "auto", memory="1MiB").method == "block"
    assert partition(graph, 2).reason == ""
    assert replace(parts, reason="").part_of is parts.part_of


@pytest.mark.slow  # every kernel is compiled once more
def test_ids_in_64_bits_give_the_same_parts():
    graph = rmat(3000, 20_000)
    wide = Graph(rowptr=graph.rowptr, col=graph.col.astype(np.int64))
    found = [partition(given, 5, "switching").part_of for given in (graph, wide)]
    assert (found[0] == found[1]).all()


def test_graphs_on_disk_give_the_same_parts_which_are_kept(tmp_path):
    graph = rmat(3000, 20_000)
    want = partition(graph, 5, "switching").part_of
    opened = graph.save(tmp_path / "g")
    saved = partition(opened, 5, "switching").save()
    assert saved.name == "switching-5"
    assert (Partition.open(opened, "switching-5").part_of == want).all()


@pytest.mark.parametrize("undirected", [False, True])
def test_a_graph_larger_than_the_budget_is_merged_in_haste(undirected, monkeypatch):
    """What large graphs do, with a budget as small as for a small one."""
    monkeypatch.setattr(switching, "_LEAST_BYTES", 1 << 14)
    graph = rmat(20_000, 200_000, undirected=undirected)
    block = partition(graph, 8)
    hasty = [partition(graph, 8, "switching", num_threads=n) for n in (1, 2)]
    assert (hasty[0].part_of == hasty[1].part_of).all()
    assert hasty[0].expansion_ratio < 0.9 * block.expansion_ratio
    assert hasty[0].imbalance("nodes") <= 1.03 + 1e-9
    planted = sbm(20_000, 8, degree=30, homophily=0.9, num_features=1)
    found = partition(planted, 8, "switching")
    assert planted.y is not None
    blocks = Partition(graph=planted, part_of=planted.y.astype(np.int32), num_parts=8)
    assert found.expansion_ratio < 1.15 * blocks.expansion_ratio
