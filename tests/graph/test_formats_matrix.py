"""Matrix Market and METIS files."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

from tests.graph.reading import read
from tests.graph.same import assert_same
from tiergnn.errors import GraphError
from tiergnn.graph.csr import from_edges


class TestMatrixMarket:
    @pytest.mark.parametrize("field", ["real", "integer", "pattern"])
    @pytest.mark.parametrize("symmetry", ["general", "symmetric", "skew-symmetric"])
    @pytest.mark.parametrize("dense", [False, True])
    def test_against_scipy(self, tmp_path, field, symmetry, dense):
        if field == "pattern" and (dense or symmetry == "skew-symmetric"):
            pytest.skip("no such matrices")
        matrix = np.round(sp.random(9, 9, density=0.4, random_state=2).toarray() * 100)
        if symmetry == "symmetric":
            matrix = np.tril(matrix) + np.tril(matrix, -1).T
        elif symmetry == "skew-symmetric":
            matrix = np.tril(matrix, -1) - np.tril(matrix, -1).T
        matrix = matrix if field == "integer" else matrix / 7
        scipy.io.mmwrite(
            tmp_path / "g.mtx", matrix if dense else sp.coo_matrix(matrix),
            field=field, symmetry=symmetry, precision=17,
        )  # fmt: skip
        # What the file says of the order of entries does not matter: there are no duplicates.
        src, dst = np.nonzero(matrix)
        weight = None if field == "pattern" else matrix[src, dst]
        if field == "integer":
            weight = weight.astype(np.int64)
        want = from_edges(src, dst, 9, edge_weight=weight)
        assert_same(read(tmp_path, "g.mtx", num_nodes=None), want)

    def test_comments_blanks_and_gzip(self, tmp_path):
        text = "%%MatrixMarket MATRIX coordinate Real General\n"
        text += "%\n\n% c\n 3 3 2\n\n1 2 .5\n% d\n3 1 -2e0"
        for name in ("g.mtx", "g.mtx.gz"):
            got = read(tmp_path, name, text, num_nodes=None)
            want = from_edges(
                np.array([0, 2]), np.array([1, 0]), 3,
                edge_weight=np.array([0.5, -2], np.float32),
            )  # fmt: skip
            assert_same(got, want)

    @pytest.mark.parametrize(
        ("kind", "text", "problem", "where"),
        [
            ("vector coordinate real general", "1 1 0\n", "wanted a first line", "line 1"),
            ("matrix coordinate real diagonal", "1 1 0\n", "symmetry 'diagonal'", "line 1"),
            ("matrix coordinate real general", "1 1\n", "wanted 3 sizes", "line 2"),
            ("matrix coordinate real general", "2 3 0\n", "is 2 x 3", "g.mtx"),
            ("matrix coordinate real general", "2 2 1\n0 1 5\n", "row 0 is not in 1..2", "line 3"),
            ("matrix coordinate real general", "2 2 1\n1 3 5\n", "column 3 is not in", "line 3"),
            (
                "matrix coordinate real general",
                "2 2 2\n1 2 5\n",
                "2 entries, the file has 1",
                "g.mtx",
            ),
            (
                "matrix coordinate real general",
                "2 2 1\n1 2 5\n1 1 5\n",
                "1 entries, here is one more",
                "line 4",
            ),
            ("matrix coordinate real general", "2 2 1\n1 2\n", "wanted 3 columns, had 2", "line 3"),
            (
                "matrix coordinate real skew-symmetric",
                "2 2 1\n1 1 5\n",
                "no entries on its diagonal",
                "line 3",
            ),
            ("matrix coordinate complex general", "2 2 1\n1 2 5 1\n", "complex numbers", "g.mtx"),
            ("matrix array pattern general", "2 2\n", "dense pattern matrix is no graph", "g.mtx"),
        ],
    )
    def test_refusals(self, tmp_path, kind, text, problem, where):
        text = f"%%MatrixMarket {kind}\n{text}"
        with pytest.raises(GraphError, match=problem) as caught:
            read(tmp_path, "g.mtx", text, num_nodes=None)
        assert str(caught.value.culprit).endswith(where)

    def test_complex_edges_without_weights(self, tmp_path):
        text = "%%MatrixMarket matrix coordinate complex hermitian\n2 2 2\n2 1 5 1\n2 2 1 0\n"
        got = read(tmp_path, "g.mtx", text, num_nodes=None, weight="none")
        assert_same(got, from_edges(np.array([1, 0, 1]), np.array([0, 1, 1]), 2))


class TestMetis:
    def test_plain_with_comments_and_isolated_nodes(self, tmp_path):
        text = "% c\n4 2\n 2 3\n% c\n1\n1\n\n"
        want = from_edges(np.array([0, 0, 1, 2]), np.array([1, 2, 0, 0]), 4)
        assert_same(read(tmp_path, "g.graph", text, num_nodes=None), want)
        assert_same(read(tmp_path, "g.graph.gz", text, num_nodes=None), want)
        assert_same(read(tmp_path, "g.graph", "4 2\r\n2 3\r\n1\r\n1\r\n\r\n", num_nodes=None), want)

    @pytest.mark.parametrize(
        ("kind", "before"),
        [("1", ""), ("001", ""), ("011", "9 "), ("111", "5 9 "), ("11 2", "9 8 ")],
    )
    def test_weights(self, tmp_path, kind, before, caplog):
        text = f"3 2 {kind}\n{before}2 7 3 4\n{before}1 7\n{before}1 4\n"
        want = from_edges(
            np.array([0, 0, 1, 2]), np.array([1, 2, 0, 0]), 3,
            edge_weight=np.array([7, 4, 7, 4], np.float32),
        )  # fmt: skip
        assert_same(read(tmp_path, "g.graph", text, num_nodes=None), want)
        assert ("weights and sizes of nodes" in caplog.text) == bool(before)

    def test_lines_longer_than_a_block(self, tmp_path, monkeypatch):
        """A hub's line is cut between its neighbours; so is a comment."""
        from tiergnn.graph import ingest as module

        monkeypatch.setattr(module, "LEAST_BYTES", 1)
        n = 5000
        text = f"{n} {n - 1} 1\n% {'z ' * 9000}\n" + " ".join(f"{v} 3" for v in range(2, n + 1))
        text += "\n" + "1 3\n" * (n - 1)
        hub, leaves = np.zeros(n - 1, np.int64), np.arange(1, n)
        want = from_edges(
            np.concatenate([hub, leaves]), np.concatenate([leaves, hub]), n,
            edge_weight=np.full(2 * n - 2, 3, np.float32),
        )  # fmt: skip
        assert_same(read(tmp_path, "g.graph", text, num_nodes=None, memory=50_000), want)

    @pytest.mark.parametrize(
        ("text", "problem", "where"),
        [
            ("3\n2\n1\n\n", "wanted a header", "line 1"),
            ("3 1 2\n2\n1\n\n", "three digits 0 or 1", "line 1"),
            ("3 1\n2\n1\n", "3 nodes, the file has lines for 2 of them", "g.graph"),
            ("2 1\n2\n1\n1\n", "2 nodes, here is a line for one more", "line 4"),
            ("3 2\n2\n1\n\n", "2 edges, so 4 neighbours, the file has 2", "g.graph"),
            ("2 1\n3\n1\n", r"neighbour 3 is not in 1..2", "line 2"),
            ("2 1\n2\n0\n", r"neighbour 0 is not in 1..2", "line 3"),
            ("2 1\n2\n-1\n", "wanted whole numbers, had '-'", "line 3"),
            ("2 1 1\n2\n1 4\n", "neighbour 2 has no edge weight", "line 2"),
        ],
    )
    def test_refusals(self, tmp_path, text, problem, where):
        with pytest.raises(GraphError, match=problem) as caught:
            read(tmp_path, "g.graph", text, num_nodes=None)
        assert str(caught.value.culprit).endswith(where)

    @pytest.mark.parametrize(
        ("text", "problem", "line"),
        [
            ("3 2\n2\n3\n2 1\n", "node 3 stands not at all on the line of node 1, and 1 once", 4),
            ("3 2\n2 3\n1\n2\n", "(not at all|once) on the line of node ., and . ", 0),
            ("2 2\n2 2 2\n1\n", "node 2 stands 3 times on the line of node 1, and 1 once", 2),
            ("3 2 1\n2 5 3 5\n1 5 3 5\n\n", "stands once on .* not at all on that of 3", 0),
        ],
    )
    def test_an_edge_that_stands_one_way_only(self, tmp_path, text, problem, line):
        with pytest.raises(GraphError, match=problem) as caught:
            read(tmp_path, "g.graph", text, num_nodes=None)
        assert not line or str(caught.value.culprit).endswith(f"line {line}")
        assert "edge list" in (caught.value.hint or "")

    def test_one_edge_of_many_that_stands_one_way_only(self, tmp_path, monkeypatch):
        """Loops, repeats and blocks of a few lines; the sums go on over blocks and after a cut."""
        from tiergnn.graph import ingest as module

        monkeypatch.setattr(module, "LEAST_BYTES", 1)
        rng = np.random.default_rng(1)
        n = 700
        u, v = rng.integers(0, n, (2, 3000))
        u, v = u[u != v], v[u != v]
        src, dst = np.concatenate([u, v, [5, 5]]), np.concatenate([v, u, [5, 5]])

        def text(src, dst):
            rows = [" ".join(str(d + 1) for d in dst[src == node]) for node in range(n)]
            return f"{n} {src.size // 2}\n" + "\n".join(rows) + "\n"

        got = read(tmp_path, "g.graph", text(src, dst), num_nodes=None, memory=50_000)
        assert_same(got, from_edges(src, dst, n))
        src[-2:], dst[-2:] = (600, 601), (3, 4)
        with pytest.raises(GraphError, match="the graphs of METIS have no directions") as caught:
            read(tmp_path, "g.graph", text(src, dst), num_nodes=None, memory=50_000)
        assert ("line of node 4," in str(caught.value)) or ("line of node 5," in str(caught.value))
