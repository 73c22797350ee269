"""A cache in host memory over a slower store: blocks of rows under a policy.

Legend: R rows of the table, D columns, N rows of one request.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor

from tiergnn.errors import ConfigError, PlanError
from tiergnn.memory.moves import ascending
from tiergnn.memory.pinning import Pinning
from tiergnn.memory.policy import Policy
from tiergnn.memory.ram import RamRows
from tiergnn.memory.store import RowStore


class BlockCache(RowStore):
    """``below`` in blocks of ``block_rows`` rows, ``capacity`` of which are in host memory.

    What is written stays here until its block leaves, or until ``flush``; ``close`` flushes too,
    and leaves ``below`` open. A request is one access of each block it touches, in ascending order;
    what the policy does not admit goes past the cache. ``hits`` and ``misses`` count rows asked
    for; what really moved is in ``below.counters``. Requests take turns. When writing a block back
    fails, its rows stay here and the error says so. Raises ConfigError.
    """

    def __init__(
        self,
        below: RowStore,
        policy: Policy,
        *,
        block_rows: int,
        capacity: int,
        pinning: Pinning | None = None,
    ):
        super().__init__(below.num_rows, below.width, below.dtype, name=below.name)
        if block_rows < 1 or capacity < 0:
            raise ConfigError(f"wanted blocks of a row or more, had {block_rows} and {capacity}")
        self.block_rows = block_rows
        self.num_blocks = -(-below.num_rows // block_rows)
        self.capacity = min(capacity, self.num_blocks)
        self._below, self._policy = below, policy
        self._frames = RamRows(
            self.capacity * block_rows, below.width, below.dtype, name=below.name, pinning=pinning
        )
        self._frame_of: dict[int, int] = {}
        self._free = list(range(self.capacity))[::-1]
        self._stale: set[int] = set()  # blocks of which below lacks what is here
        self._pins: Counter[int] = Counter()
        self._turn = threading.RLock()

    @property
    def held_bytes(self) -> int:
        """Host memory that the blocks take."""
        return self._frames.num_bytes

    def pin(self, rows: slice) -> None:
        """Bring the blocks of rows and keep them until ``unpin``. No access in the policy's eyes.

        Raises PlanError where all room is taken by what is pinned already.
        """
        first, last = self._range(rows)
        with self._turn:
            for block in self._blocks(first, last):
                if self._pins[block] == 0 and block in self._frame_of:
                    self._policy.remove(block)
                elif block not in self._frame_of:
                    self._make_room(block)
                    self._bring(block, load=True)
                self._pins[block] += 1

    def unpin(self, rows: slice) -> None:
        """Let what ``pin`` brought leave again."""
        first, last = self._range(rows)
        with self._turn:
            for block in self._blocks(first, last):
                assert self._pins[block] > 0, f"block {block} is not pinned"
                self._pins[block] -= 1
                if self._pins[block] == 0:
                    del self._pins[block]
                    self._policy.insert(block)

    def flush(self) -> None:
        """Write back what below lacks, in order."""
        with self._turn:
            for block in sorted(self._stale):
                self._write_back(block)

    def _blocks(self, first: int, last: int) -> range:
        return range(first // self.block_rows, -(-last // self.block_rows))

    def _rows(self, block: int) -> tuple[int, int]:
        return block * self.block_rows, min((block + 1) * self.block_rows, self.num_rows)

    def _make_room(self, block: int) -> None:
        """A free frame for a block that has to come."""
        if self._free:
            return
        victim = self._policy.victim()
        if victim is None:
            raise PlanError(
                f"{self.name}: block {block} cannot be pinned, "
                f"{len(self._pins)} of {self.capacity} blocks in memory are",
                hint="unpin some, or a larger cache",
            )
        self._evict(victim)

    def _evict(self, block: int) -> None:
        self._write_back(block)
        self._policy.remove(block)
        self._free.append(self._frame_of.pop(block))

    def _write_back(self, block: int) -> None:
        if block not in self._stale:
            return
        first, last = self._rows(block)
        self._below.write(slice(first, last), self._memory(block))
        self._stale.remove(block)

    def _memory(self, block: int) -> Tensor:
        """A block's rows in its frame."""
        start = self._frame_of[block] * self.block_rows
        first, last = self._rows(block)
        return self._frames.data[start : start + last - first]

    def _bring(self, block: int, *, load: bool) -> None:
        """A block into a free frame."""
        frame = self._frame_of[block] = self._free.pop()
        try:
            if load:
                self._below.read(slice(*self._rows(block)), self._memory(block))
        except BaseException:
            self._free.append(frame)
            del self._frame_of[block]
            raise

    def _use(self, block: int, count: int, *, load: bool = True) -> bool:
        """Whether a block is in memory now. ``load`` False: all of it will be written."""
        self._policy.access(block)
        if block in self._frame_of:
            self.counters.add(hits=count)
            return True
        self.counters.add(misses=count)
        if not self._free:
            victim = self._policy.victim()
            if victim is None or not self._policy.admits(block):
                return False
            self._evict(victim)
        self._bring(block, load=load)
        self._policy.insert(block)
        return True

    def _pieces(self, first: int, last: int) -> Iterator[tuple[int, int, int, int]]:
        """(block, low, high, start): rows low to high of a block that starts at row start."""
        for block in self._blocks(first, last):
            start, end = self._rows(block)
            yield block, max(first, start), min(last, end), start

    def _segments(self, index: Tensor) -> Iterator[tuple[int, int, int, int]]:
        """(block, low, high, start): positions low to high of an ascending index."""
        blocks, counts = torch.unique_consecutive(index // self.block_rows, return_counts=True)
        low = 0
        for block, count in zip(blocks.tolist(), counts.tolist(), strict=True):
            yield block, low, low + count, block * self.block_rows
            low += count

    def _read(self, first: int, last: int, out: Tensor) -> None:
        with self._turn:
            for block, low, high, start in self._pieces(first, last):
                part = out[low - first : high - first]
                if self._use(block, high - low):
                    frame = self._frame_of[block] * self.block_rows - start
                    self._frames.read(slice(low + frame, high + frame), part)
                else:
                    self._below.read(slice(low, high), part)

    def _write(self, first: int, last: int, values: Tensor) -> None:
        with self._turn:
            for block, low, high, start in self._pieces(first, last):
                part = values[low - first : high - first]
                whole = (low, high) == self._rows(block)
                if self._use(block, high - low, load=not whole):
                    self._stale.add(block)
                    frame = self._frame_of[block] * self.block_rows - start
                    self._frames.write(slice(low + frame, high + frame), part)
                else:
                    self._below.write(slice(low, high), part)

    def _gather(self, index: Tensor, out: Tensor) -> int:
        index, order = ascending(index)
        with self._turn:
            for block, low, high, start in self._segments(index):
                rows = index[low:high]
                part = out[low:high]
                if order is not None:
                    part = torch.empty(high - low, self.width, dtype=out.dtype)
                if self._use(block, high - low):
                    frame = self._frame_of[block] * self.block_rows
                    self._frames.gather(rows - start + frame, part)
                else:
                    self._below.gather(rows, part)
                if order is not None:
                    out[order[low:high].to(out.device)] = part.to(out.device)
        return 1 + int((index[1:] != index[:-1]).sum())

    def _scatter(self, index: Tensor, values: Tensor) -> None:
        with self._turn:
            for block, low, high, start in self._segments(index):
                if self._use(block, high - low):
                    self._stale.add(block)
                    frame = self._frame_of[block] * self.block_rows
                    rows = index[low:high] - start + frame
                    self._frames._scatter(rows, values[low:high])
                else:
                    self._below._scatter(index[low:high], values[low:high])

    def _accumulate_slice(self, first: int, last: int, values: Tensor) -> None:
        with self._turn:
            for block, low, high, start in self._pieces(first, last):
                part = values[low - first : high - first]
                if self._use(block, high - low):
                    self._stale.add(block)
                    frame = self._frame_of[block] * self.block_rows - start
                    self._frames.accumulate(slice(low + frame, high + frame), part)
                else:
                    self._below.accumulate(slice(low, high), part)

    def _accumulate(self, index: Tensor, values: Tensor) -> int:
        index, order = ascending(index)
        with self._turn:
            for block, low, high, start in self._segments(index):
                rows = index[low:high]
                part = values[low:high]
                if order is not None:
                    part = values[order[low:high].to(values.device)]
                if self._use(block, high - low):
                    self._stale.add(block)
                    frame = self._frame_of[block] * self.block_rows
                    self._frames.accumulate(rows - start + frame, part)
                else:
                    self._below.accumulate(rows, part)
        return 1 + int((index[1:] != index[:-1]).sum())

    def _close(self) -> None:
        self.flush()
        self._frames.close()
