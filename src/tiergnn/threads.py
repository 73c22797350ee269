"""Running one call in pieces on several threads, for work that releases the GIL."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

_PIECES_PER_THREAD = 16  # so that a thread held up by another process does not hold up the rest
_pools: dict[int, ThreadPoolExecutor] = {}
# A child process has its parent's pools but not their threads.
os.register_at_fork(after_in_child=_pools.clear)


def num_processors() -> int:
    """Processors that this process may use: OMP_NUM_THREADS where it is set, as for torch."""
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def bind(share: int, num_shares: int) -> None:
    """Keep this process, whose threads are yet to come, on its share of the processors that it may
    use, whole cores where they suffice: woken threads of one rank else land on another's.

    Where there are fewer processors than shares, each has one. Nothing is done where the system has
    no such call.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    mine = sorted(os.sched_getaffinity(0), key=_core_of)
    first, last = (len(mine) * edge // num_shares for edge in (share, share + 1))
    with suppress(OSError):
        os.sched_setaffinity(0, mine[first : max(last, first + 1)])


def _core_of(processor: int) -> tuple[int, int, int]:
    """Where it stands: package, core, number; by its number alone where the system does not say."""
    folder = Path(f"/sys/devices/system/cpu/cpu{processor}/topology")
    try:
        place = [int((folder / name).read_text()) for name in ("physical_package_id", "core_id")]
    except (OSError, ValueError):
        return 0, 0, processor
    return place[0], place[1], processor


def open_after_fork(lock: Any) -> None:
    """Have a lock that is never held for long be open in child processes: forks wait for it.

    A child has none of its parent's threads, and what one of them had shut would stay so.
    """
    os.register_at_fork(
        before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
    )


def spread(
    work: Callable[[int, int], None], num_tasks: int, num_threads: int, *, least_tasks: int = 1
) -> None:
    """Call ``work(first, last)`` on pieces that cover range(num_tasks); returns when all are done.

    Pieces run in any order, on the caller's thread and on num_threads - 1 others, so ``work`` must
    release the GIL and tasks must not write to the same places. A piece has ``least_tasks`` or
    more, save the last one: so many that to hand it to a thread is little beside its work.
    Raises an error of ``work`` when all pieces that were begun have ended.
    """
    num_threads = min(num_threads, -(-num_tasks // least_tasks))
    if num_threads <= 1:
        work(0, num_tasks)
        return
    step = max(least_tasks, num_tasks // (num_threads * _PIECES_PER_THREAD))
    firsts = count(0, step)  # next() on it is atomic

    def take() -> None:
        while (first := next(firsts)) < num_tasks:
            work(first, min(first + step, num_tasks))

    def help_out(other: Future[None]) -> None:
        if not other.set_running_or_notify_cancel():
            return
        try:
            take()
        except BaseException as error:
            other.set_exception(error)
        else:
            other.set_result(None)

    if num_threads not in _pools:
        _pools[num_threads] = ThreadPoolExecutor(num_threads - 1, "tiergnn")
    others: list[Future[None]] = [Future() for _ in range(num_threads - 1)]
    try:
        # Threads that the system does not give, or the interpreter when it is about to end, leave
        # more to this one.
        with suppress(RuntimeError):
            for other in others:
                _pools[num_threads].submit(help_out, other)
        take()
    finally:
        begun = [other for other in others if not other.cancel()]
        wait(begun)  # they read the caller's arrays
    for other in begun:
        other.result()
