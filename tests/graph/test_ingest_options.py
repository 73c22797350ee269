"""Options of ingest: those that cannot be, and what the others do."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.graph.same import assert_same
from tiergnn.errors import ConfigError, GraphError, StoreError
from tiergnn.graph import ingest as ingest_module
from tiergnn.graph.csr import Graph
from tiergnn.graph.ingest import ingest

TINY = 24_000


@pytest.fixture(autouse=True)
def allow_tiny_memory(monkeypatch):
    monkeypatch.setattr(ingest_module, "LEAST_BYTES", 1)


def leftovers(folder) -> list[str]:
    return [p.name for p in folder.iterdir() if "ingest-work" in p.name or "partial" in p.name]


@pytest.mark.parametrize(
    ("options", "error", "problem"),
    [
        ({"ids": "sparse"}, ConfigError, "unknown ids 'sparse'"),
        ({"duplicates": "merge"}, ConfigError, "unknown duplicates"),
        ({"self_loops": "drop"}, ConfigError, "unknown self_loops"),
        ({"task": "classes"}, ConfigError, "unknown task"),
        ({"feature_dtype": "int32"}, ConfigError, "unknown feature_dtype"),
        ({"weight_dtype": "float16"}, ConfigError, "unknown weight_dtype"),
        ({"format": "txt"}, ConfigError, "unknown format"),
        ({"num_nodes": 2**33}, GraphError, "at most 4294967296 can be ingested"),
        ({"num_nodes": -1}, ConfigError, "num_nodes must be 0 or more"),
        ({"ids": "relabel", "num_nodes": 4}, ConfigError, "cannot be given with ids='relabel'"),
        ({"ids": "relabel", "one_based": True}, ConfigError, "one_based=True is for dense ids"),
        ({"delimiter": ",,"}, ConfigError, "one character"),
        ({"memory": "lots"}, ConfigError, "not a number of bytes"),
        ({"node_label": "y"}, ConfigError, "node_label names a column of the table of nodes"),
        ({"source": "nobody"}, ConfigError, "source='nobody' is no column"),
        ({"edge_feature_dtype": "int8"}, ConfigError, "no edge_features are"),
        ({"weight": "w"}, ConfigError, "weight='w' is no column"),
        ({"labels": "nowhere.npy"}, StoreError, "No such file"),
    ],
)
def test_options_that_cannot_be(tmp_path, options, error, problem):
    (tmp_path / "g.txt").write_text("0 1\n")
    with pytest.raises(error, match=problem):
        ingest(tmp_path / "g.txt", tmp_path / "g", **options)
    assert [p.name for p in tmp_path.iterdir()] == ["g.txt"]


def test_too_little_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(ingest_module, "LEAST_BYTES", 2**20)
    (tmp_path / "g.txt").write_text("0 1\n")
    with pytest.raises(ConfigError, match="too little to work in"):
        ingest(tmp_path / "g.txt", tmp_path / "g", memory="512KiB")


def test_what_exists_stays(tmp_path):
    (tmp_path / "g.txt").write_text("0 1\n")
    (tmp_path / "h.txt").write_text("0 1\n1 oops\n")
    first = ingest(tmp_path / "g.txt", tmp_path / "g")
    with pytest.raises(StoreError, match="exists already"):
        ingest(tmp_path / "g.txt", tmp_path / "g")
    with pytest.raises(GraphError, match="'oops' is not a whole number"):
        ingest(tmp_path / "h.txt", tmp_path / "g", overwrite=True)
    assert_same(Graph.open(tmp_path / "g"), first)
    (tmp_path / "g.txt").write_text("0 1\n1 0\n")
    assert ingest(tmp_path / "g.txt", tmp_path / "g", overwrite=True).num_edges == 2
    assert leftovers(tmp_path) == []


def test_progress_runs_to_the_end_of_each_phase(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "g.npz", edge_index=rng.integers(0, 50, (2, 3000)), x=rng.random((50, 3)),
        y=rng.integers(0, 3, 50), train_mask=rng.random(50) < 0.5,
    )  # fmt: skip
    calls = []
    ingest(
        tmp_path / "g.npz", tmp_path / "g", memory=TINY,
        progress=lambda phase, done, total: calls.append((phase, done, total)),
    )  # fmt: skip
    phases = list(dict.fromkeys(phase for phase, _, _ in calls))
    assert phases == ["read", "labels", "splits", "sort", "write", "features"]
    for phase in phases:
        done = [d for p, d, _ in calls if p == phase]
        assert done == sorted(done)
        assert done[-1] == next(t for p, _, t in reversed(calls) if p == phase)
    assert sum(p == "read" for p, _, _ in calls) > 3


def test_the_manifest_says_where_a_graph_came_from(tmp_path):
    (tmp_path / "g.csv").write_text("src,dst,w,kind\n0,1,0.5,a\n")
    ingest(tmp_path / "g.csv", tmp_path / "g", undirected=True, num_nodes=3)
    source = json.loads((tmp_path / "g" / "manifest.json").read_text())["source"]
    assert source["format"] == "csv"
    assert source["edges_read"] == 1
    assert source["options"] == {"undirected": True, "num_nodes": 3}
    assert any("not read: kind" in note for note in source["notes"])


def test_weights_are_kept_exactly(tmp_path):
    """float32 where that holds every weight of a text, else float64; as asked when asked."""
    (tmp_path / "g.txt").write_text("0 1 0.5\n1 0 3\n")
    assert ingest(tmp_path / "g.txt", tmp_path / "a").edge_weight.dtype == np.float32
    (tmp_path / "h.txt").write_text("0 1 0.1\n1 0 16777217\n")
    wide = ingest(tmp_path / "h.txt", tmp_path / "b").edge_weight
    assert wide.dtype == np.float64
    assert sorted(wide.tolist()) == [0.1, 16777217.0]
    narrow = ingest(tmp_path / "h.txt", tmp_path / "c", weight_dtype="float32").edge_weight
    assert sorted(narrow.tolist()) == [np.float32(0.1), 16777216.0]
    forced = ingest(tmp_path / "g.txt", tmp_path / "d", weight_dtype="float64").edge_weight
    assert forced.dtype == np.float64
    assert ingest(tmp_path / "g.txt", tmp_path / "e", weight="none").edge_weight is None


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999"])
def test_weights_that_are_not_finite(tmp_path, value):
    (tmp_path / "g.txt").write_text(f"0 1 0.5\n1 0 {value}\n")
    with pytest.raises(GraphError, match="is not a finite number") as caught:
        ingest(tmp_path / "g.txt", tmp_path / "g")
    assert str(caught.value.culprit).endswith("line 2")


def test_names_have_no_number_of_nodes(tmp_path):
    (tmp_path / "g.csv").write_text("src,dst\nann,bob\n")
    with pytest.raises(ConfigError, match="num_nodes=5 is for dense ids, and these are names"):
        ingest(tmp_path / "g.csv", tmp_path / "g", num_nodes=5)
    (tmp_path / "g.csv").write_text("src,dst\n0.5,1\n")
    with pytest.raises(GraphError, match=r"source id '0\.5' is not a whole number"):
        ingest(tmp_path / "g.csv", tmp_path / "g")
    assert ingest(tmp_path / "g.csv", tmp_path / "g", ids="names").num_nodes == 2
