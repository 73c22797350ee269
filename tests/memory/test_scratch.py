"""Scratch folders: a run's own, gone when it ends whatever ends it, never another run's."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch

from tests.memory.contract import rand
from tiergnn.errors import PlanError, StoreError
from tiergnn.memory.engine import Engine
from tiergnn.memory.ram import RamRows
from tiergnn.memory.scratch import Scratch, remove_stale


@pytest.fixture(scope="module")
def engine():
    engine = Engine(num_threads=1, slab_bytes=2**18)
    yield engine
    engine.close()


# A process that has imported everything, and forks one run after the other: "start" answers with
# the pid and the scratch folder of a run, "wait" with how a run ended.
NURSERY = """
    import json, os, signal, sys, threading, torch
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    from tiergnn.memory.engine import Engine
    from tiergnn.memory.scratch import Scratch
    for line in sys.stdin:
        word, *rest = json.loads(line)
        if word == "wait":
            status = os.waitpid(rest[0], 0)[1]
            print(os.waitstatus_to_exitcode(status), flush=True)
        elif os.fork() == 0:
            break
    else:
        sys.exit()
    scratch = Scratch(rest[0], engine=Engine(num_threads=1, slab_bytes=2**18))
    table = scratch.table("h1.p0", 20000, 64, torch.float32)
    values = torch.ones(20000, 64)
    table.write(slice(None), values)
    print(os.getpid(), scratch.path, flush=True)
    exec(rest[1])
"""
WRITING = "while True: table.write(slice(None), values)"
WAITING = "threading.Event().wait()"
FORKING = """
child = os.fork()
if child == 0:
    sys.exit(0)
os.waitpid(child, 0)
assert scratch.path.is_dir() and table.path.exists()
"""


class Nursery:
    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(NURSERY)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, *words) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def start(self, folder, code: str) -> tuple[int, str]:
        pid, path = self.ask("start", str(folder), code).split(maxsplit=1)
        return int(pid), path

    def end(self, pid: int, signum: int | None = None) -> int:
        if signum is not None:
            os.kill(pid, signum)
        return int(self.ask("wait", pid))


@pytest.fixture(scope="module")
def nursery():
    nursery = Nursery()
    yield nursery
    nursery.process.communicate(timeout=30)


def test_one_folder_a_run_with_one_file_a_table(tmp_path, engine):
    with Scratch(tmp_path / "new", engine=engine) as scratch:
        assert str(os.getpid()) in scratch.path.name
        assert scratch.path.stat().st_mode & 0o777 == 0o700
        first = scratch.table("h1/p0 ü@disk", 1000, 5, torch.float32)
        second = scratch.table("h1.p1", 1000, 5, torch.float32)
        assert [path.parent for path in (first.path, second.path)] == [scratch.path] * 2
        assert scratch.held_bytes == 2 * first.file_bytes == 2 * 20480
        with pytest.raises(PlanError, match=r"h1\.p1 is there already"):
            scratch.table("h1.p1", 1, 1, torch.float32)
        first.write(slice(None), rand(1000, 5))
        first.close()
        assert not first.path.exists()
        assert (scratch.held_bytes, scratch.peak_bytes) == (20480, 40960)
        assert scratch.written_bytes == 20480
        assert scratch.finding().group == "disk"
        path = scratch.path
    assert not path.exists()
    assert list((tmp_path / "new").iterdir()) == []
    scratch.close()


def test_a_disk_budget_is_held(tmp_path, engine):
    with Scratch(tmp_path, capacity_bytes=50_000, engine=engine) as scratch:
        scratch.table("a", 1000, 5, torch.float32)
        with pytest.raises(PlanError, match=r"needs 39\.1|needs 40\.0 KiB more for b, has 28\.8"):
            scratch.table("b", 2000, 5, torch.float32)
        assert len(list(scratch.path.iterdir())) == 1
        scratch.table("b", 1000, 5, torch.float32)


def test_the_dead_leave_nothing_and_the_living_keep_theirs(tmp_path, engine, nursery):
    dead, dead_path = nursery.start(tmp_path, WRITING)
    living, living_path = nursery.start(tmp_path, WAITING)
    time.sleep(0.1)
    assert nursery.end(dead, signal.SIGKILL) == -signal.SIGKILL  # in the middle of a write
    assert os.path.isdir(dead_path)
    other = tmp_path / "tiergnn-scratch-of-mine"
    other.mkdir()
    with Scratch(tmp_path, engine=engine) as scratch:
        assert not os.path.exists(dead_path)
        assert os.listdir(living_path) == ["h1.p0.rows"]
        assert remove_stale(tmp_path) == []
        assert scratch.path.is_dir()
    nursery.end(living, signal.SIGKILL)
    assert [str(path) for path in remove_stale(tmp_path)] == [living_path]
    assert other.is_dir()


@pytest.mark.parametrize(
    ("code", "signum", "ends"),
    [
        ("", None, 0),
        ("raise ValueError('this is meant')", None, 1),
        (FORKING, None, 0),
        (WRITING, signal.SIGTERM, -signal.SIGTERM),
        (WRITING, signal.SIGINT, -signal.SIGINT),
    ],
    ids=["exit", "error", "fork", "sigterm", "sigint"],
)
def test_whatever_ends_a_run(tmp_path, nursery, code, signum, ends):
    pid, path = nursery.start(tmp_path, code)
    assert path.startswith(str(tmp_path))
    if signum is not None:
        time.sleep(0.1)
    assert nursery.end(pid, signum) == ends
    assert list(tmp_path.iterdir()) == []


def test_a_handler_of_the_users_stays(tmp_path, engine):
    before = signal.getsignal(signal.SIGTERM)
    mine = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with Scratch(tmp_path, engine=engine):
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with Scratch(tmp_path, engine=engine):
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, mine)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_folder_that_disappears_is_one_clear_error(tmp_path, engine):
    scratch = Scratch(tmp_path, engine=engine)
    table = scratch.table("h1.p0", 1000, 5, torch.float32)
    table.write(slice(None), values := rand(1000, 5))
    shutil.rmtree(scratch.path)
    with pytest.raises(StoreError, match="scratch folder has disappeared") as caught:
        scratch.table("h1.p1", 1000, 5, torch.float32)
    assert str(scratch.path) in str(caught.value)
    table.read(slice(None), out := torch.empty(1000, 5))  # what is open lives on
    assert torch.equal(out, values)
    scratch.close()


def test_a_folder_that_cannot_be_made(tmp_path, engine):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot make a scratch folder"):
        Scratch(tmp_path / "file", engine=engine)


def test_nothing_goes_to_shared_memory(tmp_path, engine):
    before = in_shared_memory()
    with Scratch(tmp_path, engine=engine) as scratch:
        store = RamRows(50_000, 25, torch.float32)
        store.write(slice(None), torch.ones(50_000, 25))
        table = scratch.table("x", 50_000, 25, torch.float32)
        table.write(slice(None), store.data)
        assert in_shared_memory() <= before
        assert str(table.path) in open_files()


def in_shared_memory():
    """What this process has there, mapped or open: of other tests, locks of multiprocessing."""
    with open("/proc/self/maps") as maps:
        mapped = {line.split(maxsplit=5)[-1].strip() for line in maps if "/dev/shm" in line}
    return mapped | {path for path in open_files() if path.startswith("/dev/shm")}


def open_files():
    found = set()
    for name in os.listdir("/proc/self/fd"):
        found.add(os.path.realpath(f"/proc/self/fd/{name}"))
    return found
