"""train, resume, evaluate, predict, report and demo on little graphs."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests.cli.runs import FEW
from tiergnn.graph.csr import Graph, from_edges
from tiergnn.graph.generate import sbm
from tiergnn.graph.ids import NodeIds


def test_train_ends_with_the_promised_json(train, tmp_path):
    told = train()
    assert len(told["losses"]) == 4
    assert all(isinstance(loss, float) for loss in told["losses"])
    assert set(told["metrics"]) == {"train", "val", "test"}
    assert 0 <= told["metrics"]["test"]["accuracy"] <= 1
    assert told["seconds_per_epoch"] > 0
    assert all(isinstance(n, int) and n > 0 for n in told["peak_bytes"].values())
    assert told["run"] == str(tmp_path / "run1")


def test_progress_goes_to_stderr_and_the_result_to_stdout(cli, graph, tmp_path):
    done = cli("train", graph, "--model", "gcn", "--epochs", 3, "--out", tmp_path / "r", "--json")
    assert json.loads(done.out)["run"] == str(tmp_path / "r")
    assert "epoch 3/3" in done.err
    told = cli("train", graph, "--model", "gcn", "--epochs", 3, "--out", tmp_path / "s")
    assert "accuracy" in told.out
    assert "tiergnn predict" in told.out
    quiet = cli("train", graph, "-m", "gcn", "--epochs", 3, "--out", tmp_path / "q", "--quiet")
    assert "epoch 3/3" not in quiet.err


def test_spellings_of_pyg_examples_are_the_same_options(train):
    plain = train("--hidden", 5, "--layers", 2, "--weight-decay", 0.1)
    for other in (
        ("--hidden_channels", 5, "--num_layers", 2, "--weight_decay", 0.1),
        ("--hidden-channels", 5, "--num-layers", 2, "--wd", 0.1),
    ):
        assert train("--hidden", 8, *other)["losses"] == plain["losses"]


def test_resume_goes_on_as_if_it_had_never_stopped(cli, train, tmp_path):
    train("--dropout", 0.5, "--epochs", 3)
    resumed = cli("resume", tmp_path / "run1", "--epochs", 7, "--quiet", "--json").json
    assert resumed["losses"] == train("--dropout", 0.5, "--epochs", 7)["losses"]
    finished = cli("resume", tmp_path / "run1", "--json").json
    assert finished["losses"] == resumed["losses"]


def test_resume_says_when_nothing_is_left_to_do(cli, train, tmp_path, caplog):
    train("--epochs", 3)
    assert cli("resume", tmp_path / "run1", "--epochs", 4).code == 0
    assert "nothing to do" not in caplog.text
    cli("resume", tmp_path / "run1", "--json")
    assert "finished, after 4 epochs; a larger total goes on" in caplog.text
    train("--epochs", 50, "--patience", 1)
    cli("resume", tmp_path / "run2", "--json")
    assert "its patience was at an end" in caplog.text


def test_resume_finds_a_graph_that_has_moved(cli, graph, tmp_path):
    shutil.copytree(graph, tmp_path / "a")
    cli("train", tmp_path / "a", "-m", "gcn", "--out", tmp_path / "r", *FEW)
    (tmp_path / "a").rename(tmp_path / "b")
    lost = cli("resume", tmp_path / "r", "--epochs", 6)
    assert lost.code == 3
    found = cli("resume", tmp_path / "r", "--epochs", 6, "--graph", tmp_path / "b", "--json")
    assert len(found.json["losses"]) == 6


def test_evaluate(cli, train, tmp_path, graph):
    told = train("--epochs", 8)
    metrics = cli("evaluate", tmp_path / "run1", "--json").json["metrics"]
    assert metrics["test"]["accuracy"] == told["metrics"]["test"]["accuracy"]
    one = cli("evaluate", tmp_path / "run1", "--split", "val.1", "--json").json["metrics"]
    assert list(one) == ["val.1"]
    assert list(cli("evaluate", tmp_path / "run1", "--split", "all", "--json").json["metrics"]) == [
        "all"
    ]
    assert "accuracy" in cli("evaluate", tmp_path / "run1").out
    unknown = cli("evaluate", tmp_path / "run1", "--split", "tset")
    assert unknown.code == 2
    assert "'test'" in unknown.err
    assert cli("evaluate", graph).code == 3  # a graph is no run


def test_predictions_are_in_node_order(cli, train, tmp_path, graph):
    told = train("--epochs", 8)
    made = cli("predict", tmp_path / "run1", "--out", tmp_path / "p.npy", "--json").json
    logits = np.load(tmp_path / "p.npy", allow_pickle=False)
    assert made["shape"] == [120, 3]
    assert logits.shape == (120, 3)
    kept = Graph.open(graph)
    test = kept.splits["test"]
    accuracy = (logits.argmax(1) == kept.y)[test].mean()
    assert accuracy == pytest.approx(told["metrics"]["test"]["accuracy"])
    cli("predict", tmp_path / "run1", "--kind", "labels", "--out", tmp_path / "l.npy")
    assert (np.load(tmp_path / "l.npy") == logits.argmax(1)).all()
    cli("predict", tmp_path / "run1", "--kind", "probabilities", "--out", tmp_path / "q.npy")
    assert np.load(tmp_path / "q.npy").sum(1) == pytest.approx(1)


def test_predictions_carry_the_names_of_nodes(cli, tmp_path):
    names = [f'node "{v}", of {v % 3}\n' for v in range(60)]
    made = sbm(60, 3, degree=4, seed=2)
    dst = np.repeat(np.arange(60), made.in_degree)
    from_edges(
        made.col,
        dst,
        60,
        x=made.x,
        y=made.y,
        splits=made.splits,
        node_ids=NodeIds.from_names(names),
    ).save(tmp_path / "g")
    cli("train", tmp_path / "g", "-m", "gcn", "--out", tmp_path / "r", *FEW)
    cli("predict", tmp_path / "r", "--out", tmp_path / "p.npy")
    rows = np.load(tmp_path / "p.npy")
    cli("predict", tmp_path / "r", "--out", tmp_path / "p.csv")
    with open(tmp_path / "p.csv", newline="", encoding="utf-8") as file:
        header, *lines = csv.reader(file)
    assert header == ["node", "column0", "column1", "column2"]
    assert [line[0] for line in lines] == names
    assert (np.array([line[1:] for line in lines], np.float32) == rows).all()
    cli("predict", tmp_path / "r", "--kind", "labels", "--out", tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz", allow_pickle=False) as kept:
        assert kept["node"].tolist() == names
        assert (kept["prediction"] == rows.argmax(1)).all()


def test_predictions_replace_only_when_told(cli, train, tmp_path):
    train()
    (tmp_path / "p.npy").write_text("mine")
    refused = cli("predict", tmp_path / "run1", "--out", tmp_path / "p.npy")
    assert refused.code == 3
    assert (tmp_path / "p.npy").read_text() == "mine"
    assert cli("predict", tmp_path / "run1", "--out", tmp_path / "p.npy", "--overwrite").code == 0
    assert np.load(tmp_path / "p.npy").shape == (120, 3)
    odd = cli("predict", tmp_path / "run1", "--out", tmp_path / "p.txt")
    assert odd.code == 2
    assert ".csv" in odd.err


def test_report(cli, train, tmp_path):
    told = train("--epochs", 8, "--dropout", 0.5)
    page = tmp_path / "new" / "page.html"
    found = cli("report", tmp_path / "run1", "--html", page, "--json").json
    assert found["metrics"] == told["metrics"]
    assert found["losses"] == told["losses"]
    assert found["best_epoch"] == told["best_epoch"]
    html = page.read_text()
    assert html.count("<svg") >= 3
    assert "hidden_channels=8" in html
    assert not re.search(r"""(src|href)=|https?://|@import|url\(""", html)
    text = cli("report", tmp_path / "run1").out
    assert f"epoch {told['best_epoch']}" in text
    assert "finished: 8 epochs" in text
    assert cli("report", tmp_path / "run1", "--html", page).code == 0
    page.write_text("mine")
    assert cli("report", tmp_path / "run1", "--html", page).code == 3
    assert page.read_text() == "mine"


