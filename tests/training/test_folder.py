"""Run folders begun, damaged or fought over: one error, and nothing that was there is lost."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tiergnn as tg
from tests.contents import contents
from tests.training.models import community
from tiergnn import files
from tiergnn.errors import ConfigError, StoreError
from tiergnn.hardware.presets import resolve
from tiergnn.report.record import RunRecord
from tiergnn.training.folder import RunFolder

QUIET = {"progress": False}


@pytest.fixture(scope="module")
def small():
    return community(150)


@pytest.fixture
def run(small, tmp_path):
    tg.train(small, "gcn", epochs=2, out=tmp_path / "r", **QUIET)
    return tmp_path / "r"


def full(*args):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("overwrite", [False, True])
def test_of_two_that_begin_at_once_the_later_one_changes_nothing(small, tmp_path, overwrite):
    with RunFolder.create(tmp_path / "r", {"first": 1}, None, overwrite=False):
        before = contents(tmp_path)
        with pytest.raises(StoreError, match="another process is training"):
            tg.train(small, "gcn", epochs=1, out=tmp_path / "r", overwrite=overwrite, **QUIET)
        assert contents(tmp_path) == before


def test_what_could_not_be_begun_is_not_left_behind(small, tmp_path, monkeypatch):
    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(StoreError, match="No space left"):
        tg.train(small, "gcn", epochs=1, out=tmp_path / "deep" / "r", **QUIET)
    assert not (tmp_path / "deep" / "r").exists()
    (tmp_path / "there").mkdir()
    with pytest.raises(StoreError, match="No space left"):
        tg.train(small, "gcn", epochs=1, out=tmp_path / "there", **QUIET)
    assert contents(tmp_path / "there") == {}
    monkeypatch.undo()
    tg.train(small, "gcn", epochs=1, out=tmp_path / "there", **QUIET)


def test_what_a_kill_left_before_run_json_is_no_other_file(small, tmp_path):
    (tmp_path / ".run.json.partial-123").write_text("{")
    assert tg.train(small, "gcn", epochs=1, out=tmp_path, **QUIET).losses


def test_a_folder_of_somebody_elses_stays_as_it_is(small, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "epoch-1.json").write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match="holds other files"):
        tg.train(small, "gcn", epochs=1, out=tmp_path, overwrite=True, **QUIET)
    assert contents(tmp_path) == before


def test_what_only_tells_of_a_run_does_not_keep_it_from_being_asked(small, run, caplog):
    want = tg.predict(run, graph=small)
    (run / "timeline.json").write_text("{")
    assert (tg.predict(run, graph=small) == want).all()
    assert "left out: wanted tiergnn-timeline, had no JSON" in caplog.text


@pytest.mark.parametrize("text", ["[1]", "3", "{"])
def test_a_result_that_is_none(run, text):
    (run / "result.json").write_text(text)
    with pytest.raises(StoreError, match=r"result\.json is not"):
        RunRecord.read(run)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    machine = resolve("h200")
    machine.save(tmp_path / "m.json")
    before = contents(tmp_path)
    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(StoreError, match="No space left"):
        machine.save(tmp_path / "m.json")
    assert contents(tmp_path) == before


def test_a_limit_on_the_size_of_files(tmp_path):
    """The way out names the limit; Python ignores SIGXFSZ, so a write fails."""
    script = """
import resource, sys
from pathlib import Path
from tiergnn.files import write_whole
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_whole(Path(sys.argv[1]), bytes(5000))
except OSError as error:
    print(error)
