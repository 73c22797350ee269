"""Lanes: threads that do what they are given in order, each beside the others.

What depends on something done on another lane waits for it there. The first error stops all lanes:
nothing that was not begun begins, whoever waits gets that error, and nobody waits for ever.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

from tiergnn.errors import unknown

_PATIENCE_S = 0.5  # between looks at whether a lane is still alive
DEPTH = 64


class Ticket:
    """One piece of work on a lane; ``label`` says what it is."""

    def __init__(
        self,
        lanes: Lanes,
        lane: str,
        label: str,
        work: Callable[[], Any] | None,
        after: Sequence[Ticket],
    ):
        self.lane, self.label = lane, label
        self.start_s = self.end_s = 0.0  # of time.perf_counter()
        self.stall_s = 0.0  # that its lane waited for what it comes after
        self._lanes, self._work, self._after = lanes, work, after
        self._done = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._done.is_set()

    def wait(self) -> Any:
        """Block until it is done and give what it gave. Raises the error that stopped it."""
        while not self._done.wait(_PATIENCE_S):
            self._lanes.look()
        if self._error is not None:
            raise self._error
        return self._result

    def _run(self) -> None:
        before = time.perf_counter()
        for ticket in self._after:
            while not ticket._done.wait(_PATIENCE_S):
                self._lanes.look()
        self.start_s = time.perf_counter()
        self.stall_s = self.start_s - before
        if self._lanes.error is not None:
            self._end(None, self._lanes.error)
            return
        assert self._work is not None
        self._end(self._work(), None)

    def _end(self, result: Any, error: BaseException | None) -> None:
        """For good: what ended once stays as it is."""
        if self.done:
            return
        self.end_s = time.perf_counter()
        self._result, self._error = result, error
        self._work, self._after = None, ()  # with all that they hold
        self._done.set()


class Lanes:
    """Threads by name. ``depth``: how much may wait on each before ``submit`` blocks.

    Work is submitted in an order in which nothing comes after what is submitted later, so a full
    lane always gets on. ``on_error`` is called once, from the lane where it happened.
    """

    def __init__(
        self,
        names: Iterable[str],
        *,
        depth: int = DEPTH,
        on_error: Callable[[BaseException], None] | None = None,
    ):
        assert depth >= 1, depth
        self._depth, self._on_error = depth, on_error
        self._changed = threading.Condition()
        self._queues: dict[str, deque[Ticket]] = {name: deque() for name in names}
        self._closing = False
        self.error: BaseException | None = None
        self._threads = {
            name: threading.Thread(target=self._live, args=(name,), name=f"tiergnn-{name}")
            for name in self._queues
        }
        for thread in self._threads.values():
            thread.daemon = True  # a lane that hangs in a call of the system holds up no exit
            thread.start()

    def __enter__(self) -> Lanes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.stop(error)
        self.close()

    def submit(
        self,
        lane: str,
        work: Callable[[], Any],
        *,
        after: Iterable[Ticket] = (),
        label: str = "",
    ) -> Ticket:
        """Put ``work`` on a lane, to begin when all before it there and ``after`` are done.

        Blocks while the lane is full. Raises the first error of any lane, ConfigError for a lane
        that there is not.
        """
        queue = self._queues.get(lane)
        if queue is None:
            raise unknown("lane", lane, self._queues)
        ticket = Ticket(self, lane, label, work, tuple(after))
        with self._changed:
            while len(queue) >= self._depth and self.error is None:
                self._changed.wait(_PATIENCE_S)
                self._look()
            if self.error is not None:
                raise self.error
            assert not self._closing, "the lanes are closed"
            queue.append(ticket)
            self._changed.notify_all()
        return ticket

    def drain(self) -> None:
        """Block until all that was submitted is done. Raises the first error of any lane."""
        with self._changed:
            while self.error is None and any(self._queues.values()):
                self._changed.wait(_PATIENCE_S)
                self._look()
            if self.error is not None:
                raise self.error

    def stop(self, error: BaseException) -> None:
        """Begin nothing more; whoever waits gets ``error``, or one that came before."""
        with self._changed:
            first = self.error is None
            self._fail(error)
        if first and self._on_error is not None:
            self._on_error(error)

    def close(self) -> None:
        """End the threads once what they were given is done or stopped. Twice is as once."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads.values():
            while thread.is_alive():
                thread.join(_PATIENCE_S)

    def look(self) -> None:
        """Notice a lane whose thread has died: everyone gets an error instead of waiting."""
        with self._changed:
            self._look()

    def _look(self) -> None:
        for name, thread in self._threads.items():
            if self._queues[name] and not thread.is_alive():
                self._fail(RuntimeError(f"lane {name} has died"))

    def _fail(self, error: BaseException) -> None:
        """Let everything end with the first error but what a living lane is at."""
        self.error = self.error or error
        for name, queue in self._queues.items():
            alive = self._threads[name].is_alive()
            for ticket in queue:
                if ticket.start_s == 0.0 or not alive:
                    ticket._end(None, self.error)
        self._changed.notify_all()

    def _live(self, name: str) -> None:
        queue = self._queues[name]
        while True:
            with self._changed:
                while not queue and not self._closing:
                    self._changed.wait()
                if not queue:
                    return
                ticket = queue[0]
            try:
                if not ticket.done:
                    ticket._run()
            except BaseException as error:
                try:
                    self.stop(error)  # first: what comes after this must not begin
                finally:
                    ticket._end(None, error)
            with self._changed:
                queue.popleft()
                self._changed.notify_all()
