"""Values that no option can take: refused with what was had, never an unexpected error."""

from __future__ import annotations

import os
import shutil
import subprocess

import numpy as np
import pytest

from tiergnn.graph.generate import sbm


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    path = tmp_path_factory.mktemp("graphs") / "g"
    sbm(60, 3, degree=4, num_features=4, seed=1).save(path)
    return path


@pytest.mark.parametrize(
    "options",
    [
        ("rmat", "--nodes", 10**18),
        ("rmat", "--nodes", 10**30),
        ("rmat", "--nodes", 10, "--edges", 10**18),
        ("rmat", "--nodes", 10, "--a", "nan"),
        ("rmat", "--nodes", 10, "--c", "nan"),
        ("rmat", "--nodes", 10, "--b", "inf"),
        ("sbm", "--nodes", 10, "--degree", "inf"),
        ("sbm", "--nodes", 10, "--degree", 1, "--signal", "inf"),
        ("sbm", "--nodes", 10, "--classes", 10**17),
        ("grid", "--height", 10**10, "--width", 10**10),
        ("grid", "--height", 10**30, "--width", 0),
        ("star", "--leaves", 10**30),
        ("path", "--nodes", 10**18),
    ],
    ids=str,
)
def test_generators(cli, tmp_path, options):
    done = cli("generate", *options, "--out", tmp_path / "g")
    assert done.code == 2, done.err
    assert done.err.startswith("error: ")
    assert "unexpected" not in done.err
    assert not any(tmp_path.iterdir())


def test_more_memory_than_there_is(cli, tmp_path):
    done = cli("generate", "path", "--nodes", 2**47, "--out", tmp_path / "g")
    assert done.code == 2
    assert "more memory is needed than there is" in done.err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--lr", "1e300"), "lr"),
        (("--lr", "nan"), "lr"),
        (("--wd", "inf"), "weight_decay"),
        (("--wd", "nan"), "weight_decay"),
        (("--clip", "inf"), "clip"),
        (("--class-weight", "nan,1,1"), "3 numbers"),
        (("--class-weight", "inf,1,1"), "3 numbers"),
        (("--class-weight", "0,0,0"), "not all 0"),
        (("--split", "random:nan/0.2/0.2"), "planetoid"),
        (("--split", "random:inf/0.2/0.2"), "planetoid"),
        (("--split", "planetoid:inf/1/1"), "planetoid"),
        (("--split", "planetoid:1.5/1/1"), "planetoid"),
        (("--split", "planetoid:1e30/1/1"), "planetoid"),
        (("--split", "random:0.6/0.2/0.2@-1"), "@SEED"),
        (("--split", f"random:0.6/0.2/0.2@{2**64}"), "@SEED"),
        (("--device-memory", "1e400GiB"), "64 bits"),
        (("--device-memory", "-5GiB"), "number of bytes"),
        (("--device-memory", "nan"), "number of bytes"),
        (("--device-memory", 300), "300MiB"),
        (("--host-memory", 300), "300MiB"),
    ],
    ids=str,
)
def test_training(cli, graph, tmp_path, options, told):
    done = cli("train", graph, "-m", "gcn", "--out", tmp_path / "r", "-q", "--epochs", 1, *options)
    assert done.code == 2, done.err
    assert told in done.err
    assert "unexpected" not in done.err
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--memory", "1e400GiB"), "64 bits"),
        (("--memory", 512), "512MiB"),
        (("--feature-dtype", "float32"), "there are no features"),
        (("--feature-scale", 2), "there are no features"),
        (("--task", "class"), "there are no labels"),
        (("--num-classes", 5), "there are no labels"),
        (("--num-classes", 0), "1 or more"),
        (("--feature-scale", "nan"), "above 0"),
        (("--feature-scale", 0), "above 0"),
        (("--edge-features", "w,w"), "'w' twice"),
        (("--format", "ogb"), "raw/edge.csv"),
        (("--format", "pyg"), "edges.csv"),
    ],
    ids=str,
)
def test_ingest(cli, tmp_path, options, told):
    (tmp_path / "edges.csv").write_text("source,target,w\n0,1,1\n1,2,1\n")
    done = cli("ingest", tmp_path / "edges.csv", "--out", tmp_path / "g", "-q", *options)
    assert done.code == 2, done.err
    assert told in done.err
    assert "unexpected" not in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["edges.csv"]


