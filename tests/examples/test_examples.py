"""Every example runs, and does what its first line says."""

from __future__ import annotations

import difflib
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py"))


def run(monkeypatch, name: str, *args: str) -> dict:
    """The globals of the script after it ran in this process, where torch is loaded already."""
    monkeypatch.setattr(sys, "argv", [name, *args])
    return runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_after_is_before_with_another_loop(monkeypatch, capsys):
    """Without dropout both scripts compute the same thing, so they must print the same."""
    small = ("--num_nodes", "200", "--epochs", "8", "--dropout", "0")
    run(monkeypatch, "pyg_before.py", *small)
    before = capsys.readouterr().out
    run(monkeypatch, "pyg_after.py", *small)
    after = capsys.readouterr().out
    losses = [float(re.search(r"last loss ([0-9.]+)", text)[1]) for text in (before, after)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert 0.25 < float(after.split()[-1]) <= 1  # four classes


def test_only_a_few_lines_changed():
    before, after = (
        (EXAMPLES / name).read_text().splitlines() for name in ("pyg_before.py", "pyg_after.py")
    )
    added = [
        line[2:]
        for line in difflib.ndiff(before[1:], after[1:])
        if line.startswith("+ ") and line[2:].strip()
    ]
    assert len(added) <= 5, added


def test_ogb_style(monkeypatch, capsys):
    found = run(monkeypatch, "ogb_style.py", "--num_nodes", "600", "--epochs", "15")
    assert found["graph"].task == "class"
    assert set(found["run"].metrics) == {"train", "val", "test"}
    assert found["run"].metrics["test"]["accuracy"] > 1 / 6
    assert "test accuracy" in capsys.readouterr().out


def test_multilabel(monkeypatch):
    found = run(monkeypatch, "multilabel.py", "--num_nodes", "500", "--epochs", "25")
    assert found["chosen"].shape == (500, 5)
    assert set(np.unique(found["chosen"])) <= {0, 1}
    assert found["run"].metrics["test"]["f1_micro"] > 0.6


def test_regression(monkeypatch):
    found = run(monkeypatch, "regression.py", "--side", "16", "--epochs", "60")
    assert found["run"].metrics["test"]["mse"] < found["spread"] / 2


def test_custom_layer(monkeypatch, capsys):
    found = run(monkeypatch, "custom_layer.py", "--num_nodes", "400", "--epochs", "15")
    assert found["run"].metrics["test"]["accuracy"] > 0.4
    assert "GatedConv" in capsys.readouterr().out


@pytest.mark.parametrize("name", SCRIPTS)
def test_help(monkeypatch, capsys, name):
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, name, "--help")
    assert stop.value.code == 0
    assert "--epochs" in capsys.readouterr().out


def test_command_line(cli, tmp_path):
    """The script with a stand-in that writes its commands down; then those commands, in here."""
    stub, log = tmp_path / "bin" / "tiergnn", tmp_path / "log"
    stub.parent.mkdir()
    stub.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> {log}\n')
    stub.chmod(0o755)
    done = subprocess.run(
        [EXAMPLES / "cli.sh", tmp_path],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{stub.parent}{os.pathsep}{os.environ['PATH']}"},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    commands = log.read_text().splitlines()
    assert len(commands) == 9
    for command in commands:
        tried = cli(*command.split())
        assert tried.code == 0, (command, tried.err)
    assert (tmp_path / "preds.csv").read_text().startswith("node,label\n0,")
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_every_script_is_tested():
    tested = Path(__file__).read_text()
    assert [name for name in SCRIPTS if f'"{name}"' not in tested] == []
