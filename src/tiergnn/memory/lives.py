"""Where buffers lie in one piece of memory, given when each is reserved and released.

Offsets are found before a run, so that what it takes is known, and no reservation of the run can
find free memory in pieces that are each too small.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tiergnn.errors import PlanError
from tiergnn.units import format_bytes

ALIGN_BYTES = 512
_MOST = 8_000  # buffers that are compared with all others


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """A buffer from the step that reserves it to the one that releases it.

    None: it is there in every step, and its place is nobody else's.
    """

    name: str
    num_bytes: int
    reserved: int
    released: int | None = None

    def __post_init__(self) -> None:
        if self.num_bytes < 0:
            raise PlanError(f"wanted a buffer {self.name} of 0 bytes or more, had {self.num_bytes}")
        if self.released is not None and self.released <= self.reserved:
            raise PlanError(
                f"buffer {self.name} is released at step {self.released}, "
                f"reserved at {self.reserved}"
            )

    @property
    def room_bytes(self) -> int:
        return -(-self.num_bytes // ALIGN_BYTES) * ALIGN_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a buffer lies, and the buffers released before it that lay there."""

    name: str
    offset: int
    num_bytes: int
    lasting: bool
    waits_for: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Places by name; ``num_bytes`` is the memory they need, ``live_bytes`` what no order beats."""

    places: dict[str, Place]
    num_bytes: int
    live_bytes: int


def lay_out(lives: Iterable[Life]) -> Layout:
    """Offsets in which no two buffers that live at once overlap, by the best of a few ways.

    In the order of the steps: best fit, and first fit of the large beside last fit of the small
    (n log n for n buffers, times the few gaps of a moment). Out of that order: the largest, or the
    longest and largest, where they fit lowest (n * n in whole arrays; for up to ``_MOST``).
    Raises PlanError for a name that stands twice.
    """
    lives = sorted(lives, key=lambda life: (life.released is not None, life.reserved))
    names = {life.name for life in lives}
    if len(names) < len(lives):
        twice = next(a.name for a, b in _neighbours(lives) if a.name == b.name)
        raise PlanError(f"buffer {twice} has two lives; what is needed again gets a new name")
    events = _events(lives)
    live = most = 0
    for life, starts in events:
        live += life.room_bytes if starts else -life.room_bytes
        most = max(most, live)
    middle = sorted(life.room_bytes for life in lives)[len(lives) // 2] if lives else 0
    tries = [_offsets(events, most, split) for split in (None, middle)]
    if len(lives) <= _MOST:
        tries += [_lowest(lives, by_time=by_time) for by_time in (False, True)]
    offsets, height = min(tries, key=lambda found: found[1])
    return Layout(places=_places(lives, offsets), num_bytes=height, live_bytes=most)


def _neighbours(lives: Sequence[Life]) -> Iterable[tuple[Life, Life]]:
    named = sorted(lives, key=lambda life: life.name)
    return pairwise(named)


def _events(lives: Sequence[Life]) -> list[tuple[Life, bool]]:
    """Reservations and releases in the order of their steps; a step's releases come first."""
    lasting = [(life, True) for life in lives if life.released is None]
    steps = [(life.reserved, 1, i) for i, life in enumerate(lives) if life.released is not None]
    steps += [(life.released, 0, i) for i, life in enumerate(lives) if life.released is not None]
    return lasting + [(lives[i], starts == 1) for _, starts, i in sorted(steps)]


def _offsets(
    events: Sequence[tuple[Life, bool]], num_bytes: int, split: int | None
) -> tuple[dict[str, int], int]:
    """Offsets by name and the height they need. ``split``: buffers below it fill gaps from their
    ends, the others from their starts; None: each goes to the smallest gap that holds it."""
    gaps: list[tuple[int, int]] = [(0, num_bytes)] if num_bytes else []  # ascending, apart
    offsets: dict[str, int] = {}
    height = num_bytes
    for life, starts in events:
        size = life.room_bytes
        if size == 0:
            offsets[life.name] = 0
        elif starts:
            fitting = [gap for gap in gaps if gap[1] - gap[0] >= size]
            if not fitting:  # more room above all, which starts in a last gap where there is one
                top = gaps[-1] if gaps and gaps[-1][1] == height else (height, height)
                if top in gaps:
                    gaps.remove(top)
                offsets[life.name] = top[0]
                height = top[0] + size
                continue
            late = split is not None and size < split
            if split is None:
                gap = min(fitting, key=lambda gap: (gap[1] - gap[0], gap[0]))
            else:
                gap = fitting[-1] if late else fitting[0]
            at = gap[1] - size if late else gap[0]
            offsets[life.name] = at
            gaps.remove(gap)
            for rest in ((gap[0], at), (at + size, gap[1])):
                if rest[0] < rest[1]:
                    insort(gaps, rest)
        else:
            _free(gaps, offsets[life.name], size)
    return offsets, height


