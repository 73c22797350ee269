"""Graph folders written over others, killed or refused: what was there stays."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.contents import contents
from tests.graph.same import assert_same
from tiergnn.errors import StoreError
from tiergnn.graph import staging
from tiergnn.graph.csr import Graph, from_edges
from tiergnn.graph.folder import FolderWriter
from tiergnn.graph.odd import ODD


def test_an_existing_graph_is_replaced_only_when_asked(saved):
    before = contents(saved)
    other = ODD["path"]()
    with pytest.raises(StoreError, match=r"the folder exists already(.|\n)*overwrite=True"):
        other.save(saved)
    assert contents(saved) == before
    old = Graph.open(saved)
    old_col = old.col.copy()
    assert_same(other.save(saved, overwrite=True), other)
    np.testing.assert_array_equal(old.col, old_col)  # still mapped, though the file is gone
    assert os.listdir(saved.parent) == [saved.name]


def test_a_graph_saved_over_itself(saved):
    graph = Graph.open(saved)
    before = contents(saved)
    assert_same(graph.save(saved, overwrite=True), ODD["weighted"]())
    assert contents(saved) == before


def test_a_folder_of_something_else_is_never_removed(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(StoreError, match="the folder holds something else"):
        ODD["path"]().save(tmp_path, overwrite=True)
    with pytest.raises(StoreError, match="a file stands where the folder should be"):
        ODD["path"]().save(tmp_path / "thesis.tex", overwrite=True)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_an_empty_folder_and_missing_parents_are_welcome(tmp_path):
    (tmp_path / "empty").mkdir()
    assert ODD["path"]().save(tmp_path / "empty").num_nodes == 17
    assert ODD["path"]().save(tmp_path / "a" / "b" / "c").num_nodes == 17


def test_through_a_link_the_folder_behind_it_is_replaced(saved, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(saved)
    ODD["path"]().save(link, overwrite=True)
    assert link.is_symlink()
    assert Graph.open(saved).num_nodes == 17


def test_leaving_without_commit_leaves_nothing(saved):
    before = contents(saved)
    with suppress(KeyboardInterrupt), FolderWriter(saved, overwrite=True) as writer:
        writer.array("rowptr", np.zeros(1, np.int64))
        writer.create("col", np.int32, (1000,))
        assert len(os.listdir(saved.parent)) == 2
        raise KeyboardInterrupt
    assert contents(saved) == before
    assert os.listdir(saved.parent) == [saved.name]


KILLED = """
    import sys, time
    import numpy as np
    from tiergnn.graph.folder import FolderWriter
    with FolderWriter(sys.argv[1], overwrite=True) as writer:
        writer.array("rowptr", np.zeros(1, np.int64))
        print("writing", flush=True)
        time.sleep(60)
