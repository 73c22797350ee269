"""What ranks do in tests of failures; importable, as processes that are spawned need it."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch

from tests.transport.processes import FORKSERVER
from tiergnn.transport import place
from tiergnn.transport.launch import launch
from tiergnn.transport.running import leave, run_under_torchrun
from tiergnn.transport.transport import Transport


def fail_at(t: Transport, how: str, victim: int, step: int, pids: str) -> None:
    """Steps of all kinds of operations, of which ``victim`` does not survive one."""
    Path(pids, str(t.rank)).write_text(str(os.getpid()))
    memory = t.allocate("h", (5, 3), torch.float32)
    for i in range(12):
        if (t.rank, i) == (victim, step):
            t.at(f"UPDATE l{i}")
            die(how)
        if i % 3 == 0:
            t.exchange(torch.ones(t.size, 3), [1] * t.size, tag=f"EXCHANGE s{i}")
        elif i % 3 == 1:
            t.all_reduce([memory.own], tag=f"REDUCE s{i}")
        else:
            t.barrier(channel="peer", tag=f"BARRIER s{i}")


def die(how: str) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "hang":
        time.sleep(600)
    if how == "exit":
        sys.exit(3)
    if how == "leave":
        sys.exit(0)
    raise ValueError("no such luck")


def wrong_size(t: Transport) -> None:
    """Rank 1 expects a row too many of rank 0."""
    take = [1] * t.size
    take[0] += t.rank == 1
    t.exchange(torch.zeros(t.size, 2), [1] * t.size, take, tag="EXCHANGE s1.in")


def wrong_width(t: Transport) -> None:
    rows = torch.zeros(t.size, 2 + (t.rank == 1))
    t.exchange(rows, [1] * t.size, [1] * t.size, tag="EXCHANGE s1.in")


def wrong_operation(t: Transport) -> None:
    if t.rank == 1:
        t.barrier(tag="BARRIER s2.out")
    else:
        t.exchange(torch.zeros(t.size, 2), [1] * t.size, [1] * t.size, tag="EXCHANGE s1.in")


def wrong_name(t: Transport) -> None:
    t.allocate("h1" if t.rank != 1 else "h2", (2, 2), torch.float32)


def memory_of_no_file(t: Transport, num_bytes: int) -> None:
    """Rows in each other's sight, and nothing of them in /dev/shm or any folder."""
    rows = t.allocate("x", (num_bytes,), torch.uint8)
    rows.own.fill_(t.rank + 1)
    t.barrier()
    assert [int(peer[-1]) for peer in rows.peers] == [r + 1 for r in range(t.size)]
    t.exchange(rows.own[: t.size], [1] * t.size)
    shared = [line for line in Path("/proc/self/maps").read_text().splitlines() if " rw-s " in line]
    assert len(shared) >= 4
    assert all("/memfd:tiergnn (deleted)" in line for line in shared), shared


def on_its_processors(t: Transport, folder: str) -> None:
    Path(folder, str(t.rank)).write_text(" ".join(map(str, sorted(os.sched_getaffinity(0)))))


def in_a_world(t: Transport, mode: str, pids: str) -> None:
    """What ``main`` runs: a step of everything, then what the mode says."""
    total = torch.ones(3) * (t.rank + 1)
    t.all_reduce([total])
    assert total.tolist() == [t.size * (t.size + 1) / 2] * 3
    Path(pids, str(t.rank)).write_text(f"{os.getpid()} {t} {type(t.watch).__name__}")
    t.barrier()
    t.at("UPDATE l7")
    if mode == "wait":
        time.sleep(600)
    if mode != "well" and t.rank == 1:
        time.sleep(2.5)  # two heartbeats
        die(mode)


def on_a_host(here: place.Place, mode: str, pids: str) -> None:
    """One rank that knows the others by their store only."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    watch = place.watch_of(here)
    with Path(pids, f"{here.rank}.errors").open("w") as errors:
        sys.stderr = errors
        code = run_under_torchrun(here, watch, None, in_a_world, mode, pids)
    leave(code)


def main(starter: str, mode: str, pids: str) -> int:
    """A job of two ranks: ``launch`` starts them, or ``torchrun`` has, or it has on "hosts"."""
    if starter == "launch":
        return launch(in_a_world, 2, (mode, pids), context=FORKSERVER, timeout_s=20)
    if starter == "hosts":
        place._host = lambda: os.environ["RANK"]
    here, watch, store = place.place_of_torchrun(timeout_s=20)
    return run_under_torchrun(here, watch, store, in_a_world, mode, pids)


if __name__ == "__main__":
    from tests.transport import jobs  # by the name under which ranks import it

    leave(jobs.main(*sys.argv[1:]))
