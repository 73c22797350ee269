"""Waiting for other ranks: not forever, and not for the dead."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn, Protocol

from tiergnn.errors import TiergnnError
from tiergnn.transport.failure import Failure

# Of the time in which a job with a failed rank ends on all ranks: until a rank that others wait for
# is given up (across hosts: one that is silent); then until who does not end by itself is asked to;
# the rest is for killing it.
WAIT_FRAC, SILENCE_FRAC, LEAVE_FRAC, TERM_FRAC = 0.7, 0.5, 0.1, 0.1
_LOOK_S = 0.05  # between looks for the dead
_SHORT_S, _LONG_S = 2e-5, 1e-3


class Watch(Protocol):
    """Where ranks see each other's state: a Board, or a StoreBoard across hosts."""

    num_ranks: int
    notice_s: float  # in which a dead rank is found to be dead

    def join(self, rank: int) -> None: ...
    def joined(self) -> bool: ...
    def leave(self, rank: int) -> None: ...
    def gone(self, rank: int) -> bool: ...
    def died(self, own: int) -> int | None: ...
    def note(self, rank: int, action: str) -> None: ...
    def action_of(self, rank: int) -> str: ...
    def fail(self, failure: Failure) -> None: ...
    def failure(self) -> Failure | None: ...


class Waiting:
    """Waits of one rank. ``timeout_s``: in which a failed job ends on all ranks."""

    def __init__(self, watch: Watch, rank: int, timeout_s: float) -> None:
        self.watch, self.rank, self.timeout_s = watch, rank, timeout_s
        self._looked = time.monotonic()

    def until(
        self,
        ready: Callable[[], bool],
        late: Callable[[], int],
        what: str,
        *,
        wait_s: float | None = None,
    ) -> None:
        """Return when ``ready()``. Raises RankError when a rank failed, died, or was waited for too
        long; ``late()`` is then the rank to name, ``what`` what it did not come to."""
        wait_s = self.timeout_s * WAIT_FRAC if wait_s is None else wait_s
        pause, begun = _SHORT_S, time.monotonic()
        while True:
            now = time.monotonic()
            # Also where none waits long: ranks that go on would not hear of the failure.
            if now - self._looked > _LOOK_S:
                self._looked = now
                self.look(what)
            if ready():
                return
            if now - begun > wait_s:
                self.give_up(late(), what, wait_s)
            time.sleep(pause)
            pause = min(_LONG_S, pause * 1.2)

    def look(self, what: str) -> None:
        """Raises RankError when the job has failed, or a rank has died."""
        failure = self.watch.failure()
        if failure is not None:
            raise failure.error()
        dead = self.watch.died(self.rank)
        if dead is not None:
            self.fail("died", what=what, rank=dead)

    def give_up(self, rank: int, what: str, waited_s: float) -> NoReturn:
        last = self.watch.action_of(rank)
        self.fail(
            f"did not come to {what} within {waited_s:.3g} s"
            + (f", it was at {last}" * bool(last)),
            what=what,
            rank=rank,
            hint="a longer timeout, if that rank was only slow",
        )

    def fail(self, cause: str, *, what: str, rank: int | None = None, hint: str = "") -> NoReturn:
        """End the job on all ranks. Raises RankError: the failure that came first."""
        culprit = self.rank if rank is None else rank
        action = what if rank is None else (self.watch.action_of(culprit) or what)
        failure = Failure(rank=culprit, by=self.rank, action=action, cause=cause, hint=hint)
        self.watch.fail(failure)
        first: Failure | None = self.watch.failure()
        raise (first or failure).error() from None


def told(error: BaseException) -> tuple[str, str, str]:
    """Cause, hint and kind of an exception, for a failure."""
    name = type(error).__name__
    if isinstance(error, TiergnnError):
        return f"raised {name}: {error.problem}", error.hint or "", name
    return f"raised {name}: {error}", "", ""
