"""Pending: memory that was given back while a GPU may still be at what was queued before.

A release is queued like all else, so what it frees is free when its event has come. Until then a
budget counts it, and nobody else may write there.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

import torch


class Pending:
    """Releases by events of the streams that they were queued on; the oldest come first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leaving: deque[tuple[torch.cuda.Event, int]] = deque()
        self._bytes = 0
        self._places: dict[str, torch.cuda.Event] = {}

    def leave(self, num_bytes: int, then: torch.cuda.Event) -> None:
        """Bytes of the device that are free when an event has come."""
        with self._lock:
            self._leaving.append((then, num_bytes))
            self._bytes += num_bytes

    def make_room(self, spare_bytes: int) -> None:
        """Wait until no more than that is still to become free."""
        while True:
            with self._lock:
                while self._leaving and self._leaving[0][0].query():
                    self._bytes -= self._leaving.popleft()[1]
                if self._bytes <= max(0, spare_bytes) or not self._leaving:
                    return
                oldest = self._leaving[0][0]
            oldest.synchronize()

    def vacate(self, name: str, then: torch.cuda.Event) -> None:
        """A place in host memory, likewise."""
        self._places[name] = then

    def await_vacant(self, names: Iterable[str], *, by_host: bool) -> None:
        """Have the current stream wait until all are; and the caller, who works on them himself,
        where ``by_host``."""
        for event in {self._places[name] for name in names if name in self._places}:
            event.wait()
            if by_host:
                event.synchronize()

    def clear(self) -> None:
        """Once the device is done with everything."""
        with self._lock:
            self._leaving.clear()
            self._places.clear()
            self._bytes = 0
