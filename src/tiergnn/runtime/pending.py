"""Pending: memory that was given back while a GPU may still be at what was queued before.

A release is queued like all else, so what it frees is free when its event has come. Until then a
budget counts it, and nobody else may write there.
"""

from __future__ import annotations

import threading
from collections import deque

import torch


class Pending:
    """Releases by events of the streams that they were queued on; the oldest come first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leaving: deque[tuple[torch.cuda.Event, int]] = deque()
        self._bytes = 0
        self._places: dict[str, torch.cuda.Event] = {}

    def leave(self, num_bytes: int, stream: torch.cuda.Stream) -> None:
        """Bytes of the device that are free when a stream has come so far."""
        with self._lock:
            self._leaving.append((_now(stream), num_bytes))
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

    def vacate(self, name: str, stream: torch.cuda.Stream) -> None:
        """A place in host memory, likewise."""
        self._places[name] = _now(stream)

    def await_vacant(self, name: str, *, by_host: bool) -> None:
        """Have the current stream wait until it is; and the caller, who works on it himself, where
        ``by_host``."""
        if (event := self._places.get(name)) is not None:
            event.wait()
            if by_host:
                event.synchronize()

    def clear(self) -> None:
        """Once the device is done with everything."""
        with self._lock:
            self._leaving.clear()
            self._places.clear()
            self._bytes = 0


def _now(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event()
    event.record(stream)
    return event
