"""A killed ingest goes on where it was, and gives the same bytes as one that was not."""

from __future__ import annotations

import gzip
import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tiergnn.errors import GraphError, StoreError
from tiergnn.graph import ingest as ingest_module
from tiergnn.graph import runs as runs_module
from tiergnn.graph import workspace as workspace_module
from tiergnn.graph.ingest import ingest
from tiergnn.graph.workspace import Workspace

MEMORY = 30_000


@pytest.fixture(autouse=True)
def journal_often(monkeypatch):
    """As large graphs do: many runs, each of them in the journal."""
    monkeypatch.setattr(ingest_module, "LEAST_BYTES", 1)
    monkeypatch.setattr(workspace_module, "CHECKPOINT_BYTES", 1)
    monkeypatch.setattr(runs_module, "FENCE", 16)
    # Only a crash of the machine needs what was written to be on the disk.
    monkeypatch.setattr(os, "fdatasync", lambda handle: None)
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def sources(folder: Path) -> dict[str, dict]:
    """One source of each way that edges take, with the options that go with it."""
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, 60, (700, 2))
    weight = rng.random(700)
    lines = "".join(f"{a} {b} {w}\n" for (a, b), w in zip(pairs, weight, strict=True))
    (folder / "text.txt").write_text("# edges\n\n" + lines)
    with gzip.open(folder / "text.txt.gz", "wt") as out:
        out.write("# edges\n" + lines)
    names = [f"node{i:02d}" for i in range(60)]
    (folder / "names.csv").write_text(
        "source,target,weight\n"
        + "".join(f"{names[a]},{names[b]},{w}\n" for (a, b), w in zip(pairs, weight, strict=True))
    )
    (folder / "nodes.csv").write_text(
        "id,label,split,height\n"
        + "".join(f"{name},{i % 3},{'train' if i % 2 else 'val'},{i / 7}\n"
                  for i, name in enumerate(reversed(names)))
    )  # fmt: skip
    x = rng.random((60, 4)).astype(np.float32)
    np.savez_compressed(
        folder / "arrays.npz", edge_index=pairs.T, edge_weight=weight, x=x, y=rng.integers(0, 3, 60)
    )
    np.save(folder / "far.npy", pairs.astype(np.int64) * 10**12)
    return {
        "text.txt": {"undirected": True, "duplicates": "sum"},
        "text.txt.gz": {"self_loops": "add"},
        "names.csv": {"nodes": folder / "nodes.csv"},
        "arrays.npz": {"num_nodes": 60},
        "far.npy": {"undirected": True},
    }


class Stop(Exception):  # noqa: N818 - stands for a kill
    pass


@pytest.mark.parametrize("name", ["text.txt", "text.txt.gz", "names.csv", "arrays.npz", "far.npy"])
def test_stopped_anywhere(tmp_path, name):
    """Stopped at each step of its progress, then a few steps into every go."""
    options = {**sources(tmp_path)[name], "memory": MEMORY}
    steps = []
    ingest(tmp_path / name, tmp_path / "want", progress=lambda *step: steps.append(step), **options)
    want = files(tmp_path / "want")

    def stop_at(count):
        calls = iter(range(count))

        def progress(phase, done, total):
            if next(calls, None) is None:
                raise Stop

        return progress

    for at in range(0, len(steps), max(1, len(steps) // 6)):
        with pytest.raises(Stop):
            ingest(tmp_path / name, tmp_path / "got", progress=stop_at(at), **options)
        assert not (tmp_path / "got").exists()
        assert (tmp_path / "got.ingest-work").exists()
        ingest(tmp_path / name, tmp_path / "got", **options)
        assert files(tmp_path / "got") == want
        assert not (tmp_path / "got.ingest-work").exists()
        for path in sorted((tmp_path / "got").rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        (tmp_path / "got").rmdir()
    goes = 0
    while True:  # again and again: each go must come further than the one before
        goes += 1
        assert goes <= 2 * len(steps)
        try:
            ingest(tmp_path / name, tmp_path / "got", progress=stop_at(5 + goes), **options)
            break
        except Stop:
            continue
    assert files(tmp_path / "got") == want
    assert goes > 1


KILLED = """
import os, signal, sys, json
from tiergnn.graph import ingest as i, runs, workspace
i.LEAST_BYTES = workspace.CHECKPOINT_BYTES = 1
runs.FENCE = 16
src, out, at, options = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
calls = 0
def progress(phase, done, total):
    global calls
    calls += 1
    if calls == at:
        os.kill(os.getpid(), signal.SIGKILL)
i.ingest(src, out, progress=progress, **options)
"""


def kill_and_rerun(folder: Path, name: str, fractions: list[float]) -> None:
    options = {**sources(folder)[name], "memory": MEMORY}
    steps = []
    ingest(folder / name, folder / "want", progress=lambda *step: steps.append(step), **options)
    as_json = json.dumps({k: str(v) if isinstance(v, Path) else v for k, v in options.items()})
    for fraction in fractions:
        at = 1 + int(fraction * len(steps))
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, folder / name, folder / "got", str(at), as_json],
            capture_output=True,
            text=True,
            check=False,
        )
        if killed.returncode == 0 and fraction != fractions[0]:
            break  # what was left to do took fewer steps
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert not (folder / "got").exists()
    else:
        ingest(folder / name, folder / "got", **options)
    assert files(folder / "got") == files(folder / "want")
    assert sorted(p.name for p in folder.iterdir() if p.is_dir()) == ["got", "want"]


@pytest.mark.parametrize(("name", "fraction"), [("text.txt", 0.4), ("names.csv", 0.6)])
def test_kill_dash_nine(tmp_path, name, fraction, caplog):
    kill_and_rerun(tmp_path, name, [fraction])
    assert "taking up the interrupted ingest" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["text.txt", "text.txt.gz", "names.csv", "arrays.npz", "far.npy"])
