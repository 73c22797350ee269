"""Collectives of torch.distributed: gloo for rows in host memory, NCCL for those on GPUs.

The way across hosts. Rows travel as bytes, so that every dtype does. Waits look for failed ranks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tiergnn.transport.transport import Allocated, Transport, rows_bytes
from tiergnn.transport.waiting import Watch


class Collective(Transport):
    """``store``: where the ranks find each other. Rows of others cannot be read in place."""

    name = "gloo"
    reads_in_place = False
    _backend = "gloo"

    def __init__(self, watch: Watch, rank: int, *, store: Any, **options: Any) -> None:
        super().__init__(watch, rank, **options)
        self._timeout = timedelta(seconds=self.waiting.timeout_s)
        self._ours = not dist.is_initialized()
        if self._ours:
            dist.init_process_group(
                self._backend,
                store=dist.PrefixStore("tiergnn/groups", store),  # pyright: ignore[reportPrivateImportUsage]
                rank=rank,
                world_size=self.size,
                timeout=self._timeout,
            )
        self._groups: dict[str, Any] = {
            channel: dist.new_group(backend=self._backend, timeout=self._timeout)
            for channel in self.channels
        }

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
        counts = self._asked(give, channel, what) if take is None else list(take)
        if out is not None and len(out) != sum(counts):
            self.waiting.fail(f"had room for {len(out)} rows, got {sum(counts)}", what=what)
        shape = sum(counts), *rows.shape[1:]
        wire = self._wire(rows.detach())
        got = torch.empty(shape, dtype=rows.dtype, device=wire.device)
        width = rows_bytes(rows)
        bytes_given, bytes_taken = [n * width for n in give], [n * width for n in counts]
        data, room = _as_bytes(wire), _as_bytes(got)
        group = self._groups[channel]
        if everyone:
            places = room.split(bytes_taken)
            places[self.rank].copy_(data)
            works = [
                dist.broadcast(place, src=source, group=group, async_op=True)
                for source, place in enumerate(places)
                if place.numel()
            ]
        else:
            works = [
                dist.all_to_all_single(room, data, bytes_taken, bytes_given, group, async_op=True)
            ]
        self._complete(works, what)
        if out is not None:
            return out.copy_(got)
        return got.to(rows.device)

    def _meet(self, channel: str, what: str) -> None:
        one = torch.zeros(1, dtype=torch.int32)
        self._complete([dist.all_reduce(one, group=self._groups[channel], async_op=True)], what)

    def _asked(self, give: Sequence[int], channel: str, what: str) -> list[int]:
        """How many rows each rank gives to this one."""
        given = torch.tensor(list(give), dtype=torch.int64)
        taken = torch.empty_like(given)
        group = self._groups[channel]
        self._complete([dist.all_to_all_single(taken, given, group=group, async_op=True)], what)
        return taken.tolist()

    def _share(self, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Allocated:
        return Allocated(torch.zeros(shape, dtype=dtype, device=device), ())

    def _end(self) -> None:
        self._groups.clear()
        if self._ours:
            dist.destroy_process_group()

    def _wire(self, rows: Tensor) -> Tensor:
        """Where rows are sent from."""
        return rows.cpu()

    def _complete(self, works: Sequence[Any], what: str) -> None:
        """Wait for operations, and for no rank that has failed."""
        self.waiting.until(
            lambda: all(work.is_completed() for work in works), lambda: self._elsewhere(what), what
        )
        try:
            for work in works:
                work.wait()
        except RuntimeError as error:
            until = time.monotonic() + self.watch.notice_s  # who has died
            while time.monotonic() < until:
                self.waiting.look(what)
                time.sleep(0.05)
            problem = str(error).splitlines()[0]
            self.waiting.fail(f"lost its connection: {problem}", what=what)

    def _elsewhere(self, what: str) -> int:
        """A rank that is at something else, for want of knowing who is waited for."""
        ranks = [r for r in range(self.size) if r != self.rank and self.watch.action_of(r) != what]
        return ranks[0] if ranks else (self.rank + 1) % self.size


class Nccl(Collective):
    """Rows on GPUs, one rank a device; messages go over gloo."""

    name = "nccl"
    _backend = "cpu:gloo,cuda:nccl"

    def __init__(self, watch: Watch, rank: int, **options: Any) -> None:
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # sums in a switch, which nothing here asks
        super().__init__(watch, rank, **options)

    def _wire(self, rows: Tensor) -> Tensor:
        return rows


def _as_bytes(rows: Tensor) -> Tensor:
    return rows.reshape(-1).view(torch.uint8)
