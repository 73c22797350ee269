"""generate, info, partition and doctor: what they print, and that every option is honoured."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

from tests.odd import ODD
from tiergnn.cli.generate import app as generate
from tiergnn.cli.main import app
from tiergnn.graph.csr import Graph, from_edges
from tiergnn.graph.generate import sbm
from tiergnn.graph.ids import NodeIds
from tiergnn.graph.partition import Partition
from tiergnn.graph.summary import Summary
from tiergnn.units import format_bytes


@pytest.mark.parametrize("name", ODD)
def test_info_of_every_odd_graph(cli, tmp_path, name):
    graph = ODD[name]()
    graph.save(tmp_path / "g")
    found = cli("info", tmp_path / "g", "--json").json
    adjacency = np.zeros((graph.num_nodes, graph.num_nodes), int)
    dst = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    np.add.at(adjacency, (dst, graph.col), 1)
    assert found["num_nodes"] == graph.num_nodes
    assert found["num_edges"] == graph.num_edges
    assert found["symmetric"] == bool((adjacency == adjacency.T).all())
    assert found["self_loops"] == np.trace(adjacency)
    assert found["repeats"] == np.maximum(adjacency - 1, 0).sum()
    assert found["isolated"] == ((adjacency.sum(0) + adjacency.sum(1)) == 0).sum()
    for key, axis in (("in_degree", 1), ("out_degree", 0)):
        degree = adjacency.sum(axis)
        if degree.size:
            assert found[key]["min"] == degree.min()
            assert found[key]["median"] == np.median(degree)
            assert found[key]["max"] == degree.max()
    assert found["splits"] == {split: ids.size for split, ids in graph.splits.items()}
    assert cli("info", tmp_path / "g").code == 0


def test_info_counts_labels(tmp_path):
    none, src = np.empty(0, np.int64), np.array([0, 1])
    several = from_edges(
        none, none, 3, y=np.array([[1, 0], [-1, -1], [1, -1]], np.int8), task="multilabel"
    )
    assert Summary.of(several).num_labelled == 2
    assert Summary.of(several).class_counts == (2, 0)
    real = from_edges(src, src, 2, y=np.array([np.nan, 1.0], np.float32), task="real")
    assert Summary.of(real).num_labelled == 1
    classes = from_edges(none, none, 4, y=np.array([2, -1, 2, 0]), num_classes=4)
    assert Summary.of(classes).num_labelled == 3
    assert Summary.of(classes).class_counts == (1, 0, 2, 0)


def test_info_tells_of_names(cli, tmp_path):
    none = np.empty(0, np.int64)
    graph = from_edges(none, none, 2, node_ids=NodeIds.from_names(["ada", "ben"]))
    graph.save(tmp_path / "g")
    assert cli("info", tmp_path / "g", "--json").json["node_ids"] == "strings"


def test_info_tells_what_was_noted_at_ingest(cli, tmp_path, caplog):
    (tmp_path / "e.csv").write_text("a,b,since\n0,1,7\n1,2,8\n")
    (tmp_path / "n.csv").write_text("id,kind\n0,red\n1,blue\n2,red\n")
    options = ("--nodes", tmp_path / "n.csv", "--node-label", "kind", "--out", tmp_path / "g")
    assert cli("ingest", tmp_path / "e.csv", *options).code == 0
    assert "classes 0..1 are called blue, red" in caplog.text
    info = cli("info", tmp_path / "g").out
    assert "not read: since" in info
    assert "classes 0..1 are called blue, red" in info
    assert len(cli("info", tmp_path / "g", "--json").json["notes"]) == 3


def test_info_shows_splits_in_the_order_of_their_use(cli, tmp_path):
    (tmp_path / "e.csv").write_text("a,b\n0,1\n1,2\n")
    (tmp_path / "n.csv").write_text("id,split\n0,val\n1,test\n2,train\n")
    cli("ingest", tmp_path / "e.csv", "--nodes", tmp_path / "n.csv", "--out", tmp_path / "g")
    shown = cli("info", tmp_path / "g").out.partition("of all")[2]
    assert shown.index("train") < shown.index("val") < shown.index("test")


def test_info_shows_many_numbered_splits_in_one_row(cli, tmp_path):
    graph = sbm(400, 2, seed=0)
    made = {f"{name}.{k}": np.arange(20 + k) for name in ("train", "val") for k in range(30)}
    made |= {"test": np.arange(100), "fold.0": np.arange(5), "fold.1": np.arange(6)}
    replace(graph, splits=made).save(tmp_path / "g")
    _, splits, arrays = cli("info", tmp_path / "g").out.split("\n\n")
    assert [re.split("  +", line.strip()) for line in splits.splitlines()[2:]] == [
        ["train.0 ... train.29 (30)", "20 to 49", "5.0 to 12.2 %"],
        ["val.0 ... val.29 (30)", "20 to 49", "5.0 to 12.2 %"],
        ["test", "100", "25.0 %"],
        ["fold.0", "5", "1.2 %"],
        ["fold.1", "6", "1.5 %"],
    ]
    total = 8 * sum(range(20, 50))
    row = f"splits/train.0 ... train.29 (30)  int64    20 to 49  {format_bytes(total)}"
    assert re.sub(" +", " ", row) in re.sub(" +", " ", arrays)
    assert len(cli("info", tmp_path / "g", "--json").json["splits"]) == 63


def test_info_verify_sees_a_flipped_byte_and_no_verify_does_not_look(cli, tmp_path):
    cli("generate", "path", "--nodes", 50, "--out", tmp_path / "g")
    file = next((tmp_path / "g").glob("col*"))
    data = bytearray(file.read_bytes())
    data[-4] ^= 1
    file.write_bytes(bytes(data))
    refused = cli("info", tmp_path / "g", "--verify")
    assert refused.code == 3
    assert "checksum" in refused.err
    assert cli("info", tmp_path / "g").code == 3  # a small folder is verified by default
    assert cli("info", tmp_path / "g", "--no-verify").code == 0


def test_a_folder_that_is_no_graph_is_a_store_error(cli, tmp_path):
    refused = cli("info", tmp_path / "nothing")
    assert refused.code == 3
    assert "ingest" in refused.err
    assert refused.out == ""


def test_partitions_are_kept_and_shown(cli, tmp_path):
    cli("generate", "sbm", "--nodes", 200, "--degree", 6, "--out", tmp_path / "g")
    made = cli("partition", tmp_path / "g", "--parts", 4, "--save", "--json").json
    assert made["num_parts"] == 4
    assert sum(made["parts"]["nodes"]) == 200
    shown = cli("info", tmp_path / "g", "--json").json["partitions"]
    assert list(shown) == ["block-4"]
    assert shown["block-4"]["edge_cut"] == made["edge_cut"]
    again = cli("partition", tmp_path / "g", "--parts", 4, "--save")
    assert again.code == 3
    assert cli("partition", tmp_path / "g", "--parts", 4, "--save", "--overwrite").code == 0
    told = cli("partition", tmp_path / "g", "--parts", 3, "--out", tmp_path / "p")
    assert "expansion ratio" in told.out
    assert Partition.open(Graph.open(tmp_path / "g"), tmp_path / "p").num_parts == 3


def test_partition_options_are_honoured(cli, tmp_path):
    pytest.importorskip("pymetis")
    cli("generate", "sbm", "--nodes", 300, "--degree", 6, "--out", tmp_path / "g")

    def cut(*options):
        return cli("partition", tmp_path / "g", "--num_parts", 3, *options, "--json").json

    block, metis = cut(), cut("--method", "metis")
    assert metis["edge_cut"] < block["edge_cut"]
    assert cut("--method", "metis", "--seed", 5)["parts"] != metis["parts"]
    switching = cut("--method", "switching", "--threads", 2, "--quiet")
    assert switching["method"] == "switching"
    assert switching["expansion_ratio"] < block["expansion_ratio"]
    assert switching["parts"] == cut("--method", "switching", "--threads", 1)["parts"]
    assert switching["parts"] != cut("--method", "switching", "--seed", 5)["parts"]
    assert switching["reason"] == ""
    chosen = cut("--method", "auto")
    assert (chosen["method"], chosen["parts"]) == ("metis", metis["parts"])
    assert "METIS seconds" in chosen["reason"]
    assert cut("--method", "auto", "--memory", "1MiB")["method"] == "block"
    level = cut("--method", "metis", "--balance", "nodes=1.2,train")
    assert level["balance"]["train"]["asked"] == 1
    assert level["balance"]["nodes"]["asked"] == 1.2
    assert max(level["parts"]["splits"]["train"]) - min(level["parts"]["splits"]["train"]) <= 1


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        (("--method", "metsi"), "'metis'"),
        (("--balance", "trian"), "'train'"),
        (("--balance", "nodes=lots"), "nodes=1.05,train"),
        (("--method", "auto", "--memory", "lots"), "512MiB"),
    ],
)
def test_bad_partition_options_are_answered(cli, tmp_path, options, answer):
    cli("generate", "sbm", "--nodes", 40, "--degree", 4, "--out", tmp_path / "g")
    refused = cli("partition", tmp_path / "g", "--parts", 2, *options)
    assert refused.code == 2
    assert answer in refused.err


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("rmat", ("--nodes", 99)),
        ("rmat", ("--edges", 444)),
        ("rmat", ("--a", 0.3)),
        ("rmat", ("--b", 0.1)),
        ("rmat", ("--c", 0.1)),
        ("rmat", ("--undirected",)),
        ("rmat", ("--seed", 1)),
        ("sbm", ("--nodes", 99)),
        ("sbm", ("--classes", 3)),
        ("sbm", ("--degree", 5)),
        ("sbm", ("--homophily", 0.4)),
        ("sbm", ("--features", 3)),
        ("sbm", ("--signal", 2)),
        ("sbm", ("--seed", 1)),
        ("grid", ("--height", 3)),
        ("grid", ("--width", 3)),
        ("star", ("--leaves", 9)),
        ("star", ("--direction", "out")),
        ("path", ("--nodes", 9)),
        ("path", ("--undirected",)),
    ],
    ids=str,
)
def test_generator_options_are_honoured(cli, tmp_path, kind, options):
    small = {"rmat": ("--nodes", 64, "--edges", 200), "sbm": ("--nodes", 120, "--degree", 4)}

    def make(*extra):
        shutil.rmtree(tmp_path / "g", ignore_errors=True)
        assert (
            cli("generate", kind, *small.get(kind, ()), *extra, "--out", tmp_path / "g").code == 0
        )
        graph = Graph.open(tmp_path / "g")
        return graph.rowptr.tolist(), graph.col.tolist(), graph.x and graph.x.data.tobytes()

    plain = make()
    assert make() == plain
    assert make(*options) != plain


def test_generate_replaces_only_when_told(cli, tmp_path):
    assert cli("generate", "path", "--nodes", 5, "--out", tmp_path / "g").code == 0
    assert cli("generate", "path", "--nodes", 6, "--out", tmp_path / "g").code == 3
    assert Graph.open(tmp_path / "g").num_nodes == 5
    assert cli("generate", "path", "--nodes", 6, "--out", tmp_path / "g", "--overwrite").code == 0
    assert Graph.open(tmp_path / "g").num_nodes == 6


def test_doctor_reports_findings_and_remedies(cli, tmp_path):
    found = cli("doctor", "--folder", tmp_path, "--json").json
    names = [finding["name"] for finding in found["findings"]]
    assert {"torch", "RAM", "/dev/shm", "CUDA"} <= set(names)
    for finding in found["findings"]:
        assert finding["status"] == "ok" or finding["remedy"]
    assert str(tmp_path) in str(found)
    ranks = next(one for one in found["findings"] if one["group"] == "ranks")
    assert ranks["name"] == "on processors"
    assert ranks["data"]["transport"] in ("shared", "gloo")
    told = cli("doctor", "--folder", tmp_path)
    assert "torch" in told.out


def test_doctor_ends_with_1_when_something_does_not_work(cli, monkeypatch):
    from tiergnn.hardware.finding import Finding, Report

    broken = Finding(
        group="software", name="numba", value="not installed", status="fail", remedy="pip install"
    )
    slow = Finding(group="disk", name="speed", value="1 MB/s", status="warn", remedy="another disk")
    monkeypatch.setattr("tiergnn.hardware.probe.probe", lambda folder: Report((broken, slow)))
    told = cli("doctor")
    assert told.code == 1
    assert "-> pip install" in told.out
    assert "1 do not work (X), 1 work with less or slower (!)" in told.out


def test_help_of_every_command_has_an_example(cli):
    names = [command.name or command.callback.__name__ for command in app.registered_commands]
    names += [f"generate {command.callback.__name__}" for command in generate.registered_commands]
    assert len(names) >= 16
    for command in names:
        told = cli(*command.split(), "--help")
        assert f"Example: tiergnn {command}" in " ".join(told.out.split()), command