@pytest.mark.parametrize("seed", range(6))
def test_kill_dash_nine_often(tmp_path, name, seed):
    rng = np.random.default_rng(seed)
    kill_and_rerun(tmp_path, name, rng.random(rng.integers(1, 4)).tolist())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_kill_dash_nine_at_a_random_moment(tmp_path, seed):
    """By the clock: in the middle of reading, sorting and writing, too."""
    rng = np.random.default_rng(seed)
    pairs = rng.integers(0, 300_000, (3_000_000, 2), dtype=np.int32)
    np.save(tmp_path / "g.npy", pairs)
    command = [sys.executable, "-c", KILLED, tmp_path / "g.npy", tmp_path / "got", "0",
               json.dumps({"memory": "32MiB", "num_nodes": 300_000})]  # fmt: skip
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        child.wait(float(rng.uniform(0.5, 6)))
    except subprocess.TimeoutExpired:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    options = {"memory": "32MiB", "num_nodes": 300_000}
    ingest(tmp_path / "g.npy", tmp_path / "got", overwrite=True, **options)
    ingest(tmp_path / "g.npy", tmp_path / "want", **options)
    assert files(tmp_path / "got") == files(tmp_path / "want")


def stopped(folder: Path, at: int = 6, **options) -> None:
    """Leave an ingest of text.txt half done."""
    calls = iter(range(at))

    def progress(phase, done, total):
        if next(calls, None) is None:
            raise Stop

    with pytest.raises(Stop):
        ingest(folder / "text.txt", folder / "g", progress=progress, memory=MEMORY, **options)


def phases(folder: Path, **options) -> list[str]:
    seen = []
    ingest(
        folder / "text.txt",
        folder / "g",
        progress=lambda phase, done, total: seen.append((phase, done)),
        memory=MEMORY,
        **options,
    )
    return seen


def test_what_is_done_is_not_done_again(tmp_path):
    sources(tmp_path)
    whole = phases(tmp_path)
    reads = [step for step in whole if step[0] == "read"]
    assert len(reads) > 4
    stopped(tmp_path, at=len(reads) + 2, overwrite=True)
    again = phases(tmp_path, overwrite=True)
    assert [step for step in again if step[0] == "read"] == []
    assert len([s for s in again if s[0] == "sort"]) < len([s for s in whole if s[0] == "sort"])


def test_other_options_or_files_start_over(tmp_path, caplog):
    sources(tmp_path)
    stopped(tmp_path)
    phases(tmp_path, undirected=True)
    assert "another source or other options: starting over" in caplog.text
    caplog.clear()
    stopped(tmp_path, overwrite=True)
    (tmp_path / "text.txt").write_text("0 1 1\n")
    assert (
        ingest(tmp_path / "text.txt", tmp_path / "g", memory=MEMORY, overwrite=True).num_edges == 1
    )
    assert "starting over" in caplog.text
    assert "taking up" not in caplog.text


