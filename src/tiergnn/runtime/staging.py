"""Staging: rows converted on the device's side of a link, through two buffers in turn.

What crosses the link and the kernels that turn it have streams of their own, so that one piece
crosses while the other is turned: on one stream the link would wait for every kernel, and that for
the blocks of whatever else computes. Both come before other work where the device can choose.

Legend: P rows, C columns of a slice, D of a block of slices.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tiergnn.kernels.columns import join, split

FIRST = -1  # the priority of streams that keep a link busy
PIECE_BYTES = 2**24  # of a buffer, where plans say nothing: see capacities.ASIDE_BYTES
_TURNS = 2
_SEGMENT_BYTES = 64  # at least, of a row that is written by slices


class _Piece(NamedTuple):
    """Rows of ``shape`` and ``dtype``: ``cross`` copies them between host memory and a buffer of
    the device that it is given, ``turn`` is what is done with them there."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    cross: Callable[[Tensor], object]
    turn: Callable[[Tensor], object]


class Staging:
    """Buffers of a device, taken when they are first used, two for each direction of a link.

    What is queued on the current stream later comes after what these methods queue.
    """

    def __init__(self, device: torch.device, piece_bytes: int = PIECE_BYTES):
        self._device, self._piece_bytes = device, piece_bytes
        self._lock = threading.Lock()
        self._rings: dict[bool, _Ring] = {}

    def begin(self) -> None:
        """Of a step, when the device has done what came before."""
        for ring in self._rings.values():
            ring.begin()

    def bring(
        self,
        stored: Sequence[Tensor],
        rows: Tensor,
        decode: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """Tiles of host memory, of one dtype, which one after the other are rows [P, ...] of the
        device: cast there, or as ``decode`` makes them."""
        if decode is None and (rows.dtype == stored[0].dtype or not rows.is_cuda):
            _copy_all(_split(rows, stored), stored)
        else:
            self._move(self._brought(stored, rows, decode), into=True)

    def send(self, rows: Tensor, stored: Sequence[Tensor]) -> None:
        """The other way: cast on the device, so that stored bytes alone cross the link."""
        if rows.dtype == stored[0].dtype or not rows.is_cuda:
            _copy_all(stored, _split(rows, stored))
        else:
            self._move(self._sent(rows, stored), into=False)

    def join(self, slices: Sequence[Tensor], block: Tensor) -> None:
        """Slices [P, C], beside each other, into block [P, D] on the device. Copies that cross a
        link have one piece of memory on either side."""
        if all(one.device == block.device for one in slices):
            _copy_all(_columns(block, slices), slices)
        else:
            self._move(self._turned(slices, block, into=True), into=True)

    def split(self, block: Tensor, slices: Sequence[Tensor]) -> None:
        """The other way."""
        if all(one.device == block.device for one in slices):
            _copy_all(slices, _columns(block, slices))
        else:
            self._move(self._turned(slices, block, into=False), into=False)

    def _move(self, pieces: Iterable[_Piece], *, into: bool) -> None:
        if self._device.type == "cuda":
            with self._lock:
                if into not in self._rings:
                    self._rings[into] = _Ring(self._device, self._piece_bytes)
                self._rings[into].move(pieces, into)
            return
        for piece in pieces:
            buffer = torch.empty(piece.shape, dtype=piece.dtype, device=self._device)
            for act in (piece.cross, piece.turn) if into else (piece.turn, piece.cross):
                act(buffer)

    def pieces(
        self, num_rows: int, num_bytes: int, *, whole: bool = False
    ) -> Iterator[tuple[int, int]]:
        """Rows, of so many bytes each, in pieces of which what is made on the way takes little; or
        all at once."""
        step = max(1, num_rows if whole else self._piece_bytes // max(1, num_bytes))
        for first in range(0, num_rows, step):
            yield first, min(first + step, num_rows)

    def _brought(
        self,
        stored: Sequence[Tensor],
        rows: Tensor,
        decode: Callable[[Tensor], Tensor] | None,
    ) -> Iterator[_Piece]:
        most = max(row_bytes(stored[0]), row_bytes(rows))
        for first, last, tiles in self._together(stored, most):
            out = rows[first:last]
            yield _Piece(
                (last - first, *stored[0].shape[1:]),
                stored[0].dtype,
                lambda passing, tiles=tiles: _copy_all(_split(passing, tiles), tiles),
                lambda passing, out=out: out.copy_(passing if decode is None else decode(passing)),
            )

    def _sent(self, rows: Tensor, stored: Sequence[Tensor]) -> Iterator[_Piece]:
        for first, last, tiles in self._together(stored, row_bytes(stored[0])):
            some = rows[first:last]
            yield _Piece(
                tuple(some.shape),
                tiles[0].dtype,
                lambda passing, tiles=tiles: _copy_all(tiles, _split(passing, tiles)),
                lambda passing, some=some: passing.copy_(some),
            )

    def _together(
        self, tiles: Sequence[Tensor], num_bytes: int
    ) -> Iterator[tuple[int, int, list[Tensor]]]:
        """Which rows go in a piece, and what of tiles these are; ``num_bytes`` a row."""
        most = max(1, self._piece_bytes // max(1, num_bytes))
        first = done = 0
        some: list[Tensor] = []
        for tile in tiles:
            for low in range(0, len(tile), most):
                part = tile[low : low + most]
                if done + len(part) - first > most:
                    yield first, done, some
                    first, some = done, []
                some.append(part)
                done += len(part)
        if some:
            yield first, done, some

    def _turned(self, slices: Sequence[Tensor], block: Tensor, *, into: bool) -> Iterator[_Piece]:
        first = 0
        for width, group in groupby(slices, key=lambda one: one.shape[1]):
            alike = list(group)
            # Of short tiles many at once, of long ones as few as make whole lines of memory.
            least = -(-_SEGMENT_BYTES // max(1, width * block.element_size()))
            tile_bytes = max(1, len(block) * row_bytes(alike[0]))
            together = max(least, self._piece_bytes // tile_bytes)
            for start in range(0, len(alike), together):
                some = alike[start : start + together]
                columns = block[:, first : first + len(some) * width]
                first += len(some) * width
                for low, high in self.pieces(len(block), len(some) * row_bytes(some[0])):
                    yield _turn([one[low:high] for one in some], columns[low:high], into=into)


class _Ring:
    def __init__(self, device: torch.device, num_bytes: int):
        self._device = device
        self._kernels = torch.cuda.Stream(device, priority=FIRST)
        self._buffers = [
            torch.empty(num_bytes, dtype=torch.uint8, device=device) for _ in range(_TURNS)
        ]
        self.begin()
        self._next, self._links = 0, set[torch.cuda.Stream]()

    def begin(self) -> None:
        """What events of before stand for is done, and a recording refuses them."""
        self._crossed, self._turned = ([torch.cuda.Event() for _ in range(_TURNS)] for _ in "ab")

    def move(self, pieces: Iterable[_Piece], into: bool) -> None:
        link, kernels = torch.cuda.current_stream(self._device), self._kernels
        kernels.wait_stream(link)
        if link not in self._links:
            self._links.add(link)
            for buffer in self._buffers:  # which may be let go of before the device is done
                buffer.record_stream(link)
                buffer.record_stream(kernels)
        for piece in pieces:
            turn = self._next = (self._next + 1) % _TURNS
            count = piece.dtype.itemsize * torch.Size(piece.shape).numel()
            buffer = self._buffers[turn][:count].view(piece.dtype).view(piece.shape)
            crossed, turned = self._crossed[turn], self._turned[turn]
            if into:
                turned.wait(link)
                piece.cross(buffer)
                crossed.record(link)
            crossed.wait(kernels)
            torch.cuda.set_stream(kernels)
            try:
                piece.turn(buffer)
                turned.record(kernels)
            finally:
                torch.cuda.set_stream(link)
            if not into:
                turned.wait(link)
                piece.cross(buffer)
                crossed.record(link)
        link.wait_stream(kernels)


def _split(rows: Tensor, tiles: Sequence[Tensor]) -> Sequence[Tensor]:
    return rows.split([len(tile) for tile in tiles])


def _columns(block: Tensor, slices: Sequence[Tensor]) -> Sequence[Tensor]:
    return block.split([one.shape[1] for one in slices], dim=1)


def _turn(slices: list[Tensor], columns: Tensor, *, into: bool) -> _Piece:
    """Of rows of a few slices, that together are columns of a block."""
    shape, dtype = (len(slices), *slices[0].shape), slices[0].dtype
    if into:
        return _Piece(
            shape,
            dtype,
            lambda passing: _copy_all(passing.unbind(0), slices),
            lambda passing: join(passing, columns),
        )
    return _Piece(
        shape,
        dtype,
        lambda passing: _copy_all(slices, passing.unbind(0)),
        lambda passing: split(columns, passing),
    )


def _copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    copy: Any = getattr(torch, "_foreach_copy_")  # noqa: B009 - private, and the one call for many
    copy(targets, sources, non_blocking=True)


def row_bytes(rows: Tensor) -> int:
    return rows.shape[1:].numel() * rows.element_size()
