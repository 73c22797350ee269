"""A rank that dies, hangs, raises or disagrees ends the job in time, with one message."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import psutil
import pytest

from tests.transport import jobs
from tests.transport.processes import FORKSERVER
from tiergnn.errors import RankError
from tiergnn.transport.board import Board
from tiergnn.transport.failure import Failure
from tiergnn.transport.launch import launch

TIMEOUT_S = 8.0
CAUSES = {
    "kill": "was killed by SIGKILL",
    "exit": "ended with 3",
    "raise": "raised ValueError: no such luck",
    "hang": "did not come to",
    "stop": "did not come to",
    "leave": "died",
}


def fails(tmp_path: Path, transport: str, size: int, how: str, seed: int) -> None:
    """One failure at a random place: the message, the time, and that nothing is left."""
    draw = random.Random(f"{how} {seed}")
    victim, step = draw.randrange(size), draw.randrange(12)
    memory, files = set(os.listdir("/dev/shm")), set(os.listdir(tmp_path))
    began = time.monotonic()
    with pytest.raises(RankError) as caught:
        launch(
            jobs.fail_at,
            size,
            (how, victim, step, str(tmp_path)),
            transport=transport,
            timeout_s=TIMEOUT_S,
            context=None if transport == "virtual" else FORKSERVER,
        )
    took_s = time.monotonic() - began
    message = str(caught.value)
    assert message.startswith(f"rank {victim} "), message
    assert CAUSES[how] in message
    assert f"UPDATE l{step}" in message
    assert took_s < TIMEOUT_S + 15  # of which the rest is starting Python and torch
    pids = {int((tmp_path / str(rank)).read_text()) for rank in range(size)} - {os.getpid()}
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    left = set(os.listdir("/dev/shm")) - memory
    assert not [name for name in left if "tiergnn" in name or any(str(p) in name for p in pids)]
    assert set(os.listdir(tmp_path)) - files == {str(rank) for rank in range(size)}


@pytest.mark.parametrize("how", ["kill", "exit", "raise", "stop"])
def test_shared(tmp_path, how):
    fails(tmp_path, "shared", 2, how, seed=0)


@pytest.mark.parametrize("how", ["kill", "hang"])
def test_gloo(tmp_path, how):
    fails(tmp_path, "gloo", 2, how, seed=0)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_virtual_rank_raises(tmp_path, size):
    fails(tmp_path, "virtual", size, "raise", seed=size)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 7))
@pytest.mark.parametrize("how", ["kill", "exit", "raise", "hang"])
@pytest.mark.parametrize("transport", ["shared", "gloo"])
def test_at_random(tmp_path, transport, how, seed):
    fails(tmp_path, transport, 2 + seed % 2, how, seed)


def test_a_virtual_rank_that_hangs_is_named(monkeypatch):
    began = time.monotonic()
    with pytest.raises(RankError, match=r"rank 1 did not come to BARRIER s1 within 1\.4 s, it was"):
        launch(_sleeps, 3, transport="virtual", timeout_s=2.0)
    assert time.monotonic() - began < 2.0


def _sleeps(t) -> None:
    if t.rank == 1:
        t.at("UPDATE l3")
        time.sleep(5)
    t.barrier(tag="BARRIER s1")


def test_errors_of_ours_keep_their_kind():
    with pytest.raises(RankError, match=r"rank \d raised ConfigError: unknown channel") as caught:
        launch(_asks_for_nonsense, 2, transport="virtual")
    assert caught.value.kind == "ConfigError"
    with pytest.raises(RankError) as caught:
        launch(_sleeps, 2, transport="virtual", timeout_s=2.0)
    assert caught.value.kind == ""


def _asks_for_nonsense(t) -> None:
    t.barrier(channel="none")


def test_a_look_that_raises_ends_the_job(tmp_path):
    """As a callback of the user's may; nothing of the job is left."""
    looks = []

    def look() -> None:
        looks.append(len(os.listdir(tmp_path)))
        if looks[-1] == 2:
            raise LookupError("seen enough")

    for transport, context in (("virtual", None), ("shared", FORKSERVER)):
        for path in tmp_path.iterdir():
            path.unlink()
        with pytest.raises(LookupError, match="seen enough"):
            launch(_waits, 2, (str(tmp_path),), transport=transport, context=context, look=look)
        pids = {int(path.read_text()) for path in tmp_path.iterdir()} - {os.getpid()}
        assert not [pid for pid in pids if psutil.pid_exists(pid)]


def _waits(t, pids: str) -> None:
    Path(pids, f"{t.rank}.new").write_text(str(os.getpid()))
    Path(pids, f"{t.rank}.new").rename(Path(pids, str(t.rank)))
    while True:
        t.barrier()
        time.sleep(0.05)


def test_a_wrong_size_is_named():
    for debug in (False, True):
        with pytest.raises(RankError) as caught:
            launch(jobs.wrong_size, 4, transport="virtual", debug=debug)
        assert str(caught.value).startswith(
            "rank 1 wanted 2 rows of rank 0, which gave 1\n  at: EXCHANGE s1.in"
        )


def test_a_wrong_width_is_named():
    with pytest.raises(RankError, match=r"rank 1 was at .* rows of \[3\], wanted .* rows of \[2\]"):
        launch(jobs.wrong_width, 4, transport="virtual", debug=True)
    with pytest.raises(RankError, match=r"wanted rows of \d+ bytes of rank \d, which gave rows of"):
        launch(jobs.wrong_width, 4, transport="virtual")


def test_another_operation_is_named():
    with pytest.raises(RankError, match=r"rank 1 was at BARRIER s2\.out .* wanted EXCHANGE s1\.in"):
        launch(jobs.wrong_operation, 4, transport="virtual", debug=True)


def test_another_name_of_memory_is_named():
    with pytest.raises(RankError, match=r"rank 1 was at allocate h2 .* wanted allocate h1"):
        launch(jobs.wrong_name, 4, transport="virtual")


def test_a_wrong_size_between_processes_is_named_before_gloo_hangs():
    with pytest.raises(RankError) as caught:
        launch(jobs.wrong_size, 2, transport="gloo", debug=True, context=FORKSERVER)
    assert "rank 1 wanted 2 rows of rank 0, which gave 1" in str(caught.value)
    assert "EXCHANGE s1.in" in str(caught.value)


@pytest.mark.parametrize("text", ["\0", "é", "\U0001f600", '"', "x"])
def test_a_message_of_any_length_and_letters_fits_the_board(text):
    board = Board.of_threads(2, ("main",))
    long = text * 10_000
    board.fail(Failure(rank=1, by=1, action=long, cause=long, hint=long))
    board.fail(Failure(rank=0, by=0, action="", cause="came second"))
    failure = board.failure()
    assert failure is not None
    assert (failure.rank, failure.cause) == (1, long[:400])
