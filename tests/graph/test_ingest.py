"""Ingest against from_edges: whatever the memory, the options and the ids, the same bits."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.same import assert_same
from tiergnn.errors import GraphError
from tiergnn.graph import ingest as ingest_module
from tiergnn.graph import runs as runs_module
from tiergnn.graph.csr import Graph, from_edges
from tiergnn.graph.ids import NodeIds
from tiergnn.graph.ingest import ingest
from tiergnn.graph.relabel import Interner
from tiergnn.graph.table import STORED, Table

TINY = 24_000  # bytes: a run holds some hundred edges, a range fewer


@pytest.fixture(autouse=True)
def allow_tiny_memory(monkeypatch):
    """Small graphs go through as many runs, ranges and segments as large ones."""
    monkeypatch.setattr(ingest_module, "LEAST_BYTES", 1)
    monkeypatch.setattr(runs_module, "FENCE", 16)
    monkeypatch.setattr(os, "fdatasync", lambda handle: None)  # no crash of the machine is tested
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def leftovers(folder) -> list[str]:
    return [p.name for p in folder.iterdir() if "ingest-work" in p.name or "partial" in p.name]


@st.composite
def edge_lists(draw):
    num_nodes = draw(st.integers(1, 30))
    ids = st.integers(0, num_nodes - 1)
    # A few nodes get most edges, so that rows are longer than ranges.
    hub = st.sampled_from([0, num_nodes - 1])
    edges = draw(st.lists(st.tuples(st.one_of(hub, ids), st.one_of(hub, ids)), max_size=300))
    return num_nodes, np.array(edges, np.int64).reshape(-1, 2)


OPTIONS = st.fixed_dictionaries(
    {
        "undirected": st.booleans(),
        "self_loops": st.sampled_from(["keep", "remove", "add"]),
        "duplicates": st.sampled_from(["keep", "sum"]),
    }
)


@given(
    edge_lists(),
    OPTIONS,
    st.sampled_from([None, np.float32, np.float64, np.int16, np.uint8]),
    st.sampled_from([None, "float64", "float16", "int8", "bfloat16"]),
    st.sampled_from([8_000, TINY, "1GiB"]),
)
@settings(max_examples=60, deadline=None)
def test_arrays_of_edges(tmp_path_factory, edges, options, weights, features, memory):
    folder = tmp_path_factory.mktemp("ingest")
    num_nodes, pairs = edges
    rng = np.random.default_rng(len(pairs))
    weight = attr = None
    held = {"edge_index": pairs.T.astype(np.int32)}
    if weights is not None:
        weight = (rng.normal(size=len(pairs)) * 100).astype(weights)
        held["edge_weight"] = weight
    if features == "bfloat16":
        features = None  # a .npz has no such dtype
    if features is not None:
        attr = rng.integers(-2, 3, (len(pairs), 2)).astype(STORED[features])
        held["edge_attr"] = attr
    np.savez(folder / "g.npz", **held)
    try:
        want = from_edges(
            pairs[:, 0], pairs[:, 1], num_nodes, edge_weight=weight, edge_attr=attr, **options
        )
    except GraphError as error:  # sums that int8 does not hold
        assert "does not hold" in error.problem  # noqa: PT017
        with pytest.raises(GraphError, match="does not hold"):
            ingest(folder / "g.npz", folder / "g", num_nodes=num_nodes, memory=memory, **options)
        assert leftovers(folder) == []
        return
    got = ingest(folder / "g.npz", folder / "g", num_nodes=num_nodes, memory=memory, **options)
    assert_same(got, want)
    assert leftovers(folder) == []
    assert_same(Graph.open(folder / "g", verify=True), want)


@given(edge_lists(), st.sampled_from([8_000, TINY]))
@settings(max_examples=30, deadline=None)
def test_refused_duplicates_name_the_first_repeat(tmp_path_factory, edges, memory):
    folder = tmp_path_factory.mktemp("ingest")
    num_nodes, pairs = edges
    text = "".join(f"{a} {b}\n" for a, b in pairs)
    (folder / "g.txt").write_text("# a comment\n" + text)
    first: dict[tuple[int, int], int] = {}
    for line, pair in enumerate(map(tuple, pairs.tolist()), start=2):
        if pair in first:
            with pytest.raises(GraphError) as caught:
                ingest(folder / "g.txt", folder / "g", duplicates="refuse", memory=memory)
            repeats = len(pairs) - len(set(map(tuple, pairs.tolist())))
            assert f"edge {pair[0]} -> {pair[1]} is given twice" in caught.value.problem
            assert f"({repeats} such repeats" in caught.value.problem
            assert f"line {first[pair]} and" in str(caught.value.culprit)
            assert str(caught.value.culprit).endswith(f"line {line}")
            assert not (folder / "g").exists()
            assert leftovers(folder) == []
            return
        first[pair] = line
    got = ingest(
        folder / "g.txt", folder / "g", duplicates="refuse", memory=memory, num_nodes=num_nodes
    )
    assert_same(got, from_edges(pairs[:, 0], pairs[:, 1], num_nodes))


def test_refused_duplicates_are_called_by_their_names(tmp_path):
    (tmp_path / "g.csv").write_text("src,dst\nann,bob\nbob,ann\nann,bob\n")
    with pytest.raises(GraphError, match="edge ann -> bob is given twice") as caught:
        ingest(tmp_path / "g.csv", tmp_path / "g", duplicates="refuse")
    assert str(caught.value.culprit).endswith("line 4")
    with pytest.raises(GraphError, match="is given twice") as caught:
        ingest(tmp_path / "g.csv", tmp_path / "g", duplicates="refuse", undirected=True)
    assert str(caught.value.culprit).endswith("line 3")
    (tmp_path / "g.txt").write_text("7 5000000000\n7 5000000000\n")
    with pytest.raises(GraphError, match="edge 7 -> 5000000000 is given twice"):
        ingest(tmp_path / "g.txt", tmp_path / "g", duplicates="refuse")
    (tmp_path / "g.txt").write_text("7 5\n7 5\n")
    with pytest.raises(GraphError, match="edge 7 -> 5 is given twice"):
        ingest(tmp_path / "g.txt", tmp_path / "g", duplicates="refuse", one_based=True)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("duplicates", ["keep", "sum", "refuse"])
@pytest.mark.parametrize("weights", [True, False])
def test_one_edge_more_often_than_memory_holds(tmp_path, duplicates, weights):
    """A range cannot be cut within one key: its copies are taken piece by piece."""
    src, dst = np.full(3000, 2), np.full(3000, 1)
    src[-1], dst[-1] = 0, 3
    weight = np.random.default_rng(0).normal(size=3000).astype(np.float32) if weights else None
    attr = np.arange(3000, dtype=np.float64) / 7
    held = {"edge_index": np.stack([src, dst]), "edge_attr": attr}
    if weight is not None:
        held["edge_weight"] = weight
    np.savez(tmp_path / "g.npz", **held)
    if duplicates == "refuse":
        with pytest.raises(GraphError, match=r"2 -> 1 is given twice \(2998 such") as caught:
            ingest(tmp_path / "g.npz", tmp_path / "g", memory=TINY, duplicates="refuse")
        assert "[:, 0] and g.npz: edge_index[:, 1]" in str(caught.value.culprit)
        return
    got = ingest(tmp_path / "g.npz", tmp_path / "g", memory=TINY, duplicates=duplicates)
    want = from_edges(src, dst, 4, edge_weight=weight, edge_attr=attr, duplicates=duplicates)
    assert_same(got, want)


NAMES = st.text(
    st.characters(
        codec="utf-8", exclude_characters=' \t\r\n\0#%,;|"', exclude_categories=["Z", "C"]
    ),
    min_size=1,
    max_size=12,
)


@given(st.data(), st.booleans(), st.sampled_from([8_000, TINY, "1GiB"]))
@settings(max_examples=50, deadline=None)
def test_ids_of_any_kind_become_dense(tmp_path_factory, data, as_names, memory):
    """In ascending order, the map kept, across as many segments as memory asks for."""
    folder = tmp_path_factory.mktemp("ingest")
    if as_names:
        universe = data.draw(st.lists(NAMES, min_size=1, max_size=40, unique=True))
        ordered = sorted(universe, key=str.encode)
    else:
        ids = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-3, 30))
        universe = data.draw(st.lists(ids, min_size=1, max_size=40, unique=True))
        ordered = sorted(universe)
    picks = st.integers(0, len(universe) - 1)
    pairs = data.draw(st.lists(st.tuples(picks, picks), min_size=1, max_size=250))
    used = [name for name in ordered if any(name in (universe[a], universe[b]) for a, b in pairs)]
    rank = {name: i for i, name in enumerate(used)}
    text = "".join(f"{universe[a]}\t{universe[b]}\t{i / 8}\n" for i, (a, b) in enumerate(pairs))
    (folder / "g.txt").write_text(text, encoding="utf-8")
    ids = "names" if as_names else "relabel"
    got = ingest(folder / "g.txt", folder / "g", ids=ids, memory=memory, undirected=True)
    src = np.array([rank[universe[a]] for a, _ in pairs])
    dst = np.array([rank[universe[b]] for _, b in pairs])
    want = from_edges(
        src,
        dst,
        len(used),
        edge_weight=(np.arange(len(pairs)) / 8).astype(np.float32),
        undirected=True,
        node_ids=NodeIds.from_names(used),
    )
    assert_same(got, want)
    assert leftovers(folder) == []


def test_many_segments_are_merged(tmp_path, monkeypatch):
    """The same id in many dictionaries is one node."""
    rng = np.random.default_rng(3)
    ids = rng.integers(-(2**40), 2**40, 700)
    pairs = ids[rng.integers(0, 700, (4000, 2))]
    np.save(tmp_path / "g.npy", pairs)
    segments = []
    end = Interner.end
    monkeypatch.setattr(
        Interner, "end", lambda self, **about: (segments.append(about), end(self, **about))[1]
    )
    got = ingest(tmp_path / "g.npy", tmp_path / "g", ids="relabel", memory=200_000)
    assert len(segments) > 5
    names, dense = np.unique(pairs, return_inverse=True)
    dense = dense.reshape(pairs.shape)
    want = from_edges(dense[:, 0], dense[:, 1], names.size, node_ids=NodeIds.from_names(names))
    assert_same(got, want)


def test_auto_keeps_dense_ids_and_relabels_far_ones(tmp_path, caplog):
    caplog.set_level(logging.INFO, "tiergnn")
    (tmp_path / "dense.txt").write_text("0 1\n4 2\n")
    dense = ingest(tmp_path / "dense.txt", tmp_path / "dense")
    assert dense.num_nodes == 5
    assert dense.node_ids is None
    assert "num_nodes=5 is the largest id plus 1" in caplog.text
    for largest in (5000, 2**40):
        (tmp_path / "far.txt").write_text(f"3 {largest}\n{largest} 12\n")
        far = ingest(tmp_path / "far.txt", tmp_path / "far", overwrite=True)
        assert far.node_ids is not None
        assert far.node_ids.names().tolist() == [3, 12, largest]
        assert np.asarray(far.col).tolist() == [2, 0]
        assert "far apart" in caplog.text
    kept = ingest(tmp_path / "far.txt", tmp_path / "kept", ids="relabel")
    assert_same(far, kept)
    (tmp_path / "far.txt").write_text("3 5000\n5000 12\n")
    assert ingest(tmp_path / "far.txt", tmp_path / "wide", ids="dense").num_nodes == 5001
    notes = json.loads((tmp_path / "dense" / "manifest.json").read_text())["source"]["notes"]
    assert len(notes) == 1
    assert notes[0].startswith("num_nodes=5 is the largest id plus 1; nodes without edges")


def test_one_based(tmp_path):
    (tmp_path / "g.txt").write_text("1 2\n5 1\n")
    graph = ingest(tmp_path / "g.txt", tmp_path / "g", one_based=True, num_nodes=6)
    assert_same(graph, from_edges(np.array([0, 4]), np.array([1, 0]), 6))
    (tmp_path / "h.txt").write_text("1 2\n0 1\n")
    with pytest.raises(GraphError, match="id 0 is below 1") as caught:
        ingest(tmp_path / "h.txt", tmp_path / "h", one_based=True)
    assert str(caught.value.culprit).endswith("h.txt, line 2")


def test_isolated_nodes_stay(tmp_path):
    """Case A06: the node of the highest id has no edge."""
    (tmp_path / "g.txt").write_text("0 1\n3 4\n")
    assert ingest(tmp_path / "g.txt", tmp_path / "g", num_nodes=10).num_nodes == 10
    np.save(tmp_path / "y.npy", np.arange(10))
    graph = ingest(tmp_path / "g.txt", tmp_path / "h", labels=tmp_path / "y.npy")
    assert graph.num_nodes == 10
    assert graph.y is not None
    assert graph.y.tolist() == list(range(10))


@pytest.mark.parametrize(
    ("text", "num_nodes", "problem", "where"),
    [
        ("3 7\n9 12\n3 -1\n", 5, "target id 7 is out of range: num_nodes says 5", "line 1"),
        ("3 4\n3 -1\n", 5, "target id -1 is negative", "line 2"),
        ("0 1\n\n# x\n5 1\n", 5, "source id 5 is out of range", "line 4"),
        ("1 2\n2 5\n", 5, "target id 5 is out of range", "line 2"),
    ],
)
def test_ids_out_of_range(tmp_path, text, num_nodes, problem, where):
    """Case A11: the first bad value, where it is, what is allowed, and the way out."""
    (tmp_path / "g.txt").write_text(text)
    with pytest.raises(GraphError) as caught:
        ingest(tmp_path / "g.txt", tmp_path / "g", num_nodes=num_nodes)
    assert problem in caught.value.problem
    assert str(caught.value.culprit).endswith(where)
    assert "relabel" in str(caught.value.hint)
    assert [p.name for p in tmp_path.iterdir()] == ["g.txt"]


def test_edges_of_more_than_32_bits_say_so(tmp_path):
    (tmp_path / "g.txt").write_text(f"0 {2**32}\n")
    with pytest.raises(GraphError, match="too large: dense ids go up to 4294967295"):
        ingest(tmp_path / "g.txt", tmp_path / "g", ids="dense")


CHILD = """
import re, sys
from pathlib import Path
from tiergnn.graph.ingest import ingest

