"""Exit codes, the one line of JSON, spellings of options: what scripts rely on."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import typer

from tiergnn.cli.output import Output, dashed, guarded, json_line
from tiergnn.errors import (
    ConfigError,
    GraphError,
    Interrupted,
    PlanError,
    StoreError,
    shell_word,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("wanted 1, had 2", hint="1"), 2),
        (GraphError("wanted 1, had 2", culprit="here", hint="1"), 2),
        (PlanError("wanted 1, had 2", hint="1"), 2),
        (StoreError("wanted 1, had 2", culprit="here", hint="1"), 3),
        (Interrupted(3, "runs/a", 2), 130),
        (Interrupted(3, None, 15), 143),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError("by zero"), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_each_error_has_its_exit_code_and_one_block_on_stderr(error, code, capsys):
    @guarded
    def command() -> None:
        raise error

    with pytest.raises(typer.Exit) as stop:
        command()
    told = capsys.readouterr()
    assert stop.value.exit_code == code
    assert told.out == ""
    assert str(error) in told.err
    assert "Traceback" not in told.err


def test_options_that_a_hint_names_as_python_has_them_are_named_as_flags(capsys):
    def command(graph: str, num_nodes: int | None = None, header: bool = False) -> None:
        raise GraphError("bad", hint=graph)

    for hint, flags in (
        ("num_nodes=7, or header=True or header=False", "--num-nodes, --header"),
        ("header=True (--header)", None),
        ("graph=G, model=M or num_nodes", None),
    ):
        with pytest.raises(typer.Exit):
            guarded(command)(hint)
        said = capsys.readouterr().err
        assert (f"\n  on the command line: {flags}\n" in said) == (flags is not None)
        assert ("command line" in said) == (flags is not None)


def test_debug_adds_the_traceback(monkeypatch, capsys):
    @guarded
    def command() -> None:
        raise ConfigError("wanted 1, had 2")

    monkeypatch.setenv("TIERGNN_DEBUG", "1")
    with pytest.raises(typer.Exit):
        command()
    assert "Traceback" in capsys.readouterr().err


def test_interrupted_says_how_to_resume(capsys):
    @guarded
    def command() -> None:
        raise Interrupted(7, "runs/a", 2)

    with pytest.raises(typer.Exit):
        command()
    assert "tiergnn resume runs/a" in capsys.readouterr().err


def test_json_is_strict_and_on_one_line():
    value = {
        "nan": float("nan"),
        "list": [1.5, float("inf"), -float("inf")],
        "array": np.array([1.0, np.nan], np.float32),
        "scalar": np.int64(3),
        3: "line\nbreak",
        "nested": ({"x": np.float64("nan")},),
    }
    line = json_line(value)
    assert "\n" not in line

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    read = json.loads(line, parse_constant=refuse)
    assert read == {
        "nan": None,
        "list": [1.5, None, None],
        "array": [1.0, None],
        "scalar": 3,
        "3": "line\nbreak",
        "nested": [{"x": None}],
    }


def test_with_json_people_are_told_on_stderr(capsys):
    output = Output(json=True)
    output.say("working")
    output.result({"a": 1}, "a is 1")
    told = capsys.readouterr()
    assert told.out == '{"a": 1}\n'
    assert told.err == "working\n"


def test_without_json_people_are_told_on_stdout(capsys):
    output = Output(json=False)
    output.say("working")
    output.result({"a": 1}, "a is 1")
    assert capsys.readouterr().out == "working\na is 1\n"


def test_options_may_be_spelled_with_underscores():
    assert dashed(["--hidden_channels", "8", "--num_layers=2", "a_b", "-x_y"]) == [
        "--hidden-channels",
        "8",
        "--num-layers=2",
        "a_b",
        "-x_y",
    ]
    assert dashed(["--out=a_b", "--", "--a_b"]) == ["--out=a_b", "--", "--a_b"]


def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tiergnn", *args],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        timeout=120,
    )


def test_help_is_fast_because_it_imports_no_torch():
    code = (
        "import sys; sys.argv = ['tiergnn', 'train', '--help']\n"
        "from tiergnn.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('torch' in sys.modules, 'numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "False False"


def test_what_describes_and_reports_imports_no_torch(tmp_path):
    (tmp_path / "edges.txt").write_text("0 1\n1 0\n")
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    record = {
        "format": "tiergnn-run",
        "version": 1,
        "graph": {"path": None},
        "model": {"ready": None, "text": "Net()"},
        "options": {"epochs": 3},
        "versions": {},
    }
    (run_dir / "run.json").write_text(json.dumps(record))
    commands = [
        ["ingest", f"{tmp_path}/edges.txt", "--out", f"{tmp_path}/g"],
        ["info", f"{tmp_path}/g"],
        ["partition", f"{tmp_path}/g", "--parts", "2"],
        ["report", str(run_dir)],
        ["evaluate", f"{tmp_path}/nothing"],  # this one does: the test would see it
    ]
    code = (
        "import sys; from typer.testing import CliRunner; from tiergnn.cli.main import app\n"
        f"for command in {commands!r}:\n"
        "    done = CliRunner().invoke(app, command)\n"
        "    print(command[0], done.exit_code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == [
        "ingest 0 False",
        "info 0 False",
        "partition 0 False",
        "report 0 False",
        "evaluate 3 True",
    ], done.stderr


def test_a_reader_that_leaves_early_is_no_error(tmp_path):
    done = subprocess.run(
        f"{sys.executable} -m tiergnn generate path --nodes 5 --out {tmp_path}/g | true",
        shell=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr == ""


def test_unknown_commands_and_options_are_answered_with_known_ones():
    command = run("trian")
    assert command.returncode == 2
    assert "train" in command.stderr
    option = run("info", "somewhere", "--verfy")
    assert option.returncode == 2
    assert "--verify" in option.stderr


def test_output_that_cannot_be_written_is_a_store_error(capsys):
    @guarded
    def command() -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(typer.Exit) as stopped:
        command()
    assert stopped.value.exit_code == 3
    told = capsys.readouterr().err
    assert "error: No space left on device\n  at: what a command prints" in told


def test_json_needs_no_alphabet_of_the_terminal():
    line = json_line({"path": "\u00fc \udcff"})
    assert line.isascii()
    assert json.loads(line) == {"path": "\u00fc \udcff"}


NAMES = ["my graph", "-g", "it's; $HOME\n", "p'\"q`", "gr\u00fcn", "plain/path"]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_path_is_one_word_of_the_shell_and_no_option(name):
    said = subprocess.check_output(["bash", "-c", f"printf %s {shell_word(name)}; printf ."])
    assert os.path.normpath(said.decode()[:-1]) == os.path.normpath(name)
    assert not shell_word(name).startswith("-")


def test_commands_that_are_shown_can_be_copied(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name, run = "my graph", "my run"
    made = cli("generate", "sbm", "--nodes", 60, "--classes", 3, "--features", 3, f"--out={name}")
    assert f"next: tiergnn info {shell_word(name)}\n" in made.out
    train = ["train", "-m", "sgc", f"--out={run}", "--epochs", 1, "-q", name]
    told = cli(*train).out
    assert f"tiergnn predict {shell_word(tmp_path / run)} --out preds.npy" in told
    assert told.endswith(f"tiergnn report {shell_word(tmp_path / run)}\n")
    assert f"tiergnn resume {shell_word(tmp_path / run)}; or " in cli(*train).err
    (tmp_path / run / "result.json").unlink()
    assert f"tiergnn resume {shell_word(tmp_path / run)} goes on" in cli("report", run).out
    assert str(Interrupted(3, run, 2)).endswith(f"tiergnn resume {shell_word(run)}")
    (tmp_path / "e.csv").write_text("source,target\n0,1\n")
    ingested = cli("ingest", "e.csv", f"--out={name}2")
    assert f"next: tiergnn info {shell_word(f'{name}2')}\n" in ingested.out
