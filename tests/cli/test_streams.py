"""Closed, broken and narrow streams, and an odd environment: the work is done all the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tiergnn.graph.generate import sbm

TIERGNN = f"{sys.executable} -m tiergnn"


def shell(command: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    path = tmp_path_factory.mktemp("graphs") / "g"
    sbm(60, 3, degree=4, num_features=4, seed=1).save(path)
    return path


def test_closed_streams_are_no_files_of_ours(graph, tmp_path):
    """All three closed: what is opened first would be stdin, stdout and stderr."""
    train = f"{TIERGNN} train {graph} -m gcn --hidden 4 --epochs 3 --out {tmp_path}/r"
    done = shell(f"{train} <&- >&- 2>&-")
    assert done.returncode == 0
    assert len((tmp_path / "r" / "log.jsonl").read_text().splitlines()) == 3
    assert json.loads((tmp_path / "r" / "result.json").read_text())["epochs"] == 3


def test_closed_stderr_leaves_stdout_to_the_result(graph, tmp_path):
    (tmp_path / "e.csv").write_text("source,target\n0,1\n1,2\n")
    done = shell(f"{TIERGNN} ingest {tmp_path}/e.csv --out {tmp_path}/g --json 2>&-")
    assert done.returncode == 0
    assert json.loads(done.stdout)["num_edges"] == 2
    failed = shell(f"{TIERGNN} info {tmp_path}/nothing --json 2>&-")
    assert failed.returncode == 3
    assert failed.stdout == ""


def test_who_leaves_while_a_run_tells_does_not_end_it(graph, tmp_path):
    """``2>&1 | head``: the run goes on to its end."""
    train = f"{TIERGNN} train {graph} -m gcn --hidden 4 --epochs 30 --out {tmp_path}/r"
    done = shell(f"{train} 2>&1 >/dev/null | head -1")
    assert "Traceback" not in done.stderr
    assert len((tmp_path / "r" / "log.jsonl").read_text().splitlines()) == 30
    assert json.loads((tmp_path / "r" / "result.json").read_text())["finished"] == "epochs"


@pytest.mark.parametrize(
    "env",
    [
        {"LC_ALL": "POSIX"},
        {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii"},
        {"COLUMNS": "1"},
        {"TIERGNN_LOG": "bogus"},
    ],
    ids=str,
)
def test_names_outside_of_the_alphabet(tmp_path, env):
    out = tmp_path / "gr\u00fcn \u7dd1"
    done = shell(f"{TIERGNN} generate path --nodes 5 --out '{out}'", **env)
    assert done.returncode == 0, done.stderr
    assert out.is_dir()
    assert "Traceback" not in done.stderr
    assert ("TIERGNN_LOG=bogus is no level" in done.stderr) == ("TIERGNN_LOG" in env)


_STOPPED_EARLY = """
import runpy, sys

class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == "tiergnn.cli.main":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Stop())
"""
_MODULE = 'runpy.run_module("tiergnn", run_name="__main__")'


def _script() -> str:
    """What an installer writes of the entry point."""
    told = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    module, _, name = told["project"]["scripts"]["tiergnn"].partition(":")
    return f"from {module} import {name}\nsys.exit({name}())"


@pytest.mark.parametrize("start", [_MODULE, _script()], ids=["module", "script"])
def test_ctrl_c_while_it_starts_is_no_traceback(start):
    done = subprocess.run(
        [sys.executable, "-c", _STOPPED_EARLY + start], capture_output=True, text=True, check=False
    )
    assert (done.stderr, done.returncode) == ("stopped\n", 130)
