"""Tiles: of a copy between a buffer of the device and several others, which of its rows and columns
each of them is.

Legend: V nodes, P rows of a block, C columns of a slice.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import NamedTuple

from tiergnn.runtime.buffers import Buffers
from tiergnn.schedule.actions import Action
from tiergnn.schedule.contents import What

_OWN = (What.ROWS, What.GRAD)
_Place = Callable[[str], tuple[slice, slice]]


class Tiles(NamedTuple):
    """Name and columns of each tile, and where it has more rows those (None: all of them). Tiles
    lie beside each other in ``columns`` of the rows of ``one``, or, where those are None, one after
    the other in its ``rows`` (None: all of them)."""

    one: str
    width: int
    into: bool  # it is what is written
    tiles: tuple[tuple[str, int, slice | None], ...]
    columns: slice | None
    rows: slice | None = None


def tiles_of(
    action: Action, buffers: Buffers, place: _Place, decoded: Container[str]
) -> Tiles | None:
    """None for any other copy. ``place`` says which of all rows and columns a buffer holds;
    ``decoded`` are the inputs that are not read as they are stored."""
    if not action.reads or not action.writes:
        return None
    return _slices(action, buffers, place, decoded) or _blocks(action, buffers, place)


def _slices(
    action: Action, buffers: Buffers, place: _Place, decoded: Container[str]
) -> Tiles | None:
    """Some slices of a tensor, and a block of its rows on the device."""
    into = len(action.reads) > 1
    many, (one, *more) = (action.reads, action.writes)[:: 1 if into else -1]
    block = buffers.holds(one)
    if more or len(many) < 2 or block is None or block.part < 0 or block.columns:
        return None
    tiers = {buffers.tier(name) for name in many}
    if "disk" in tiers or buffers.tier(one) != "device" or block.of in decoded:
        return None
    rows, _ = place(one)
    places = sorted(((name, *place(name)) for name in many), key=lambda each: each[2].start)
    columns = slice(places[0][2].start, places[-1][2].stop)
    tiles = tuple((name, c.stop - c.start, within(rows, r)) for name, r, c in places)
    return Tiles(one, buffers.width(block.of), into, tiles, columns)


def _blocks(action: Action, buffers: Buffers, place: _Place) -> Tiles | None:
    """Tiles of a block's rows each in host memory, of blocks in a row, and a slice [V, C] of all
    rows on the device."""
    into = len(action.writes) == 1
    many, (one, *more) = (action.reads, action.writes)[:: 1 if into else -1]
    whole = buffers.holds(one)
    if more or whole is None or whole.what not in _OWN or whole.part >= 0:
        return None
    contents = [(buffers.holds(name), name) for name in many]
    alike = all(
        holds is not None
        and holds.what in _OWN
        and holds.part >= 0
        and holds.columns == whole.columns
        for holds, _ in contents
    )
    tiers = {buffers.tier(name) for name in many}
    if not alike or tiers != {"host"} or buffers.tier(one) != "device":
        return None
    all_rows, columns = place(one)
    width = columns.stop - columns.start
    contents.sort(key=lambda pair: pair[0].part)
    first, last = (place(contents[at][1])[0] for at in (0, -1))
    rows = within(slice(first.start, last.stop), all_rows)
    return Tiles(one, width, into, tuple((name, width, None) for _, name in contents), None, rows)


def within(some: slice, whole: slice) -> slice:
    """Where ``some`` of all rows stand among those of ``whole``."""
    return slice(some.start - whole.start, some.stop - whole.start)
