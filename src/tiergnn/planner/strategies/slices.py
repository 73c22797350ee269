"""Slices: tensors cut by columns, all rows of a slice together, on the device, host or disk.

``h0.c3`` is slice 3 of h0 on the device, ``h0.c3@disk`` on the disk; ``h0.p2`` are the rows of
block 2, all columns of them. In host memory a slice lies in tiles, ``h0.c3.p2@host``, of the rows
of a block each: they are reserved when they are written and given back when they were read last,
slice by slice or block by block, so that what is made of a tensor takes its place.
The first slices of a tensor stay on the device as far as ``device_frac`` of them goes, the next in
host memory, the rest on the disk.

What is read may be asked for before the last slice of it, or block of rows, is written: then all
else is brought at once, and that when it is there (``expect``, ``settle``).

Legend: V nodes of the graph, P rows of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from tiergnn.planner.strategies.cuts import Cut, holding
from tiergnn.planner.strategies.draft import Draft
from tiergnn.planner.strategies.passing import Leaving, Passing
from tiergnn.schedule.actions import Lane, Op, Work, moved
from tiergnn.schedule.contents import Content


class Slices:
    """Tensors of one device cut by columns; ``host_frac`` is of what the device lacks."""

    def __init__(
        self, draft: Draft, units: dict[str, int], *, device_frac: float, host_frac: float
    ) -> None:
        self._draft, self._writer = draft, draft.writer
        self._units, self._device_frac, self._host_frac = units, device_frac, host_frac
        self._widest = max((draft.width(name) for name in units), default=1)
        self._cuts: dict[str, Cut] = {}
        self._leaving = Leaving(draft)
        self._missing: list[Callable[[], None]] = []
        self._read: list[tuple[str, list[tuple[int, int]], Lane]] = []
        self._passing = {lane: Passing(draft, lane=lane) for lane in (Lane.H2D, Lane.DISK_WRITE)}

    def has(self, name: str) -> bool:
        return name in self._cuts

    def count(self, name: str) -> int:
        """How many slices a tensor is cut into."""
        return len(self._columns(name))

    def frac(self, name: str, index: int) -> float:
        """The share of a tensor's columns in a slice."""
        return self._columns(name)[index] / max(1, self._draft.width(name))

    def _columns(self, name: str) -> tuple[int, ...]:
        """Columns of each slice: whole units (columns or heads), as even as they come. Narrow
        tensors have fewer slices, no wider than those of the widest: all edges are read for each.
        """
        width, units = self._draft.width(name), self._units.get(name, 1)
        most = -(-self._draft.knobs.slices * width // max(1, self._widest))
        ways = max(1, min(most, units))
        each = width // max(1, units)
        counts = [units // ways + (i < units % ways) for i in range(ways)]
        return tuple(count * each for count in counts) if units > 1 else (width,)

    def open(self, name: str, kind: str, *, of: str = "", given: bool = False) -> None:
        """A tensor (``of``: as wide as that one), whose room is reserved as it is written; if
        ``given``, it is there already."""
        of = of or name
        columns = self._columns(of)
        on_device = int(self._device_frac * len(columns))
        in_host = int(self._host_frac * (len(columns) - on_device))
        if self._draft.knobs.tier == "host":
            in_host = len(columns) - on_device
        tiers = ["device"] * on_device + ["host"] * in_host
        tiers += ["disk"] * (len(columns) - len(tiers))
        cut = self._cuts[name] = Cut(of, kind, columns, tuple(tiers), given)
        if given:
            for index, tier in enumerate(tiers):
                home, num_bytes, holds = self._home(name, index, -1)
                self._writer.given(home, 0, tier, kind, num_bytes, holds=holds)
                self._draft.sizes[home] = num_bytes
                cut.homes[index, -1] = home

    def _home(self, name: str, index: int, part: int) -> tuple[str, int, Content]:
        """Name, bytes and content of what holds a slice, or a block's rows of it."""
        cut, draft = self._cuts[name], self._draft
        tier, rows = cut.tiers[index], draft.count(cut.of, part)
        size = draft.row_bytes(cut.of)
        if tier != "device":
            size = draft.stored_bytes(cut.of, made=name != cut.of)
        num_bytes = round(rows * cut.columns[index] * size / max(1, draft.width(cut.of)))
        block = "" if part < 0 else f".p{part}"
        where = "" if tier == "device" else f"@{tier}"
        return f"{name}.c{index}{block}{where}", num_bytes, holding(name, part, cut.at(index))

    def _tiles(self, cut: Cut, index: int) -> Sequence[int]:
        """The blocks of rows in which a slice lies, or all rows at once."""
        return self._draft.parts if cut.tiers[index] == "host" and not cut.given else (-1,)

    def _there(self, name: str, places: Iterable[tuple[int, int]]) -> list[str]:
        """The buffers of slices and blocks that were written."""
        return [self._cuts[name].homes[place] for place in places]

    def _made(self, name: str, tier: str, places: Iterable[tuple[int, int]]) -> list[str]:
        """The same to be written: what is not there is reserved."""
        cut, places = self._cuts[name], list(places)
        new = [place for place in places if place not in cut.homes]
        for place in new:
            home, num_bytes, holds = self._home(name, *place)
            cut.homes[place] = self._draft.room(home, 0, tier, cut.kind, num_bytes, holds)
        if new:
            homes = (cut.homes[place] for place in new)
            self._writer.reserve(0, *homes, lane=_LANES[tier])
        return [cut.homes[place] for place in places]

    def _give_back(self, name: str, places: Iterable[tuple[int, int]], lane: Lane) -> None:
        """Unless they were there before."""
        cut = self._cuts[name]
        homes = [] if cut.given else [cut.homes.pop(place) for place in places]
        if homes:
            self._writer.release(0, *homes, lane=lane)

    def drop(self, name: str) -> None:
        """Give back what is left of a tensor."""
        cut = self._cuts[name]
        for tier, lane in _LANES.items():
            left = [place for place in cut.homes if cut.tiers[place[0]] == tier]
            self._give_back(name, left, lane)
        del self._cuts[name]

    def expect(self, name: str, *, index: int = -1, part: int = -1) -> None:
        """A slice, or a block of rows, is still to be written, all else is there: what is brought
        before that is brought in two pieces, the second in ``settle``."""
        self._cuts[name].awaited = index, part

    def settle(self) -> None:
        """A turn was run. Bring what the one begun meanwhile lacks, and give back what that one
        reads for the last time: what the turn wrote did not wait for those reads."""
        missing, self._missing = self._missing, []
        for bring in missing:
            bring()
        read, self._read = self._read, []
        for name, places, lane in read:
            self._give_back(name, places, lane)
        self._leaving.turn()

    def close(self) -> None:
        self._leaving.close()
        for passing in self._passing.values():
            passing.close()

    # One slice, all rows

    def bring(self, name: str, index: int, *, last: bool = False) -> str:
        """A slice on the device: where it stays, or a new buffer; ``last``: nobody reads it where
        it lies after that."""
        cut, draft = self._cuts[name], self._draft
        tier, places = cut.tiers[index], [(index, p) for p in self._tiles(cut, index)]
        if tier == "device":
            return self._made(name, "device", places)[0]
        num_bytes = self._device_bytes(name, index)
        holds = holding(name, columns=cut.at(index))
        buffer = draft.take(
            f"{name}.c{index}", "activations", num_bytes, lane=Lane.H2D, holds=holds
        )
        self._in(name, places, buffer, holds, slice=index)
        if last:
            self._read.append((name, places, _READERS[tier]))
        return buffer

    def room(self, name: str, index: int) -> str:
        """Where a slice is written on the device."""
        cut = self._cuts[name]
        if cut.tiers[index] == "device":
            return self._made(name, "device", [(index, -1)])[0]
        return self._draft.take(
            f"{name}.c{index}",
            "activations",
            self._device_bytes(name, index),
            holds=holding(name, columns=cut.at(index)),
        )

    def _device_bytes(self, name: str, index: int) -> int:
        of = self._cuts[name].of
        return round(self._draft.count(of, -1) * self._draft.row_bytes(of) * self.frac(of, index))

    def leave(
        self, name: str, index: int, buffer: str, *, written: bool, last: bool = False
    ) -> None:
        """Give a slice's buffer on the device back, after its content went home if it is new;
        where it stays there, if it was read for the ``last`` time."""
        cut = self._cuts[name]
        tier = cut.tiers[index]
        if written and cut.awaited == (index, -1):
            cut.awaited = None
        if tier == "device":
            if last:
                self._give_back(name, [(index, -1)], Lane.COMPUTE)
        elif written:
            self._leaving.pass_on()
            homes = self._made(name, tier, [(index, p) for p in self._tiles(cut, index)])
            num_bytes = sum(self._draft.sizes[home] for home in homes)
            self._out(buffer, homes, num_bytes, holding(name, -1, cut.at(index)), slice=index)
            self._leaving.leave(buffer)
        else:
            self._writer.release(0, buffer)

    # A block of rows, all columns

    def bring_rows(self, name: str, part: int, *, last: bool = False) -> str:
        """A block's rows in a new buffer on the device; ``fill_rows`` adds what stays there.
        ``last``: nobody reads them where they lie after that."""
        cut, draft = self._cuts[name], self._draft
        rows = draft.count(cut.of, part)
        kind = "gradients" if ".grad" in name else "activations"
        buffer = draft.take(
            f"{name}.p{part}", kind, rows * draft.row_bytes(cut.of), lane=Lane.H2D,
            holds=holding(name, part),
        )  # fmt: skip
        for tier in ("host", "disk"):
            if places := self._places(cut, tier, part):
                self._in(name, places, buffer, holding(name, part, cut.of_tier(tier)), part=part)
                if last and places[0][1] == part:
                    self._read.append((name, places, _READERS[tier]))
        return buffer

    def _places(self, cut: Cut, tier: str, part: int) -> list[tuple[int, int]]:
        """What holds a block's rows in a tier."""
        found = cut.within[tier]
        return [(i, part if part in self._tiles(cut, i) else -1) for i in found]

    def fill_rows(self, name: str, part: int, buffer: str) -> None:
        """What of a block's rows lies on the device already."""
        self._on_device(name, part, buffer, into=True)

    def store_rows(self, name: str, part: int, buffer: str) -> None:
        """A block's rows go home, and their buffer is given back."""
        cut = self._cuts[name]
        if cut.awaited == (-1, part):
            cut.awaited = None
        self._leaving.pass_on()
        self._on_device(name, part, buffer, into=False)
        for tier in ("host", "disk"):
            if places := self._places(cut, tier, part):
                homes = self._made(name, tier, places)
                holds = holding(name, part, cut.of_tier(tier))
                self._out(buffer, homes, self._block_bytes(name, part, tier), holds, part=part)
        self._leaving.leave(buffer)

    def answer(self, part: int, buffer: str, *, kept: bool) -> None:
        """Those of a block's rows of the model's output that are asked for stay in host memory;
        ``kept``: their buffer is needed for more."""
        answer, num_bytes = self._draft.answer(part)
        self._leaving.pass_on()
        self._writer.reserve(0, answer, lane=Lane.D2H)
        self._copy(Lane.D2H, "d2h", [buffer], [answer], num_bytes, part, -1)
        if not kept:
            self._leaving.leave(buffer)

    def _on_device(self, name: str, part: int, buffer: str, *, into: bool) -> None:
        places = self._places(self._cuts[name], "device", part)
        homes = self._there(name, places) if into else self._made(name, "device", places)
        if homes:
            moved = 2 * self._block_bytes(name, part, "device")
            self._writer.add(
                0,
                Lane.COMPUTE,
                Op.COPY,
                part=part,
                reads=homes if into else [buffer],
                writes=[buffer] if into else homes,
                work=[Work(kind="stream", amount=moved)],
            )

    def _block_bytes(self, name: str, part: int, tier: str) -> int:
        """Bytes of a block's rows in the slices of one tier."""
        return self._row_bytes(name, part, self._cuts[name].within[tier])

    def _row_bytes(self, name: str, part: int, slices: list[int]) -> int:
        """The same of some slices, which are in one tier."""
        cut, draft = self._cuts[name], self._draft
        columns, size = sum(cut.columns[i] for i in slices), draft.row_bytes(cut.of)
        if slices and cut.tiers[slices[0]] != "device":
            size = draft.stored_bytes(cut.of, made=name != cut.of)
        return round(draft.count(cut.of, part) * columns * size / max(1, draft.width(cut.of)))

    # Ways

    def _in(
        self,
        name: str,
        places: list[tuple[int, int]],
        buffer: str,
        holds: Content,
        *,
        part: int = -1,
        slice: int = -1,
    ) -> None:
        """What lies in places to a buffer of the device, now or once it is written."""
        cut = self._cuts[name]
        later = cut.lacks(places)
        on_disk = cut.tiers[places[0][0]] == "disk"  # which is read in one piece
        now = [] if later and on_disk else [place for place in places if place not in later]
        bring = partial(self._bring, name, buffer=buffer, holds=holds, part=part, slice=slice)
        if now:
            bring(now)
        if later:
            self._missing.append(partial(bring, places if on_disk else later))

    def _bring(
        self,
        name: str,
        places: list[tuple[int, int]],
        *,
        buffer: str,
        holds: Content,
        part: int,
        slice: int,
    ) -> None:
        cut, homes = self._cuts[name], self._there(name, places)
        if slice < 0:
            num_bytes = self._row_bytes(name, part, [i for i, _ in places])
        else:
            num_bytes = sum(self._draft.sizes[home] for home in homes)
        if cut.tiers[places[0][0]] == "disk":
            staging = self._passing[Lane.H2D].take(
                f"{buffer}@host", num_bytes, lane=Lane.DISK_READ, holds=holds
            )
            self._copy(Lane.DISK_READ, "disk_read", homes, [staging], num_bytes, part, slice)
            homes = [staging]
        self._copy(Lane.H2D, "h2d", homes, [buffer], num_bytes, part, slice)

    def _out(
        self,
        buffer: str,
        homes: list[str],
        num_bytes: int,
        holds: Content,
        *,
        part: int = -1,
        slice: int = -1,
    ) -> None:
        if not homes[0].partition("~")[0].endswith("@disk"):
            self._copy(Lane.D2H, "d2h", [buffer], homes, num_bytes, part, slice)
            return
        staging = self._passing[Lane.DISK_WRITE].take(
            f"{buffer}@host", num_bytes, lane=Lane.D2H, holds=holds
        )
        self._copy(Lane.D2H, "d2h", [buffer], [staging], num_bytes, part, slice)
        self._copy(Lane.DISK_WRITE, "disk_write", [staging], homes, num_bytes, part, slice)

    def _copy(
        self,
        lane: Lane,
        link: str,
        sources: Iterable[str],
        targets: Iterable[str],
        num_bytes: int,
        part: int,
        slice: int,
    ) -> None:
        sources, targets = list(sources), list(targets)
        tiles = max(len(sources), len(targets))
        self._writer.add(
            0,
            lane,
            Op.COPY,
            part=part,
            slice=slice,
            reads=sources,
            writes=targets,
            work=[moved(num_bytes, self._draft.link(link), launches=tiles)],
        )


_LANES = {"device": Lane.COMPUTE, "host": Lane.D2H, "disk": Lane.DISK_WRITE}  # that write
_READERS = {"host": Lane.H2D, "disk": Lane.DISK_READ}
