"""Real graphs: every folder and every file is taken, or refused for a reason that is its own."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

from tests.data import ROOT, data_dir
from tests.graph.same import assert_same
from tiergnn.errors import GraphError
from tiergnn.graph.csr import from_edges
from tiergnn.graph.ingest import ingest

SETS = [
    "acm_paper", "actor", "amazon_photo", "blogcatalog_multilabel", "chameleon",
    "chameleon_directed", "citeseer", "coauthor_cs", "cora", "cornell", "facebook_pagepage",
    "fb15k237", "github_topology", "karate", "kinship", "minesweeper", "nations", "polblogs",
    "pubmed_partial", "snap_cit_hepth", "snap_ego_twitter_und", "snap_email_enron",
    "snap_facebook_combined", "texas", "twitch_de", "twitch_en",
]  # fmt: skip


@pytest.mark.parametrize("name", SETS)
def test_a_set(tmp_path, name):
    """Counts as meta.json has them; edges, rows and splits as NumPy and SciPy read them."""
    root = data_dir(name)
    meta = json.loads((root / "meta.json").read_text())
    src, dst = np.load(root / "edge_index.npz")["edge_index"]
    rows = {}
    if (root / "y.npy").exists():
        rows["y"] = np.load(root / "y.npy")
        rows["num_classes"] = meta["classes"]
    masks = dict(np.load(root / "masks.npz")) if (root / "masks.npz").exists() else {}
    rows["splits"] = {
        key: mask if mask.ndim == 1 else mask.T
        for key, mask in masks.items()
        if not key.endswith("_edges")
    }
    kinds = [*root.glob("edge_type.np*")]
    if kinds:
        held = np.load(kinds[0])
        rows["edge_attr"] = (held if kinds[0].suffix == ".npy" else held["edge_type"]).astype("u1")
    got = ingest(root, tmp_path / "g", memory="64MiB")
    x = got.x
    if x is not None:
        want_x = sp.load_npz(root / "x.npz")
        assert x.data.shape == want_x.shape
        assert x.dtype == "float32"
        for start in range(0, x.num_rows, 2000):
            block = want_x[start : start + 2000].toarray()
            assert np.array_equal(x.data[start : start + 2000], block)
    assert (x is None) == (not meta["features"])
    want = from_edges(src, dst, meta["nodes"], **rows, x=x, node_ids=got.node_ids)
    assert_same(got, want)
    assert got.num_edges == meta["stored_edges"]
    if (root / "entities.txt").exists():
        assert got.node_ids is not None
        names = (root / "entities.txt").read_text().splitlines()
        assert got.node_ids.names().tolist() == names


FILES = [
    "cover.mtx", "cover_structure.mtx", "empty.mtx", "full.mtx", "full_symmetric.mtx",
    "jagmesh7.mtx", "karate.mtx", "ldbc-directed-example.mtx",
    "ldbc-undirected-example-unweighted.mtx", "ldbc-undirected-example.mtx",
    "matrix_bool.mtx", "matrix_fp64.mtx", "matrix_int64.mtx", "metis.mesh",
    "metis_4elt.graph", "olm1000.mtx", "sample.mtx", "skew_fp64.mtx", "structure.mtx",
    "west0067.mtx",
]  # fmt: skip
REFUSED = {
    "empty.mtx": "is 3 x 4",
    "matrix_fp64.mtx": "'-inf' is not a whole number",
    "matrix_int64.mtx": "-9223372036854775800 is not held exactly by float64",
    "metis.mesh": "a METIS mesh lists the corners of elements",
    "skew_fp64.mtx": "edge weight inf is not a finite number",
}


@pytest.mark.parametrize("name", FILES)
def test_a_file(tmp_path, name):
    path = data_dir("formats") / name
    if name in REFUSED:
        with pytest.raises(GraphError, match=REFUSED[name]):
            ingest(path, tmp_path / "g")
        if name in ("matrix_fp64.mtx", "matrix_int64.mtx", "skew_fp64.mtx"):
            graph = ingest(path, tmp_path / "g", weight="none")
            assert graph.num_edges == (20 if "skew" in name else 12)
        return
    got = ingest(path, tmp_path / "g")
    if name.endswith(".graph"):
        lines = path.read_text().splitlines()[1:]
        src = np.concatenate([np.full(len(line.split()), v) for v, line in enumerate(lines)])
        dst = np.concatenate([np.array(line.split(), int) for line in lines]) - 1
        assert_same(got, from_edges(src, dst, 15606))
        return
    matrix = scipy.io.mmread(path)
    dense = matrix if isinstance(matrix, np.ndarray) else None
    if dense is not None:
        src, dst = np.nonzero(dense)
        weight = dense[src, dst]
    else:
        src, dst, weight = matrix.row, matrix.col, matrix.data
    pattern = "pattern" in path.read_text().split("\n", 1)[0]
    weight = None if pattern else np.asarray(weight, np.float64)
    if weight is not None and (weight == weight.astype(np.float32)).all():
        weight = weight.astype(np.float32)
    assert_same(got, from_edges(src, dst, matrix.shape[0], edge_weight=weight))


def test_no_set_is_forgotten():
    if not ROOT.exists():
        pytest.skip("no real data")
    assert sorted(p.name for p in ROOT.iterdir() if (p / "meta.json").exists()) == SETS
