"""One rank of many, by itself on one device: to see there what its part of a job costs.

The other ranks are absent. Rows of theirs lie in host memory, pinned where the device is a GPU, so
that they come over the device's link to the host as they would over one to a peer, in place or in
bulk. Meetings end at once, sums over ranks are its own values, and nobody reads what it gives. Its
times and bytes are those of a rank whose peers are never late; its numbers are those of a job only
where ``Absent`` knows them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tiergnn.memory.pinning import PAGE_BYTES, Pins, page_bytes
from tiergnn.transport.board import Board
from tiergnn.transport.posting import finish
from tiergnn.transport.transport import CHANNELS, Allocated, Transport, rows_bytes

_PIECE_BYTES = 2**28


class Absent:
    """What absent ranks say and give: as it stands, what this rank says, and rows of zeros."""

    def say(self, own: Any, what: str, size: int) -> list[Any]:
        """The messages of all ranks where this one's is ``own``."""
        return [own] * size

    def give(self, like: Tensor, what: str, size: int) -> list[Tensor] | None:
        """Rows for this rank, of each rank (its own are not looked at); None: zeros, as many as it
        expects, or none."""
        return None


class Shelf:
    """Zeroed host memory for rows of absent ranks, which jobs that follow each other take from the
    beginning again: it is pinned once. Nobody writes there."""

    def __init__(self) -> None:
        self._pieces: list[Tensor] = []
        self._used: list[int] = []
        self._pins = Pins()

    def take(self, num_bytes: int) -> Tensor:
        """uint8 [num_bytes] that begin a page."""
        size = -(-num_bytes // PAGE_BYTES) * PAGE_BYTES
        for number, piece in enumerate(self._pieces):
            first = self._used[number]
            if piece.numel() - first >= size:
                self._used[number] += size
                return piece[first : first + num_bytes]
        piece = page_bytes(max(size, _PIECE_BYTES)).zero_()  # its pages come in all threads
        self._pins.add(piece)
        self._pieces.append(piece)
        self._used.append(size)
        return piece[:num_bytes]

    @property
    def num_pieces(self) -> int:
        return len(self._pieces)

    def clear(self) -> None:
        """Nobody reads what was taken any more."""
        self._used = [0] * len(self._pieces)

    def close(self) -> None:
        """Give it back."""
        self._pins.close()
        self._pieces.clear()
        self._used.clear()


class Alone(Transport):
    """Rank ``rank`` of ``size``. ``shelf`` is its owner's to close; None: one of its own.

    On a GPU what meets only stands in order on the current stream, as with ranks that meet there.
    ``waits``: whoever meets waits until the stream has come so far, as over a board.
    """

    name = "alone"
    reads_in_place = True

    def __init__(
        self,
        rank: int,
        size: int,
        absent: Absent | None = None,
        *,
        shelf: Shelf | None = None,
        waits: bool = False,
        channels: Sequence[str] = CHANNELS,
        **options: Any,
    ) -> None:
        board = Board.of_threads(size, channels)
        for each in range(size):
            board.join(each)
        super().__init__(board, rank, channels=channels, **options)
        self._others, self._waits = absent or Absent(), waits
        self.in_order = torch.cuda.is_available() and not waits
        self._shelf, self._ours = shelf or Shelf(), shelf is None
        self._rows: Sequence[int] | None = None  # of all ranks, of what is being allocated
        self._outboxes: dict[str, Tensor] = {}  # channel -> memory of what others give
        self.taken_bytes = 0  # that came from others in exchanges

    def allocate(
        self,
        name: str,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: str = "cpu",
        *,
        rows: Sequence[int] | None = None,
    ) -> Allocated:
        """As any; without ``rows`` all ranks have as many."""
        self._rows = rows
        return super().allocate(name, shape, dtype, device, rows=rows)

    def _share(self, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Allocated:
        counts = self._rows or [shape[0]] * self.size
        if torch.device(device).type == "cpu":
            num_bytes = math.prod(shape) * dtype.itemsize
            own = page_bytes(num_bytes).view(dtype).view(shape)
        else:
            own = torch.zeros(shape, dtype=dtype, device=device)
            finish()
        peers = [
            own if rank == self.rank else self._far((count, *shape[1:]), dtype)
            for rank, count in enumerate(counts)
        ]
        return Allocated(own, tuple(peers))

    def _far(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Rows where those of others lie."""
        return self._shelf.take(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)

    def _messages(self, message: Any, channel: str, what: str) -> list[Any]:
        return self._others.say(message, what, self.size)

    def _agree(
        self,
        channel: str,
        what: str,
        rows: Tensor,
        give: Sequence[int],
        take: Sequence[int] | None,
    ) -> None:
        """There is nobody to compare with."""

    def _sum(self, tensors: Sequence[Tensor], channel: str, what: str) -> None:
        self._settle()

    def _meet(self, channel: str, what: str) -> None:
        self._settle()

    def _settle(self) -> None:
        if self._waits:
            finish()

    def _swap(
        self,
        rows: Tensor,
        give: Sequence[int],
        take: Sequence[int] | None,
        out: Tensor | None,
        channel: str,
        what: str,
        everyone: bool,
    ) -> Tensor:
        self._settle()
        first = 0 if everyone else sum(give[: self.rank])
        own = rows[first : first + give[self.rank]]
        given = self._others.give(rows, what, self.size)
        if given is None:
            counts = [0] * self.size if take is None else list(take)
            given = self._zeros(rows, counts, channel)
        given[self.rank] = own
        counts = [len(each) for each in given]
        if take is not None and counts != list(take):
            source = next(r for r in range(self.size) if counts[r] != take[r])
            self._mismatch(self.rank, source, take[source], counts[source], what)
        if out is not None and len(out) != sum(counts):
            self.waiting.fail(f"had room for {len(out)} rows, got {sum(counts)}", what=what)
        shape = sum(counts), *rows.shape[1:]
        got = torch.empty(shape, dtype=rows.dtype, device=rows.device) if out is None else out
        for place, each in zip(got.split(counts), given, strict=True):
            if len(each):
                place.copy_(each.detach(), non_blocking=True)
        self.taken_bytes += (sum(counts) - counts[self.rank]) * rows_bytes(rows)
        self._settle()
        return got

    def _zeros(self, like: Tensor, counts: list[int], channel: str) -> list[Tensor]:
        """Rows of others, each rank's in memory of its own."""
        counts = [0 if rank == self.rank else count for rank, count in enumerate(counts)]
        num_bytes = sum(counts) * rows_bytes(like)
        outbox = self._outboxes.get(channel)
        if outbox is None or outbox.numel() < num_bytes:
            outbox = self._outboxes[channel] = self._shelf.take(num_bytes)
        rows = outbox[:num_bytes].view(like.dtype).view(sum(counts), *like.shape[1:])
        return list(rows.split(counts))

    def _end(self) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self._outboxes.clear()
        self._shelf.clear()
        if self._ours:
            self._shelf.close()
