"""Schedule: all buffers and actions of one training step of all ranks, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tiergnn.errors import PlanError
from tiergnn.schedule.actions import Action, Buffer, Lane, Op, Work

HEAD = "tiergnn schedule 1"


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """What ``num_ranks`` ranks do in one step, in the order in which they issue it.

    ``check`` (schedule/check.py) proves it; nothing here does.
    """

    strategy: str
    num_ranks: int
    buffers: tuple[Buffer, ...]
    actions: tuple[Action, ...]

    @cached_property
    def buffer_of(self) -> dict[str, Buffer]:
        """name -> buffer."""
        return {buffer.name: buffer for buffer in self.buffers}

    def __str__(self) -> str:
        return self.text()

    def text(self, here: int | None = None) -> str:
        """One line a buffer and an action; the action at index ``here`` is marked."""
        lines = [f"{HEAD} {self.strategy} ranks {self.num_ranks}", *map(str, self.buffers)]
        for action in self.actions:
            lines.append(f"{action}  <-- here" if action.index == here else str(action))
        return "\n".join(lines) + "\n"

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """The schedule that was printed. Raises PlanError naming the line that is wrong."""
        head, *lines = text.splitlines() or [""]
        words = head.split()
        if not head.startswith(HEAD + " ") or len(words) != 6 or words[4] != "ranks":
            raise PlanError(f"wanted a line '{HEAD} STRATEGY ranks N' first, had {head!r}")
        buffers = [Buffer.parse(line) for line in lines if line.startswith("buffer ")]
        actions = [
            Action.parse(line) for line in lines if line.strip() and not line.startswith("buffer ")
        ]
        return cls(
            strategy=words[3],
            num_ranks=int(words[5]),
            buffers=tuple(buffers),
            actions=tuple(actions),
        )

    def to_json(self) -> dict[str, Any]:
        """The text, line by line: what people read and what programs read is the same."""
        return {"format": "tiergnn-schedule", "version": 1, "lines": self.text().splitlines()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Schedule:
        """Raises PlanError for anything that ``to_json`` did not write."""
        if data.get("format") != "tiergnn-schedule" or data.get("version") != 1:
            raise PlanError(f"wanted tiergnn-schedule version 1, had {data.get('format')!r}")
        return cls.parse("\n".join(data["lines"]))


class Writer:
    """Writes a schedule action by action; gives each its index, so that later ones can wait for it.

    A strategy says what is read and written; the writer adds to ``after`` the latest writer of
    each buffer that is read, and the readers of each that is written over.
    """

    def __init__(self, strategy: str, num_ranks: int = 1):
        self._strategy, self._num_ranks = strategy, num_ranks
        self._buffers: dict[str, Buffer] = {}
        self._actions: list[Action] = []
        self._writer: dict[str, int] = {}
        self._readers: dict[str, list[int]] = {}
        self._released: dict[tuple[int, str], dict[Lane, int]] = {}

    def buffer(self, name: str, rank: int, tier: str, kind: str, num_bytes: int) -> str:
        """Declare a buffer that the schedule reserves and releases. Gives its name."""
        return self._declare(
            Buffer(name=name, rank=rank, tier=tier, kind=kind, num_bytes=num_bytes)
        )

    def given(
        self, name: str, rank: int, tier: str, kind: str, num_bytes: int, *, lasting: bool = True
    ) -> str:
        """Declare a buffer that is there, filled, before the first action."""
        return self._declare(
            Buffer(
                name=name,
                rank=rank,
                tier=tier,
                kind=kind,
                num_bytes=num_bytes,
                given=True,
                lasting=lasting,
            )
        )

    def _declare(self, buffer: Buffer) -> str:
        assert buffer.name not in self._buffers, buffer.name
        self._buffers[buffer.name] = buffer
        return buffer.name

    def add(
        self,
        rank: int,
        lane: Lane,
        op: Op,
        *,
        stage: int = -1,
        part: int = -1,
        slice: int = -1,
        tag: str = "",
        reads: Iterable[str] = (),
        writes: Iterable[str] = (),
        after: Iterable[int] = (),
        work: Iterable[Work] = (),
    ) -> int:
        """Append an action; gives its index."""
        index = len(self._actions)
        reads, writes = tuple(dict.fromkeys(reads)), tuple(dict.fromkeys(writes))
        waits = set(after)
        for name in reads:
            waits |= {self._writer[name]} if name in self._writer else set()
        for name in writes:
            waits |= {self._writer[name]} if name in self._writer else set()
            waits |= set(self._readers.pop(name, ()))
            self._writer[name] = index
        for name in reads:
            self._readers.setdefault(name, []).append(index)
        self._actions.append(
            Action(
                index=index,
                rank=rank,
                lane=lane,
                op=op,
                stage=stage,
                part=part,
                slice=slice,
                tag=tag,
                reads=reads,
                writes=writes,
                after=tuple(sorted(waits - {index})),
                work=tuple(work),
            )
        )
        return index

    def reserve(self, rank: int, *names: str, lane: Lane = Lane.COMPUTE) -> int:
        """Make room for buffers, once all room that was given back before, in their tiers, is free.

        So what is held never exceeds what a walk through the actions in order would hold.
        """
        tiers = {self._buffers[name].tier for name in names}
        after = [i for tier in tiers for i in self._released.get((rank, tier), {}).values()]
        return self.add(rank, lane, Op.RESERVE, writes=names, after=after)

    def release(self, rank: int, *names: str, lane: Lane = Lane.COMPUTE) -> int:
        """Give room back once all that read or wrote it is done."""
        index = self.add(rank, lane, Op.RELEASE, writes=names)
        for name in names:
            self._released.setdefault((rank, self._buffers[name].tier), {})[lane] = index
        return index

    def finish(self) -> Schedule:
        return Schedule(
            strategy=self._strategy,
            num_ranks=self._num_ranks,
            buffers=tuple(self._buffers.values()),
            actions=tuple(self._actions),
        )
