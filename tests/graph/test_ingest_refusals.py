"""Bad input is refused before there is anything at OUT: file, place, value, way out."""

from __future__ import annotations

import gzip
import os

import numpy as np
import pytest

from tiergnn.errors import ConfigError, GraphError, StoreError
from tiergnn.graph.ingest import ingest


def refusal(tmp_path, name: str, data: bytes | str, error: type = GraphError, **options):
    """The error, after which only the source is there."""
    path = tmp_path / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    with pytest.raises(error) as caught:
        ingest(path, tmp_path / "out", **options)
    assert [p.name for p in tmp_path.iterdir()] == [name]
    assert name in str(caught.value) or error is ConfigError
    return caught.value


@pytest.mark.parametrize(
    ("name", "text", "problem", "line"),
    [
        ("g.txt", "0 1\n1 2.5\n", "target id '2.5' is not a whole number", 2),
        ("g.txt", "0 1\n\n# c\n1 two\n", "target id 'two' is not a whole number", 4),
        ("g.txt", "0 1\n7\n", "wanted 2 columns, had 1: '7'", 2),
        ("g.txt", "0 1\n1 2 3\n", "wanted 2 columns, had 3: '1 2 3'", 2),
        ("g.txt", "0 1 2\n1 2\n", "wanted 3 columns, had 2: '1 2'", 2),
        ("g.txt", "0 1\n1 9223372036854775808\n", "does not fit 64 bits", 2),
        ("g.txt", "0 1\n1 -9223372036854775809\n", "does not fit 64 bits", 2),
        ("g.txt", "0 1\n1 -\n", "target id '-' is not a whole number", 2),
        ("g.txt", "0 1\n-3 1\n", "source id -3 is negative", 2),
        ("g.txt", "0 1 0.5\n1 2 x\n", "edge weight 'x' is not a number", 2),
        ("g.txt", "0 1 0.5\n1 2 1e\n", "edge weight '1e' is not a number", 2),
        ("g.txt", "0 1 0.5\n1 2 1.2.3\n", "edge weight '1.2.3' is not a number", 2),
        ("g.csv", "src,dst\n0,1\n0,1,2\n", "wanted 2 columns, had 3: '0,1,2'", 3),
        ("g.csv", "src,dst\n0,1\n,1\n", "source id '' is not a whole number", 3),
        ("g.csv", "src,dst,w\n0,1,1\n0,1,\n", "edge weight is empty", 3),
        ("g.csv", 'src,dst\n0,1\n"0,1\n', "a quote is not closed", 3),
        ("g.csv", 'src,dst\n0,1\n"0"x,1\n', "a quote is not closed on its line, or text", 3),
        ("g.csv", "src,src\n0,1\n", "two columns are called 'src'", 1),
    ],
)
def test_text(tmp_path, name, text, problem, line):
    for ending in ("", ".gz"):
        data = gzip.compress(text.encode()) if ending else text
        error = refusal(tmp_path, name + ending, data)
        assert problem in error.problem
        assert str(error.culprit).endswith(f"line {line}")
        assert error.hint or "weight" in problem or "two columns" in problem
        (tmp_path / (name + ending)).unlink()


def test_the_line_is_right_far_into_the_file(tmp_path):
    """Blocks, comments and blank lines are counted."""
    text = "# head\n" + "".join(f"{i % 7} {i % 5}\n" + "\n# x\n" * (i % 3) for i in range(40_000))
    line = text.count("\n") + 1
    error = refusal(tmp_path, "g.txt", text + "3 oops\n", memory="1MiB")
    assert str(error.culprit).endswith(f"g.txt, line {line}")


def test_names(tmp_path):
    error = refusal(tmp_path, "g.csv", "src,dst\na,b\nb,\n")
    assert error.problem == "the name of a node is empty"
    assert str(error.culprit).endswith("line 3")
    (tmp_path / "g.csv").unlink()
    error = refusal(tmp_path, "g.csv", b"src,dst\na,b\nb,\xe9t\xe9\n")
    assert error.problem == "byte 0xe9 is not UTF-8"
    assert str(error.culprit).endswith("line 3")
    (tmp_path / "g.csv").unlink()
    error = refusal(tmp_path, "g.csv", "src,dst\na,b\n" + "x" * 2000 + ",b\n")
    assert "longer than 1024 bytes" in error.problem
    (tmp_path / "g.csv").unlink()
    error = refusal(tmp_path, "g.csv", "src,dst\na,b\n", ids="dense")
    assert "'a' is not a whole number" in error.problem


