"""Ranks that know each other by a store only, as on several hosts."""

from __future__ import annotations

import time

import pytest
import torch.distributed as dist

from tests.transport import jobs
from tests.transport.processes import FORKSERVER
from tiergnn.transport.failure import Failure
from tiergnn.transport.place import Place
from tiergnn.transport.store_board import BEAT_S, StoreBoard


def store() -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def soon(ready, within_s: float = 5 * BEAT_S) -> bool:
    until = time.monotonic() + within_s
    while not ready() and time.monotonic() < until:
        time.sleep(0.05)
    return ready()


def test_actions_failures_and_silence():
    ours = store()
    boards = [StoreBoard(ours, 3, 2.5 * BEAT_S) for _ in range(3)]
    for rank, board in enumerate(boards):
        assert not board.joined()
        board.join(rank)
    assert all(board.joined() for board in boards)
    boards[1].note(1, "UPDATE l3")
    assert soon(lambda: boards[0].action_of(1) == "UPDATE l3")
    boards[2].leave(2)
    boards[1]._ended.set()  # no more heartbeats
    assert soon(lambda: boards[0].died(0) is not None)
    assert boards[0].died(0) == 1  # and not 2, which has left
    first = Failure(rank=1, by=0, action="UPDATE l3", cause="died")
    boards[0].fail(first)
    boards[1].fail(Failure(rank=0, by=1, action="", cause="came second"))
    assert boards[0].failure() == boards[1].failure() == first
    boards[0].leave(0)


def test_a_lost_store_ends_the_job():
    ours = store()
    board = StoreBoard(ours, 1, 8.0)
    board.join(0)
    del ours
    assert soon(lambda: board.failure() is not None)
    assert "lost the store" in board.failure().cause


@pytest.mark.parametrize("how", ["kill", "raise", "hang"])
def test_one_message(tmp_path, how):
    ours = store()
    place = {
        "size": 2,
        "transport": "gloo",
        "why": "several hosts",
        "store": f"127.0.0.1:{ours.port}",
        "timeout_s": 8.0,
    }
    processes = [
        FORKSERVER.Process(
            target=jobs.on_a_host,
            args=(Place(rank=rank, local_rank=0, **place), how, str(tmp_path)),
        )
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
        assert process.exitcode
    causes = {
        "kill": "rank 1 died",
        "raise": "rank 1 raised ValueError: no such luck",
        "hang": "rank 1 did not come to close within 5.6 s, it was at UPDATE l7",
    }
    told = "".join((tmp_path / f"{rank}.errors").read_text() for rank in range(2))
    assert told.startswith(causes[how])
    assert told.count("  at: ") == 1
    assert "at: UPDATE l7" in told
