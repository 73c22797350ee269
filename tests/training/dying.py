"""A rank of a training run that is killed at one of its actions; importable, as ranks need it."""

from __future__ import annotations

import os
import signal
from itertools import count

from tiergnn.training.task import Task, train_rank
from tiergnn.transport.transport import Transport


def killed_at(victim: int, action: int, transport: Transport, given: bytes | Task) -> None:
    """``train_rank``, of which rank ``victim`` dies at its ``action``-th action."""
    at, number = transport.at, count()

    def noted(what: str) -> None:
        at(what)
        if transport.rank == victim and next(number) == action:
            os.kill(os.getpid(), signal.SIGKILL)

    transport.at = noted
    train_rank(transport, given)
