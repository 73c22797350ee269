"""Slices: tensors cut by columns, all rows of a slice together, on the device, host or disk.

``h0.c3`` is slice 3 of h0 on the device, ``h0.c3@host`` where it lies else; ``h0.p2`` are the rows
of block 2, all columns of them. The first slices of a tensor stay on the device as far as
``device_frac`` of them goes, the next in host memory, the rest on the disk.

Legend: V nodes of the graph, P rows of a block.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tiergnn.planner.strategies.draft import Draft
from tiergnn.planner.strategies.passing import Leaving, Passing
from tiergnn.schedule.actions import Lane, Op, Work
from tiergnn.schedule.contents import Content, What


@dataclass(frozen=True, slots=True)
class _Cut:
    """A tensor in slices: columns of each, and the buffers and tiers in which they lie."""

    of: str  # the tensor whose widths it has
    columns: tuple[int, ...]
    homes: tuple[str, ...]
    tiers: tuple[str, ...]

    def at(self, index: int) -> tuple[int, int] | None:
        """The columns of a slice; None: all of them."""
        first = sum(self.columns[:index])
        return None if len(self.columns) == 1 else (first, first + self.columns[index])

    def of_tier(self, tier: str) -> tuple[int, int] | None:
        """The columns of all slices in a tier, which are neighbours."""
        found = [i for i, t in enumerate(self.tiers) if t == tier]
        if len(found) == len(self.tiers):
            return None
        before = sum(self.columns[: found[0]])
        return before, before + sum(self.columns[i] for i in found)


def holding(name: str, part: int = -1, columns: tuple[int, int] | None = None) -> Content:
    """``h1`` or ``h1.grad``: of a block of rows, or of all."""
    of, dot, _ = name.rpartition(".grad")
    return Content(What.GRAD if dot else What.ROWS, of or name, part, columns=columns)


class Slices:
    """Tensors of one device cut by columns; ``host_frac`` is of what the device lacks."""

    def __init__(
        self, draft: Draft, units: dict[str, int], *, device_frac: float, host_frac: float
    ) -> None:
        self._draft, self._writer = draft, draft.writer
        self._units, self._device_frac, self._host_frac = units, device_frac, host_frac
        self._cuts: dict[str, _Cut] = {}
        self._leaving = Leaving(draft)
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
        """Columns of each slice: whole units (columns or heads), as even as they come."""
        width, units = self._draft.width(name), self._units.get(name, 1)
        ways = max(1, min(self._draft.knobs.slices, units))
        each = width // max(1, units)
        counts = [units // ways + (i < units % ways) for i in range(ways)]
        return tuple(count * each for count in counts) if units > 1 else (width,)

    def open(self, name: str, kind: str, *, of: str = "", given: bool = False) -> None:
        """Room for a tensor (``of``: as wide as that one); ``given`` ones are there already."""
        draft, of = self._draft, of or name
        columns = self._columns(of)
        on_device = int(self._device_frac * len(columns))
        in_host = int(self._host_frac * (len(columns) - on_device))
        if draft.knobs.tier == "host":
            in_host = len(columns) - on_device
        homes, tiers, first = [], [], 0
        for index, width in enumerate(columns):
            holds = holding(name, columns=None if len(columns) == 1 else (first, first + width))
            first += width
            tier = "host" if index < on_device + in_host else "disk"
            size = draft.stored_bytes(of, made=name != of) / draft.width(of)
            if index < on_device:
                tier, size = "device", draft.row_bytes(of) / draft.width(of)
            num_bytes = round(self._rows(of) * width * size)
            home = f"{name}.c{index}" + ("" if tier == "device" else f"@{tier}")
            if given:
                self._writer.given(home, 0, tier, kind, num_bytes, holds=holds)
            else:
                home = draft.take(home, kind, num_bytes, tier=tier, lane=_LANES[tier], holds=holds)
            draft.sizes[home] = num_bytes
            homes.append(home)
            tiers.append(tier)
        self._cuts[name] = _Cut(of, columns, tuple(homes), tuple(tiers))

    def _rows(self, name: str) -> int:
        return sum(self._draft.count(name, part) for part in self._draft.parts)

    def drop(self, name: str) -> None:
        cut = self._cuts.pop(name)
        if name in self._draft.workload.inputs:
            return
        for home, tier in zip(cut.homes, cut.tiers, strict=True):
            self._writer.release(0, home, lane=_LANES[tier])

    def close(self) -> None:
        self._leaving.close()
        for passing in self._passing.values():
            passing.close()

    # One slice, all rows

    def bring(self, name: str, index: int) -> str:
        """A slice on the device: where it stays, or a new buffer."""
        cut, draft = self._cuts[name], self._draft
        if cut.tiers[index] == "device":
            return cut.homes[index]
        num_bytes = self._device_bytes(name, index)
        holds = holding(name, columns=cut.at(index))
        buffer = draft.take(
            f"{name}.c{index}", "activations", num_bytes, lane=Lane.H2D, holds=holds
        )
        self._in([cut.homes[index]], buffer, draft.sizes[cut.homes[index]], holds, slice=index)
        return buffer

    def room(self, name: str, index: int) -> str:
        """Where a slice is written on the device."""
        cut = self._cuts[name]
        if cut.tiers[index] == "device":
            return cut.homes[index]
        return self._draft.take(
            f"{name}.c{index}",
            "activations",
            self._device_bytes(name, index),
            holds=holding(name, columns=cut.at(index)),
        )

    def _device_bytes(self, name: str, index: int) -> int:
        of = self._cuts[name].of
        return round(self._rows(of) * self._draft.row_bytes(of) * self.frac(of, index))

    def leave(self, name: str, index: int, buffer: str, *, written: bool) -> None:
        """Give a slice's buffer on the device back, after its content went home if it is new."""
        cut = self._cuts[name]
        if cut.tiers[index] == "device":
            return
        if written:
            self._leaving.close()
            num_bytes, holds = self._draft.sizes[cut.homes[index]], holding(name, -1, cut.at(index))
            self._out(buffer, [cut.homes[index]], num_bytes, holds, slice=index)
            self._leaving.leave(buffer)
        else:
            self._writer.release(0, buffer)

    # A block of rows, all columns

    def bring_rows(self, name: str, part: int) -> str:
        """A block's rows in a new buffer on the device; ``fill_rows`` adds what stays there."""
        cut, draft = self._cuts[name], self._draft
        rows = draft.count(cut.of, part)
        kind = "gradients" if ".grad" in name else "activations"
        buffer = draft.take(
            f"{name}.p{part}", kind, rows * draft.row_bytes(cut.of), lane=Lane.H2D,
            holds=holding(name, part),
        )  # fmt: skip
        for tier in ("host", "disk"):
            homes = [h for h, t in zip(cut.homes, cut.tiers, strict=True) if t == tier]
            if homes:
                holds = holding(name, part, cut.of_tier(tier))
                self._in(homes, buffer, self._block_bytes(name, part, tier), holds, part=part)
        return buffer

    def fill_rows(self, name: str, part: int, buffer: str) -> None:
        """What of a block's rows lies on the device already."""
        self._on_device(name, part, buffer, into=True)

    def store_rows(self, name: str, part: int, buffer: str) -> None:
        """A block's rows go home, and their buffer is given back."""
        cut = self._cuts[name]
        self._leaving.close()
        self._on_device(name, part, buffer, into=False)
        for tier in ("host", "disk"):
            homes = [h for h, t in zip(cut.homes, cut.tiers, strict=True) if t == tier]
            if homes:
                holds = holding(name, part, cut.of_tier(tier))
                self._out(buffer, homes, self._block_bytes(name, part, tier), holds, part=part)
        self._leaving.leave(buffer)

    def answer(self, name: str, part: int, buffer: str, *, kept: bool) -> None:
        """A block's rows of the model's output stay in host memory; ``kept``: their buffer is
        needed for more."""
        draft = self._draft
        num_bytes = draft.count(name, part) * draft.row_bytes(name)
        answer = self._writer.buffer(
            f"answer.p{part}@host", 0, "host", "activations", num_bytes, lasting=True,
            holds=holding(name, part),
        )  # fmt: skip
        self._leaving.close()
        self._writer.reserve(0, answer, lane=Lane.D2H)
        self._copy(Lane.D2H, "d2h", [buffer], [answer], num_bytes, part, -1)
        if not kept:
            self._leaving.leave(buffer)

    def _on_device(self, name: str, part: int, buffer: str, *, into: bool) -> None:
        cut = self._cuts[name]
        homes = [h for h, t in zip(cut.homes, cut.tiers, strict=True) if t == "device"]
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
        cut, draft = self._cuts[name], self._draft
        columns = sum(c for c, t in zip(cut.columns, cut.tiers, strict=True) if t == tier)
        size = draft.row_bytes(cut.of)
        if tier != "device":
            size = draft.stored_bytes(cut.of, made=name != cut.of)
        return round(draft.count(cut.of, part) * columns * size / draft.width(cut.of))

    # Ways

    def _in(
        self,
        homes: list[str],
        buffer: str,
        num_bytes: int,
        holds: Content,
        *,
        part: int = -1,
        slice: int = -1,
    ) -> None:
        if homes[0].partition("~")[0].endswith("@disk"):
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
        self._writer.add(
            0,
            lane,
            Op.COPY,
            part=part,
            slice=slice,
            reads=sources,
            writes=targets,
            work=[Work(kind="move", amount=num_bytes, place=self._draft.link(link))],
        )


_LANES = {"device": Lane.COMPUTE, "host": Lane.D2H, "disk": Lane.DISK_WRITE}
