"""Passing: buffers that rows pass through, two at a time, and work that is begun one turn ahead.

``ahead`` does so within one walk over parts; ``Turns`` from one phase of a step to the next, too.

Of a GPU's own, for rows that are converted there on their way, a schedule counts what one piece of
rows takes: ``give_passing``, ``piece_bytes``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

from tiergnn.planner.strategies.draft import Draft
from tiergnn.schedule.actions import Lane
from tiergnn.schedule.contents import Content
from tiergnn.schedule.schedule import Schedule

_NAME = "passing"
_PIECES = 5  # buffers of one: two each way, and what is made of one
_MOST_BYTES = 2**26  # of a piece
Item = TypeVar("Item")
Begun = TypeVar("Begun")


def give_passing(draft: Draft) -> None:
    """Room on a GPU for pieces of rows on their way: large ones, since the host queues each; none
    larger than a quarter of a block."""
    if draft.machine.device.kind == "cuda":
        rows = max(part.rows for part in draft.layout.parts)
        widest = max(draft.stored_bytes(rows.name) for rows in draft.workload.rows)
        piece = max(1, min(_MOST_BYTES, -(-rows // 4) * widest))
        draft.writer.given(_NAME, 0, "device", "workspace", _PIECES * piece)


def piece_bytes(schedule: Schedule) -> int | None:
    """Of the pieces that a schedule has room for; None: it says nothing of them."""
    buffer = schedule.buffer_of.get(_NAME)
    return None if buffer is None else buffer.num_bytes // _PIECES


def ahead(items: Iterable[Item], begin: Callable[[Item], Begun]) -> Iterator[Begun]:
    """What ``begin`` gives for each item, the next one begun before the one at hand is given."""
    waiting: deque[Begun] = deque()
    for item in items:
        waiting.append(begin(item))
        if len(waiting) == 2:
            yield waiting.popleft()
    yield from waiting


class Turns:
    """Turns of work, each begun before the one before it is run, also where it is of another phase.

    ``settle`` is called whenever a turn was run: what the one begun meanwhile lacked is there then.
    """

    def __init__(self, settle: Callable[[], None]) -> None:
        self._settle = settle
        self._run: Callable[[], None] | None = None
        self._afterwards: list[Callable[[], None]] = []
        self.number = 0  # of the turn that was begun last

    def take(self, begin: Callable[[], Begun], run: Callable[[Begun], None]) -> None:
        self.number += 1
        begun = begin()
        self.finish()
        self._run = partial(run, begun)

    def then(self, do: Callable[[], None]) -> None:
        """Do something once the turn at hand was run; now, where none is."""
        if self._run is None:
            do()
        else:
            self._afterwards.append(do)

    def finish(self) -> None:
        """Run the turn at hand."""
        run, self._run = self._run, None
        if run is not None:
            run()
        afterwards, self._afterwards = self._afterwards, []
        for do in afterwards:
            do()
        self._settle()


class Passing:
    """Staging buffers of rank 0, two at a time: one is filled while the other is emptied.

    ``lane`` is the one that empties them.
    """

    def __init__(self, draft: Draft, *, lane: Lane) -> None:
        self._draft, self._lane = draft, lane
        self._held: deque[str] = deque()

    def take(self, name: str, num_bytes: int, *, lane: Lane, holds: Content | None = None) -> str:
        """A buffer for ``lane`` to fill; the one before the last is given back."""
        if len(self._held) == 2:
            self._draft.writer.release(0, self._held.popleft(), lane=self._lane)
        self._held.append(
            self._draft.take(name, "staging", num_bytes, tier="host", lane=lane, holds=holds)
        )
        return self._held[-1]

    def close(self) -> None:
        while self._held:
            self._draft.writer.release(0, self._held.popleft(), lane=self._lane)


class Leaving:
    """Buffers of the device that a copy empties: each is given back before the next is copied.

    So the room that the next turn asks for does not wait for a copy that has just begun. A turn
    that copies several calls ``pass_on`` before each and ``turn`` at its end.
    """

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._left: list[str] = []
        self._earlier: list[str] = []  # of turns before

    def close(self) -> None:
        """Give back what was left; to be called before the next copy is issued."""
        self.turn()
        self.pass_on()

    def turn(self) -> None:
        self._earlier += self._left
        self._left = []

    def pass_on(self) -> None:
        """Give back what earlier turns left."""
        if self._earlier:
            self._draft.writer.release(0, *self._earlier, lane=Lane.D2H)
        self._earlier = []

    def leave(self, buffer: str) -> None:
        self._left.append(buffer)
