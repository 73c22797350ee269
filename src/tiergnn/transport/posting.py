"""Exchanges of ranks that see each other's memory: each posts rows, the others copy theirs.

A rank posts exchange ``seq`` when all have read its one before, waits until all have posted, takes
its rows out of each post and says that it has read them. Sizes are part of a post, so a mismatch is
always found.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tiergnn.transport.board import Board, in_order
from tiergnn.transport.transport import Transport, rows_bytes


class Posting(Transport):
    """A Transport over a board."""

    reads_in_place = True
    watch: Board

    def __init__(self, watch: Board, rank: int, **options: Any) -> None:
        super().__init__(watch, rank, **options)
        self._seq = dict.fromkeys(self.channels, 0)

    @abstractmethod
    def _put(self, rows: Tensor, channel: str) -> str:
        """Make rows visible; gives their address. All have read what was put before."""

    @abstractmethod
    def _seen(self, source: int, address: str, like: Tensor, num_rows: int, channel: str) -> Tensor:
        """The rows [num_rows, ...] that ``source`` has put, in place."""

    def _posted(self, channel: str) -> None:
        """Called when all have posted and this rank has read: what must be over on return."""

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
        board, seq = self.watch, self._seq[channel] + 1
        finish()
        self._all_read(channel, what)
        self._seq[channel] = seq
        address = self._put(rows, channel)
        finish()  # the copy of what others read as soon as it is posted
        board.post(self.rank, channel, seq, give, rows_bytes(rows), address)
        self.waiting.until(
            lambda: board.posted(channel, seq), lambda: board.late(channel, seq), what
        )
        in_order()
        posts = [board.post_of(source, channel) for source in range(self.size)]
        counts = self._counts(posts, rows, take, what)
        if out is not None and len(out) != sum(counts):
            self.waiting.fail(f"had room for {len(out)} rows, got {sum(counts)}", what=what)
        shape = sum(counts), *rows.shape[1:]
        got = torch.empty(shape, dtype=rows.dtype, device=rows.device) if out is None else out
        places = got.split(counts)
        for step in range(self.size):
            source = (self.rank + step) % self.size  # not all at one source at a time
            if counts[source]:
                gives, _, address = posts[source]
                first = 0 if everyone else int(gives[: self.rank].sum())
                there = first + counts[source]
                seen = self._seen(source, address, rows, there, channel)
                places[source].copy_(seen[first:])
        finish()
        board.done(self.rank, channel, seq)
        self._posted(channel)
        return got

    def _counts(
        self, posts: list[Any], rows: Tensor, take: Sequence[int] | None, what: str
    ) -> list[int]:
        counts = [int(give[self.rank]) for give, _, _ in posts]
        for source, (_, row_bytes, _) in enumerate(posts):
            if counts[source] and row_bytes != rows_bytes(rows):
                self.waiting.fail(
                    f"wanted rows of {rows_bytes(rows)} bytes of rank {source}, "
                    f"which gave rows of {row_bytes}",
                    what=what,
                    hint="the same plan on all ranks",
                )
            if take is not None and counts[source] != take[source]:
                self._mismatch(self.rank, source, take[source], counts[source], what)
        return counts

    def _all_read(self, channel: str, what: str) -> None:
        """Wait until all have read this channel's last exchange: posts may change."""
        board, seq = self.watch, self._seq[channel]
        self.waiting.until(
            lambda: board.read(channel, seq),
            lambda: board.late(channel, seq, reading=True),
            what,
        )


def finish() -> None:
    """What this thread enqueued on its GPU is over: others read it, or write where it was read."""
    if torch.cuda.is_initialized():
        torch.cuda.current_stream().synchronize()
