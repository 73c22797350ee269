"""Given: what is there before the first action of every step: a graph's rows and edges, by tiers.

The schedules of a run share it. Host memory is pinned where a GPU is there.

Legend: V nodes, E edges, R rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType

import torch
from torch import Tensor

from tiergnn.kernels.block import Block
from tiergnn.memory.disk import DiskRows
from tiergnn.memory.pinning import Pins, page_bytes
from tiergnn.memory.scratch import Scratch
from tiergnn.memory.store import Damaged
from tiergnn.models.stages import Program
from tiergnn.runtime.brought import moved, pinned, sort_edges, twin
from tiergnn.runtime.buffers import Buffers
from tiergnn.runtime.parts import Parts
from tiergnn.runtime.rows import Rows
from tiergnn.runtime.whole import Whole
from tiergnn.schedule.actions import Buffer
from tiergnn.schedule.contents import Content, What
from tiergnn.schedule.schedule import Schedule

_ROWS = (What.ROWS, What.HOT)
_EDGES = (What.TOPOLOGY, What.OUT_EDGES)


class Given:
    """``x`` and ``edges`` are the graph's rows, by the names of inputs; ``scratch`` the folder for
    what lies on the disk. ``prepared`` are the programs of inputs that are made of these, column by
    column, and kept in the dtype ``storage`` off the device (None: as made). ``tasks``: edges bring
    the tasks of a GPU along."""

    def __init__(
        self,
        x: Rows,
        edges: Mapping[str, Rows | Tensor],
        parts: Parts | Whole,
        device: torch.device,
        scratch: Scratch | None,
        prepared: Mapping[str, Program] = MappingProxyType({}),
        storage: torch.dtype | None = None,
        *,
        tasks: bool = False,
    ):
        self._x, self._edges, self._parts = x, edges, parts
        self._device, self._scratch = device, scratch
        self._prepared, self._storage, self._tasks = prepared, storage, tasks
        self._whole: Block | None = None  # on the device while rows are prepared
        self._rows: dict[tuple[Content, str], Tensor | DiskRows] = {}
        self._blocks: set[int] = set()  # that are on the device, or pinned
        self._pins = Pins()

    def fill(self, schedule: Schedule, buffers: Buffers) -> None:
        """Give a schedule's buffers what they hold. Out-edges are made before activations are
        there, and in host memory, since sorting them takes several times their bytes."""
        given = [(b, b.holds) for b in schedule.buffers if b.given and b.holds is not None]
        if any(holds.what is What.DEGREES for _, holds in given):
            _ = self._degrees  # of edges in host memory
        for buffer, holds in given:
            if holds.what not in _EDGES or _is_reversed(buffer, holds):
                continue
            if self._tasks or self._device.type == "cuda":
                out = holds.what is What.OUT_EDGES
                sort_edges(self._parts.block(holds.part), out=out, tasks=self._tasks)
        for buffer, holds in given:
            if holds.what in _EDGES and buffer.tier == "device":
                self._block(holds.part, buffer.tier)  # where rows are prepared from it, too
        for buffer, holds in given:
            if holds.what in _ROWS:
                key = holds, buffer.tier
                if key not in self._rows:
                    self._rows[key] = self._input(buffer, holds)
                buffers.give(buffer.name, self._rows[key])
            elif holds.what is What.DEGREES:
                buffers.give(buffer.name, self._degrees)
            elif _is_reversed(buffer, holds):
                buffers.give(buffer.name, self._reversed)
            else:
                buffers.give(buffer.name, self._block(holds.part, buffer.tier))
        self._whole = None

    @cached_property
    def _degrees(self) -> tuple[Tensor, Tensor]:
        assert isinstance(self._parts, Whole)
        known = self._parts.degrees, self._parts.gid
        return known[0].to(self._device), known[1].to(self._device)

    @cached_property
    def _reversed(self) -> Block:
        """All out-edges, to be brought when their turn comes."""
        assert isinstance(self._parts, Whole)
        block = self._parts.reversed()
        sort_edges(block, out=False, tasks=self._tasks)
        if self._device == block.device:
            return block
        there, memory = pinned(block)
        self._pins.add(memory)
        return there

    def _block(self, part: int, tier: str) -> Block:
        """A part's edges, which are held there alone from now on."""
        block = self._parts.block(part)
        if part in self._blocks or self._device == block.device:
            return block
        if tier == "device":
            there = moved(block, self._device)
        else:
            there, memory = pinned(block)
            self._pins.add(memory)
        self._blocks.add(part)
        self._parts.keep(part, there)
        return there

    def _input(self, buffer: Buffer, holds: Content) -> Tensor | DiskRows:
        """What a buffer holds of an input: as it is stored, or on the device as it is read, but for
        hot rows."""
        if holds.what is What.HOT:
            assert isinstance(self._parts, Parts)
            return self._x.stored[self._parts.hot.gids].to(self._device)
        columns = slice(*(holds.columns or (None,)))
        if holds.of in self._prepared:
            rows = self._make(holds.of, columns)
            if buffer.tier == "device":
                return rows
            rows = rows.to(self._storage or rows.dtype)
            return self._table(holds, rows) if buffer.tier == "disk" else self._in_host(rows)
        rows = self._own(holds.of, holds.part)
        if holds.columns is not None:
            rows = rows[:, columns]
        if buffer.tier == "device":
            rows = rows.to(self._device)
            return self._x.decode(rows, columns) if holds.of == "x" else rows
        if buffer.tier == "disk":
            return self._table(holds, rows)
        return self._in_host(rows)

    @torch.no_grad()
    def _make(self, name: str, columns: slice) -> Tensor:
        """Some columns [V, C] of a prepared input, on the device."""
        if self._whole is None:
            # Degrees, and what is made of them, go when rows are made.
            self._whole = twin(moved(self._parts.block(-1), self._device, out=False))
        program, given = self._prepared[name], {}
        for need in program.needs:
            if need == "x":
                stored = self._own(need, -1)[:, columns].contiguous().to(self._device)
                given[need] = self._x.decode(stored, columns)
            else:
                given[need] = self._own(need, -1).to(self._device)
        return program.run(given, self._whole)

    def _in_host(self, rows: Tensor) -> Tensor:
        if self._device.type != "cuda" or not rows.numel():
            return rows.contiguous()
        memory = page_bytes(rows.numel() * rows.element_size())
        there = memory.view(rows.dtype).view(rows.shape).copy_(rows)
        self._pins.add(memory)
        return there

    def _own(self, name: str, part: int) -> Tensor:
        """A part's rows of an input, as they are stored."""
        if name == "x":
            return self._parts.take(self._x.stored, part, "nodes")
        rows = self._edges[name]
        rows = rows if isinstance(rows, Tensor) else rows.values()
        return self._parts.take(rows, part, "edges")

    def _table(self, holds: Content, rows: Tensor) -> DiskRows:
        """An input's rows on the disk."""
        assert self._scratch is not None
        width = rows.shape[1:].numel()
        table = self._scratch.table(f"{holds}", len(rows), width, rows.dtype)
        table.write(slice(None), rows.reshape(len(rows), width))
        return table

    def mend(self, lost: Damaged) -> None:
        """Write rows of the graph again that the disk has damaged; of other rows nothing."""
        for (holds, tier), table in self._rows.items():
            if tier == "disk" and isinstance(table, DiskRows) and table.name == lost.store:
                rows = self._lying(holds)[lost.first : lost.last]
                table.write(slice(lost.first, lost.last), rows.reshape(len(rows), table.width))

    def _lying(self, holds: Content) -> Tensor:
        """What a table on the disk has of an input."""
        columns = slice(*(holds.columns or (None,)))
        if holds.of in self._prepared:
            made = self._make(holds.of, columns)
            self._whole = None
            return made.to(self._storage or made.dtype)
        rows = self._own(holds.of, holds.part)
        return rows if holds.columns is None else rows[:, columns]

    def close(self) -> None:
        """Give pinned memory back."""
        self._pins.close()


def _is_reversed(buffer: Buffer, holds: Content) -> bool:
    """Whether it holds all out-edges by themselves, which are brought in turns with in-edges."""
    return holds.what is What.OUT_EDGES and holds.part < 0 and buffer.tier == "host"
