"""Pending: memory that was given back while a GPU may still be at what was queued before.

A lane's work is queued on its stream, and so is what it gives back. Tensors go back to the
allocator once the stream that they were taken on comes after that: what it does next cannot meet
what others still do, and nobody waits on the host. Until then a budget counts them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(slots=True)
class Turn:
    """An action of a lane, whose work is queued on ``stream``."""

    lane: str
    stream: torch.cuda.Stream
    index: int


@dataclass(slots=True)
class _Leaving:
    value: Any
    num_bytes: int
    owner: Turn  # on whose stream it was taken
    then: torch.cuda.Event
    index: int  # of the action that gave it back


class Pending:
    """What lanes gave back, the oldest first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leaving: deque[_Leaving] = deque()
        self._between: dict[tuple[str, str], deque[_Leaving]] = {}  # by owner, and who gave it back
        self._bytes = 0
        self._places: dict[str, torch.cuda.Event] = {}

    def leave(
        self, value: Any, num_bytes: int, owner: Turn, by: Turn, then: torch.cuda.Event
    ) -> None:
        """A tensor of ``owner``'s stream that ``by`` is done with when ``then`` has come."""
        if owner.lane == by.lane:
            return
        one = _Leaving(value, num_bytes, owner, then, by.index)
        with self._lock:
            self._leaving.append(one)
            self._between.setdefault((owner.lane, by.lane), deque()).append(one)
            self._bytes += num_bytes

    def passed(self, lane: str, other: str, index: int) -> None:
        """A lane's stream comes after what another did up to the action ``index``."""
        with self._lock:
            leaving = self._between.get((lane, other))
            while leaving and leaving[0].index <= index:
                self._drop(leaving.popleft())

    def make_room(self, spare_bytes: int) -> None:
        """Have streams wait until no more than that is still to become free."""
        with self._lock:
            while self._leaving and self._bytes > max(0, spare_bytes):
                one = self._leaving.popleft()
                if one.value is not None:
                    one.then.wait(one.owner.stream)
                    self._drop(one)

    def _drop(self, one: _Leaving) -> None:
        if one.value is not None:
            one.value = None
            self._bytes -= one.num_bytes

    def vacate(self, name: str, then: torch.cuda.Event) -> None:
        """A place in host memory that is free when an event has come."""
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
            self._between.clear()
            self._places.clear()
            self._bytes = 0