@pytest.mark.parametrize("value", ["nan", "-0.1", "1.1", "inf", 7])
@pytest.mark.parametrize(
    ("model", "option"),
    [
        ("gcn", "--dropout"),
        ("gin", "--input-dropout"),
        ("gat", "--attention-dropout"),
        ("gatv2", "--attention-dropout"),
        ("appnp", "--edge-dropout"),
        ("appnp", "--alpha"),
    ],
)
def test_shares(cli, graph, tmp_path, model, option, value):
    done = cli("train", graph, "-m", model, "--out", tmp_path / "r", "-q", f"{option}={value}")
    assert done.code == 2
    name = option[2:].replace("-", "_")
    assert f"{name} must be a number in 0..1, had {float(value)!r}" in done.err
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    "args",
    [
        ("train", "g", "-m", "gcn", "--out", ""),
        ("train", "g", "-m", "gcn", "--out="),
        ("train", "", "-m", "gcn", "--out", "r"),
        ("ingest", "e.csv", "--out", ""),
        ("ingest", "e.csv", "--nodes", "", "--out", "g"),
        ("generate", "path", "--nodes", 3, "--out", ""),
        ("predict", "r", "-o", ""),
        ("report", "r", "--html", ""),
        ("plan", "", "-m", "gcn"),
        ("demo", "--out", ""),
    ],
    ids=str,
)
def test_empty_values(cli, tmp_path, monkeypatch, args):
    """Of a variable that is not set: never the folder that one is in."""
    monkeypatch.chdir(tmp_path)
    done = cli(*args)
    assert done.code == 2
    assert " is empty; " in " ".join(done.err.split())
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("task", ["real", "multilabel"])
def test_names_of_classes_are_no_numbers(cli, tmp_path, task):
    (tmp_path / "e.csv").write_text("source,target\n0,1\n1,2\n")
    (tmp_path / "n.csv").write_text("id,label\n0,dog\n1,cat\n2,dog\n")
    ingest = ["ingest", tmp_path / "e.csv", "--nodes", tmp_path / "n.csv"]
    ingest += ["--node-id", "id", "--node-label", "label", "--out", tmp_path / "g", "-q"]
    done = cli(*ingest, "--task", task)
    assert done.code == 2
    assert f"labels of task '{task}' are numbers, had 'cat'" in done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e.csv", "n.csv"]
    assert cli(*ingest, "--task", "class", "--json").json["num_classes"] == 2


@pytest.mark.parametrize("options", [("--num-nodes", 2**31 - 1), ("--ids", "dense")], ids=str)
def test_more_nodes_than_the_disk_has_room_for(cli, tmp_path, monkeypatch, options):
    """Three edges: said before anything is written."""
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2**30))
    (tmp_path / "e.csv").write_text(f"source,target\n0,1\n1,2\n2,{2**31 - 2}\n")
    done = cli("ingest", tmp_path / "e.csv", "--out", tmp_path / "g", "-q", *options)
    assert done.code == 3
    assert "2147483647 nodes take 32.0 GiB on the disk" in done.err
    assert "1.0 GiB are free" in done.err
    assert not (tmp_path / "g").exists()
    assert sum(path.stat().st_size for path in tmp_path.rglob("*")) < 2**20


def test_a_killed_predict_leaves_nothing_for_ever(cli, graph, tmp_path):
    """The next one to the same name removes it, and no file of a process that lives."""
    run, out = tmp_path / "r", tmp_path / "o" / "p[1].npy"
    assert cli("train", graph, "-m", "sgc", "--out", run, "-q", "--epochs", 1).code == 0
    killed = subprocess.Popen(["sleep", "0"])
    killed.wait()
    out.parent.mkdir()
    for name in (f".{out.name}.partial-{killed.pid}", ".other.npy.partial-1", f".{out.name}.txt"):
        (out.parent / name).write_text("half")
    (out.parent / f".{out.name}.partial-{os.getppid()}").write_text("half")
    assert cli("predict", run, "--out", out).code == 0
    left = {".other.npy.partial-1", f".{out.name}.txt", f".{out.name}.partial-{os.getppid()}"}
    assert {path.name for path in out.parent.iterdir()} == {out.name, *left}


@pytest.mark.parametrize(
    ("model", "option"), [("gcn", "--layers"), ("sgc", "--hops"), ("appnp", "--hops")]
)
@pytest.mark.parametrize("depth", [513, 10**8])
def test_depths_of_no_sense(cli, graph, tmp_path, model, option, depth):
    done = cli("train", graph, "-m", model, "--out", tmp_path / "r", "-q", option, depth)
    assert done.code == 2
    assert f"..512, had {depth}" in done.err
    assert not (tmp_path / "r").exists()


def test_features_of_no_columns_are_features(cli, tmp_path):
    (tmp_path / "e.csv").write_text("source,target\n0,1\n1,2\n")
    np.save(tmp_path / "x.npy", np.empty((3, 0), np.float32))
    options = ("--features", tmp_path / "x.npy", "--out", tmp_path / "g", "-q", "--json")
    assert cli("ingest", tmp_path / "e.csv", *options).json["num_nodes"] == 3
