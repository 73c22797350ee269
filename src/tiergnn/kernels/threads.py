"""Running one kernel call in pieces on as many threads as torch uses."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import count

import torch

_PIECES_PER_THREAD = 16  # so that a thread held up by another process does not hold up the rest
_pools: dict[int, ThreadPoolExecutor] = {}
# A child process has its parent's pools but not their threads.
os.register_at_fork(after_in_child=_pools.clear)


def spread(work: Callable[[int, int], None], num_tasks: int) -> None:
    """Call ``work(first, last)`` on pieces that cover range(num_tasks); returns when all are done.

    Pieces run in any order, on the caller's thread and on torch.get_num_threads() - 1 others, so
    ``work`` must release the GIL and tasks must not write to the same places.
    """
    num_threads = min(torch.get_num_threads(), num_tasks)
    if num_threads <= 1:
        work(0, num_tasks)
        return
    step = max(1, num_tasks // (num_threads * _PIECES_PER_THREAD))
    firsts = count(0, step)  # next() on it is atomic

    def take() -> None:
        while (first := next(firsts)) < num_tasks:
            work(first, min(first + step, num_tasks))

    if num_threads not in _pools:
        _pools[num_threads] = ThreadPoolExecutor(num_threads - 1, "tiergnn")
    others = [_pools[num_threads].submit(take) for _ in range(num_threads - 1)]
    try:
        take()
    finally:
        wait(others)  # they read the caller's tensors
    for other in others:
        other.result()
