"""The folders that OGB's archives unpack to."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from tests.graph.reading import ENDS, PAIRS, RNG, E, V, lines, read
from tests.graph.same import assert_same
from tiergnn.errors import GraphError
from tiergnn.graph.csr import Graph, from_edges

X = RNG.random((V, 3)).astype(np.float32)
Y = RNG.integers(0, 4, V)
IDS = {"train": np.arange(0, 10), "val": np.arange(10, 15), "test": np.arange(15, 20)}


def split_into(root) -> None:
    (root / "split" / "time").mkdir(parents=True)
    for name, ids in {"train": "train", "valid": "val", "test": "test"}.items():
        text = "".join(f"{i}\n" for i in RNG.permutation(IDS[ids]))
        (root / "split" / "time" / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode()))


def write_csv(root, **files) -> None:
    (root / "raw").mkdir(parents=True)
    texts = {
        "edge": lines("{},{}\n"),
        "num-node-list": f"{V}\n",
        "num-edge-list": f"{E}\n",
        "node-feat": "".join(",".join(map(repr, row)) + "\n" for row in X.tolist()),
        "node-label": lines("{}\n", Y),
        "node_year": lines("{}\n", Y),
        **files,
    }
    for name, text in texts.items():
        if text is not None:
            path = root / "raw" / f"{name}.csv.gz"
            path.write_bytes(gzip.compress(text.encode()))
    split_into(root)


def want(**rows) -> Graph:
    return from_edges(*ENDS, V, **{"x": X, "y": Y, "splits": IDS, **rows})


def test_csv(tmp_path, caplog):
    write_csv(tmp_path / "ogbn_arxiv")
    assert_same(read(tmp_path, "ogbn_arxiv", num_nodes=None), want())
    assert "node_year.csv.gz: not read" in caplog.text


def test_csv_with_edge_features_and_many_labels(tmp_path, caplog):
    y = RNG.integers(0, 2, (V, 3))
    attr = RNG.random((E, 2)).astype(np.float32)
    write_csv(
        tmp_path / "ogbn_proteins",
        **{
            "node-feat": None,
            "node-label": "".join(",".join(map(str, row)) + "\n" for row in y.tolist()),
            "edge-feat": "".join(f"{a!r},{b!r}\n" for a, b in attr.tolist()),
        },
    )
    got = read(tmp_path, "ogbn_proteins", num_nodes=None)
    assert_same(got, want(x=None, y=y, edge_attr=attr))
    assert got.task == "multilabel"
    assert "undirected=True adds the other direction" in caplog.text


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_binary(tmp_path, save):
    """Labels of papers100M are floats, NaN where there is none."""
    root = tmp_path / "ogbn_papers"
    (root / "raw").mkdir(parents=True)
    split_into(root)
    y = Y.astype(np.float32)[:, None]
    y[3] = np.nan
    save(
        root / "raw" / "data.npz", edge_index=PAIRS.T, node_feat=X.astype(np.float16),
        num_nodes_list=np.array([V]), num_edges_list=np.array([E]), node_year=Y,
    )  # fmt: skip
    save(root / "raw" / "node-label.npz", node_label=y)
    labels = Y.copy()
    labels[3] = -1
    got = read(tmp_path, "ogbn_papers", num_nodes=None)
    assert_same(got, want(x=X.astype(np.float16), y=labels))


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"num-node-list": "12\n8\n"}, "holds 2 graphs, wanted one"),
        ({"num-node-list": ""}, "the file is empty: wanted the number of nodes"),
        ({"node-feat": "1,2\n"}, "has 1 rows, the graph has 20 nodes"),
        ({"node-label": "1\n" * (V + 1)}, "more than 20 rows"),
        ({"edge-feat": "1\n" * (E - 1)}, "fewer rows than there are edges"),
        ({"edge-feat": "1\n" * (E + 1)}, "more rows than there are edges"),
        ({"triplet-type-list": "a\n"}, "several kinds of nodes"),
        ({"node-label": "0.5\n" * V}, "label 0.5 is not a whole number"),
    ],
)
def test_refusals(tmp_path, files, problem):
    write_csv(tmp_path / "ogbn_x", **files)
    with pytest.raises(GraphError, match=problem):
        read(tmp_path, "ogbn_x", num_nodes=None)
