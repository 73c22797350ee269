"""SharedRows: the buffers of a schedule that other ranks read where they lie.

Each rank has one piece of memory that its peers see, with a place for every such buffer; all ranks
work out the places of all. A place is another buffer's when its first one is given back, which
the schedule orders.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tiergnn.memory.lives import Layout, Life, lay_out
from tiergnn.memory.pinning import Pins
from tiergnn.schedule.actions import TOGETHER, Op
from tiergnn.schedule.schedule import Schedule
from tiergnn.transport.transport import Transport


def read_by_others(schedule: Schedule) -> frozenset[str]:
    """Names of the buffers that another rank than theirs reads in place."""
    of = schedule.buffer_of
    return frozenset(
        name
        for action in schedule.actions
        if action.op not in TOGETHER
        for name in action.reads
        if of[name].rank != action.rank
    )


class SharedRows:
    """All ranks make theirs together; ``name`` tells this schedule's memory from others'."""

    def __init__(
        self, schedule: Schedule, transport: Transport, name: str, *, device: torch.device
    ):
        self._of = schedule.buffer_of
        self._places: dict[tuple[int, str], Layout] = {}
        self._memory: dict[str, tuple[Tensor, ...]] = {}  # tier -> of all ranks
        self._pins = Pins()
        shared = read_by_others(schedule)
        for tier, where in (("device", str(device)), ("host", "cpu")):
            names = frozenset(n for n in shared if self._of[n].tier == tier)
            if not names:
                continue
            for rank in range(schedule.num_ranks):
                self._places[rank, tier] = lay_out(_lives(schedule, rank, names))
            sizes = [self._places[rank, tier].num_bytes for rank in range(schedule.num_ranks)]
            # The transport keeps memory until it ends, by name: runs alike have the same.
            label = f"{name} {tier} {'-'.join(map(str, sizes))}"
            made = transport.allocate(
                label, (sizes[transport.rank],), torch.uint8, where, rows=sizes
            )
            self._memory[tier] = made.peers
            if tier == "host" and device.type == "cuda":  # which reads it where it lies
                for rows in made.peers:
                    if not rows.is_pinned():
                        self._pins.add(rows)

    def close(self) -> None:
        """Once no GPU reads host memory of others any more."""
        self._pins.close()

    def __contains__(self, name: str) -> bool:
        buffer = self._of[name]
        places = self._places.get((buffer.rank, buffer.tier))
        return places is not None and name in places.places

    def rows(self, name: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """A buffer as rows, this rank's or another's."""
        buffer = self._of[name]
        place = self._places[buffer.rank, buffer.tier].places[name]
        num_bytes = math.prod(shape) * dtype.itemsize
        assert num_bytes <= place.num_bytes, str(buffer)
        memory = self._memory[buffer.tier][buffer.rank]
        rows = memory[place.offset : place.offset + num_bytes].view(dtype).view(shape)
        return rows.data  # what is written elsewhere in the piece is no change of these rows


def _lives(schedule: Schedule, rank: int, names: frozenset[str]) -> list[Life]:
    """When a rank's shared buffers are reserved and released, in the order of actions."""
    own = [buffer for buffer in schedule.buffers if buffer.rank == rank and buffer.name in names]
    begun = {b.name: -1 for b in own if b.given}
    ended: dict[str, int] = {}
    for action in schedule.actions:
        if action.rank == rank and action.op in (Op.RESERVE, Op.RELEASE):
            steps = begun if action.op is Op.RESERVE else ended
            steps |= {name: action.index for name in action.writes if name in names}
    return [
        Life(name=b.name, num_bytes=b.num_bytes, reserved=begun[b.name], released=ended.get(b.name))
        for b in own
    ]
