"""Graphs in arrays: NumPy files, PyG's tensors, folders of arrays."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from tests.graph.reading import ENDS, PAIRS, RNG, WANT, WEIGHT, E, V, read
from tests.graph.same import assert_same
from tiergnn.errors import GraphError
from tiergnn.graph.csr import from_edges
from tiergnn.graph.formats.lines import LineFile
from tiergnn.graph.ids import NodeIds
from tiergnn.graph.table import Table


class TestNumpy:
    @pytest.mark.parametrize("dtype", ["i2", "i4", "<i8", ">i4", ">i8", "u1", "u4", "u8"])
    def test_pairs_of_any_width_and_layout(self, tmp_path, dtype):
        """Case A12: order, direction and contiguity of the array do not matter."""
        pairs = PAIRS.astype(dtype)
        for array in (pairs, pairs.T, np.asfortranarray(pairs), np.asfortranarray(pairs.T)):
            np.save(tmp_path / "g.npy", array)
            assert_same(read(tmp_path, "g.npy"), WANT)

    @pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
    def test_arrays_by_name(self, tmp_path, save):
        x = RNG.random((V, 3))
        y = RNG.integers(0, 4, V)
        mask = RNG.random(V) < 0.5
        folds = RNG.random((V, 2)) < 0.5
        save(
            tmp_path / "g.npz",
            edge_index=PAIRS.T,
            edge_weight=WEIGHT.astype(np.float32),
            edge_type=RNG.integers(0, 5, E),
            x=x,
            y=y,
            train_mask=mask,
            test_idx=np.array([7, 2]),
            valid_mask=folds,
            num_nodes=V,
        )
        got = read(tmp_path, "g.npz", num_nodes=None)
        edge_type = np.load(tmp_path / "g.npz")["edge_type"].astype(np.uint8)
        want = from_edges(
            *ENDS, V, edge_weight=WEIGHT.astype(np.float32), edge_attr=edge_type, x=x, y=y,
            splits={"train": mask, "test": np.array([2, 7]), "val": folds},
        )  # fmt: skip
        assert_same(got, want)

    def test_two_arrays(self, tmp_path):
        np.savez(tmp_path / "g.npz", src=PAIRS[:, 0].astype(np.int32), dst=PAIRS[:, 1])
        assert_same(read(tmp_path, "g.npz"), WANT)

    @pytest.mark.parametrize("kind", ["csr", "csc", "coo"])
    def test_sparse_matrices(self, tmp_path, kind):
        pairs = np.unique(PAIRS, axis=0)
        weight = RNG.random(len(pairs))
        matrix = sp.coo_matrix((weight, (pairs[:, 0], pairs[:, 1])), shape=(V, V)).asformat(kind)
        sp.save_npz(tmp_path / "g.npz", matrix)
        want = from_edges(pairs[:, 0], pairs[:, 1], V, edge_weight=weight)
        assert_same(read(tmp_path, "g.npz", num_nodes=None), want)

    def test_sparse_matrices_in_small_pieces(self, tmp_path, monkeypatch):
        from tiergnn.graph import ingest as module

        monkeypatch.setattr(module, "LEAST_BYTES", 1)
        matrix = sp.random(300, 300, density=0.01, format="csr", random_state=0)
        matrix.data[:] = np.arange(matrix.nnz)
        sp.save_npz(tmp_path / "g.npz", matrix)
        coo = matrix.tocoo()
        want = from_edges(coo.row, coo.col, 300, edge_weight=coo.data)
        assert_same(read(tmp_path, "g.npz", num_nodes=None, memory=20_000), want)

    def test_matrices_of_the_citation_benchmarks(self, tmp_path):
        """Adjacency, features and labels as parts of CSR matrices in one file."""
        adj = sp.random(V, V, density=0.1, format="csr", random_state=0)
        attr = sp.random(V, 6, density=0.3, format="csr", random_state=1, dtype=np.float32)
        parts = {
            f"{name}_{part}": getattr(matrix, part)
            for name, matrix in (("adj", adj), ("attr", attr))
            for part in ("data", "indices", "indptr", "shape")
        }
        np.savez(tmp_path / "g.npz", **parts, labels=np.arange(V) % 3)
        coo = adj.tocoo()
        want = from_edges(
            coo.row, coo.col, V, edge_weight=coo.data, x=attr.toarray(), y=np.arange(V) % 3
        )
        assert_same(read(tmp_path, "g.npz", num_nodes=None), want)

    def test_names_in_arrays(self, tmp_path):
        names = np.array(["\u00e5", "bb", "c"])[np.array([[0, 1], [1, 2], [2, 2]])]
        for array in (names, np.char.encode(names, "utf-8")):
            np.save(tmp_path / "g.npy", array)
            got = read(tmp_path, "g.npy", num_nodes=None)
            assert got.node_ids.names().tolist() == ["bb", "c", "\u00e5"]
            assert np.asarray(got.col).tolist() == [2, 0, 1]


class TestPyg:
    def test_tensors(self, tmp_path):
        mask = torch.from_numpy(RNG.random((V, 3)) < 0.5)
        x = torch.rand(V, 4).to(torch.bfloat16)
        held = {
            "edge_index": torch.from_numpy(PAIRS).t(),  # not contiguous
            "edge_weight": torch.from_numpy(WEIGHT),
            "edge_attr": torch.from_numpy(WEIGHT).half()[:, None],
            "x": x,
            "y": torch.arange(V) % 4,
            "train_mask": mask,
            "num_nodes": V,
        }
        want = from_edges(
            *ENDS, V, edge_weight=WEIGHT, edge_attr=WEIGHT.astype(np.float16),
            x=Table(data=x.view(torch.int16).numpy().view(np.uint16), dtype="bfloat16"),
            y=np.arange(V) % 4, splits={"train": mask.numpy()},
        )  # fmt: skip
        torch.save(held, tmp_path / "g.pt")
        assert_same(read(tmp_path, "g.pt", num_nodes=None), want)
        torch.save((held, None), tmp_path / "g.pt")
        assert_same(read(tmp_path, "g.pt", num_nodes=None), want)
        torch.save((held, {"x": torch.tensor([0, 9, V])}), tmp_path / "g.pt")
        with pytest.raises(GraphError, match="the file holds 2 graphs"):
            read(tmp_path, "g.pt", num_nodes=None)
        torch.save(held, tmp_path / "g.pt", _use_new_zipfile_serialization=False)
        assert_same(read(tmp_path, "g.pt", num_nodes=None), want)

    def test_a_transposed_sparse_adjacency(self, tmp_path):
        pairs = np.unique(PAIRS, axis=0)
        adj = sp.coo_matrix((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(V, V))
        adj_t = adj.T.tocsr()
        tensor = torch.sparse_csr_tensor(
            adj_t.indptr, adj_t.indices, torch.from_numpy(adj_t.data), adj_t.shape
        )
        torch.save({"adj_t": tensor}, tmp_path / "g.pt")
        got = read(tmp_path, "g.pt", num_nodes=None, weight="none")
        assert_same(got, from_edges(pairs[:, 0], pairs[:, 1], V))

    def test_objects_are_refused(self, tmp_path):
        torch.save({"edge_index": torch.from_numpy(PAIRS.T), "loader": LineFile}, tmp_path / "g.pt")
        with pytest.raises(GraphError, match="more than tensors and plain values") as caught:
            read(tmp_path, "g.pt")
        assert "data.to_dict()" in caught.value.hint
        with pytest.raises(GraphError, match="not a whole PyTorch file"):
            read(tmp_path, "g.pt", b"PK\x03\x04nonsense")


class TestNeutral:
    def test_everything_beside_the_edges(self, tmp_path, caplog):
        root = tmp_path / "set"
        root.mkdir()
        x = sp.random(V, 7, density=0.3, format="csr", random_state=0, dtype=np.float32)
        masks = {name: RNG.random((2, V)) < 0.4 for name in ("train", "val", "test")}
        np.savez(root / "edge_index.npz", edge_index=PAIRS.T.astype(np.int32))
        np.save(root / "edge_type.npy", np.arange(E, dtype=np.int32) * 7)
        sp.save_npz(root / "x.npz", x)
        np.save(root / "y.npy", np.arange(V) % 3)
        np.savez(root / "masks.npz", **masks, train_edges=np.ones(E, bool))
        np.save(root / "x_present.npy", np.ones(V, bool))
        (root / "entities.txt").write_text("".join(f"e{i}\n" for i in range(V)))
        (root / "meta.json").write_text(
            json.dumps({"nodes": V, "classes": 5, "y": {"type": "multiclass"}})
        )
        got = read(tmp_path, "set", num_nodes=None)
        want = from_edges(
            *ENDS, V, edge_attr=(np.arange(E) * 7).astype(np.float32), x=x.toarray(),
            y=np.arange(V) % 3, num_classes=5,
            splits={n: m.T for n, m in masks.items()},
            node_ids=NodeIds.from_names([f"e{i}" for i in range(V)]),
        )  # fmt: skip
        assert_same(got, want)
        assert "train_edges: not read" in caplog.text
        assert "x_present.npy: not read" in caplog.text

    def test_rows_of_the_wrong_length(self, tmp_path):
        root = tmp_path / "set"
        root.mkdir()
        np.save(root / "edge_index.npy", PAIRS.T)
        np.save(root / "y.npy", np.arange(V + 1))
        with pytest.raises(GraphError, match=r"y\.npy has 21 rows, the graph has 20 nodes"):
            read(tmp_path, "set")
        np.save(root / "y.npy", np.arange(V))
        np.savez(root / "masks.npz", train=np.ones(V - 1, bool))
        with pytest.raises(GraphError, match="mask of split 'train' has 19 entries"):
            read(tmp_path, "set")
