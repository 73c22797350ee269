"""Ctrl-C, SIGTERM and SIGHUP as a wish that the loop sees between two epochs."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class StopSignals:
    """While entered, the first SIGINT, SIGTERM or SIGHUP sets ``signum``; the next acts as ever.

    Signals are the main thread's: in any other thread this does nothing. One that the process was
    started to ignore (a background job, nohup) stays ignored.
    """

    _SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.signum: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            handlers = {number: signal.getsignal(number) for number in self._SIGNALS}
            self._before = {n: h for n, h in handlers.items() if h is not signal.SIG_IGN}
            for number in self._before:
                signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.signum = signum
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before = {}
