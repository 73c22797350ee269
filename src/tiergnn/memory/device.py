"""The arena: one piece of device memory, in which each buffer of a schedule has its place.

On a CPU "the device" is as much of host memory: the same budgets and the same refusals.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from tiergnn.errors import PlanError
from tiergnn.memory.lives import Layout, Place, refuse
from tiergnn.memory.pinning import page_bytes

_PATIENCE_S = 0.2  # between looks at whether the run was stopped


class Arena:
    """A layout's memory on ``device``, at most ``capacity_bytes``; in ``memory`` [bytes], where
    that is given. Raises PlanError beforehand.

    Buffers are reserved and released by name, from any thread. Where a buffer's place was another
    one's, its reservation waits for that one's release; in the order of the layout's steps the
    release comes first, so a run that starts its steps in that order never waits for itself.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        capacity_bytes: int,
        device: torch.device | str = "cpu",
        memory: Tensor | None = None,
    ):
        refuse(layout, capacity_bytes, "device")
        self._layout, self.device = layout, torch.device(device)
        if memory is not None:
            self._memory = memory
        elif self.device.type == "cpu":
            self._memory = page_bytes(layout.num_bytes)
        else:
            self._memory = torch.empty(layout.num_bytes, dtype=torch.uint8, device=self.device)
        self._changed = threading.Condition()
        self._held: set[str] = set()
        self._done: set[str] = set()
        self._held_bytes = self._peak_bytes = 0
        self._stopped: str | None = None

    @property
    def memory(self) -> Tensor:
        """All of it, uint8 [num_bytes]: to be pinned, not to be written."""
        return self._memory

    @property
    def num_bytes(self) -> int:
        """What the arena takes of the device, reserved or not."""
        return self._layout.num_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes of the buffers that are reserved now."""
        return self._held_bytes

    @property
    def peak_bytes(self) -> int:
        """The most that was reserved at once."""
        return self._peak_bytes

    def reserve(self, name: str) -> Tensor:
        """The bytes of a buffer, uint8 [num_bytes], not cleared. Blocks until its place is free."""
        place = self._place(name)
        with self._changed:
            if name in self._held or name in self._done:
                raise PlanError(f"buffer {name} was reserved already")
            while self._stopped is None and not self._done.issuperset(place.waits_for):
                self._changed.wait(_PATIENCE_S)
            if self._stopped is not None:
                raise PlanError(f"buffer {name} gets no place: {self._stopped}")
            self._held.add(name)
            self._held_bytes += place.num_bytes
            self._peak_bytes = max(self._peak_bytes, self._held_bytes)
        return self._memory[place.offset : place.offset + place.num_bytes]

    def waits_for(self, name: str) -> tuple[str, ...]:
        """Those who had a buffer's place last."""
        return self._place(name).waits_for

    def rows(self, name: str, num_rows: int, width: int, dtype: torch.dtype) -> Tensor:
        """A reserved buffer as a tensor [num_rows, width]; it may be smaller than its buffer."""
        place = self._place(name)
        num_bytes = num_rows * width * dtype.itemsize
        with self._changed:
            if name not in self._held:
                raise PlanError(f"buffer {name} is not reserved")
        if num_bytes > place.num_bytes:
            raise PlanError(
                f"buffer {name} has {place.num_bytes} bytes; {num_rows} rows of {width} "
                f"{str(dtype).removeprefix('torch.')} take {num_bytes}"
            )
        memory = self._memory[place.offset : place.offset + num_bytes]
        return memory.view(dtype).view(num_rows, width)

    def release(self, name: str) -> None:
        """Give a buffer's place to the next one. Its tensors must not be used any more."""
        place = self._place(name)
        with self._changed:
            if name not in self._held:
                raise PlanError(f"buffer {name} is released but not reserved")
            self._held.remove(name)
            self._done.add(name)
            self._held_bytes -= place.num_bytes
            self._changed.notify_all()

    def restart(self) -> None:
        """The next step of the same schedule: what lasts stays, all else comes again."""
        with self._changed:
            left = sorted(name for name in self._held if not self._layout.places[name].lasting)
            if left:
                raise PlanError(f"buffers are held at the end of a step: {', '.join(left[:5])}")
            self._done = set()

    def stop(self, reason: str) -> None:
        """Let everyone go who waits for a place."""
        with self._changed:
            self._stopped = reason
            self._changed.notify_all()

    def _place(self, name: str) -> Place:
        place = self._layout.places.get(name)
        if place is None:
            raise PlanError(f"buffer {name} has no place in the arena's layout")
        return place
