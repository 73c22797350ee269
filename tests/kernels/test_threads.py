"""Spreading tasks over threads: every task once, errors come back, forks do not hang."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from tiergnn import threads
from tiergnn.kernels import backend
from tiergnn.kernels.memory import LARGE_BYTES, POOL
from tiergnn.kernels.threads import spread


@pytest.fixture(autouse=True)
def restore():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("num_tasks", [0, 1, 2, 3, 31, 32, 33, 1000])
@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_every_task_runs_once(num_threads, num_tasks):
    torch.set_num_threads(num_threads)
    runs = [0] * num_tasks

    def work(first: int, last: int) -> None:
        for task in range(first, last):
            runs[task] += 1

    spread(work, num_tasks)
    assert runs == [1] * num_tasks


def test_more_threads_than_one_take_part():
    torch.set_num_threads(2)
    names, both = set(), threading.Barrier(2, timeout=30)

    def work(first: int, last: int) -> None:
        if len(names) < 2:
            names.add(threading.current_thread().name)
            both.wait()

    spread(work, 2)
    assert len(names) == 2


@pytest.mark.parametrize("num_tasks", [0, 1, 7, 1000])
def test_what_takes_little_memory_stays_on_this_thread(num_tasks):
    torch.set_num_threads(2)
    pieces = []
    spread(lambda first, last: pieces.append((first, last)), num_tasks, 2**20)
    assert pieces == [(0, num_tasks)]


def test_pieces_are_of_enough_memory():
    torch.set_num_threads(2)
    pieces = []
    spread(lambda first, last: pieces.append((first, last)), 1000, 5 * 2**20)
    assert sorted(pieces) == [(i * 200, i * 200 + 200) for i in range(5)]


@pytest.mark.parametrize("num_threads", [1, 2])
def test_an_error_comes_back_after_all_have_ended(num_threads):
    torch.set_num_threads(num_threads)
    running = []

    def work(first: int, last: int) -> None:
        running.append(first)
        try:
            if first == 0:
                raise ValueError("task 0")
        finally:
            running.remove(first)

    with pytest.raises(ValueError, match="task 0"):
        spread(work, 100)
    assert not running
    spread(lambda first, last: None, 100)  # and the threads still serve


@pytest.mark.parametrize("given", [0, 1, 2])
def test_threads_that_are_not_given_leave_more_to_the_others(monkeypatch, given):
    """As where a process may have no more: then to start one raises RuntimeError."""
    torch.set_num_threads(4)
    monkeypatch.setattr(threads, "_pools", {})
    start, left = threading.Thread.start, [None] * given

    def started(thread: threading.Thread) -> None:
        if not left:
            raise RuntimeError("can't start new thread")
        left.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)
    for _ in range(20):
        runs = [0] * 1000

        def work(first: int, last: int, runs: list[int] = runs) -> None:
            for task in range(first, last):
                runs[task] += 1

        spread(work, 1000)
        assert runs == [1] * 1000


def test_a_thread_that_outlives_the_main_one():
    code = """
import threading, torch
from tiergnn.kernels.threads import spread
torch.set_num_threads(2)
def late():
    threading.main_thread().join()
    done = []
    spread(lambda first, last: done.extend(range(first, last)), 64)
    print(sorted(done) == list(range(64)))
threading.Thread(target=late).start()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_one_call_does_not_wait_for_another():
    """Threads that are busy with another call take no part, and are not waited for."""
    torch.set_num_threads(2)
    held, go = threading.Event(), threading.Event()

    def hold(first: int, last: int) -> None:
        if threading.current_thread().name.startswith("tiergnn"):
            held.set()
        go.wait(60)

    other = threading.Thread(target=spread, args=(hold, 2))
    other.start()
    assert held.wait(60)
    runs = []
    spread(lambda first, last: runs.extend(range(first, last)), 64)
    assert sorted(runs) == list(range(64))
    assert other.is_alive()
    go.set()
    other.join()


def _child(queue) -> None:
    done = []
    spread(lambda first, last: done.extend(range(first, last)), 64)
    queue.put(sorted(done))


def test_a_forked_process_gets_threads_of_its_own():
    torch.set_num_threads(2)
    spread(lambda first, last: None, 64)  # the parent has a pool by now
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(queue,))
    child.start()
    try:
        assert queue.get(timeout=60) == list(range(64))
    finally:
        child.join(10)
        child.kill()


def _choose_cpu() -> None:
    with backend.use("cpu"):
        pass


@pytest.mark.parametrize(
    ("lock", "use"),
    [(POOL._lock, lambda: POOL.take(LARGE_BYTES)), (backend._lock, _choose_cpu)],
    ids=["memory", "backend"],
)
def test_a_fork_while_another_thread_has_a_lock(lock, use):
    locked = threading.Event()

    def hold() -> None:
        with lock:
            locked.set()
            time.sleep(0.1)

    thread = threading.Thread(target=hold)
    thread.start()
    locked.wait()
    child = os.fork()
    if not child:
        signal.alarm(30)
        use()
        os._exit(0)
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    use()  # and the parent's is open, too
