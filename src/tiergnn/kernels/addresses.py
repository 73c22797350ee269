"""Addresses: where several tensors begin, on a GPU, for kernels that read them all.

Buffers come again at every step, so what is copied to the device once is kept. A step that is
recorded as a CUDA graph cannot copy, and its buffers lie elsewhere: its kernels read a page of its
own, which is filled when the record is whole. Nothing is kept in memory that a record writes, too.

Legend: B tensors.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch
from torch import Tensor

NUMBERS = 2**13  # of a page
_ONE = threading.RLock()  # who records; the threads of autograd, which help, do not ask for it
_pages: list[Page] = []  # of those who record
_own = threading.local()


class Page:
    """Addresses that a record's kernels read: keep it as long as that. ``device`` is a GPU."""

    def __init__(self, device: torch.device, numbers: int = NUMBERS):
        self._room = torch.empty(numbers, dtype=torch.int64, device=device)
        self._written: list[int] = []
        self._places: dict[tuple[int, ...], Tensor] = {}

    def of(self, addresses: tuple[int, ...]) -> Tensor:
        """int64 [B], to be read once ``fill`` was called. Raises RuntimeError for a full page."""
        if addresses not in self._places:
            first = len(self._written)
            if first + len(addresses) > self._room.numel():
                raise RuntimeError(
                    f"a record reads more than {self._room.numel()} tensors by their addresses"
                )
            self._written += addresses
            self._places[addresses] = self._room[first : len(self._written)]
        return self._places[addresses]

    def fill(self) -> None:
        """Write them, in the order of the current stream."""
        self._room[: len(self._written)] = torch.tensor(self._written, dtype=torch.int64)


@contextmanager
def recording(device: torch.device) -> Iterator[Page]:
    """What is recorded inside, by one at a time, reads the page that this gives."""
    with _ONE:
        page = Page(device)
        _pages.append(page)
        try:
            yield page
        finally:
            _pages.pop()


@contextmanager
def not_kept() -> Iterator[None]:
    """What the calling thread copies inside is of no later use."""
    _own.not_kept = True
    try:
        yield
    finally:
        _own.not_kept = False


def addresses_of(addresses: tuple[int, ...], device: torch.device) -> Tensor:
    """int64 [B] on ``device``; the caller keeps the tensors."""
    if _pages and device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return _pages[-1].of(addresses)
    if getattr(_own, "not_kept", False):
        return torch.tensor(addresses, device=device)
    return _copied(addresses, device)


@lru_cache(maxsize=2**13)
def _copied(addresses: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(addresses, device=device)