def peak():  # of this program alone; getrusage counts what its parent held when it forked, too
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

ingest(sys.argv[1], sys.argv[2] + "-warm", num_nodes=5)
before = peak()
graph = ingest(sys.argv[3], sys.argv[2], num_nodes=400_000, memory="256MiB")
assert "torch" not in sys.modules
print(before, peak(), graph.num_edges)
"""


@pytest.mark.parametrize("shape", ["uniform", "hub"])
def test_memory_stays_under_the_cap(tmp_path, shape):
    """6 million edges are 48 MB in keys alone, 96 MB to sort; 64 MiB are there to work in."""
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, 400_000, (6_000_000, 2), dtype=np.int32)
    if shape == "hub":
        pairs[:5_000_000, 1] = 7
    np.save(tmp_path / "g.npy", pairs)
    np.save(tmp_path / "warm.npy", np.array([[0, 1], [1, 2], [3, 4]]))
    done = subprocess.run(
        [sys.executable, "-c", CHILD, tmp_path / "warm.npy", tmp_path / "g", tmp_path / "g.npy"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "NUMBA_NUM_THREADS": "2"},
    )
    before, after, num_edges = map(int, done.stdout.split())
    assert num_edges == 6_000_000
    assert after - before < 80 * 2**20
    assert after < 300 * 2**20
    want = from_edges(pairs[:, 0], pairs[:, 1], 400_000)
    assert_same(Graph.open(tmp_path / "g"), want)


def test_rows_keep_their_bits(tmp_path):
    """Case A22: stored widths stay, among them int8 with a scale."""
    rng = np.random.default_rng(0)
    edges = rng.integers(0, 100, (2, 400))
    for dtype in ("float64", "float32", "float16", "int8", "uint8", "bool"):
        x = rng.integers(0, 2, (100, 5)).astype(dtype)
        held = {"edge_index": edges.astype(np.int16), "x": np.asfortranarray(x)}
        scale = rng.random(5).astype(np.float32) if dtype == "int8" else None
        if scale is not None:
            held["x_scale"] = scale
        np.savez(tmp_path / "g.npz", **held)
        got = ingest(tmp_path / "g.npz", tmp_path / "g", overwrite=True, memory=TINY)
        assert_same(got, from_edges(*edges, 100, x=Table(data=x, dtype=dtype, scale=scale)))
