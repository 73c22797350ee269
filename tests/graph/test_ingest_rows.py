"""Rows of nodes: beside the edges, in files of their own, in a table of nodes in any order."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.reading import PAIRS, RNG, V, lines
from tests.graph.same import assert_same
from tiergnn.errors import ConfigError, GraphError
from tiergnn.graph import ingest as ingest_module
from tiergnn.graph import runs as runs_module
from tiergnn.graph.csr import Graph, from_edges
from tiergnn.graph.ids import NodeIds
from tiergnn.graph.ingest import ingest
from tiergnn.graph.labels import read_labels

ENDS = (PAIRS[:, 0], PAIRS[:, 1])
X = RNG.random((V, 3)).astype(np.float32)
Y = RNG.integers(0, 4, V)


@pytest.fixture(autouse=True)
def allow_tiny_memory(monkeypatch):
    monkeypatch.setattr(ingest_module, "LEAST_BYTES", 1)
    monkeypatch.setattr(runs_module, "FENCE", 4)


@pytest.fixture
def edges(tmp_path):
    (tmp_path / "g.txt").write_text(lines("{} {}\n"))
    return tmp_path / "g.txt"


def read(edges, **options) -> Graph:
    return ingest(edges, edges.with_name("g"), overwrite=True, **options)


class TestFilesOfTheirOwn:
    def save(self, path, array):
        if path.suffix == ".npy":
            np.save(path, array)
        elif path.suffix == ".npz" and array.ndim == 2:
            sp.save_npz(path, sp.csr_matrix(array))
        elif path.suffix == ".npz":
            np.savez(path, array)
        else:
            np.savetxt(path, array, delimiter=",", fmt="%.9g")
        return path

    @pytest.mark.parametrize("ending", [".npy", ".npz", ".csv", ".txt", ".csv.gz"])
    def test_features_labels_splits(self, tmp_path, edges, ending):
        np.savez(tmp_path / "s.npz", train=np.array([5, 3]), valid_mask=np.arange(V) > 15)
        got = read(
            edges,
            features=self.save(tmp_path / f"x{ending}", X),
            labels=self.save(tmp_path / f"y{ending}", Y),
            splits=tmp_path / "s.npz",
        )
        splits = {"train": np.array([3, 5]), "val": np.arange(V) > 15}
        assert_same(got, from_edges(*ENDS, V, x=X, y=Y, splits=splits))

    def test_splits_in_a_folder(self, tmp_path, edges):
        (tmp_path / "split").mkdir()
        (tmp_path / "split" / "train.csv").write_text("7\n2\n")
        (tmp_path / "split" / "valid.txt").write_text("9\n")
        (tmp_path / "split" / "test.csv").write_text("")
        got = read(edges, splits=tmp_path / "split", num_nodes=V)
        want = {"train": np.array([2, 7]), "val": np.array([9]), "test": np.array([], int)}
        assert_same(got, from_edges(*ENDS, V, splits=want))

    @pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
    def test_features_are_rounded_when_asked(self, tmp_path, edges, dtype):
        x = RNG.random((V, 3))
        np.save(tmp_path / "x.npy", x)
        got = read(edges, features=tmp_path / "x.npy", feature_dtype=dtype).x
        assert got.dtype == dtype
        assert np.allclose(
            got.decode(), x, rtol={"bfloat16": 2**-8, "float16": 2**-11}.get(dtype, 1e-7)
        )

    def test_whole_numbers_are_stored_where_they_fit(self, tmp_path, edges):
        np.save(tmp_path / "x.npy", RNG.integers(0, 200, (V, 2)))
        with pytest.raises(GraphError, match="features of dtype int64 are not stored"):
            read(edges, features=tmp_path / "x.npy")
        got = read(edges, features=tmp_path / "x.npy", feature_dtype="uint8", feature_scale=0.5)
        assert np.array_equal(got.x.decode(), np.load(tmp_path / "x.npy") * np.float32(0.5))
        np.save(tmp_path / "scale.npy", np.array([0.5, 2]))
        got = read(
            edges, features=tmp_path / "x.npy", feature_dtype="uint8",
            feature_scale=str(tmp_path / "scale.npy"),
        )  # fmt: skip
        assert got.x.scale.tolist() == [0.5, 2]
        with pytest.raises(GraphError, match=r"feature \d+ in column") as caught:
            read(edges, features=tmp_path / "x.npy", feature_dtype="int8")
        assert "does not fit int8" in caught.value.problem
        assert "x.npy[" in str(caught.value.culprit)
        with pytest.raises(GraphError, match="a scale goes with int8 or uint8"):
            read(edges, features=tmp_path / "x.npy", feature_dtype="float32", feature_scale=2.0)
        np.save(tmp_path / "scale.npy", np.ones(3))
        with pytest.raises(GraphError, match="the scale of 2 features has shape"):
            read(
                edges, features=tmp_path / "x.npy", feature_dtype="uint8",
                feature_scale=tmp_path / "scale.npy",
            )  # fmt: skip

    def test_sparse_features_become_dense_in_blocks(self, tmp_path, edges):
        x = sp.random(V, 50, density=0.2, format="csr", random_state=0)
        x.data[0] = 1e-300
        sp.save_npz(tmp_path / "x.npz", x)
        options = {"features": tmp_path / "x.npz", "memory": 8000}
        assert np.array_equal(read(edges, **options).x.data, x.toarray().astype(np.float32))
        wide = read(edges, feature_dtype="float64", **options).x
        assert np.array_equal(wide.data, x.toarray())
        sp.save_npz(tmp_path / "x.npz", sp.csr_matrix(x > 0.5))
        bits = read(edges, feature_dtype="bool", **options).x
        assert np.array_equal(bits.data, x.toarray() > 0.5)

    def test_infinite_features_are_noted(self, tmp_path, edges, caplog):
        x = X.copy()
        x[4, 1] = np.nan
        np.save(tmp_path / "x.npy", x)
        got = read(edges, features=tmp_path / "x.npy")
        assert np.isnan(got.x.data[4, 1])
        notes = json.loads((got.path / "manifest.json").read_text())["source"]["notes"]
        assert any("x.npy[4], column 1: the feature is nan" in note for note in notes)
        assert "x.npy[4], column 1: the feature is nan" in caplog.text

    @pytest.mark.parametrize(
        ("rows", "problem"),
        [
            ({"features": X[:-1]}, r"x\.npy has 19 rows, the graph has 20 nodes"),
            ({"labels": np.arange(V + 1)}, r"y\.npy has 21 rows, the graph has 20 nodes"),
            ({"labels": np.full(V, -2)}, "label -2 is not a class"),
            ({"labels": np.full(V, 0.5), "task": "class"}, "label 0.5 is not a whole number"),
            ({"labels": np.full((V, 2), 2)}, "labels in 2 columns are neither"),
            ({"labels": np.full((V, 2), 2), "task": "class"}, "has 2 columns, a class is one"),
            (
                {"labels": np.full((V, 2), 2), "task": "multilabel"},
                "label 2 in column 0 is not 0, 1",
            ),
            ({"labels": np.full(V, 3), "num_classes": 3}, "label 3 is not below num_classes=3"),
            ({"labels": np.full(V, np.inf)}, "label inf is infinite"),
            ({"labels": np.full(V, 0.5), "num_classes": 3}, "a real target has no classes"),
            ({"labels": np.array(["a"] * V)}, "labels need numbers"),
            ({"features": np.array([{}] * V)}, "only pickle can read"),
            ({"features": np.zeros((V, 2, 2))}, r"need numbers \[R\] or \[R, D\]"),
        ],
    )
    def test_refusals(self, tmp_path, edges, rows, problem):
        options = dict(rows)
        for option, name in (("features", "x.npy"), ("labels", "y.npy")):
            if option in options:
                np.save(tmp_path / name, options[option], allow_pickle=True)
                options[option] = tmp_path / name
        with pytest.raises(GraphError, match=problem):
            read(edges, num_nodes=V, **options)
        assert not (tmp_path / "g").exists()
        assert not list(tmp_path.glob("g.*-*"))

    @pytest.mark.parametrize(
        ("split", "problem"),
        [
            (np.array([3, V]), "is not a node"),
            (np.array([3, 3]), "holds node 3 more than once"),
            (np.ones(V - 1, bool), "has 19 entries"),
            (np.ones(V), "needs a boolean mask or node ids"),
        ],
    )
    def test_splits_that_cannot_be(self, tmp_path, edges, split, problem):
        np.savez(tmp_path / "s.npz", train=split)
        with pytest.raises(GraphError, match=problem):
            read(edges, splits=tmp_path / "s.npz", num_nodes=V)

    def test_rows_by_position_and_ids_without_one(self, tmp_path, edges):
        np.save(tmp_path / "y.npy", Y)
        with pytest.raises(ConfigError, match="rows of nodes go by position"):
            read(edges, labels=tmp_path / "y.npy", ids="relabel")
        np.savez(tmp_path / "g.npz", edge_index=PAIRS.T, x=X)
        with pytest.raises(ConfigError, match=r"and .* holds features"):
            ingest(tmp_path / "g.npz", tmp_path / "h", features=tmp_path / "y.npy")


LABELS = st.one_of(
    st.lists(st.integers(-1, 5), min_size=1, max_size=12),
    st.lists(st.sampled_from([0.0, 1.0, 2.5, float("nan"), -1.0, 3.0]), min_size=1, max_size=12),
)


@given(
    LABELS,
    st.sampled_from([None, "class", "multilabel", "real"]),
    st.sampled_from([np.int8, np.int64, np.uint8, np.float16, np.float32, np.float64, np.bool_]),
    st.integers(1, 2),
)
@settings(max_examples=60, deadline=None)
def test_labels_are_those_of_read_labels(tmp_path_factory, values, task, dtype, columns):
    """Streamed or in memory: the same labels, or a refusal both times."""
    folder = tmp_path_factory.mktemp("labels")
    with np.errstate(invalid="ignore"):
        y = np.array(values * columns).astype(dtype).reshape(-1, columns)
    np.savez(folder / "g.npz", edge_index=np.zeros((2, 0), int), y=y)
    try:
        want = read_labels(y, task)
    except GraphError:
        with pytest.raises(GraphError):
            ingest(folder / "g.npz", folder / "g", task=task)
        return
    got = ingest(folder / "g.npz", folder / "g", task=task, memory=200)
    assert (got.task, got.num_classes) == (want.task, want.num_classes)
    assert got.y is not None
    assert got.y.dtype == want.y.dtype
    assert np.array_equal(got.y, want.y, equal_nan=want.task == "real")


NAMES = [f"n{i:02d}" for i in range(V)]


class TestTableOfNodes:
    @pytest.mark.parametrize("memory", ["1GiB", 20_000])
    @pytest.mark.parametrize("ids", ["auto", "relabel", "names"])
    @pytest.mark.parametrize("kind", ["csv", "parquet"])
    def test_in_any_order(self, tmp_path, memory, ids, kind, caplog):
        """Case A10 for ingest: features and labels follow their node whatever its number."""
        order = RNG.permutation(V)
        ids_of = np.arange(V) if ids == "auto" else np.arange(V) * 10**6 - 7
        names = NAMES if ids == "names" else ids_of.tolist()
        (tmp_path / "g.csv").write_text(
            "src,dst\n" + "".join(f"{names[a]},{names[b]}\n" for a, b in PAIRS.tolist())
        )
        words = np.array(["train", "valid", "", "test"])[np.arange(V) % 4]
        if kind == "csv":
            path, x = tmp_path / "nodes.csv", X.tolist()
            path.write_text(
                "colour,id,height,label,weight,split\n"
                + "".join(
                    f"red,{names[v]},{x[v][0]},{Y[v] if v % 5 else ''},{x[v][1]},{words[v]}\n"
                    for v in order
                )
            )
        else:
            import pyarrow as pa
            import pyarrow.parquet as pq

            path = tmp_path / "nodes.parquet"
            table = pa.table(
                {
                    "id": [names[v] for v in order],
                    "height": X[order, 0],
                    "label": pa.array([int(Y[v]) if v % 5 else None for v in order]),
                    "weight": X[order, 1],
                    "split": [words[v] or None for v in order],
                }
            )
            pq.write_table(table, path, row_group_size=7)
        options = {} if ids == "auto" else {"ids": ids}
        got = ingest(tmp_path / "g.csv", tmp_path / "g", nodes=path, memory=memory, **options)
        masks = {"train": words == "train", "val": words == "valid", "test": words == "test"}
        want = from_edges(
            *ENDS, V, x=np.ascontiguousarray(X[:, :2]), y=np.where(np.arange(V) % 5, Y, -1),
            splits=masks, node_ids=None if ids == "auto" else NodeIds.from_names(names),
        )  # fmt: skip
        assert_same(got, want)
        assert ("not read: colour" in caplog.text) == (kind == "csv")

    def test_it_names_nodes_without_edges(self, tmp_path):
        (tmp_path / "g.csv").write_text("src,dst\nb,d\n")
        (tmp_path / "nodes.csv").write_text("id,label\nd,1\na,0\nb,1\n")
        got = ingest(tmp_path / "g.csv", tmp_path / "g", nodes=tmp_path / "nodes.csv")
        assert got.node_ids.names().tolist() == ["a", "b", "d"]
        assert got.y.tolist() == [0, 1, 1]
        (tmp_path / "g.csv").write_text("src,dst\nb,c\n")
        got = ingest(
            tmp_path / "g.csv", tmp_path / "g", nodes=tmp_path / "nodes.csv", overwrite=True
        )
        assert got.y.tolist() == [0, 1, -1, 1]

    def test_classes_by_name(self, tmp_path, caplog):
        (tmp_path / "g.csv").write_text("src,dst\n0,1\n2,1\n")
        (tmp_path / "nodes.csv").write_text("id,class\n2,cat\n0,dog\n1,\n3,cat\n")
        got = ingest(tmp_path / "g.csv", tmp_path / "g", nodes=tmp_path / "nodes.csv")
        assert got.y.tolist() == [1, -1, 0, 0]
        assert got.num_nodes == 4
        notes = json.loads((got.path / "manifest.json").read_text())["source"]["notes"]
        assert any("classes 0..1 are called cat, dog" in note for note in notes)
        assert "classes 0..1 are called cat, dog" in caplog.text

    def test_columns_by_name(self, tmp_path):
        (tmp_path / "g.csv").write_text("src,dst\n0,1\n")
        (tmp_path / "nodes.csv").write_text("when,who,what,part,a\n5,1,0.25,x,3\n6,0,0.5,y,4\n")
        got = ingest(
            tmp_path / "g.csv", tmp_path / "g", nodes=tmp_path / "nodes.csv", node_id="who",
            node_label="what", node_split="part", node_features=["a"], feature_dtype="float64",
        )  # fmt: skip
        assert got.task == "real"
        assert got.y.tolist() == [[0.5], [0.25]]
        assert got.x.data.tolist() == [[4.0], [3.0]]
        assert got.splits["x"].tolist() == [1]

    def test_features_beside_it(self, tmp_path):
        (tmp_path / "g.csv").write_text("src,dst\n" + lines("n{:02d},n{:02d}\n"))
        order = RNG.permutation(V)
        (tmp_path / "nodes.csv").write_text("id\n" + "".join(f"n{v:02d}\n" for v in order))
        np.save(tmp_path / "x.npy", X[order].astype(np.float16))
        options = {"nodes": tmp_path / "nodes.csv", "features": tmp_path / "x.npy"}
        got = ingest(tmp_path / "g.csv", tmp_path / "g", memory=20_000, **options)
        assert got.x.dtype == "float16"
        assert np.array_equal(got.x.data, X.astype(np.float16))
        for wrong in (X[:-1], np.concatenate([X, X[:1]])):
            np.save(tmp_path / "x.npy", wrong)
            with pytest.raises(GraphError, match=r"(fewer|more) rows than the table of nodes"):
                ingest(tmp_path / "g.csv", tmp_path / "h", **options)

    @pytest.mark.parametrize(
        ("table", "options", "problem", "where"),
        [
            ("id,label\n0,1\n7,1\n", {"num_nodes": 3}, "node id 7 is unknown", "line 3"),
            ("id,label\n0,1\n-1,1\n", {}, "node id -1 is unknown", "line 3"),
            ("id,label\n0,1\n1,0\n0,0\n", {}, "node 0 has two rows", "line 2 and"),
            ("id,a\n0,1\n1,0\n", {}, "node 2 has no row, so no features", "nodes.csv"),
            ("id,label\n0,1.5\n1,x\n", {}, "label 'x' is not a number", "line 3"),
            ("id,label\n0,1.5\n", {"task": "class"}, "label 1.5 is not a whole", "node 0"),
            ("id,a\n0,1\n1\n", {}, "wanted 2 columns, had 1", "line 3"),
            ("id,a\n0,\n", {}, "a", "line 2"),
        ],
    )
    def test_refusals(self, tmp_path, table, options, problem, where):
        (tmp_path / "g.csv").write_text("src,dst\n0,1\n2,1\n")
        (tmp_path / "nodes.csv").write_text(table)
        with pytest.raises(GraphError, match=problem) as caught:
            ingest(tmp_path / "g.csv", tmp_path / "g", nodes=tmp_path / "nodes.csv", **options)
        assert where in str(caught.value.culprit)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["g.csv", "nodes.csv"]

    def test_its_ids_are_of_the_kind_that_edges_have(self, tmp_path):
        (tmp_path / "g.csv").write_text("src,dst\n0,1\n")
        (tmp_path / "nodes.csv").write_text("id,label\na,1\n")
        with pytest.raises(GraphError, match=r"ids of edges are numbers, those in .* are names"):
            ingest(tmp_path / "g.csv", tmp_path / "g", nodes=tmp_path / "nodes.csv")
        got = ingest(tmp_path / "g.csv", tmp_path / "g", nodes=tmp_path / "nodes.csv", ids="names")
        assert got.node_ids.names().tolist() == ["0", "1", "a"]

    def test_it_goes_with_edges_alone(self, tmp_path):
        (tmp_path / "nodes.csv").write_text("id,label\n0,1\n")
        np.savez(tmp_path / "g.npz", edge_index=PAIRS.T, x=X)
        with pytest.raises(ConfigError, match="rows of nodes by position already"):
            ingest(tmp_path / "g.npz", tmp_path / "g", nodes=tmp_path / "nodes.csv")
        with pytest.raises(ConfigError, match="are columns of the table of nodes"):
            ingest(tmp_path / "g.npz", tmp_path / "g", nodes=tmp_path / "nodes.csv", labels="y.npy")