"""
    told = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "f")],
        capture_output=True, text=True, env=os.environ, check=True,
    ).stdout  # fmt: skip
    assert "cannot write 4.9 KiB to f: File too large" in told
    assert "ulimit -f" in told
    assert not os.listdir(tmp_path)


def test_a_relative_graph_is_found_after_a_change_of_folder(small, tmp_path, monkeypatch):
    """Opened here, trained on there, resumed elsewhere."""
    monkeypatch.chdir(tmp_path)
    small.save("g")
    (tmp_path / "there").mkdir()
    graph = tg.Graph.open("g")
    monkeypatch.chdir(tmp_path / "there")
    tg.train(graph, "gcn", epochs=1, out="r", **QUIET)
    monkeypatch.chdir("/")
    assert len(tg.resume(tmp_path / "there" / "r", epochs=2, **QUIET).history) == 2


def test_a_run_is_not_overwritten_silently(small, tmp_path):
    out = tmp_path / "r"
    tg.train(small, "gcn", epochs=2, out=out, **QUIET)
    before = (out / "log.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=r"tiergnn resume .*overwrite=True"):
        tg.train(small, "gcn", epochs=3, out=out, **QUIET)
    assert (out / "log.jsonl").read_bytes() == before
    # What is refused for another reason leaves the run alone as well.
    with pytest.raises(ConfigError):
        tg.train(small, "gcn", epochs=3, out=out, overwrite=True, scheduler="cosin", **QUIET)
    assert (out / "log.jsonl").read_bytes() == before
    tg.train(small, "gcn", epochs=3, out=out, overwrite=True, **QUIET)
    assert len((out / "log.jsonl").read_text().splitlines()) == 3
    assert len(tg.resume(out, graph=small, **QUIET).history) == 3


def test_other_folders_are_not_overwritten_at_all(small, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=r"thesis\.tex"):
        tg.train(small, "gcn", epochs=1, out=tmp_path, overwrite=True, **QUIET)
    with pytest.raises(ConfigError, match="is a file"):
        tg.train(small, "gcn", epochs=1, out=tmp_path / "thesis.tex", **QUIET)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    (tmp_path / "empty").mkdir()
    tg.train(small, "gcn", epochs=1, out=tmp_path / "empty", **QUIET)


def test_folders_that_hold_no_run(small, tmp_path):
    for path, told in ((tmp_path / "none", "does not exist"), (tmp_path, r"has no run\.json")):
        for call in (tg.resume, tg.evaluate, tg.predict):
            with pytest.raises(StoreError, match=told):
                call(path)
    tg.train(small, "gcn", epochs=1, out=tmp_path / "r", **QUIET)
    run_json = tmp_path / "r" / "run.json"
    good = run_json.read_text()
    for text, told in (
        (good[:50], "not JSON"),
        ("{}", "not the record of a run"),
        (good.replace('"version": 1', '"version": 2'), "version 2"),
        (good.replace('"epochs": 1', '"epochs": 1.5'), "does not fit its checksum"),
    ):
        run_json.write_text(text)
        with pytest.raises(StoreError, match=told):
            tg.resume(tmp_path / "r", graph=small)


def test_two_processes_do_not_train_in_one_folder(small, tmp_path):
    out = tmp_path / "r"
    told = []

    def meddle(record):
        for call in (
            lambda: tg.resume(out, graph=small, **QUIET),
            lambda: tg.train(small, "gcn", epochs=1, out=out, overwrite=True, **QUIET),
        ):
            with pytest.raises(StoreError, match="another process is training") as error:
                call()
            told.append(error)

    tg.train(small, "gcn", epochs=2, out=out, progress=meddle)
    assert len(told) == 4
    assert len(tg.resume(out, graph=small, **QUIET).history) == 2


@pytest.mark.parametrize("name", ["mkdir", "run.json", "log.jsonl"])
def test_a_folder_that_may_not_be_written(small, tmp_path, monkeypatch, name):
    """Root may write anywhere, so the refusal is the file system's, injected."""

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    if name == "mkdir":
        monkeypatch.setattr(Path, "mkdir", refuse)
    else:
        replace_file = os.replace
        monkeypatch.setattr(
            files.os,
            "replace",
            lambda a, b: refuse() if Path(b).name == name else replace_file(a, b),
        )
    with pytest.raises(StoreError) as error:
        tg.train(small, "gcn", epochs=2, out=tmp_path / "r", **QUIET)
    assert "Permission denied" in str(error.value)
    assert "may write to" in str(error.value)
