"""Generated graphs: the same bits on every machine, and what their docs promise."""

from __future__ import annotations

import zlib
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiergnn.errors import ConfigError
from tiergnn.graph.csr import Graph
from tiergnn.graph.draws import normals, permutation
from tiergnn.graph.generate import grid, path, rmat, rmat_edges, sbm, star
from tiergnn.graph.odd import ODD

few = settings(max_examples=30, deadline=None)


def crc32(*arrays: np.ndarray) -> str:
    total = 0
    for array in arrays:
        total = zlib.crc32(np.ascontiguousarray(array), total)
    return f"{total:08x}"


def crc32_of(graph: Graph) -> str:
    arrays = [graph.rowptr, graph.col]
    if graph.x is not None:
        arrays += [graph.x.data, graph.y, *graph.splits.values()]
    return crc32(*arrays)


def edges_of(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    return graph.col.astype(np.int64), np.repeat(np.arange(graph.num_nodes), graph.in_degree)


# --- pinned: a change here changes what every user's seed means --------------------------------

PINNED = {
    "permutation": (lambda: crc32(permutation(1000, seed=3)), "3aa3f357"),
    "normals": (lambda: crc32(normals(100, 7, seed=3)), "d6ccc04b"),
    "rmat": (lambda: crc32_of(rmat(1000, 5000, seed=3)), "e5ef72d3"),
    "rmat unshuffled": (lambda: crc32(*rmat_edges(1 << 20, 5000, shuffle=False)), "93bae622"),
    "rmat beyond int32": (lambda: crc32(*rmat_edges(3 * 2**31, 5000, seed=-1)), "b7e1c2a7"),
    "sbm": (lambda: crc32_of(sbm(500, 3, seed=3)), "1969bc09"),
    "sbm sizes": (lambda: crc32_of(sbm([600, 200, 100], shuffle=False, seed=2**70)), "d7cd6b5e"),
    "grid": (lambda: crc32_of(grid(7, 9)), "c3d79e2f"),
    "odd": (
        lambda: crc32(*(np.frombuffer(crc32_of(make()).encode()) for make in ODD.values())),
        "0ba92cb0",
    ),
}


@pytest.mark.parametrize("name", PINNED)
def test_bits_are_pinned(name):
    make, want = PINNED[name]
    assert make() == want


# --- draws ------------------------------------------------------------------------------------


@few
@given(size=st.integers(0, 300), seed=st.integers(-(2**65), 2**65))
def test_a_permutation_holds_everything_once(size, seed):
    assert np.sort(permutation(size, seed)).tolist() == list(range(size))


def test_permutations_are_mixed():
    where = np.array([permutation(16, seed)[0] for seed in range(4000)])
    counts = np.bincount(where, minlength=16)
    assert abs(counts - 250).max() < 5 * 250**0.5
    displaced = permutation(100_000, 1) - np.arange(100_000)
    assert abs(np.corrcoef(permutation(100_000, 1), np.arange(100_000))[0, 1]) < 0.02
    assert np.unique(displaced).size > 50_000


def test_normals_look_normal_and_come_in_pieces():
    z = normals(20_000, 8, seed=1)
    assert z.dtype == np.float32
    assert abs(z.mean()) < 0.01
    assert abs(z.std() - 1) < 0.01
    assert abs((z > 1).mean() - 0.1587) < 0.005
    assert abs((z < -2).mean() - 0.0228) < 0.003
    off = np.corrcoef(z.T) - np.eye(8)
    assert abs(off).max() < 0.05
    np.testing.assert_array_equal(normals(30, 8, seed=1, first_row=70), z[70:100])
    assert (normals(30, 8, seed=1, stream=1) != z[:30]).mean() > 0.9


# --- R-MAT ------------------------------------------------------------------------------------


@few
@given(
    num_nodes=st.integers(1, 200),
    cuts=st.lists(st.integers(0, 100), min_size=2, max_size=5).map(sorted),
    shuffle=st.booleans(),
)
def test_rmat_comes_in_pieces(num_nodes, cuts, shuffle):
    whole = rmat_edges(num_nodes, 100, seed=7, shuffle=shuffle)
    for start, stop in pairwise(cuts):
        piece = rmat_edges(num_nodes, 10**12, seed=7, shuffle=shuffle, start=start, stop=stop)
        np.testing.assert_array_equal(piece, np.stack(whole)[:, start:stop])
    assert np.stack(whole).min() >= 0
    assert np.stack(whole).max() < num_nodes


def test_rmat_far_into_a_list_longer_than_memory():
    src, dst = rmat_edges(5, 10**15, start=10**15 - 4)
    assert src.tolist() != dst.tolist()
    assert src.size == 4


def test_rmat_has_the_chances_of_its_quarters():
    chances = {"a": 0.5, "b": 0.3, "c": 0.15}
    src, dst = rmat_edges(2, 100_000, shuffle=False, **chances)
    found = np.bincount(2 * src + dst, minlength=4) / 100_000
    np.testing.assert_allclose(found, [0.5, 0.3, 0.15, 0.05], atol=0.006)
    # Levels are independent: four ids, two levels.
    src, dst = rmat_edges(4, 200_000, shuffle=False, **chances)
    found = np.bincount(src, minlength=4) / 200_000
    np.testing.assert_allclose(found, np.outer([0.8, 0.2], [0.8, 0.2]).ravel(), atol=0.005)
    found = np.bincount(dst, minlength=4) / 200_000
    np.testing.assert_allclose(found, np.outer([0.65, 0.35], [0.65, 0.35]).ravel(), atol=0.005)


def test_rmat_is_a_power_law_and_shuffling_only_renames():
    plain = rmat_edges(10_000, 200_000, seed=5, shuffle=False)
    mixed = rmat_edges(10_000, 200_000, seed=5)
    for before, after in zip(plain, mixed, strict=True):
        counts = np.sort(np.bincount(before, minlength=10_000))
        np.testing.assert_array_equal(counts, np.sort(np.bincount(after, minlength=10_000)))
        assert counts[-1] > 50 * 20
    # One name for a node, be it source or destination.
    names = {}
    for before, after in zip(plain, mixed, strict=True):
        for old, new in zip(before[:2000].tolist(), after[:2000].tolist(), strict=True):
            assert names.setdefault(old, new) == new
    assert np.bincount(plain[0])[:10].sum() > 3 * np.bincount(mixed[0])[:10].sum()


@pytest.mark.parametrize("num_nodes", [5, 6, 7, 9, 1000])
def test_rmat_reaches_every_node_of_any_number(num_nodes):
    src, dst = rmat_edges(num_nodes, 400 * num_nodes, a=0.25, b=0.25, c=0.25, shuffle=False)
    for ends in (src, dst):
        counts = np.bincount(ends, minlength=num_nodes)
        assert counts.min() > 100  # halves of unequal size: at most twice as likely
        assert counts.max() < 1100


def test_rmat_options_reach_the_graph():
    graph = rmat(50, 300, undirected=True, duplicates="sum", self_loops="remove")
    src, dst = edges_of(graph)
    assert (src != dst).all()
    assert np.unique(src * 50 + dst).size == graph.num_edges
    np.testing.assert_array_equal(np.sort(src * 50 + dst), np.sort(dst * 50 + src))
    drawn, _ = rmat_edges(50, 300)
    assert graph.edge_weight.sum() == 2 * (np.not_equal(*rmat_edges(50, 300))).sum()
    assert rmat(50, 300, seed=1).num_edges == drawn.size


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"start": 5, "stop": 3}, "edges 5..3 are not within the 10"),
        ({"stop": 11}, "edges 0..11 are not within the 10"),
        ({"num_nodes": 0}, "edges need at least one node"),
        ({"a": 0.9}, "chances must be at least 0 and at most 1 in all"),
        ({"b": -0.1}, "chances must be"),
    ],
)
def test_rmat_refuses(arguments, what):
    with pytest.raises(ConfigError, match=what):
        rmat_edges(**{"num_nodes": 3, "num_edges": 10, **arguments})


