"""ingest: exit codes and answers, progress, and that every option reaches the reader."""

from __future__ import annotations

import inspect
import json

import numpy as np
import pytest

from tests.data import data_dir
from tiergnn.cli.ingest import ingest as command
from tiergnn.graph.csr import Graph
from tiergnn.graph.ingest import ingest


def written(path, text):
    path.write_text(text)
    return path


@pytest.fixture
def edges(tmp_path):
    return written(tmp_path / "edges.csv", "from,to,weight,kind\n0,1,1.5,3\n1,2,2.5,4\n2,2,1.0,5\n")


def test_every_option_of_the_reader_is_one_of_the_command():
    offered = set(inspect.signature(command).parameters)
    known = set(inspect.signature(ingest).parameters)
    assert known - {"progress"} == offered - {"json", "quiet"}


def test_a_file_becomes_a_graph(cli, edges, tmp_path):
    told = cli("ingest", edges, "--out", tmp_path / "g", "--json").json
    assert (told["num_nodes"], told["num_edges"]) == (3, 3)
    graph = Graph.open(tmp_path / "g")
    assert graph.col.tolist() == [0, 1, 2]
    assert graph.edge_weight.tolist() == [1.5, 2.5, 1.0]
    again = cli("ingest", edges, "--out", tmp_path / "g")
    assert again.code == 3
    shown = cli("ingest", edges, "--out", tmp_path / "g", "--overwrite")
    assert "tiergnn info" in shown.out


def test_progress_is_told_on_stderr_unless_quiet(cli, edges, tmp_path):
    loud = cli("ingest", edges, "--out", tmp_path / "a", "--json")
    assert "done in" in loud.err
    assert json.loads(loud.out)
    quiet = cli("ingest", edges, "--out", tmp_path / "b", "--quiet", "--json")
    assert "done in" not in quiet.err


@pytest.mark.parametrize(
    ("lines", "options", "position", "value"),
    [
        ("3 4\n9 12\n", ("--num-nodes", 5), "line 2", "9"),
        ("0 1\n-1 2\n", ("--ids", "dense"), "line 2", "-1"),
        ("0 1\n2 5\n", ("--num-nodes", 5), "line 2", "5"),
        ("1 2\n5 1\n", ("--num-nodes", 5), "line 2", "5"),
        ("0 1\n1 two\n", ("--ids", "dense"), "line 2", "two"),
    ],
    ids=["sparse", "negative", "just too large", "1-based", "no number"],
)
def test_ids_out_of_range_are_refused_before_anything_is_written(
    cli, tmp_path, lines, options, position, value
):
    """Case A11: exit code 2, and the file, the line and the value are named."""
    src = written(tmp_path / "edges.txt", lines)
    refused = cli("ingest", src, *options, "--out", tmp_path / "g")
    assert refused.code == 2
    assert refused.out == ""
    for told in (str(src), position, value):
        assert told in refused.err
    assert "try:" in refused.err
    assert [path.name for path in tmp_path.iterdir()] == ["edges.txt"]


def test_ways_out_of_odd_ids_work(cli, tmp_path):
    src = written(tmp_path / "edges.txt", "3 7\n9 12\n")
    told = cli("ingest", src, "--ids", "relabel", "--out", tmp_path / "g", "--json").json
    assert told["num_nodes"] == 4
    assert Graph.open(tmp_path / "g").node_ids.names().tolist() == [3, 7, 9, 12]
    src = written(tmp_path / "one.txt", "1 2\n5 1\n")
    told = cli("ingest", src, "--one_based", "--out", tmp_path / "h", "--json").json
    assert told["num_nodes"] == 5


