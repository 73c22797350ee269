"""Processes of one host on shared memory: rows are copied out of each rank's outbox.

A channel's outbox is a piece of memory that grows to its largest exchange; rows are copied into it.
Who asks for ``room`` fills a piece of its own in place, which is not copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tiergnn.transport.board import Board
from tiergnn.transport.posting import Posting
from tiergnn.transport.segment import Segment, map_segment
from tiergnn.transport.transport import Allocated

_LEAST_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class Piece:
    """uint8 memory of this rank, the address by which others map it, and how it ends."""

    memory: Tensor
    address: str
    close: Callable[[], None]


class Shared(Posting):
    name = "shared"

    def __init__(self, watch: Board, rank: int, **options: Any) -> None:
        super().__init__(watch, rank, **options)
        self._outbox: dict[tuple[str, str, str], Piece] = {}  # (channel, kind of device, use)
        # (channel, kind of device, source) -> what was mapped last: address, memory
        self._inbox: dict[tuple[str, str, int], list[tuple[str, Tensor]]] = {}

    def room(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        channel: str = "main",
        device: str = "cpu",
    ) -> Tensor:
        self._known(channel)
        self._all_read(channel, "room")
        kind = torch.device(device).type
        piece = self._outbox_of(channel, kind, "room", shape, dtype)
        return _typed(piece.memory, shape, dtype)

    def _make(self, num_bytes: int, kind: str) -> Piece:
        segment = Segment(num_bytes)
        return Piece(segment.tensor(), segment.address, segment.close)

    def _map(self, address: str, kind: str) -> Tensor:
        return map_segment(address)

    def _put(self, rows: Tensor, channel: str) -> str:
        if not rows.numel():
            return ""
        kind = rows.device.type
        room = self._outbox.get((channel, kind, "room"))
        if room is not None and rows.data_ptr() == room.memory.data_ptr():
            return room.address
        piece = self._outbox_of(channel, kind, "copy", rows.shape, rows.dtype)
        _typed(piece.memory, rows.shape, rows.dtype).copy_(rows.detach())
        return piece.address

    def _outbox_of(
        self, channel: str, kind: str, use: str, shape: Sequence[int], dtype: torch.dtype
    ) -> Piece:
        num_bytes = math.prod(shape) * dtype.itemsize
        have = self._outbox.get((channel, kind, use))
        if have is None or have.memory.numel() < num_bytes:
            size = max(num_bytes, _LEAST_BYTES)
            if have is not None:  # grown by half at least, so that this happens a few times only
                size = max(size, have.memory.numel() * 3 // 2)
                have.close()
            self._outbox[channel, kind, use] = have = self._make(size, kind)
        return have

    def _seen(self, source: int, address: str, like: Tensor, num_rows: int, channel: str) -> Tensor:
        if source == self.rank:  # memory of a GPU cannot be mapped where it was made
            memory = self._own(address)
            return _typed(memory, (num_rows, *like.shape[1:]), like.dtype)
        key = channel, like.device.type, source
        known = self._inbox.setdefault(key, [])
        memory = next((each for at, each in known if at == address), None)
        if memory is None:
            memory = self._map(address, like.device.type)
            known[:] = [*known[-1:], (address, memory)]  # one a use: what was outgrown is let go
        return _typed(memory, (num_rows, *like.shape[1:]), like.dtype)

    def _own(self, address: str) -> Tensor:
        pieces = self._outbox.values()
        return next(piece.memory for piece in pieces if piece.address == address)

    def _share(self, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Allocated:
        kind = torch.device(device).type
        piece = self._make(math.prod(shape) * dtype.itemsize, kind)
        said = self._messages([piece.address, list(shape)], "main", "allocate")
        own = _typed(piece.memory, shape, dtype)
        peers = [
            own if rank == self.rank else _typed(self._map(address, kind), form, dtype)
            for rank, (address, form) in enumerate(said)
        ]
        self._meet("main", "allocate")
        if kind == "cpu":
            piece.close()  # all have mapped it
        return Allocated(own, tuple(peers))

    def _end(self) -> None:
        for piece in self._outbox.values():
            piece.close()
        self._outbox.clear()
        self._inbox.clear()


def _typed(memory: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """The first bytes of memory as a tensor."""
    num_bytes = math.prod(shape) * dtype.itemsize
    return memory[:num_bytes].view(dtype).view(tuple(shape))