def test_rmat_without_nodes_or_edges():
    assert rmat(0, 0).num_nodes == 0
    assert rmat(3, 0).num_edges == 0
    assert rmat(1, 5).col.tolist() == [0] * 5


@pytest.mark.slow
def test_rmat_of_100_million_edges():
    total = 0
    for start in range(0, 10**8, 10**7):
        src, dst = rmat_edges(5_000_000, 10**8, start=start, stop=start + 10**7)
        total = zlib.crc32(np.stack([src, dst]), total)
    assert f"{total:08x}" == "41cef95d"


# --- SBM --------------------------------------------------------------------------------------


@few
@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=5),
    degree=st.floats(0, 2),
    homophily=st.floats(0, 1),
    shuffle=st.booleans(),
    seed=st.integers(0, 2**64),
)
def test_sbm_keeps_its_promises(sizes, degree, homophily, shuffle, seed):
    total = sum(sizes)
    wanted = round(total * degree / 2)
    inside = sum(size * (size - 1) // 2 for size in sizes)
    between = total * (total - 1) // 2 - inside
    asked = round(wanted * homophily)
    options = {"degree": degree, "homophily": homophily, "shuffle": shuffle, "seed": seed}
    if asked > inside or wanted - asked > between:
        with pytest.raises(ConfigError, match="were asked for, there are"):
            sbm(sizes, **options)
        return
    graph = sbm(sizes, **options)
    src, dst = edges_of(graph)
    assert graph.num_edges == 2 * wanted
    assert np.unique(src * max(total, 1) + dst).size == graph.num_edges
    assert (src != dst).all()
    assert (graph.y[src] == graph.y[dst]).sum() == 2 * asked
    assert np.bincount(graph.y, minlength=len(sizes)).tolist() == sizes
    assert graph.num_classes == len(sizes)
    chosen = np.concatenate(list(graph.splits.values()))
    assert np.sort(chosen).tolist() == list(range(total))
    assert graph.splits["train"].size == round(total * 0.1)


def test_sbm_can_be_complete():
    inside = sbm([4, 5], degree=2 * 16 / 9, homophily=1.0)
    assert inside.num_edges == 2 * (6 + 10)
    between = sbm([4, 5], degree=2 * 20 / 9, homophily=0.0)
    assert between.num_edges == 2 * 20
    with pytest.raises(ConfigError, match="17 edges inside blocks were asked for, there are 16"):
        sbm([4, 5], degree=2 * 17 / 9, homophily=1.0)


def test_sbm_pairs_are_uniform():
    count = np.zeros((6, 6))
    for seed in range(1500):
        graph = sbm([3, 3], degree=2.0, homophily=0.5, shuffle=False, seed=seed)
        np.add.at(count, edges_of(graph), 1)
    inside = np.concatenate([count[0, 1:3], count[1, 2:3], count[3, 4:6], count[4, 5:6]])
    # 6 edges, 3 inside among 6 pairs (dealt to the blocks in turn), 3 between among 9.
    assert abs(count[:3, 3:] - 500).max() < 90
    assert inside.sum() == 4500
    assert abs(count[0, 1] - count[1, 2]) < 90


def test_sbm_neighbours_tell_more_than_a_node_itself():
    graph = sbm(4000, 5, seed=1)
    x, y = graph.x.data, graph.y
    src, dst = edges_of(graph)
    around = np.zeros_like(x)
    np.add.at(around, dst, x[src])

    def accuracy(rows: np.ndarray) -> float:
        train, test = graph.splits["train"], graph.splits["test"]
        means = np.stack([rows[train][y[train] == c].mean(axis=0) for c in range(5)])
        distance = ((rows[test][:, None] - means) ** 2).sum(axis=2)
        return float((distance.argmin(axis=1) == y[test]).mean())

    assert accuracy(x) < 0.6
    assert accuracy(around + x) > 0.8


def test_sbm_without_features():
    assert sbm(20, 2, degree=2, num_features=0).x.data.shape == (20, 0)


def test_sbm_signal_and_size_of_means():
    graph = sbm([3000, 3000], 2, num_features=16, signal=3.0, shuffle=False)
    x = graph.x.data.astype(np.float64)
    for block in (x[:3000], x[3000:]):
        assert abs(np.linalg.norm(block.mean(axis=0)) - 3) < 0.1
        assert abs(block.std(axis=0).mean() - 1) < 0.02


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"homophily": 1.5}, "homophily must be within 0..1"),
        ({"train_frac": 0.9, "val_frac": 0.2}, "parts of 1"),
        ({"num_nodes": [3, -1]}, "block sizes must be 0 or more"),
        ({"num_nodes": []}, "block sizes"),
        ({"num_classes": 0}, "num_classes must be at least 1"),
        ({"degree": -1.0}, "degree must be a number from 0"),
    ],
)
def test_sbm_refuses(arguments, what):
    with pytest.raises(ConfigError, match=what):
        sbm(**arguments)


