"""The board: memory in which the ranks of one host see each other's progress and failures.

Each rank writes its own slot only, and the launcher has one more, so nothing is locked: a number
is one aligned word, and what it announces is written before it. Of processes, each holds a file
lock on its byte of the board, which the system takes from it when it ends, whatever ends it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
import time
from collections.abc import Sequence

import numpy as np

from tiergnn.transport.failure import Failure
from tiergnn.transport.segment import Segment, open_segment

_WORD = 8
_ACTION_BYTES, _FAILURE_BYTES, _ADDRESS_BYTES = 256, 8192, 1024
_STATE, _STAMP, _ACTION_LEN, _FAILURE_LEN = range(4)  # words of a slot's head
_POSTED, _DONE, _ROW_BYTES, _ADDRESS_LEN = range(4)  # words of a channel's head
_HEAD = 4
_JOINED, _LEFT = 1, 2
_FLOCK = "hhqqi4x"  # struct flock of 64-bit Linux
_order = threading.Lock()


class Board:
    """Slots of ``num_ranks`` ranks and their launcher, whose number is ``num_ranks``."""

    notice_s = 1.0  # locks say at once who has died

    def __init__(
        self, memory: mmap.mmap, num_ranks: int, channels: Sequence[str], handle: int | None
    ) -> None:
        self.num_ranks, self.channels = num_ranks, tuple(channels)
        self._handle = handle  # None: all ranks are threads, which hold no file locks
        words = _slot_words(num_ranks, len(self.channels))
        count = (num_ranks + 1) * words
        self._words = np.frombuffer(memory, np.int64, count).reshape(num_ranks + 1, words)
        self._bytes = self._words.view(np.uint8)
        self._action = _HEAD * _WORD
        self._failure = self._action + _ACTION_BYTES
        first = (self._failure + _FAILURE_BYTES) // _WORD
        width = _channel_words(num_ranks)
        self._channel = {name: first + i * width for i, name in enumerate(self.channels)}

    @classmethod
    def of_threads(cls, num_ranks: int, channels: Sequence[str]) -> Board:
        memory = mmap.mmap(-1, board_bytes(num_ranks, len(channels)))
        return cls(memory, num_ranks, channels, None)

    @classmethod
    def on(cls, segment: Segment, num_ranks: int, channels: Sequence[str]) -> Board:
        """A new board; ranks find it by the segment's address, and it keeps the segment open."""
        return cls(segment.memory, num_ranks, channels, segment.handle)

    @classmethod
    def at(cls, address: str, num_ranks: int, channels: Sequence[str]) -> Board:
        """The board that another process made."""
        memory, _, handle = open_segment(address)
        return cls(memory, num_ranks, channels, handle)

    # Life and death

    def join(self, rank: int) -> None:
        if self._handle is not None:
            fcntl.lockf(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
        self._words[rank, _STATE] = _JOINED

    def leave(self, rank: int) -> None:
        """An orderly end: whoever then finds the rank gone need not worry."""
        self._words[rank, _STATE] = _LEFT

    def joined(self) -> bool:
        """Whether all ranks have come."""
        return bool((self._words[: self.num_ranks, _STATE] > 0).all())

    def gone(self, rank: int) -> bool:
        """Whether a rank that joined (the launcher: ``num_ranks``) is there no more."""
        state = self._words[rank, _STATE]
        if self._handle is None or state == 0:
            return False
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, rank, 1, 0)
        kind = struct.unpack(_FLOCK, fcntl.fcntl(self._handle, fcntl.F_GETLK, asked))[0]
        return kind == fcntl.F_UNLCK

    def died(self, own: int) -> int | None:
        """The first other rank that ended without leaving."""
        for rank in range(self.num_ranks):
            if rank != own and self._words[rank, _STATE] == _JOINED and self.gone(rank):
                return rank
        return None

    # What a rank does, and failures

    def note(self, rank: int, action: str) -> None:
        self._write(rank, self._action, _ACTION_BYTES, _ACTION_LEN, action)

    def action_of(self, rank: int) -> str:
        return self._read(rank, self._action, int(self._words[rank, _ACTION_LEN]))

    def fail(self, failure: Failure) -> None:
        """Tell all. The first failure of each slot stays, the earliest of all counts."""
        slot = failure.by
        if self._words[slot, _STAMP]:
            return
        self._write(slot, self._failure, _FAILURE_BYTES, _FAILURE_LEN, failure.to_json())
        in_order()
        self._words[slot, _STAMP] = time.monotonic_ns()

    def failure(self) -> Failure | None:
        """What ended the job; None as long as nothing has."""
        stamps = self._words[:, _STAMP]
        if not stamps.any():
            return None
        in_order()
        slot = int(np.where(stamps > 0, stamps, np.iinfo(np.int64).max).argmin())
        text = self._read(slot, self._failure, int(self._words[slot, _FAILURE_LEN]))
        return Failure.from_json(text)

    # Exchanges: what a rank posts on a channel, and how far it has read

    def post(
        self, rank: int, channel: str, seq: int, give: Sequence[int], row_bytes: int, address: str
    ) -> None:
        """Announce exchange ``seq``: rows [give[d]] for rank d, in what ``address`` names."""
        at = self._channel[channel]
        row = self._words[rank]
        row[at + _ROW_BYTES] = row_bytes
        row[at + _HEAD : at + _HEAD + self.num_ranks] = give
        start = (at + _HEAD + self.num_ranks) * _WORD
        self._write(rank, start, _ADDRESS_BYTES, at + _ADDRESS_LEN, address)
        in_order()
        row[at + _POSTED] = seq

    def posted(self, channel: str, seq: int) -> bool:
        return bool((self._words[: self.num_ranks, self._channel[channel] + _POSTED] >= seq).all())

    def late(self, channel: str, seq: int, *, reading: bool = False) -> int:
        """The first rank that has not posted (``reading``: not read) exchange ``seq``."""
        word = self._channel[channel] + (_DONE if reading else _POSTED)
        return int((self._words[: self.num_ranks, word] < seq).argmax())

    def post_of(self, rank: int, channel: str) -> tuple[np.ndarray, int, str]:
        """What ``post`` said: rows for each rank, bytes of a row, address."""
        at = self._channel[channel]
        row = self._words[rank]
        give = row[at + _HEAD : at + _HEAD + self.num_ranks].copy()
        start = (at + _HEAD + self.num_ranks) * _WORD
        address = self._read(rank, start, int(row[at + _ADDRESS_LEN]))
        return give, int(row[at + _ROW_BYTES]), address

    def done(self, rank: int, channel: str, seq: int) -> None:
        in_order()
        self._words[rank, self._channel[channel] + _DONE] = seq

    def read(self, channel: str, seq: int) -> bool:
        """Whether all ranks have read exchange ``seq``."""
        return bool((self._words[: self.num_ranks, self._channel[channel] + _DONE] >= seq).all())

    def _write(self, rank: int, start: int, room: int, length: int, text: str) -> None:
        data = text.encode()[:room]
        self._bytes[rank, start : start + len(data)] = np.frombuffer(data, np.uint8)
        self._words[rank, length] = len(data)

    def _read(self, rank: int, start: int, num_bytes: int) -> str:
        return self._bytes[rank, start : start + num_bytes].tobytes().decode(errors="replace")


def _channel_words(num_ranks: int) -> int:
    return _HEAD + num_ranks + _ADDRESS_BYTES // _WORD


def _slot_words(num_ranks: int, num_channels: int) -> int:
    head = _HEAD + (_ACTION_BYTES + _FAILURE_BYTES) // _WORD
    return head + num_channels * _channel_words(num_ranks)


def board_bytes(num_ranks: int, num_channels: int) -> int:
    return (num_ranks + 1) * _slot_words(num_ranks, num_channels) * _WORD


def in_order() -> None:
    """What was written before is seen before what is written after, also on weakly ordered CPUs:
    a release and then an acquire keep their order."""
    with _order:
        pass
    with _order:
        pass
