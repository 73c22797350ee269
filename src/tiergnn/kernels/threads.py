"""Running one kernel call in pieces on as many threads as torch uses."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tiergnn import threads


def spread(work: Callable[[int, int], None], num_tasks: int) -> None:
    """``threads.spread`` over torch.get_num_threads() threads."""
    threads.spread(work, num_tasks, torch.get_num_threads())