def test_compressed_text(tmp_path):
    whole = gzip.compress(b"0 1\n" * 5000)
    error = refusal(tmp_path, "g.txt.gz", whole[:-9])
    assert "cut short" in error.problem
    (tmp_path / "g.txt.gz").unlink()
    error = refusal(tmp_path, "g.txt.gz", whole[:-8] + b"\0" * 8)
    assert "damaged" in error.problem
    (tmp_path / "g.txt.gz").unlink()
    for magic, command in (
        (b"BZh9", "bunzip2"),
        (b"\xfd7zXZ\x00", "unxz"),
        (b"\x28\xb5\x2f\xfd", "unzstd"),
    ):
        error = refusal(tmp_path, "g.csv", magic + b"rest")
        assert error.hint == f"{command} g.csv"
        (tmp_path / "g.csv").unlink()
    error = refusal(tmp_path, "g.csv", "src,dst\n0,1\n".encode("utf-16"))
    assert "UTF-16" in error.problem


def test_text_that_is_none(tmp_path):
    error = refusal(tmp_path, "g.csv", b"0,1\n\0\0,\0\n")
    assert "NUL bytes" in error.problem


def saved(tmp_path, array, **more) -> bytes:
    path = tmp_path / "made.npy"
    np.save(path, array, allow_pickle=True)
    data = path.read_bytes()
    path.unlink()
    return data


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (np.zeros((2, 3)), "ids must be whole numbers or text, had float64"),
        (np.zeros((2, 3), bool), "ids must be whole numbers or text, had bool"),
        (np.zeros((3, 4), int), r"wanted edges as ids [2, E] or [E, 2], had [3, 4]"),
        (np.zeros(4, int), "had [4]"),
        (np.array([[0, None], [1, 2]]), "only pickle can read"),
        (np.zeros(3, "i4,i4"), "wanted an array of numbers"),
        (np.array([[0, 1, -2], [1, 1, 1]]), "source id -2 is negative"),
        (np.array([[0, 2**64 - 1], [1, 1]], np.uint64), "is too large"),
    ],
)
def test_arrays(tmp_path, array, problem):
    error = refusal(
        tmp_path, "g.npy", saved(tmp_path, array), ids="dense" if "large" in problem else "auto"
    )
    assert problem in error.problem


def test_large_unsigned_ids_are_no_numbers_of_64_bits(tmp_path):
    data = saved(tmp_path, np.array([[0, 2**64 - 1], [1, 1]], np.uint64))
    error = refusal(tmp_path, "g.npy", data, ids="relabel")
    assert "does not fit 64 bits" in error.problem
    assert str(error.culprit).endswith("g.npy[:, 1]")


def test_positions_in_arrays(tmp_path):
    pairs = np.zeros((7, 2), int)
    pairs[5, 1] = 9
    error = refusal(tmp_path, "g.npy", saved(tmp_path, pairs), num_nodes=4)
    assert str(error.culprit) == "g.npy[5, :]"
    (tmp_path / "g.npy").unlink()
    error = refusal(tmp_path, "g.npy", saved(tmp_path, pairs.T.copy()), num_nodes=4)
    assert str(error.culprit) == "g.npy[:, 5]"


def test_files_cut_short(tmp_path):
    data = saved(tmp_path, np.zeros((2, 100), int))
    error = refusal(tmp_path, "g.npy", data[:-8])
    assert "cut short: int64 [2, 100] takes 1600 bytes, 1592 are there" in error.problem
    (tmp_path / "g.npy").unlink()
    error = refusal(tmp_path, "g.npy", data[:20])
    assert "not a whole .npy" in error.problem
    (tmp_path / "g.npy").unlink()
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "g.npz", edge_index=np.arange(2000).reshape(2, 1000))
        data = (tmp_path / "g.npz").read_bytes()
        (tmp_path / "g.npz").unlink()
        error = refusal(tmp_path, "g.npz", data[:-30])
        assert "not a whole .npy or .npz" in error.problem
        (tmp_path / "g.npz").unlink()