# --- regular graphs ---------------------------------------------------------------------------


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 5), (4, 1), (3, 4), (0, 3)])
def test_grid(height, width):
    graph = grid(height, width)
    src, dst = edges_of(graph)
    assert graph.num_nodes == height * width
    assert graph.num_edges == 2 * (height * max(width - 1, 0) + max(height - 1, 0) * width)
    apart = abs(src // width - dst // width) + abs(src % width - dst % width)
    assert (apart == 1).all()


def test_path():
    assert np.stack(edges_of(path(4))).tolist() == [[0, 1, 2], [1, 2, 3]]
    assert path(4, directed=False).in_degree.tolist() == [1, 2, 2, 1]
    assert path(1).num_edges == path(0).num_edges == 0


@pytest.mark.parametrize(
    ("direction", "degrees"),
    [("in", [3, 0, 0, 0]), ("out", [0, 1, 1, 1]), ("both", [3, 1, 1, 1])],
)
def test_star(direction, degrees):
    assert star(3, direction=direction).in_degree.tolist() == degrees


def test_star_says_its_directions():
    with pytest.raises(ConfigError, match="'in', 'out' or 'both', had 'up'"):
        star(3, direction="up")


def test_rows_ride_along():
    graph = grid(2, 2, x=np.ones((4, 3), np.float16), y=np.arange(4), splits={"train": [0]})
    assert (graph.x.dtype, graph.num_classes) == ("float16", 4)


def test_odd_graphs_are_as_odd_as_they_say():
    graphs = {name: make() for name, make in ODD.items()}
    assert graphs["empty"].num_nodes == 0
    assert graphs["no_edges"].num_edges == 0
    assert graphs["star_in"].in_degree[1:].max() == 0
    assert graphs["hub"].in_degree[0] == 300
    assert graphs["half"].in_degree[8:].max() == 0
    assert graphs["isolated"].splits["test"].tolist() == [9]
    src, dst = edges_of(graphs["duplicates"])
    assert np.unique(src * 6 + dst).size < src.size
    src, dst = edges_of(graphs["loops"])
    assert (src == dst).sum() == 4
    assert graphs["weighted"].edge_weight.min() < 0
    for graph in graphs.values():
        assert (graph.x.width, graph.num_classes, len(graph.splits)) == (5, 3, 3)