@pytest.mark.parametrize(
    ("options", "check"),
    [
        (("--undirected",), lambda g: g.num_edges == 5),
        (("--self-loops", "remove"), lambda g: g.num_edges == 2),
        (("--self-loops", "add"), lambda g: g.num_edges == 5),
        (("--num-nodes", 9), lambda g: g.num_nodes == 9),
        (("--weight", "none"), lambda g: g.edge_weight is None),
        (("--weight", "kind"), lambda g: g.edge_weight.tolist() == [3, 4, 5]),
        (("--weight-dtype", "float64"), lambda g: g.edge_weight.dtype == np.float64),
        (("--edge-features", "kind"), lambda g: g.edge_attr.data.tolist() == [[3], [4], [5]]),
        (
            ("--edge-features", "kind", "--edge-feature-dtype", "uint8"),
            lambda g: g.edge_attr.dtype == "uint8",
        ),
        (("--source", "to", "--target", "from"), lambda g: g.rowptr.tolist() == [0, 1, 2, 3]),
        (("--source", "1", "--target", "0"), lambda g: g.col.tolist() == [1, 2, 2]),
        (("--ids", "names"), lambda g: g.node_ids.names().tolist() == ["0", "1", "2"]),
        (("--format", "csv"), lambda g: g.num_edges == 3),
        (("--memory", "300MiB"), lambda g: g.num_edges == 3),
        (("--header", "--delimiter", ","), lambda g: g.num_edges == 3),
        (("--fresh",), lambda g: g.num_edges == 3),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_options_for_edges(cli, edges, tmp_path, options, check):
    done = cli("ingest", edges, *options, "--out", tmp_path / "g")
    assert done.code == 0, done.err
    assert check(Graph.open(tmp_path / "g"))


def test_no_header_and_another_delimiter(cli, tmp_path):
    src = written(tmp_path / "edges.txt", "0;1\n1;2\n")
    assert cli("ingest", src, "--delimiter", ";", "--no-header", "--out", tmp_path / "g").code == 0
    assert Graph.open(tmp_path / "g").num_edges == 2


def test_duplicates(cli, tmp_path):
    src = written(tmp_path / "edges.txt", "0 1\n0 1\n1 0\n")
    cli("ingest", src, "--out", tmp_path / "kept")
    assert Graph.open(tmp_path / "kept").num_edges == 3
    cli("ingest", src, "--duplicates", "sum", "--out", tmp_path / "summed")
    assert Graph.open(tmp_path / "summed").edge_weight.tolist() == [1, 2]
    refused = cli("ingest", src, "--duplicates", "refuse", "--out", tmp_path / "refused")
    assert refused.code == 2
    assert not (tmp_path / "refused").exists()


def test_a_table_of_nodes(cli, tmp_path):
    src = written(tmp_path / "edges.csv", "from,to\nada,ben\nben,cleo\n")
    nodes = written(
        tmp_path / "nodes.csv",
        "name,group,part,age,size\ncleo,1,test,3,30\nada,0,train,1,10\nben,1,val,2,20\n"
        "dan,0,train,4,40\n",
    )
    columns = ("--node-id", "name", "--node-label", "group", "--node-split", "part")
    src_options = ("ingest", src, "--ids", "relabel", "--nodes", nodes, *columns)
    assert cli(*src_options, "--out", tmp_path / "g").code == 0
    graph = Graph.open(tmp_path / "g")
    assert graph.node_ids.names().tolist() == ["ada", "ben", "cleo", "dan"]
    assert graph.y.tolist() == [0, 1, 1, 0]
    assert graph.splits["train"].tolist() == [0, 3]
    assert graph.x.data.tolist() == [[1, 10], [2, 20], [3, 30], [4, 40]]
    more = ("--node-features", "size", "--feature-dtype", "float16", "--num-classes", 5)
    assert cli(*src_options, *more, "--out", tmp_path / "h").code == 0
    graph = Graph.open(tmp_path / "h")
    assert graph.x.dtype == "float16"
    assert graph.x.data.tolist() == [[10], [20], [30], [40]]
    assert graph.num_classes == 5


def test_rows_from_other_files(cli, edges, tmp_path):
    np.save(tmp_path / "x.npy", np.array([[1, 2], [3, 4], [5, 6]], np.int8))
    np.save(tmp_path / "y.npy", np.array([0, 1, 0]))
    np.savez(tmp_path / "splits.npz", train=np.array([True, False, False]), test=np.array([2]))
    rows = ("--features", tmp_path / "x.npy", "--labels", tmp_path / "y.npy")
    more = ("--splits", tmp_path / "splits.npz", "--feature-scale", 0.5, "--task", "class")
    done = cli("ingest", edges, *rows, *more, "--out", tmp_path / "g")
    assert done.code == 0, done.err
    graph = Graph.open(tmp_path / "g")
    assert graph.x.dtype == "int8"
    assert graph.x.decode().tolist() == [[0.5, 1], [1.5, 2], [2.5, 3]]
    assert graph.y.tolist() == [0, 1, 0]
    assert {name: ids.tolist() for name, ids in graph.splits.items()} == {"train": [0], "test": [2]}
    np.save(tmp_path / "scale.npy", np.array([1, 10], np.float32))
    scale = ("--feature-scale", tmp_path / "scale.npy")
    assert cli("ingest", edges, *rows, *scale, "--out", tmp_path / "h").code == 0
    assert Graph.open(tmp_path / "h").x.decode().tolist() == [[1, 20], [3, 40], [5, 60]]


@pytest.mark.parametrize(
    ("options", "code", "answer"),
    [
        (("--format", "cvs"), 2, "'csv'"),
        (("--ids", "relable"), 2, "'relabel'"),
        (("--memory", "much"), 2, "GiB"),
        (("--duplicates", "smu"), 2, "'sum'"),
        (("--feature-dtype", "float8"), 2, "float16"),
        (("--nodes", "nowhere.csv"), 3, "nowhere.csv"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_options_are_answered(cli, edges, tmp_path, options, code, answer):
    refused = cli("ingest", edges, *options, "--out", tmp_path / "g")
    assert refused.code == code, refused.err
    assert answer in refused.err
    assert not (tmp_path / "g").exists()


def test_a_source_that_is_not_there(cli, tmp_path):
    refused = cli("ingest", tmp_path / "nowhere.txt", "--out", tmp_path / "g")
    assert refused.code == 3
    assert "nowhere.txt" in refused.err


def test_a_real_graph(cli, tmp_path):
    told = cli("ingest", data_dir("cora"), "--out", tmp_path / "cora", "--json").json
    assert (told["num_nodes"], told["num_edges"]) == (2708, 10556)
    assert told["splits"] == {"train": 140, "val": 500, "test": 1000}
