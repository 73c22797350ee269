"""Runs that stop after an epoch, and what their log holds."""

from __future__ import annotations

import os

import pytest

import tiergnn as tg


def timeless(history):
    drop = ("seconds", "eval_seconds")
    return [{k: v for k, v in record.items() if k not in drop} for record in history]


class StopAt:
    """A progress callback that fails like a crash, or sends a signal, after an epoch."""

    def __init__(self, epoch, signum=None):
        self.epoch, self.signum = epoch, signum

    def __call__(self, record):
        if record["epoch"] == self.epoch:
            if self.signum is None:
                raise RuntimeError("crash")
            os.kill(os.getpid(), self.signum)


def crash(epoch, **options):
    with pytest.raises(RuntimeError, match="crash"):
        tg.train(**options, progress=StopAt(epoch))
