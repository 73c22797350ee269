"""Values that no option can take: refused with what was had, never an unexpected error."""

from __future__ import annotations

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
