"""Virtual ranks: threads of one process, whose tensors are each other's as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tiergnn.transport.board import Board
from tiergnn.transport.posting import Posting
from tiergnn.transport.transport import CHANNELS, Allocated


class World:
    """What the virtual ranks of one job have in common."""

    def __init__(self, num_ranks: int, channels: Sequence[str] = CHANNELS) -> None:
        self.board = Board.of_threads(num_ranks, channels)
        self.put: dict[tuple[str, int], Tensor] = {}
        self.shared: dict[tuple[int, int], Tensor] = {}  # (number of the allocation, rank)


class Virtual(Posting):
    name = "virtual"

    def __init__(self, world: World, rank: int, **options: Any) -> None:
        super().__init__(world.board, rank, channels=world.board.channels, **options)
        self._world = world

    def _put(self, rows: Tensor, channel: str) -> str:
        self._world.put[channel, self.rank] = rows
        return ""

    def _seen(self, source: int, address: str, like: Tensor, num_rows: int, channel: str) -> Tensor:
        return self._world.put[channel, source].detach()[:num_rows]

    def _posted(self, channel: str) -> None:
        # Others copy out of the very tensor, which its owner may write as soon as we return.
        self._all_read(channel, channel)

    def _share(self, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Allocated:
        own = torch.zeros(shape, dtype=dtype, device=device)
        number, shared = len(self._allocated), self._world.shared
        shared[number, self.rank] = own
        self._meet("main", "allocate")
        return Allocated(own, tuple(shared[number, rank] for rank in range(self.size)))

    def _end(self) -> None:
        for channel in self.channels:
            self._world.put.pop((channel, self.rank), None)
