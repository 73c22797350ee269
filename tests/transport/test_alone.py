"""One rank without the others: what it gets by itself, and memory that is taken in turns."""

from __future__ import annotations

import pytest
import torch

from tests.transport.contract import (
    check_nothing_at_all,
    check_own_mistakes_are_told_before_anything_moves,
    check_unknown_channel,
)
from tiergnn.errors import ConfigError, RankError
from tiergnn.transport import alone
from tiergnn.transport.alone import Absent, Alone, Shelf

SIZE, RANK = 4, 2
CHECKS = (
    check_nothing_at_all, check_own_mistakes_are_told_before_anything_moves, check_unknown_channel,
)  # fmt: skip


@pytest.mark.parametrize("check", CHECKS)
def test_contract(check):
    t = Alone(RANK, SIZE, debug=True)
    check(t, "cpu")
    t.close()


@pytest.mark.parametrize("debug", [False, True])
def test_rows_of_others_are_zeros_and_counted(debug):
    t = Alone(RANK, SIZE, debug=debug)
    rows = torch.arange(12.0).view(6, 2)
    got = t.exchange(rows, [1, 0, 2, 3], [2, 1, 2, 0])
    assert got[3:].tolist() == rows[1:3].tolist()
    assert not got[:3].any()
    assert t.taken_bytes == 3 * 8
    room = torch.full((5, 2), -1.0)
    assert t.exchange(rows, [1, 0, 2, 3], [2, 1, 2, 0], out=room) is room
    assert torch.equal(room, got)
    assert t.exchange(rows, [1, 0, 2, 3]).tolist() == rows[1:3].tolist()
    t.close()


def test_what_absent_ranks_give_and_say():
    class Others(Absent):
        def give(self, like, what, size):
            return [torch.full((r + 1, 1), float(r)) for r in range(size)]

        def say(self, own, what, size):
            return [f"{what} {own} {r}" for r in range(size)]

    t = Alone(RANK, SIZE, Others())
    rows = torch.full((4, 1), 9.0)
    got = t.exchange(rows, [1] * 4, tag="rows")
    assert got.flatten().tolist() == [0, 1, 1, 9, 3, 3, 3, 3]
    with pytest.raises(RankError, match="wanted 3 rows of rank 1, which gave 2"):
        t.exchange(torch.zeros(4, 1), [0, 0, 4, 0], [1, 3, 4, 4])
    assert t.gather("hello", tag="word") == [f"word hello {r}" for r in range(4)]


def test_sums_and_broadcasts_are_its_own():
    t = Alone(RANK, SIZE)
    total = torch.arange(3.0)
    t.all_reduce([total])
    assert total.tolist() == [0, 1, 2]
    t.broadcast(total, RANK)
    assert total.tolist() == [0, 1, 2]
    t.barrier(channel="peer")
    t.close()


@pytest.mark.parametrize("waits", [False, True])
def test_whoever_meets_waits_where_that_was_asked_for(waits, monkeypatch):
    waited = []
    monkeypatch.setattr(alone, "finish", lambda: waited.append(1))
    t = Alone(RANK, SIZE, waits=waits)
    t.barrier()
    t.all_reduce([torch.zeros(1)])
    t.exchange(torch.zeros(4, 1), [1] * 4)
    assert len(waited) == (4 if waits else 0)


@pytest.mark.parametrize("rows", [None, [3, 5, 2, 0]])
def test_allocate(rows):
    t = Alone(RANK, SIZE)
    held = t.allocate("h", (2, 5), torch.float32, rows=rows)
    assert [len(peer) for peer in held.peers] == (rows or [2] * SIZE)
    assert held.peers[RANK] is held.own
    held.own.fill_(1)
    assert not any(peer.any() for r, peer in enumerate(held.peers) if r != RANK)
    with pytest.raises(ConfigError, match="was to have 3 rows, 2 were wanted"):
        t.allocate("g", (2, 5), torch.float32, rows=[2, 2, 3, 2])
    t.close()


def test_a_shelf_is_taken_from_its_beginning_again():
    shelf = Shelf()
    places = []
    for _ in range(2):
        t = Alone(RANK, SIZE, shelf=shelf)
        held = t.allocate("h", (3, 5), torch.float32)
        more = t.allocate("g", (3, 5), torch.float32)
        there = [rows.data_ptr() for m in (held, more) for r, rows in enumerate(m.peers) if r != 2]
        assert len(set(there)) == 6
        places.append(there)
        t.close()
    assert places[0] == places[1]
    assert shelf.num_pieces == 1
    assert shelf.take(2**29).numel() == 2**29
    assert shelf.num_pieces == 2
    shelf.close()
