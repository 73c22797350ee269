"""Running one kernel call in pieces on as many threads as torch uses."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tiergnn import threads

_PIECE_BYTES = 2**20  # take several times as long as to hand them to a thread


def spread(work: Callable[[int, int], None], num_tasks: int, num_bytes: int | None = None) -> None:
    """``threads.spread`` over torch.get_num_threads() threads.

    ``num_bytes`` is what all tasks together read and write: of little memory pieces are few, or one
    that stays on this thread. None: every task is worth a thread.
    """
    pieces = max(1, num_bytes // _PIECE_BYTES) if num_bytes is not None else num_tasks or 1
    least_tasks = max(1, -(-num_tasks // pieces))
    threads.spread(work, num_tasks, torch.get_num_threads(), least_tasks=least_tasks)
