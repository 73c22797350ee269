"""Buffers: the tensors behind the names of a schedule, each in its tier, counted against budgets.

Memory of the device is torch's, taken when something is written and counted when it is reserved,
on a CPU too. Host memory is one piece with a place for every buffer (``memory.device.Arena``),
pinned where a GPU is there, in which all schedules of a run take turns. A buffer on the disk is a
table of the run's scratch folder.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol

import torch
from torch import Tensor

from tiergnn.errors import PlanError, StoreError
from tiergnn.memory import pinning
from tiergnn.memory.device import Arena
from tiergnn.memory.lives import Life, lay_out
from tiergnn.memory.scratch import Scratch
from tiergnn.memory.store import RowStore
from tiergnn.models.stages import Rows
from tiergnn.runtime.host_memory import HostMemory
from tiergnn.runtime.pending import Pending, Turn
from tiergnn.runtime.shared_rows import SharedRows
from tiergnn.schedule.actions import Buffer, Op
from tiergnn.schedule.check import peaks
from tiergnn.schedule.contents import Content, What
from tiergnn.schedule.schedule import Schedule
from tiergnn.units import format_bytes

_GRADS = (What.GRAD, What.SOURCES_GRAD, What.BUCKET)


class Counted(Protocol):
    """What knows how many rows contents have: ``of`` "nodes" or "edges"."""

    def count(self, content: Content, of: str) -> int: ...


class Buffers:
    """What the buffers of one rank of a schedule hold now. Used by all lanes, each its own buffers.

    ``rows`` are the tensors of the program; ``storage`` the dtype of their rows off the device
    (None: as computed), ``inputs`` that of the graph's own. ``capacities`` bounds tiers in bytes.
    ``shared`` has the rows that other ranks read, and theirs that this one reads.
    """

    def __init__(
        self,
        schedule: Schedule,
        parts: Counted,
        rows: Mapping[str, Rows],
        *,
        rank: int = 0,
        device: torch.device,
        storage: torch.dtype | None,
        inputs: Mapping[str, torch.dtype],
        capacities: Mapping[str, int],
        scratch: Scratch | None,
        shared: SharedRows | None = None,
        memory: HostMemory | None = None,
    ):
        self._schedule, self._parts, self._rows, self._rank = schedule, parts, rows, rank
        self.device, self._storage, self._inputs = device, storage, dict(inputs)
        self._capacities, self._scratch, self._shared = dict(capacities), scratch, shared
        self._lock = threading.Lock()
        self._given: dict[str, Any] = {}
        self._values: dict[str, Any] = {}
        self._owners: dict[str, Turn] = {}  # whose stream what is on a GPU was taken on
        self._turn = threading.local()  # of a lane's thread
        self._of = schedule.buffer_of
        self._alike: dict[Content, list[Buffer]] = {}
        for buffer in schedule.buffers:
            if buffer.holds is not None and buffer.rank == rank:
                self._alike.setdefault(buffer.holds, []).append(buffer)
        self._start = {tier: self._given_bytes(tier) for tier in ("device", "host", "disk")}
        self._held = dict(self._start)
        self.peak_bytes = dict(self._start)
        self._lives = [life for life in _lives(schedule, rank) if not self._shares(life.name)]
        self._memory, self._layout = memory or HostMemory(device), None
        self._arena: Arena | None = None
        self._pending, self._most = None, 0
        if device.type == "cuda":
            # What is queued runs behind: without waits more would be held than the plan says.
            self._pending, self._most = Pending(), peaks(schedule).get((rank, "device"), (0, {}))[0]

    def _given_bytes(self, tier: str) -> int:
        given = [b for b in self._schedule.buffers if b.given and b.rank == self._rank]
        return sum(b.num_bytes for b in given if b.tier == tier)

    def begin(self, *, recording: bool = False) -> None:
        """A new step: nothing is held but what is given. ``recording``: a GPU is at nothing, and
        must not be asked."""
        self._settle(wait=not recording)
        with self._lock:
            self._values, self._owners = {}, {}
            self._held = dict(self._start)
        self._lay_out()

    def _lay_out(self) -> None:
        """A place for every buffer, in memory that other schedules may have used since."""
        self._layout = self._layout or lay_out(self._lives)
        num_bytes, room = self._layout.num_bytes, self._capacities.get("host")
        # Places that leave gaps may take more than is held, and a copy must not go from one
        # registered chunk into the next: then each buffer has memory of its own.
        if not num_bytes or num_bytes > pinning.CHUNK_BYTES:
            return
        if room is not None and num_bytes + self._start["host"] > room:
            return
        pages = self._memory.of(num_bytes)
        if self._arena is not None and self._arena.memory is pages:
            self._arena.restart()
        else:
            self._arena = Arena(self._layout, capacity_bytes=num_bytes, memory=pages)

    def _settle(self, *, wait: bool = True) -> None:
        """Wait for a GPU that may still read and write in what was given back."""
        if self._pending is not None:
            if wait:
                torch.cuda.synchronize(self.device)
            self._pending.clear()

    def abandon(self, *, recording: bool = False) -> None:
        """After a failure: let go of everything but what is given, and of that memory where a GPU
        may be asked about it, which it must not be while ``recording``."""
        self._settle(wait=not recording)
        with self._lock:
            values, self._values, self._owners = self._values, {}, {}
        for value in values.values():
            if isinstance(value, RowStore):
                with suppress(StoreError):  # what failed first is what is told
                    value.close()
        self._arena = None  # and who held a place in it
        if not recording:
            self._memory.close()

    def at(self, turn: Turn) -> None:
        """What the calling thread does from now on is queued for an action of a lane."""
        self._turn.now = turn

    def passed(self, lane: str, other: str, index: int) -> None:
        """A lane's stream comes after the action ``index`` of another lane."""
        if self._pending is not None:
            self._pending.passed(lane, other, index)

    def stop(self, error: BaseException) -> None:
        """Let go who waits for a place in host memory."""
        if self._arena is not None:
            self._arena.stop(str(error))

    def give(self, name: str, value: Any) -> None:
        """The content of a buffer that is there before the first action of every step."""
        if self._shares(name):
            value = self._of_shared(name).copy_(value)
        self._given[name] = value

    def _shares(self, name: str) -> bool:
        return self._shared is not None and name in self._shared

    def _of_shared(self, name: str) -> Tensor:
        """Rows that several ranks see, where they lie."""
        assert self._shared is not None
        buffer = self._of[name]
        return self._shared.rows(name, self._shape(buffer), self._dtype(buffer))

    def holds(self, name: str) -> Any:
        return self._of[name].holds

    def contents(self, names: Iterable[str], *kinds: What) -> list[tuple[str, Content]]:
        """Those buffers that say what they hold, with that; of these kinds alone where given."""
        pairs = ((name, self._of[name].holds) for name in names)
        found = [(name, holds) for name, holds in pairs if holds is not None]
        return [(name, holds) for name, holds in found if not kinds or holds.what in kinds]

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a row of a tensor of the program."""
        return self._rows[name].shape

    def width(self, name: str) -> int:
        return self._rows[name].width

    def dtype(self, name: str) -> torch.dtype:
        """Of a tensor of the program, as it is computed with."""
        return self._rows[name].dtype

    def of_edges(self, name: str) -> bool:
        return self._rows[name].of == "edges"

    def tier(self, name: str) -> str:
        return self._of[name].tier

    # Room

    def reserve(self, names: Iterable[str], *, by_host: bool = True) -> None:
        """Count the bytes of buffers. Places in host memory that a GPU is still at are waited for
        by the current stream, and by the caller too where ``by_host``. Raises PlanError beyond a
        tier's budget."""
        before = set[str]()
        for name in names:
            buffer = self._of[name]
            with self._lock:
                held = self._held[buffer.tier] = self._held[buffer.tier] + buffer.num_bytes
                self.peak_bytes[buffer.tier] = max(self.peak_bytes[buffer.tier], held)
            room = self._capacities.get(buffer.tier)
            if room is not None and held > room:
                raise PlanError(
                    f"{buffer.tier} memory would hold {format_bytes(held)}, has "
                    f"{format_bytes(room)}",
                    culprit=str(buffer),
                    hint="a schedule that check() has proved for this machine",
                )
            if buffer.tier == "device" and self._pending is not None:
                self._pending.make_room(self._most - held)
            if self._in_arena(buffer):
                assert self._arena is not None
                self._arena.reserve(name)
                if self._pending is not None:
                    before.update(self._arena.waits_for(name))
        if before and self._pending is not None:
            self._pending.await_vacant(before, by_host=by_host)

    def release(self, names: Iterable[str]) -> None:
        then = None
        if self._pending is not None:
            then = torch.cuda.Event()
            then.record(self._turn.now.stream)
        for name in names:
            buffer = self._of[name]
            with self._lock:
                value, owner = self._values.pop(name, None), self._owners.pop(name, None)
                self._held[buffer.tier] -= buffer.num_bytes
            if isinstance(value, RowStore):
                value.close()
            if self._pending is not None and then is not None:
                if buffer.tier == "host":
                    self._pending.vacate(name, then)
                elif owner is not None:
                    self._pending.leave(value, buffer.num_bytes, owner, self._turn.now, then)
            if self._in_arena(buffer):
                assert self._arena is not None
                self._arena.release(name)

    def _in_arena(self, buffer: Buffer) -> bool:
        mine = buffer.tier == "host" and not buffer.lasting and not self._shares(buffer.name)
        return mine and self._arena is not None

    # Content

    def get(self, name: str) -> Any:
        """What a buffer holds: rows as a tensor or, on the disk, a table of them."""
        if self._of[name].rank != self._rank:
            return self._of_shared(name)
        return self._values[name] if name in self._values else self._given[name]

    def alike(self, holds: Content) -> list[Any]:
        """What is in the buffers of the device just now that hold the same."""
        found = [b.name for b in self._alike.get(holds, ()) if b.tier == "device"]
        return [self._values[name] for name in found if name in self._values]

    def there(self, name: str) -> bool:
        """Whether a buffer was written."""
        return name in self._values

    def put(self, name: str, value: Any) -> None:
        """Write a buffer of the device. Raises PlanError where rows are more than was reserved."""
        buffer = self._of[name]
        if isinstance(value, Tensor):
            num_bytes = value.numel() * value.element_size()
            if num_bytes > buffer.num_bytes:
                raise PlanError(
                    f"{num_bytes} bytes were written to a buffer of {buffer.num_bytes}",
                    culprit=str(buffer),
                    hint="a plan of this graph and this model",
                )
            if self._shares(name):
                room = self._of_shared(name)
                value = room if value.data_ptr() == room.data_ptr() else room.copy_(value)
        self._values[name] = value
        if self._pending is not None and buffer.tier == "device":
            self._owners[name] = self._turn.now

    def put_grad(self, name: str, grad: Tensor | None) -> None:
        """Write a gradient; None is zeros."""
        if grad is not None:
            self.put(name, grad)
            return
        room: Any = self.room(name)
        room.zero_()

    def take(self, name: str) -> Any:
        """What a buffer holds, which it loses."""
        self._owners.pop(name, None)
        return self._values.pop(name)

    def room(self, name: str) -> Tensor | RowStore:
        """The rows of a buffer to write into: those that are there, or new ones, not cleared."""
        if name in self._values:
            return self.get(name)
        buffer = self._of[name]
        shape, dtype = self._shape(buffer), self._dtype(buffer)
        if self._shares(name):
            made: Any = self._of_shared(name)
        elif buffer.tier == "disk":
            assert self._scratch is not None
            width = shape[1:].numel()
            made = self._scratch.table(name, shape[0], width, dtype)
        elif buffer.tier == "host" and self._arena is not None and not buffer.lasting:
            made = self._arena.rows(name, shape[0], shape[1:].numel(), dtype).view(shape)
        else:
            device = self.device if buffer.tier == "device" else torch.device("cpu")
            pin = buffer.tier == "host" and self.device.type == "cuda"
            made = torch.empty(shape, dtype=dtype, device=device, pin_memory=pin)
        if buffer.tier == "disk":
            self._values[name] = made
        else:
            self.put(name, made)
        return made

    def room_shape(self, name: str) -> torch.Size:
        """Of all that a buffer has room for."""
        return self._shape(self._of[name])

    def _shape(self, buffer: Buffer) -> torch.Size:
        holds = buffer.holds
        assert holds is not None, str(buffer)
        rows = self._rows[holds.of]
        count = self._parts.count(holds, rows.of)
        if holds.columns is None:
            return torch.Size((count, *rows.shape))
        return torch.Size((count, holds.columns[1] - holds.columns[0]))

    def _dtype(self, buffer: Buffer) -> torch.dtype:
        """As computed, or as stored off the device and in hot rows."""
        holds = buffer.holds
        assert holds is not None
        rows = self._rows[holds.of]
        count = self._parts.count(holds, rows.of)
        if buffer.tier == "device" and holds.what is not What.HOT:
            return rows.dtype
        if holds.of in self._inputs and holds.what not in _GRADS:
            return self._inputs[holds.of]
        first, last = holds.columns or (0, rows.width)
        if (
            self._storage is None
            or buffer.num_bytes == count * (last - first) * rows.dtype.itemsize
        ):
            return rows.dtype
        return self._storage


def _lives(schedule: Schedule, rank: int) -> list[Life]:
    """When a rank's buffers in host memory are reserved and released, in the order of actions."""
    reserved: dict[str, int] = {}
    lives = []
    of = schedule.buffer_of
    for action in schedule.actions:
        if action.rank != rank:
            continue
        if action.op is Op.RESERVE:
            reserved |= dict.fromkeys(action.writes, action.index)
        elif action.op is Op.RELEASE:
            lives += [
                Life(
                    name=name,
                    num_bytes=of[name].num_bytes,
                    reserved=reserved[name],
                    released=action.index,
                )
                for name in action.writes
                if of[name].tier == "host" and not of[name].lasting
            ]
    return lives