"""


def test_a_killed_write_is_no_graph_and_is_swept_by_the_next(saved):
    before = contents(saved)
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(saved)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert writer.stdout.readline() == "writing\n"
    (partial,) = saved.parent.glob("graph.partial-*")
    # While the writer lives its folder is its own.
    ODD["path"]().save(saved, overwrite=True)
    assert partial.exists()
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    with pytest.raises(StoreError, match="not a graph folder"):
        Graph.open(partial)
    assert Graph.open(saved).num_nodes == 17
    ODD["weighted"]().save(saved, overwrite=True)
    assert contents(saved) == before
    assert os.listdir(saved.parent) == [saved.name]


def test_where_names_cannot_be_swapped(saved, monkeypatch):
    monkeypatch.setattr(staging, "_swap", lambda a, b: False)
    assert ODD["path"]().save(saved, overwrite=True).num_nodes == 17
    assert os.listdir(saved.parent) == [saved.name]
    # The second of the two moves fails: the old folder comes back.
    before = contents(saved)
    rename = os.rename

    def failing(a, b):
        if ".partial-" in str(a):
            raise OSError(errno.EACCES, "denied")
        rename(a, b)

    monkeypatch.setattr(staging.os, "rename", failing)
    with pytest.raises(StoreError, match="cannot move the finished folder to its place"):
        ODD["weighted"]().save(saved, overwrite=True)
    monkeypatch.undo()
    assert contents(saved) == before
    assert os.listdir(saved.parent) == [saved.name]


def test_a_crash_between_two_moves_is_told_and_mended(saved):
    aside = saved.with_name("graph.replaced-01234567")
    saved.rename(aside)
    with pytest.raises(StoreError, match=f"a replacement was interrupted: mv {aside} {saved}"):
        Graph.open(saved)
    # A write that fails must not take the only copy with it.
    with pytest.raises(KeyboardInterrupt), FolderWriter(saved):
        raise KeyboardInterrupt
    assert aside.exists()
    ODD["path"]().save(saved)
    ODD["path"]().save(saved, overwrite=True)
    assert os.listdir(saved.parent) == [saved.name]


def test_only_our_own_leftovers_are_swept(saved):
    dead = saved.with_name("graph.partial-0123abcd")
    kept = [
        saved.with_name(name)
        for name in ("graph.partial-mine", "graph.partial-0123abcd.bak", "graph2.partial-0123abcd")
    ]
    for folder in (dead, *kept):
        folder.mkdir()
        (folder / "file").write_text("x")
    link = saved.with_name("graph.partial-11111111")
    link.symlink_to(kept[0])
    ODD["path"]().save(saved, overwrite=True)
    assert not dead.exists()
    assert all((folder / "file").exists() for folder in kept)


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks(saved, code, monkeypatch):
    def fail(*args):
        raise OSError(code, "injected")

    monkeypatch.setattr(staging.fcntl, "flock", fail)
    left = saved.with_name("graph.partial-0123abcd")
    left.mkdir()
    assert ODD["path"]().save(saved, overwrite=True).num_nodes == 17
    assert sorted(os.listdir(saved.parent)) == [saved.name, left.name]  # who knows whose it is


def test_two_writers_of_one_place(tmp_path):
    graph = ODD["path"]()
    with FolderWriter(tmp_path / "graph") as writer:
        writer.array("rowptr", graph.rowptr)
        writer.array("col", graph.col)
        ODD["weighted"]().save(tmp_path / "graph")
        with pytest.raises(StoreError, match="the folder exists already"):
            writer.commit(num_nodes=17, num_edges=16)
    assert Graph.open(tmp_path / "graph").num_nodes == 23
    assert os.listdir(tmp_path) == ["graph"]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, "No space left on device(.|\n)*free some space"),
        (errno.EACCES, "Permission denied(.|\n)*permissions"),
        (errno.EROFS, "Read-only file system(.|\n)*mounted for writing"),
        (errno.EDQUOT, "quota"),
        (errno.EIO, "Input/output error"),
    ],
)
@pytest.mark.parametrize(
    "where", ["mkdir", "open", "write", "fsync", "manifest", "publish", "reserve"]
)
def test_a_failing_write_is_one_error_and_changes_nothing(code, words, where, saved, monkeypatch):
    before = contents(saved)

    def fail(*args, **kwargs):
        raise OSError(code, "injected")

    if where == "mkdir":
        monkeypatch.setattr(Path, "mkdir", fail)
    elif where == "open":
        monkeypatch.setattr("tiergnn.graph.arrays.open", fail, raising=False)
    elif where == "write":
        monkeypatch.setattr("tiergnn.graph.arrays._write_all", fail)
    elif where == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    elif where == "manifest":
        monkeypatch.setattr(Path, "write_text", fail)
    elif where == "publish":
        monkeypatch.setattr(staging, "_swap", lambda a, b: False)
        monkeypatch.setattr(os, "rename", fail)
    else:
        monkeypatch.setattr(os, "posix_fallocate", fail)

    def write() -> None:
        with FolderWriter(saved, overwrite=True) as writer:
            writer.array("rowptr", np.zeros(1, np.int64))
            writer.create("col", np.int32, (5,))
            writer.commit(num_nodes=0, num_edges=0)

    with pytest.raises(StoreError, match=f"cannot .*: .*{words}") as caught:
        write()
    monkeypatch.undo()
    assert "at: " + str(saved.parent) in str(caught.value)
    assert contents(saved) == before
    assert os.listdir(saved.parent) == [saved.name]


LIMITED = """
    import resource, sys
    from tiergnn.errors import StoreError
    from tiergnn.graph.generate import rmat
    graph = rmat(1000, 50_000)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        graph.save(sys.argv[1], overwrite=True)
    except StoreError as error:
        print(error)
"""


def test_a_real_file_size_limit(saved):
    before = contents(saved)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LIMITED), str(saved)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert done.stdout.startswith("cannot write: File too large\n  at: ")
    assert "ulimit -f" in done.stdout
    assert contents(saved) == before
    assert os.listdir(saved.parent) == [saved.name]


def test_a_real_full_disk(saved):
    """On a file system of a fixed size, where the machine lets one be made."""
    small = saved.parent / "small"
    small.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        ODD["weighted"]().save(small / "graph")
        before = contents(small)
        graph = from_edges(np.zeros(0, int), np.zeros(0, int), 2000, x=np.ones((2000, 200)))
        with pytest.raises(StoreError, match="cannot write: No space left on device"):
            graph.save(small / "graph", overwrite=True)
        with pytest.raises(StoreError, match="cannot reserve space for: No space left"), \
                FolderWriter(small / "graph", overwrite=True) as writer:  # fmt: skip
            writer.create("x", np.float64, (2000, 200))
        assert contents(small) == before
    finally:
        subprocess.run(["umount", str(small)], check=True)
