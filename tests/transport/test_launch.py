"""Starting and ending ranks: spawned, under torchrun, stopped by signals, orphaned."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from multiprocessing import resource_tracker, spawn
from pathlib import Path

import psutil
import pytest

from tests.transport import jobs
from tests.transport.contract import check_two_triangles_and_an_isolated_node
from tests.transport.processes import FORKSERVER
from tiergnn.errors import ConfigError, RankError
from tiergnn.transport.launch import launch
from tiergnn.transport.place import place_of_torchrun

ROOT = Path(__file__).parents[2]


def start(*args: str, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    command = [sys.executable, *before, "-m", "tests.transport.jobs", *args]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def torchrun(starter: str, mode: str, folder: Path) -> subprocess.Popen[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ("--nproc-per-node", "2", "--master-port", str(port))
    return start(starter, mode, str(folder), before=("-m", "torch.distributed.run", *options))


def wait_for(folder: Path, num_ranks: int = 2) -> list[int]:
    """The processes of all ranks, once they have met."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        texts = [path.read_text() for path in folder.iterdir()]
        if len(texts) == num_ranks and all(texts):
            time.sleep(0.5)
            return [int(text.split()[0]) for text in texts]
        time.sleep(0.05)
    raise AssertionError("the ranks did not come")


def gone(pids: list[int], within_s: float = 10) -> bool:
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if not any(psutil.pid_exists(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def test_spawned():
    """Without anything that a fork would have brought along."""
    check = check_two_triangles_and_an_isolated_node
    assert launch(check, 2, ("cpu",), transport="shared") == 0


def processors_of_ranks(folder: Path, num_ranks: int, context=None) -> list[set[int]]:
    launch(jobs.on_its_processors, num_ranks, (str(folder),), transport="shared", context=context)
    texts = [(folder / str(rank)).read_text() for rank in range(num_ranks)]
    return [{int(number) for number in text.split()} for text in texts]


BINDS = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="the system binds no process"
)


@BINDS
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_each_rank_keeps_to_its_processors(tmp_path, num_ranks):
    """All are in use, by as many ranks each, give or take one."""
    mine = os.sched_getaffinity(0)
    found = processors_of_ranks(tmp_path, num_ranks, FORKSERVER)
    assert set.union(*found) == mine
    assert len({len(share) for share in found}) <= 2
    users = [sum(processor in share for share in found) for processor in mine]
    assert max(users) <= -(-num_ranks // len(mine))


@BINDS
def test_ranks_with_a_users_number_of_threads_have_all_processors(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert processors_of_ranks(tmp_path, 2) == [os.sched_getaffinity(0)] * 2


def test_a_signal_is_passed_on_and_ends_all(tmp_path):
    job = start("launch", "wait", str(tmp_path))
    pids = wait_for(tmp_path)
    job.send_signal(signal.SIGTERM)
    _, errors = job.communicate(timeout=30)
    assert job.returncode == 128 + signal.SIGTERM, errors
    assert gone(pids)


def test_no_rank_outlives_a_killed_launcher(tmp_path):
    job = start("launch", "wait", str(tmp_path))
    pids = wait_for(tmp_path)
    job.kill()
    job.communicate()
    assert gone(pids)


def test_torchrun_on_one_host(tmp_path):
    job = torchrun("torchrun", "well", tmp_path)
    _, errors = job.communicate(timeout=90)
    assert job.returncode == 0, errors
    for rank in range(2):
        told = (tmp_path / str(rank)).read_text()
        assert told.endswith("shared, 2 ranks (CPU ranks of one host) Board")


@pytest.mark.slow
def test_torchrun_on_hosts_of_which_one_dies(tmp_path):
    job = torchrun("hosts", "kill", tmp_path)
    pids = wait_for(tmp_path)
    began = time.monotonic()
    job.communicate(timeout=90)
    assert job.returncode != 0
    assert time.monotonic() - began < 20
    assert gone(pids)
    assert (
        "gloo, 2 ranks (the ranks are on several hosts) StoreBoard" in (tmp_path / "0").read_text()
    )


def test_ranks_that_die_before_they_have_read_what_to_do(monkeypatch):
    resource_tracker.ensure_running()  # by Python, which ranks are not
    monkeypatch.setattr(spawn, "_python_exe", os.fsencode(shutil.which("false") or ""))
    much = bytes(10_000_000)  # more than a pipe holds
    found: list[BaseException] = []

    def start_ranks() -> None:
        try:
            launch(jobs.wrong_name, 2, (much,), transport="shared")
        except RankError as error:
            found.append(error)

    thread = threading.Thread(target=start_ranks, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert "ended with exit code 1" in str(found[0])


def test_memory_of_no_file():
    """200 MB, whatever /dev/shm holds; it is nowhere to be left."""
    job = launch(jobs.memory_of_no_file, 2, (100_000_000,), transport="shared", context=FORKSERVER)
    assert job == 0


def test_a_script_without_a_guard_is_told_of_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from tiergnn.transport.launch import launch\n"
        "from tests.transport.jobs import wrong_name\n"
        "launch(wrong_name, 2, transport='shared')\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], cwd=ROOT, capture_output=True, text=True, timeout=120,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    last = done.stderr.splitlines()[-3:]
    assert last[0].endswith("ended with exit code 1")
    assert "if __name__ == '__main__'" in last[2]


def test_nonsense_is_refused(monkeypatch):
    with pytest.raises(ConfigError, match="at least 1 rank"):
        launch(jobs.wrong_name, 0)
    with pytest.raises(ConfigError, match="transport nccl: the ranks are on CPUs"):
        launch(jobs.wrong_name, 2, transport="nccl")
    for name in ("RANK", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    assert "RANK" not in os.environ
    with pytest.raises(ConfigError, match="wanted torchrun's environment, had no RANK"):
        place_of_torchrun()