def _lowest(lives: Sequence[Life], *, by_time: bool) -> tuple[dict[str, int], int]:
    """Offsets and their height, each buffer in its turn as low as those that are placed allow."""
    last = max((life.released or life.reserved + 1 for life in lives), default=0)
    size = np.array([life.room_bytes for life in lives], np.int64)
    start = np.array([-1 if life.released is None else life.reserved for life in lives], np.int64)
    end = np.array([last if life.released is None else life.released for life in lives], np.int64)
    order = np.lexsort((start, -(size * (end - start) if by_time else size)))
    low = np.zeros(len(lives), np.int64)
    for i, at in enumerate(order):
        others = order[:i]
        others = others[(start[others] < end[at]) & (end[others] > start[at]) & (size[others] > 0)]
        others = others[np.argsort(low[others], kind="stable")]
        # Gaps end where a buffer begins, and begin where all before it have ended.
        begins = np.append(0, np.maximum.accumulate(low[others] + size[others]))
        fits = np.flatnonzero(low[others] - begins[:-1] >= size[at])
        low[at] = begins[fits[0]] if fits.size else begins[-1]
    height = int((low + size).max(initial=0))
    return {life.name: int(offset) for life, offset in zip(lives, low, strict=True)}, height


def _free(gaps: list[tuple[int, int]], start: int, size: int) -> None:
    """Give a place back, one gap with those beside it."""
    end = start + size
    i = bisect_left(gaps, (start, end))
    if i < len(gaps) and gaps[i][0] == end:
        end = gaps.pop(i)[1]
    if i > 0 and gaps[i - 1][1] == start:
        start = gaps.pop(i - 1)[0]
    insort(gaps, (start, end))


def _places(lives: Sequence[Life], offsets: dict[str, int]) -> dict[str, Place]:
    """Each place with the last buffers that lay there before. ``lives`` by their reservation."""
    places: dict[str, Place] = {}
    lately: list[tuple[int, int, str]] = []  # (start, end, name) that lie on top, ascending, apart
    for life in lives:
        start, end = offsets[life.name], offsets[life.name] + life.room_bytes
        below: list[str] = []
        if start < end:
            i = bisect_left(lately, (start,))
            if i > 0 and lately[i - 1][1] > start:
                i -= 1
            j = i
            kept: list[tuple[int, int, str]] = []
            while j < len(lately) and lately[j][0] < end:
                low, high, name = lately[j]
                below.append(name)
                if low < start:
                    kept.append((low, start, name))
                if high > end:
                    kept.append((end, high, name))
                j += 1
            lately[i:j] = sorted([*kept, (start, end, life.name)])
        places[life.name] = Place(
            name=life.name,
            offset=start,
            num_bytes=life.num_bytes,
            lasting=life.released is None,
            waits_for=tuple(dict.fromkeys(below)),
        )
    return places


def refuse(layout: Layout, capacity_bytes: int, what: str) -> None:
    """Raise PlanError where a layout needs more than there is."""
    if layout.num_bytes <= capacity_bytes:
        return
    largest = max(layout.places.values(), key=lambda place: place.num_bytes)
    error = PlanError(
        f"{what} needs {format_bytes(layout.num_bytes)} ({layout.num_bytes:,} bytes), "
        f"has {format_bytes(capacity_bytes)} ({capacity_bytes:,} bytes)",
        culprit=f"largest: {largest.name}, {format_bytes(largest.num_bytes)}",
        hint=f"a budget of {layout.num_bytes} bytes, or more parts",
    )
    error.short = (what, layout.num_bytes)
    raise error