def test_arrays_by_name(tmp_path):
    edges = np.zeros((2, 3), int)
    for held, problem in (
        ({"x": np.zeros(3)}, "there are no edges among the arrays x"),
        ({"edge_index": edges, "edge_weight": np.zeros(2)}, "needs one row for each of 3 edges"),
        ({"edge_index": edges, "edge_weight": np.zeros((3, 2))}, "one number an edge"),
        ({"edge_index": edges, "edge_attr": np.array(["a"] * 3)}, "edge features need numbers"),
        ({"edge_index": edges, "x": np.zeros((1, 2)), "y": np.zeros(2)}, "has 2 rows"),
        ({"edge_index": edges, "num_nodes": np.array([2, 3])}, "holds 2 graphs, wanted one"),
        ({"src": np.zeros(3, int), "dst": np.zeros(2, int)}, "need one length [E]"),
        ({"edge_index": edges, "train_mask": np.ones(1, int)}, "needs a boolean mask"),
        ({"edge_index": edges, "edge_weight": np.array([1, np.nan, 2])}, "weight nan is not"),
    ):
        np.savez(tmp_path / "g.npz", **held)
        data = (tmp_path / "g.npz").read_bytes()
        (tmp_path / "g.npz").unlink()
        assert problem in refusal(tmp_path, "g.npz", data).problem
        (tmp_path / "g.npz").unlink()


def test_edge_features_that_do_not_fit(tmp_path):
    error = refusal(
        tmp_path, "g.csv", "src,dst,t\n0,1,5\n0,1,16777217\n", edge_features="t", num_nodes=2
    )
    assert "edge feature 16777217.0 in column 0 does not fit float32" in error.problem
    assert str(error.culprit).endswith("line 3")
    (tmp_path / "g.csv").unlink()
    error = refusal(
        tmp_path, "g.csv", "src,dst,t\n0,1,5\n0,1,300\n", edge_features="t",
        edge_feature_dtype="uint8",
    )  # fmt: skip
    assert "300.0 in column 0 does not fit uint8" in error.problem


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("g.npy", {"source": "a"}, "source='a' is for columns"),
        ("g.npy", {"delimiter": ","}, "delimiter=',' is for columns"),
        ("g.npy", {"weight": "w"}, "weight='w' names a column"),
        ("g.npy", {"ids": "names"}, "ids='names' is for text"),
        ("g.npy", {"edge_feature_dtype": "int8"}, "there are no edge features"),
        ("g.mtx", {"weight": 2}, "weight=2 names a column"),
        ("g.mtx", {"edge_features": "a"}, "edge_features=('a',) is for columns"),
        ("g.graph", {"header": True}, "header=True is for columns"),
        ("g.graph", {"weight": "w"}, "weight='w' names a column"),
    ],
)
def test_options_that_a_format_has_no_use_for(tmp_path, name, options, problem):
    """No setting is ignored in silence."""
    data = {
        "g.npy": saved(tmp_path, np.zeros((2, 1), int)),
        "g.mtx": b"%%MatrixMarket matrix coordinate real general\n1 1 1\n1 1 1\n",
        "g.graph": b"1 0\n\n",
    }[name]
    assert problem in refusal(tmp_path, name, data, ConfigError, **options).problem


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(StoreError, match="cannot read: No such file"):
        ingest(tmp_path / "nothing.txt", tmp_path / "out")
    (tmp_path / "g.txt").write_text("0 1\n")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot make a folder|a file stands"):
        ingest(tmp_path / "g.txt", tmp_path / "file")
    if os.geteuid():
        (tmp_path / "g.txt").chmod(0)
        with pytest.raises(StoreError, match="Permission denied"):
            ingest(tmp_path / "g.txt", tmp_path / "out")
    assert not (tmp_path / "out").exists()
