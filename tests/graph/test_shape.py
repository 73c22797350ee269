"""Shapes: counts of graphs and parts against plain Python, expected parts against drawn ones."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.odd import ODD_GRAPHS, edge_lists
from tiergnn.errors import ConfigError, GraphError, StoreError
from tiergnn.graph.csr import Graph, from_edges
from tiergnn.graph.distributions import power_law_shape, rmat_shape, uniform_shape
from tiergnn.graph.generate import grid, path, rmat, sbm, star
from tiergnn.graph.partition import Partition, partition
from tiergnn.graph.published import SHAPES, published_shape
from tiergnn.graph.shape import (
    GraphShape,
    Histogram,
    Layout,
    PartShape,
    expected_layout,
    layout_of,
    shape_of,
)


def drawn(graph: Graph, num_parts: int, seed: int = 0) -> Partition:
    """Equal parts at random."""
    label = np.random.default_rng(seed).permutation(np.arange(graph.num_nodes) % num_parts)
    return Partition(graph=graph, part_of=label.astype(np.int32), num_parts=num_parts)


def edges_of(graph: Graph) -> list[tuple[int, int]]:
    dst = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    return list(zip(graph.col.tolist(), dst.tolist(), strict=True))


def check_part(graph: Graph, parts: Partition, layout: Layout, part: int) -> None:
    """One part's counts, against Counters over its edges."""
    found, owner = layout.parts[part], parts.part_of.tolist()
    into = [(u, v) for u, v in edges_of(graph) if owner[v] == part]
    serves = Counter(u for u, _ in into if owner[u] != part)
    assert found.rows == owner.count(part)
    assert found.edges == len(into)
    assert found.local_edges == len(into) - sum(serves.values())
    owners = Counter(owner[u] for u in serves)
    assert found.halo_of == tuple(owners[q] for q in range(parts.num_parts))
    hottest = np.cumsum([0, *sorted(serves.values(), reverse=True)])
    for rows, edges in found.served:
        assert hottest[rows] == edges
    assert found.served[0] == (0, 0)
    assert found.served[-1] == (len(serves), sum(serves.values()))


@pytest.mark.parametrize("graph", ODD_GRAPHS)
@pytest.mark.parametrize("num_parts", [1, 3, 8])
def test_layout_counts(graph, num_parts):
    parts = drawn(graph, num_parts, seed=num_parts)
    layout = layout_of(parts, graph)
    assert layout.exact
    assert layout.num_parts == num_parts
    for part in range(num_parts):
        check_part(graph, parts, layout, part)
    labelled = [p.labelled for p in layout.parts]
    assert sum(labelled) == shape_of(graph).num_labelled


