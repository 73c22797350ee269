"""What ranks on several hosts see of each other: heartbeats and failures in torch's store."""

from __future__ import annotations

import threading
import time
from typing import Any

from tiergnn.transport.failure import Failure

BEAT_S = 1.0
_FAILED, _JOINED = "tiergnn/failed", "tiergnn/joined"


class StoreBoard:
    """A Watch over a ``torch.distributed`` store, of which it has a connection of its own.

    Every rank's last action is at most a heartbeat old; so is what ``failure`` says. A rank that is
    silent for ``silence_s`` is taken to have died.
    """

    def __init__(self, store: Any, num_ranks: int, silence_s: float) -> None:
        self.num_ranks, self._silence_s = num_ranks, silence_s
        self.notice_s = silence_s + 3 * BEAT_S
        self._store = store.clone()
        self._lock = threading.Lock()
        self._rank = -1
        self._own = ""
        self._heard: dict[int, tuple[str, float]] = {}  # rank -> last heartbeat, when it was new
        self._failure: Failure | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def join(self, rank: int) -> None:
        self._rank = rank
        self._store.set(_key(rank), "0 start")
        self._store.add(_JOINED, 1)
        self._thread = threading.Thread(target=self._beat, name="tiergnn-heartbeat", daemon=True)
        self._thread.start()

    def joined(self) -> bool:
        with self._lock:
            return self._store.add(_JOINED, 0) >= self.num_ranks

    def leave(self, rank: int) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self._store.set(_key(rank), "left")

    def gone(self, rank: int) -> bool:
        """Whether a rank has been silent for too long."""
        text, since = self._heard.get(rank, ("", time.monotonic()))
        return text != "left" and time.monotonic() - since > self._silence_s

    def died(self, own: int) -> int | None:
        return next((r for r in range(self.num_ranks) if r != own and self.gone(r)), None)

    def note(self, rank: int, action: str) -> None:
        self._own = action

    def action_of(self, rank: int) -> str:
        if rank == self._rank:
            return self._own
        return self._heard.get(rank, ("", 0.0))[0].partition(" ")[2]

    def fail(self, failure: Failure) -> None:
        """The first failure of all stays."""
        with self._lock:
            try:
                first = self._store.compare_set(_FAILED, "", failure.to_json())
            except RuntimeError:  # the store has died, and with it the job
                first = failure.to_json().encode()
        self._failure = Failure.from_json(first.decode())

    def failure(self) -> Failure | None:
        return self._failure

    def _beat(self) -> None:
        count = 0
        while not self._ended.wait(BEAT_S):
            count += 1
            try:
                with self._lock:
                    self._store.set(_key(self._rank), f"{count} {self._own}")
                    self._listen()
            except RuntimeError as error:
                self._failure = self._failure or Failure(
                    rank=self._rank,
                    by=self._rank,
                    action=self._own,
                    cause=f"lost the store of the job: {str(error).splitlines()[0]}",
                    hint="what holds it (the launcher, or rank 0) has died",
                )
                return

    def _listen(self) -> None:
        if self._failure is None and self._store.check([_FAILED]):
            self._failure = Failure.from_json(self._store.get(_FAILED).decode())
        keys = [_key(rank) for rank in range(self.num_ranks)]
        if not self._store.check(keys):
            return  # not all have come
        now = time.monotonic()
        for rank, value in enumerate(self._store.multi_get(keys)):
            text = value.decode()
            if self._heard.get(rank, ("", 0.0))[0] != text:
                self._heard[rank] = text, now


def _key(rank: int) -> str:
    return f"tiergnn/beat/{rank}"