def test_report_escapes_what_the_run_says(cli, train, tmp_path):
    train()
    file = tmp_path / "run1" / "run.json"
    record = json.loads(file.read_text())
    record["graph"]["path"] = "<script>alert(1)</script>"
    record["model"] = {"ready": None, "text": '<img src="x">'}
    del record["crc32"]
    file.write_text(json.dumps(record))
    cli("report", tmp_path / "run1", "--html", tmp_path / "p.html")
    html = (tmp_path / "p.html").read_text()
    assert "<script>" not in html
    assert "<img" not in html
    assert "&lt;script&gt;" in html


def test_report_of_a_run_that_was_killed(cli, train, tmp_path):
    train("--epochs", 6)
    (tmp_path / "run1" / "result.json").unlink()
    log = tmp_path / "run1" / "log.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:3]) + lines[3][:20])
    found = cli("report", tmp_path / "run1", "--json").json
    assert len(found["losses"]) == 3
    assert found["best_epoch"] is None
    assert "resume" in found["status"]
    assert found["metrics"]["val"]
    assert "not finished" in cli("report", tmp_path / "run1", "--html", tmp_path / "p.html").out


def test_ctrl_c_writes_a_checkpoint_and_resume_goes_on(cli, train, graph, tmp_path):
    out = tmp_path / "stopped"
    options = ["--hidden", "8", "--dropout", "0.5", "--epochs", "20000", "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tiergnn", "train", str(graph), "--model", "gcn", *options],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "NUMBA_NUM_THREADS": "2"},
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("epoch"):
            break
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert stdout == ""
    assert f"tiergnn resume {out}" in stderr
    done = int(re.search(r"after epoch (\d+)", stderr)[1])
    resumed = cli("resume", out, "--epochs", done + 4, "--quiet", "--json").json
    unbroken = train("--dropout", 0.5, "--epochs", done + 4)
    assert resumed["losses"] == unbroken["losses"]


def test_demo_prints_the_same_accuracy_every_time_and_what_it_says_works(cli, tmp_path):
    first = cli("demo", "--out", tmp_path / "demo", "--epochs", 12)
    assert first.code == 0, first.err
    again = cli("demo", "--out", tmp_path / "demo", "--epochs", 12)
    line = re.search(r"Test accuracy 0\.\d+ .*", first.out)[0]
    assert line in again.out
    told = cli("demo", "--out", tmp_path / "demo", "--epochs", 12, "--json").json
    assert f"{told['accuracy']['test']:.4f}" in line
    assert told["accuracy"]["test"] > 0.4
    hints = re.findall(r"^  tiergnn (.*)", first.out, re.MULTILINE)
    assert len(hints) >= 6
    for hint in hints:
        if "YOUR" not in hint:
            tried = cli(*hint.split())
            assert tried.code == 0, (hint, tried.err)