@given(edges=edge_lists(min_nodes=1), num_parts=st.integers(1, 4), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_layout_counts_of_any_graph(edges, num_parts, seed):
    graph = edges.graph()
    parts = drawn(graph, num_parts, seed)
    layout = layout_of(parts, graph)
    for part in range(num_parts):
        check_part(graph, parts, layout, part)


def test_a_hub_serves_more_edges_than_a_bucket_holds():
    src = np.concatenate([np.zeros(5000, int), np.full(300, 1), np.full(299, 2), np.arange(3, 9)])
    graph = from_edges(src, np.arange(src.size) % 7 + 10, 20)
    label = np.where(np.arange(20) < 10, 0, 1).astype(np.int32)
    layout = layout_of(Partition(graph=graph, part_of=label, num_parts=2), graph)
    assert layout.parts[1].served == ((0, 0), (1, 5000), (3, 5599), (9, 5605))
    assert layout.parts[1].edges_served(6) == 5602


def test_layout_refuses_the_partition_of_another_graph():
    with pytest.raises(GraphError, match="of 5 nodes, the graph has 7"):
        layout_of(partition(path(5), 2), path(7))


# --- shapes of graphs --------------------------------------------------------------------------


@pytest.mark.parametrize("graph", ODD_GRAPHS)
def test_shape_counts(graph):
    shape = shape_of(graph)
    edges = edges_of(graph)
    out = Counter(Counter(u for u, _ in edges).values())
    assert (shape.num_nodes, shape.num_edges) == (graph.num_nodes, len(edges))
    held = dict(zip(shape.out_degrees.degrees, shape.out_degrees.counts, strict=True))
    assert {d: n for d, n in held.items() if d} == out
    assert shape.in_degrees.num_edges == len(edges)
    assert shape.self_loops == sum(u == v for u, v in edges)
    known = [v for v in graph.splits["train"].tolist() if graph.y is None or graph.y[v] >= 0]
    assert shape.num_labelled == len(known)
    assert shape.num_features == 5
    assert shape.weighted == (graph.edge_weight is not None)
    assert shape.edge_features == (3 if graph.edge_attr else 0)


def test_shape_takes_splits_by_name_number_and_ids():
    graph = sbm(200, 4, num_features=3)
    numbered = replace(
        graph, splits={"train.0": graph.splits["train"], "train.1": graph.splits["test"]}
    )
    assert shape_of(graph).num_labelled == graph.splits["train"].size
    assert shape_of(numbered).num_labelled == graph.splits["train"].size
    assert shape_of(numbered, "train.1").num_labelled == graph.splits["test"].size
    assert shape_of(graph, np.arange(17)).num_labelled == 17
    assert shape_of(replace(graph, splits={})).num_labelled == 200
    assert shape_of(path(5)).num_labelled == 0
    with pytest.raises(ConfigError, match="unknown split 'trian'"):
        shape_of(graph, "trian")


def test_shape_survives_json(tmp_path):
    shape = shape_of(sbm(200, 4, num_features=3))
    shape.save(tmp_path / "shape.json")
    assert GraphShape.load(tmp_path / "shape.json") == shape
    (tmp_path / "other.json").write_text('{"format": "tiergnn-machine", "version": 1}')
    with pytest.raises(ConfigError, match="tiergnn-shape"):
        GraphShape.load(tmp_path / "other.json")
    with pytest.raises(StoreError):
        GraphShape.load(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("degrees", "counts"), [((2, 1), (1.0, 1.0)), ((-1,), (1.0,)), ((1,), (-1.0,)), ((1, 2), (1,))]
)
def test_histograms_that_are_none(degrees, counts):
    with pytest.raises(ConfigError, match="ascending degrees"):
        Histogram(degrees, counts)


def test_a_shape_whose_degrees_contradict_its_counts():
    good = uniform_shape(1000, 5000)
    with pytest.raises(ConfigError, match="in_degrees hold 5000 edges, the graph has 6000"):
        replace(good, num_edges=6000)
    with pytest.raises(ConfigError, match="cannot be labelled"):
        replace(good, num_labelled=1001)


# --- expected parts ----------------------------------------------------------------------------


def looped() -> Graph:
    graph = sbm(10_000, 5, degree=4, num_features=1)
    dst = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    return from_edges(graph.col, dst, graph.num_nodes, self_loops="add")


def uniform(num_nodes: int, num_edges: int) -> Graph:
    ends = np.random.default_rng(1).integers(0, num_nodes, (2, num_edges))
    return from_edges(ends[0], ends[1], num_nodes)


DRAWN = {
    "rmat": lambda: rmat(30_000, 400_000, seed=1, duplicates="sum"),
    "rmat with repeats": lambda: rmat(30_000, 400_000, seed=1),
    "uniform": lambda: uniform(20_000, 200_000),
    "sbm": lambda: sbm(10_000, 5, degree=12, num_features=1),
    "grid": lambda: grid(100, 120),
    "star out": lambda: star(5_000, direction="out"),
    "star both": lambda: star(5_000, direction="both"),
    "loops": looped,
}


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("num_parts", [2, 8, 32])
def test_expected_parts_are_those_of_random_ones(name, num_parts):
    graph = DRAWN[name]()
    layouts = [layout_of(drawn(graph, num_parts, seed), graph) for seed in range(3)]
    expected = expected_layout(shape_of(graph), num_parts)
    assert not expected.exact

    def mean(count) -> float:
        return float(np.mean([count(part) for layout in layouts for part in layout.parts]))

    part = expected.parts[0]
    assert part.rows == pytest.approx(mean(lambda p: p.rows), abs=1)
    assert part.edges == pytest.approx(mean(lambda p: p.edges), abs=1)
    assert part.halo == pytest.approx(mean(lambda p: p.halo), rel=0.03, abs=1)
    assert part.local_edges == pytest.approx(mean(lambda p: p.local_edges), rel=0.06, abs=25)
    if name.startswith("star"):  # one part has the hub: there is no typical part
        return
    for share in (0.02, 0.1, 0.3, 0.7):
        found = mean(lambda p, share=share: p.edges_served(share * p.halo))
        assert part.edges_served(share * part.halo) == pytest.approx(found, rel=0.03)


def test_expected_layout_counts_add_up():
    shape = uniform_shape(1003, 20_011, num_labelled=301)
    layout = expected_layout(shape, 7)
    assert sum(p.rows for p in layout.parts) == 1003
    assert sum(p.edges for p in layout.parts) == 20_011
    assert sum(p.labelled for p in layout.parts) == 301
    for number, part in enumerate(layout.parts):
        assert part.halo_of[number] == 0
        assert part.served[-1] == (part.halo, part.edges - part.local_edges)


def test_expected_layout_of_few_parts_and_few_nodes():
    whole = expected_layout(uniform_shape(50, 300), 1).parts[0]
    assert whole == PartShape(
        rows=50, edges=300, local_edges=300, labelled=0, halo_of=(0,), served=((0, 0),)
    )
    assert expected_layout(uniform_shape(0, 0), 3).parts[2].sources == 0
    assert expected_layout(uniform_shape(4, 0), 3).parts[0].halo == 0
    with pytest.raises(ConfigError, match="1 part or more"):
        expected_layout(uniform_shape(4, 4), 0)


def test_papers100M_in_64_parts_is_planned_at_once():
    start = time.process_time()
    layout = expected_layout(published_shape("papers100M"), 64)
    assert time.process_time() - start < 1
    assert sum(p.rows for p in layout.parts) == 111_059_956
    assert all(len(p.served) <= 1000 for p in layout.parts)


def test_shapes_import_no_torch_and_stay_small():
    code = (
        "import sys; from tiergnn.graph.published import published_shape; "
        "from tiergnn.graph.shape import expected_layout; "
        "expected_layout(published_shape('papers100M'), 64); assert 'torch' not in sys.modules; "
        # Not getrusage: its peak is that of the process that this one was forked from.
        "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    )
    peak = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(peak.stdout) * 1024 < 512 * 2**20


# --- degrees of generators ---------------------------------------------------------------------


def tails(degrees: Histogram, marks=(1, 3, 10, 30, 100)) -> list[float]:
    d, n = np.array(degrees.degrees), np.array(degrees.counts)
    return [float(n[d >= mark].sum()) for mark in marks]


@pytest.mark.parametrize(
    ("num_nodes", "num_edges", "options"),
    [
        (20_000, 300_000, {}),
        (16_384, 100_000, {"a": 0.45, "b": 0.22, "c": 0.22}),
        (15_001, 200_000, {"a": 0.5, "b": 0.3, "c": 0.1}),
        (20_000, 100_000, {"undirected": True}),
        (777, 9_000, {"a": 0.5, "b": 0.3, "c": 0.1, "undirected": True}),
    ],
)
def test_rmat_degrees(num_nodes, num_edges, options):
    counted = shape_of(rmat(num_nodes, num_edges, seed=5, **options))
    expected = rmat_shape(num_nodes, num_edges, **options)
    for which in ("in_degrees", "out_degrees"):
        found, wanted = getattr(counted, which), getattr(expected, which)
        assert wanted.num_edges == pytest.approx(expected.num_edges, rel=1e-6)
        slack = 5 * np.sqrt(num_nodes) / 2
        assert tails(wanted) == pytest.approx(tails(found), rel=0.03, abs=slack)
        assert wanted.evenness == pytest.approx(found.evenness, rel=0.1)


def test_rmat_of_equal_chances_is_uniform():
    even = rmat_shape(4096, 50_000, a=0.25, b=0.25, c=0.25)
    assert tails(even.in_degrees) == pytest.approx(tails(uniform_shape(4096, 50_000).in_degrees))
    counted = shape_of(uniform(4096, 50_000))
    assert tails(even.in_degrees) == pytest.approx(tails(counted.in_degrees), abs=150)


@given(num_nodes=st.integers(1, 10**8), mean=st.floats(0, 50), exponent=st.floats(1.8, 3.5))
@settings(max_examples=25, deadline=None)
def test_power_law_degrees_hold_nodes_and_edges(num_nodes, mean, exponent):
    num_edges = min(int(num_nodes * mean), num_nodes * (num_nodes - 1) // 4)
    shape = power_law_shape(num_nodes, num_edges, exponent)
    assert shape.in_degrees.num_nodes == pytest.approx(num_nodes, rel=1e-6)
    assert shape.in_degrees.num_edges == pytest.approx(num_edges, rel=1e-3, abs=0.5)


def test_power_law_falls_with_its_exponent():
    shape = power_law_shape(10**7, 10**8, 2.5)
    high = tails(shape.in_degrees, (1_000, 2_000, 4_000))
    slopes = np.diff(np.log(high)) / np.log(2)
    assert slopes == pytest.approx([-1.5, -1.5], abs=0.05)  # of the tail: exponent - 1
    with pytest.raises(ConfigError, match="exponent above 1"):
        power_law_shape(10, 20, 1.0)
    with pytest.raises(ConfigError, match="allows mean degrees"):
        power_law_shape(10, 2_000, 2.0)


def test_published_shapes():
    for name, known in SHAPES.items():
        shape = published_shape(name)
        assert (shape.num_nodes, shape.num_edges) == (known.num_nodes, known.num_edges)
        assert known.counts_from
        assert known.labels_from
    with pytest.raises(ConfigError, match="unknown published graph 'papers'"):
        published_shape("papers")
