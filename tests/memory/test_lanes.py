"""Lanes: order, overlap, errors that reach whoever waits, and no waiting for ever."""

from __future__ import annotations

import os
import threading

import pytest
import torch

from tiergnn.errors import ConfigError, StoreError
from tiergnn.memory.lanes import Lanes
from tiergnn.memory.ram import RamRows
from tiergnn.memory.slow import Slow

NAMES = ("read", "copy", "write")


def test_a_lane_keeps_its_order_and_gives_results():
    seen = []
    with Lanes(NAMES) as lanes:
        tickets = [
            lanes.submit("read", lambda i=i: seen.append(i) or i, label=f"read {i}")
            for i in range(200)
        ]
        assert [ticket.wait() for ticket in tickets] == list(range(200))
    assert seen == list(range(200))
    assert all(ticket.start_s <= ticket.end_s for ticket in tickets)
    assert tickets[3].label == "read 3"


def test_what_comes_after_waits_for_what_is_before():
    order = []
    with Lanes(NAMES) as lanes:
        gate = threading.Event()
        first = lanes.submit("read", lambda: gate.wait(10) and order.append("read"))
        second = lanes.submit("copy", lambda: order.append("copy"), after=[first])
        other = lanes.submit("write", lambda: order.append("write"))
        other.wait()
        gate.set()
        second.wait()
    assert order == ["write", "read", "copy"]
    assert second.stall_s > 0


def test_lanes_overlap():
    stores = [Slow(RamRows(1000, 25, torch.float32), rate_Bps=1e6) for _ in range(3)]  # 0.1 s each
    out = torch.empty(1000, 25)
    with Lanes(NAMES) as lanes:
        tickets = [
            lanes.submit(name, lambda s=store: s.read(slice(None), out))
            for name, store in zip(NAMES, stores, strict=True)
        ]
        lanes.drain()
    # All three were under way at once.
    assert max(ticket.start_s for ticket in tickets) < min(ticket.end_s for ticket in tickets)


def test_a_full_lane_holds_up_who_submits():
    gate = threading.Event()
    with Lanes(["read"], depth=2) as lanes:
        for _ in range(2):
            lanes.submit("read", gate.wait)
        third: list[float] = []
        thread = threading.Thread(
            target=lambda: third.append(lanes.submit("read", lambda: 3).wait())
        )
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        gate.set()
        thread.join(10)
    assert third == [3]


def test_an_error_reaches_all_and_nothing_more_begins():
    begun, told = [], []

    def fail():
        raise StoreError("cannot read", culprit="/disk/h1.p3.rows")

    lanes = Lanes(NAMES, on_error=told.append)
    gate = threading.Event()
    begins = threading.Event()
    running = lanes.submit("write", lambda: begins.set() or (gate.wait(10) and "whole"))
    begins.wait(10)
    broken = lanes.submit("read", lambda: gate.wait(10) and fail())
    later = lanes.submit("copy", lambda: begun.append("copy"), after=[broken])
    behind = lanes.submit("read", lambda: begun.append("read"))
    gate.set()
    for ticket in (broken, later, behind):
        with pytest.raises(StoreError, match=r"h1\.p3\.rows"):
            ticket.wait()
    assert running.wait() == "whole"
    for call in (lambda: lanes.submit("copy", list), lanes.drain):
        with pytest.raises(StoreError):
            call()
    lanes.close()
    assert begun == []
    assert [error.culprit for error in told] == ["/disk/h1.p3.rows"]


def test_leaving_by_an_error_begins_nothing_more():
    begun = []
    gate = threading.Event()

    def leave():
        with Lanes(["read"]) as lanes:
            lanes.submit("read", lambda: gate.wait(10))
            lanes.submit("read", lambda: begun.append(1))
            threading.Timer(0.2, gate.set).start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        leave()
    assert begun == []


def test_a_lane_that_died_is_an_error():
    """In a forked process the lanes' threads are gone: waiting there must not last for ever."""
    lanes = Lanes(["read"])
    gate = threading.Event()
    ticket = lanes.submit("read", gate.wait)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            ticket.wait()
        except RuntimeError as error:
            code = 0 if "lane read has died" in str(error) else 2
        finally:
            os._exit(code)
    gate.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ticket.wait()
    lanes.close()


def test_an_unknown_lane_is_answered_with_the_known_ones():
    with Lanes(NAMES) as lanes, pytest.raises(ConfigError, match="read, copy, write"):
        lanes.submit("disk", list)
