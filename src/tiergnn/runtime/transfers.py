"""Transfers: rows between buffers, by what both hold: whole, gathered from owners, given to them.

Only stored bytes cross a link; rows are widened and narrowed on the device's side of it, and summed
in float32 (float64 for float64 rows).

Legend: P rows of one part, S source rows it reads, N rows of one transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from tiergnn.kernels.columns import join, split
from tiergnn.kernels.gather import FLOATS, gather
from tiergnn.kernels.table import Places as RowPlaces
from tiergnn.kernels.table import RowTable
from tiergnn.memory.moves import Addend, add_all
from tiergnn.memory.store import RowStore, check_range, convert, encode
from tiergnn.models.moments import moments_grad
from tiergnn.runtime.asked import Asked
from tiergnn.runtime.brought import add_out_edges, moved, topology_bytes
from tiergnn.runtime.buffers import Buffers
from tiergnn.runtime.parts import Parts
from tiergnn.runtime.staging import Staging, row_bytes
from tiergnn.runtime.tiles import Tiles, tiles_of, within
from tiergnn.runtime.whole import Whole
from tiergnn.schedule.actions import Action
from tiergnn.schedule.contents import What

Decode = Callable[[Tensor, slice], Tensor]
_OWN = (What.ROWS, What.GRAD)
_TOPOLOGY = (What.TOPOLOGY, What.OUT_EDGES)


class Transfers:
    """COPY, ZERO and ACCUMULATE. ``decode`` makes of stored rows of an input (some columns of them)
    what stages read; ``asked`` are the rows of answers. ``staging`` is what schedules of a run
    share."""

    def __init__(
        self,
        buffers: Buffers,
        parts: Parts | Whole,
        decode: Mapping[str, Decode],
        asked: Asked | None = None,
        staging: Staging | None = None,
    ):
        self._buffers, self._parts, self._decode = buffers, parts, dict(decode)
        self._asked, self._staging = asked, staging or Staging(buffers.device)
        self._tiles: dict[int, Tiles | None] = {}  # by the number of an action

    def copy(self, action: Action) -> int:
        """Gives the bytes that went over the link, as stored."""
        if self._in_place(action):
            return self._gather(action)
        if (tiles := self._tiles_of(action)) is not None:
            return self._copy_tiles(tiles)
        return sum(
            self._copy(source, target) for target in action.writes for source in action.reads
        )

    def _tiles_of(self, action: Action) -> Tiles | None:
        """Found once for every action: thousands of them are queued in a step."""
        if action.index not in self._tiles:
            self._tiles[action.index] = (
                tiles_of(action, self._buffers, self._place, self._decode)
                if isinstance(self._parts, Whole)
                else None
            )
        return self._tiles[action.index]

    def _copy_tiles(self, found: Tiles) -> int:
        into, columns = found.into, found.columns
        home, there = self._buffers.get, self._buffers.room
        home, there = (home, there) if into else (there, home)
        rows = _of_width(there(found.one), found.width)
        rows = rows if found.rows is None else rows[found.rows]
        tiles, moved = [], 0
        for name, width, some in found.tiles:
            tile = _of_width(home(name), width)
            tiles.append(tile if some is None else tile[some])
            if self._buffers.tier(name) == "host":
                moved += tiles[-1].numel() * tile.element_size()
        if self._buffers.device.type == "cpu":
            self._copy_here(rows, tiles, found)
        elif columns is None:
            self._staging.bring(tiles, rows) if into else self._staging.send(rows, tiles)
        elif into:
            self._staging.join(tiles, rows[:, columns])
        else:
            self._staging.split(rows[:, columns], tiles)
        return moved

    def _copy_here(self, rows: Tensor, tiles: list[Tensor], found: Tiles) -> None:
        """Between memory of the host and what a CPU computes in."""
        if found.columns is not None:
            columns = rows[:, found.columns]
            if found.into:
                join(tiles, columns)
                return
            split(columns, tiles)
            beside = columns.split([tile.shape[1] for tile in tiles], 1)
            for (name, *_), tile, some in zip(found.tiles, tiles, beside, strict=True):
                check_range(some, tile, name)
            return
        done = 0
        for (name, *_), tile in zip(found.tiles, tiles, strict=True):
            some = rows[done : done + len(tile)]
            done += len(tile)
            if found.into:
                some.copy_(tile)
            else:
                encode(some, tile, name)

    def zero(self, action: Action) -> None:
        """Gradients of parameters are not ours to clear: they add to what the caller left."""
        for name, holds in self._buffers.contents(action.writes):
            if holds.what is What.MOMENTS_GRAD:
                self._buffers.put(name, None)
                continue
            room = self._buffers.room(name)
            assert isinstance(room, Tensor)
            room.zero_()

    def accumulate(self, action: Action) -> None:
        kinds = {self._buffers.holds(name).what: name for name in action.reads}
        if What.MOMENTS_GRAD in kinds:
            self._add_moments(kinds, action.writes[0])
            return
        source = next(name for name in action.reads if name not in action.writes)
        addends = [each for target in action.writes for each in self._addends(source, target)]
        plain = [each for each in addends if _is_plain(each)]
        if plain:
            add_all(plain)  # at once: a thread's start costs as much as a part's rows for another
        for each in addends:
            if not _is_plain(each):
                _add_narrow(each)

    def _add_moments(self, kinds: Mapping[What, str], target: str) -> None:
        """What a part's rows gave to the moments of all rows."""
        grad = self._buffers.get(kinds[What.MOMENTS_GRAD])
        if grad is not None:
            rows, values = (self._buffers.get(kinds[w]) for w in (What.ROWS, What.MOMENTS))
            moments_grad(rows, values, grad, add_to=self._buffers.get(target))

    def _in_place(self, action: Action) -> bool:
        """Whether a kernel reads rows of others where they lie in host memory."""
        if len(action.writes) != 1:
            return False
        there = self._buffers.holds(action.writes[0])
        if there is None or there.what is not What.SOURCES:
            return False
        assert isinstance(self._parts, Parts)
        held = [holds for _, holds in self._buffers.contents(action.reads)]
        of_others = [holds.what is What.ROWS and holds.part != there.part for holds in held]
        values = [self._buffers.get(name) for name in action.reads]
        return (
            all(of_others)
            and len(values) == self._parts.num_owners(there.part)
            and all(isinstance(v, Tensor) and v.dtype in FLOATS for v in values)
        )

    def _gather(self, action: Action) -> int:
        """All rows that a part is brought of others, by one kernel."""
        (target,) = action.writes
        assert isinstance(self._parts, Parts)
        there = self._buffers.holds(target)
        rows = self._buffers.room(target)
        assert isinstance(rows, Tensor)
        room = rows[self._parts.halo(there.part)]
        sources = sorted(action.reads, key=lambda name: self._buffers.holds(name).part)
        tables = tuple(self._buffers.get(name) for name in sources)
        at, shift = self._parts.halo_places(there.part)
        decode = self._decode.get(there.of)
        for first, last in self._staging.pieces(len(room), row_bytes(room), whole=decode is None):
            places = RowPlaces(at[first:last].to(room.device, non_blocking=True), shift)
            if decode is None:
                gather(RowTable(tables), places, out=room[first:last])
            else:
                room[first:last] = decode(gather(RowTable(tables), places), slice(None))
        return len(room) * row_bytes(tables[0])

    def _copy(self, source: str, target: str) -> int:
        here, there = self._buffers.holds(source), self._buffers.holds(target)
        if here.what in _TOPOLOGY:
            return self._copy_topology(source, target)
        if What.HOT in (here.what, there.what):
            return self._copy_hot(source, target)
        if there.what is What.ANSWER:
            return self._copy_answer(source, target)
        alike = (here.part, here.columns) == (there.part, there.columns)
        if here.what in _OWN and there.what in _OWN and not alike:
            return self._copy_common(source, target)
        value, room = self._buffers.get(source), self._buffers.room(target)
        if isinstance(room, RowStore):
            room.write(slice(None), value.reshape(room.num_rows, room.width))
            return room.num_bytes
        if isinstance(value, RowStore):
            value.read(slice(None), room.view(value.num_rows, value.width))
            return value.num_bytes
        rows: Tensor | None = None
        if here.what is What.ROWS and there.what is What.SOURCES:
            assert isinstance(self._parts, Parts)
            places = self._parts.brought(there.part, here.part)
            room, rows = room[places.low : places.high], places.rows
        elif here.what is What.SOURCES_GRAD and there.what is What.BUCKET:
            return self._copy_bucket(value, room, target)
        into = self._buffers.tier(target) == "device"
        if into:
            decode = self._decode.get(here.of) if self._buffers.tier(source) != "device" else None
            self._bring(value, rows, room, decode, slice(*(here.columns or (None,))))
        else:
            self._send(value, room, target)
        return len(room) * row_bytes(value if into else room)

    def _bring(
        self,
        value: Tensor,
        rows: Tensor | None,
        room: Tensor,
        decode: Decode | None,
        columns: slice,
    ) -> None:
        """Rows of host memory into rows of the device."""
        on_gpu = room.device.type == "cuda" and value.device.type == "cpu"
        if rows is not None:
            direct = decode is None and not on_gpu and value.dtype == room.dtype
            if direct and room.is_contiguous():
                torch.index_select(value, 0, rows, out=room)
                return
            value = _picked(value, rows, pin=on_gpu)
        if decode is None and (value.dtype == room.dtype or not on_gpu):
            convert(value, room)
        else:
            made = None if decode is None else lambda stored: decode(stored, columns)
            self._staging.bring([value], room, made)

    def _send(self, value: Tensor, room: Tensor, name: str) -> None:
        """Rows of the device into host memory."""
        if value.device.type == "cuda" and room.device.type == "cpu" and value.dtype != room.dtype:
            self._staging.send(value, [room])
        else:
            encode(value, room, name)

    def _copy_bucket(self, value: Tensor, room: Tensor, target: str) -> int:
        """What a part gives to the gradient of an owner's rows, which stand in a place or two."""
        assert isinstance(self._parts, Parts)
        there, done = self._buffers.holds(target), 0
        for places in self._parts.places(there.part, there.owner):
            count = places.high - places.low
            self._send(value[places.low : places.high], room[done : done + count], target)
            done += count
        return done * row_bytes(room)

    def _copy_hot(self, source: str, target: str) -> int:
        """Rows that stay on the device, as they are stored: of those that were made there, or to
        those that a part reads."""
        assert isinstance(self._parts, Parts)
        here, there = self._buffers.holds(source), self._buffers.holds(target)
        value, room = self._buffers.get(source), cast(Tensor, self._buffers.room(target))
        keeps = there.what is What.HOT
        if keeps:
            low, high, rows = self._parts.hot.of(here.part)
        else:
            low, high, rows = self._parts.stays(there.part)
        decode = self._decode.get(here.of)
        for first, last in self._staging.pieces(high - low, row_bytes(value)):
            some = value.index_select(0, rows[first:last].to(value.device, non_blocking=True))
            into = room[low + first : low + last]
            if keeps:
                encode(some, into, target)
            elif decode is None:
                convert(some, into)
            else:
                into.copy_(decode(some, slice(None)))
        return 0

    def _copy_answer(self, source: str, target: str) -> int:
        """The rows of a part's output that are asked for."""
        assert self._asked is not None
        value, room = self._buffers.get(source), cast(Tensor, self._buffers.room(target))
        rows = self._asked.rows(self._buffers.holds(target).part)
        if rows is None:
            self._send(value, room, target)
            return len(room) * row_bytes(room)
        for first, last in self._staging.pieces(len(room), row_bytes(value)):
            some = value.index_select(0, rows[first:last].to(value.device, non_blocking=True))
            encode(some, room[first:last], target)
        return len(room) * row_bytes(room)

    def _copy_common(self, source: str, target: str) -> int:
        """The rows and columns that both hold, of their own numbers of either."""
        here, there = self._place(source), self._place(target)
        rows, columns = (_common(a, b) for a, b in zip(here, there, strict=True))
        room = self._buffers.room(target)  # of a part without rows, too
        if rows.start >= rows.stop or columns.start >= columns.stop:
            return 0
        mine, its = ((within(rows, p[0]), within(columns, p[1])) for p in (here, there))
        value = self._buffers.get(source)
        if isinstance(room, RowStore):
            room.write(its[0], _table(value, here)[mine])
            return (rows.stop - rows.start) * room.row_bytes
        room = _table(room, there)[its]
        if isinstance(value, RowStore):
            value.read(mine[0], room)
            return (rows.stop - rows.start) * value.row_bytes
        value = _table(value, here)[mine]
        into = self._buffers.tier(target) == "device"
        if into and self._buffers.tier(source) == "device":
            room.copy_(value)
            return 0
        if into:
            decode = self._decode.get(self._buffers.holds(source).of)
            self._bring(value, None, room, decode, columns)
        else:
            self._send(value, room, target)
        return value.numel() * (value if into else room).element_size()

    def _place(self, name: str) -> tuple[slice, slice]:
        """Which of all rows, and of all columns, a buffer holds."""
        holds = self._buffers.holds(name)
        assert isinstance(self._parts, Whole)
        of_edges = self._buffers.of_edges(holds.of)
        rows = (self._parts.edges if of_edges else self._parts.rows)(holds.part)
        return slice(*rows), slice(*(holds.columns or (0, self._buffers.width(holds.of))))

    def _copy_topology(self, source: str, target: str) -> int:
        """On a CPU the device reads a block where it is: nobody writes one."""
        here = self._buffers.holds(source)
        if here.what is What.OUT_EDGES and here.part < 0:
            block = self._buffers.get(source)
            self._buffers.put(target, moved(block, self._buffers.device))
            return topology_bytes(block, out=False)
        block, out = self._parts.block(here.part), here.what is What.OUT_EDGES
        if not out:
            self._buffers.put(target, moved(block, self._buffers.device, out=False))
        elif self._buffers.device != block.device:
            for there in self._buffers.alike(replace(here, what=What.TOPOLOGY)):
                add_out_edges(there, block)
        return topology_bytes(block, out=out)

    def _addends(self, source: str, target: str) -> Iterator[Addend]:
        """What a part gives to rows of an owner, which stand in a place or two."""
        here, there = self._buffers.holds(source), self._buffers.holds(target)
        values, total = self._buffers.get(source), self._buffers.get(target)
        assert isinstance(self._parts, Parts)
        width = values.shape[1:].numel()
        values, total = values.reshape(len(values), width), total.view(len(total), width)
        done = 0
        for places in self._parts.places(here.part, there.part):
            count = places.high - places.low
            # Of a bucket, what it has of each place stands one after the other.
            first = places.low if here.what is What.SOURCES_GRAD else done
            if count:
                yield Addend(total, places.rows, values[first : first + count])
            done += count


def _is_plain(given: Addend) -> bool:
    dtype = given.target.dtype
    return dtype in (torch.float32, torch.float64) and given.values.dtype == dtype


def _add_narrow(given: Addend) -> None:
    """In float32, rounded once."""
    total, rows, values = given
    if rows is None:
        total.copy_(total.float() + values)
    else:
        total[rows] = (total[rows].float() + values).to(total.dtype)


def _of_width(rows: Any, width: int) -> Tensor:
    return rows.view(len(rows), width)


def _table(rows: Tensor, place: tuple[slice, slice]) -> Tensor:
    """Rows of any shape as a table of rows and columns."""
    return rows.view(*(some.stop - some.start for some in place))


def _common(one: slice, other: slice) -> slice:
    return slice(max(one.start, other.start), min(one.stop, other.stop))


def _picked(value: Tensor, rows: Tensor, *, pin: bool) -> Tensor:
    picked = torch.empty((len(rows), *value.shape[1:]), dtype=value.dtype, pin_memory=pin)
    return torch.index_select(value, 0, rows, out=picked)