def test_resume_can_be_declined(tmp_path, caplog):
    sources(tmp_path)
    whole = phases(tmp_path)
    stopped(tmp_path, overwrite=True)
    assert phases(tmp_path, overwrite=True, resume=False) == whole
    assert "an earlier ingest: starting over" in caplog.text


def test_a_torn_line_of_the_journal_does_not_count(tmp_path):
    sources(tmp_path)
    want_steps = phases(tmp_path)
    want = files(tmp_path / "g")
    stopped(tmp_path, overwrite=True)
    journal = tmp_path / "g.ingest-work" / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    assert len(lines) > 3
    for tail in (lines[-1][:-5], lines[-1][:-1], b'{"phase": "read"', b"\0\0\0\0"):
        journal.write_bytes(b"".join(lines[:-1]) + tail)
        assert phases(tmp_path, overwrite=True)[-1] == want_steps[-1]
        assert files(tmp_path / "g") == want
        stopped(tmp_path, overwrite=True)
    journal.write_bytes(b"")  # as after a crash before the first line
    phases(tmp_path, overwrite=True)
    assert files(tmp_path / "g") == want


def test_a_folder_inside_of_its_source(tmp_path, caplog):
    """What a killed ingest leaves there is no change of the source."""
    source = tmp_path / "set"
    source.mkdir()
    np.save(source / "edge_index.npy", np.random.default_rng(0).integers(0, 60, (2, 700)))
    calls = iter(range(6))

    def progress(phase, done, total):
        if next(calls, None) is None:
            raise Stop

    with pytest.raises(Stop):
        ingest(source, source / "graph", progress=progress, memory=MEMORY)
    ingest(source, source / "graph", memory=MEMORY)
    assert "taking up the interrupted ingest" in caplog.text


def test_two_ingests_of_one_folder(tmp_path):
    other = Workspace(tmp_path / "g", {})
    (tmp_path / "text.txt").write_text("0 1\n")
    with pytest.raises(StoreError, match="another ingest is writing there"):
        ingest(tmp_path / "text.txt", tmp_path / "g")
    other.close()
    ingest(tmp_path / "text.txt", tmp_path / "g")


def test_bad_input_leaves_nothing_and_a_full_disk_leaves_the_work(tmp_path, monkeypatch, caplog):
    sources(tmp_path)
    (tmp_path / "bad.txt").write_text("0 1 1\n" * 2000 + "0 x 1\n")
    with pytest.raises(GraphError, match="'x' is not a whole number"):
        ingest(tmp_path / "bad.txt", tmp_path / "g", memory=MEMORY)
    assert not (tmp_path / "g.ingest-work").exists()

    writes = iter(range(40))
    write = os.write

    def fills_up(handle, data):
        if next(writes, None) is None:
            raise OSError(28, "No space left on device")
        return write(handle, data)

    with monkeypatch.context() as full:
        full.setattr(runs_module.os, "write", fills_up)
        with pytest.raises(StoreError, match="No space left"):
            ingest(tmp_path / "text.txt", tmp_path / "g", memory=MEMORY)
    assert not (tmp_path / "g").exists()
    assert "ingest again to go on" in caplog.text
    caplog.set_level(logging.WARNING)
    graph = ingest(tmp_path / "text.txt", tmp_path / "g", memory=MEMORY)
    assert graph.num_edges == 700
    assert "taking up the interrupted ingest" in caplog.text
    assert not (tmp_path / "g.ingest-work").exists()


@pytest.mark.parametrize("how", ["longer", "shorter", "gone", "other table"])
def test_a_file_that_changes_while_it_is_read(tmp_path, how):
    """Half of what it was and half of what it is would be neither."""
    options = sources(tmp_path)["names.csv"]
    file = tmp_path / ("nodes.csv" if how == "other table" else "names.csv")
    good = file.read_bytes()
    (tmp_path / "g").mkdir()  # nothing of the user's is touched
    changed = []

    def change(phase, done, total):
        if phase == "sort" and not changed:
            changed.append(phase)
            if how == "gone":
                file.unlink()
            else:
                file.write_bytes(good[:-30] if how == "shorter" else good + b"node00,1,val,1\n")

    with pytest.raises((StoreError, GraphError)):
        ingest(tmp_path / "names.csv", tmp_path / "g", progress=change, memory=MEMORY, **options)
    assert changed
    assert not any((tmp_path / "g").iterdir())
    file.write_bytes(good)
    assert ingest(tmp_path / "names.csv", tmp_path / "g", memory=MEMORY, **options).num_edges == 700
