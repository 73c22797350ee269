"""Schedule: all buffers and actions of one training step of all ranks, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tiergnn.errors import PlanError
from tiergnn.schedule.actions import TOGETHER, Action, Buffer, Lane, Op, Work, tag_of
from tiergnn.schedule.contents import Content

if TYPE_CHECKING:
    from tiergnn.schedule.capacity import Tables
    from tiergnn.schedule.order import Order

HEAD = "tiergnn schedule 1"
HERE = "<-- here"


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """What ``num_ranks`` ranks do in one step, in the order in which they issue it.

    ``check`` (schedule/check.py) proves it; nothing here does.
    """

    strategy: str
    num_ranks: int
    buffers: tuple[Buffer, ...]
    actions: tuple[Action, ...]

    def __post_init__(self) -> None:
        if not self.strategy.isprintable() or len(self.strategy.split()) != 1:
            raise PlanError(f"not a strategy's name of one printable word: {self.strategy!r}")

    @cached_property
    def buffer_of(self) -> dict[str, Buffer]:
        """name -> buffer."""
        return {buffer.name: buffer for buffer in self.buffers}

    @cached_property
    def order(self) -> Order:
        """Which actions happen before which, worked out once. Raises as ``order.order_of``."""
        from tiergnn.schedule.order import order_of  # which is of schedules

        return order_of(self)

    @cached_property
    def tables(self) -> Tables:
        """What is reserved and released where, worked out once. Raises as ``order``."""
        from tiergnn.schedule.capacity import Tables  # which are of schedules

        return Tables(self, self.order)

    def __str__(self) -> str:
        return self.text()

    def text(self, here: int | None = None) -> str:
        """One line a buffer and an action; the action at index ``here`` is marked."""
        lines = [f"{HEAD} {self.strategy} ranks {self.num_ranks}", *map(str, self.buffers)]
        for action in self.actions:
            lines.append(f"{action}  {HERE}" if action.index == here else str(action))
        return "\n".join(lines) + "\n"

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """The schedule that was printed, marked or not. Raises PlanError naming the wrong line."""
        head, *lines = text.splitlines() or [""]
        words = head.split()
        if (
            not head.startswith(HEAD + " ")
            or len(words) != 6
            or words[4] != "ranks"
            or not words[5].isdecimal()
        ):
            raise PlanError(f"wanted a line '{HEAD} STRATEGY ranks N' first, had {head!r}")
        buffers: list[Buffer] = []
        actions: list[Action] = []
        for number, line in enumerate(lines, start=2):
            try:
                if line.startswith("buffer "):
                    buffers.append(Buffer.parse(line))
                elif line.strip():
                    actions.append(Action.parse(line.removesuffix(HERE)))
            except PlanError as error:
                raise PlanError(
                    error.problem, culprit=f"line {number} of the schedule", hint=error.hint
                ) from error
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
        found = data if isinstance(data, dict) else {}
        kind, version, lines = (found.get(name) for name in ("format", "version", "lines"))
        if (kind, version) != ("tiergnn-schedule", 1):
            raise PlanError(f"wanted tiergnn-schedule version 1, had {kind!r} version {version!r}")
        if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
            raise PlanError("wanted the lines of a schedule, had none")
        return cls.parse("\n".join(lines))


class Writer:
    """Writes a schedule action by action; gives each its index, so that later ones can wait for it.

    A strategy says what is read and written; the writer adds to ``after`` the latest writer of
    each buffer that is read, and the readers of each that is written over. What another rank did
    to it cannot be waited for: the latest meetings of the own rank stand for it, and ``check``
    says whether they are enough.
    """

    def __init__(self, strategy: str, num_ranks: int = 1):
        self._strategy, self._num_ranks = strategy, num_ranks
        self._buffers: dict[str, Buffer] = {}
        self._actions: list[Action] = []
        self._writer: dict[str, int] = {}
        self._readers: dict[str, list[int]] = {}
        self._released: dict[tuple[int, str], dict[Lane, int]] = {}
        self._last: dict[int, dict[Lane, int]] = {}
        self._met: dict[int, dict[Lane, int]] = {}

    def buffer(
        self,
        name: str,
        rank: int,
        tier: str,
        kind: str,
        num_bytes: int,
        *,
        lasting: bool = False,
        own: bool = False,
        holds: Content | None = None,
    ) -> str:
        """Declare a buffer that the schedule reserves, and releases unless it is lasting.

        Gives its name.
        """
        return self._declare(
            Buffer(
                name=name,
                rank=rank,
                tier=tier,
                kind=kind,
                num_bytes=num_bytes,
                lasting=lasting,
                own=own,
                holds=holds,
            )
        )

    def given(
        self,
        name: str,
        rank: int,
        tier: str,
        kind: str,
        num_bytes: int,
        *,
        lasting: bool = True,
        own: bool = False,
        holds: Content | None = None,
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
                own=own,
                holds=holds,
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
        earlier = {self._writer[name] for name in (*reads, *writes) if name in self._writer}
        for name in writes:
            earlier.update(self._readers.pop(name, ()))
            self._writer[name] = index
        waits = set(after) | {i for i in earlier if self._actions[i].rank == rank}
        if rank in self._met and any(self._actions[i].rank != rank for i in earlier):
            waits.update(self._met[rank].values())
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
        self._last.setdefault(rank, {})[lane] = index
        if op in TOGETHER or op in (Op.SEND, Op.RECV):
            self._met.setdefault(rank, {})[lane] = index
        return index

    def meet(
        self,
        op: Op,
        name: str,
        lane: Lane = Lane.PEER,
        *,
        ranks: Iterable[int] | None = None,
        reads: Mapping[int, Iterable[str]] | None = None,
        writes: Mapping[int, Iterable[str]] | None = None,
        after: Mapping[int, Iterable[int]] | None = None,
        work: Mapping[int, Iterable[Work]] | None = None,
    ) -> dict[int, int]:
        """Append a BARRIER, EXCHANGE or REDUCE on each of ``ranks`` (all); gives rank -> index.

        Each rank comes when all that it issued on any lane is done, or only what ``after`` names
        for it (and what its ``reads`` and ``writes`` wait for).
        """
        ranks = range(self._num_ranks) if ranks is None else tuple(ranks)
        tag = tag_of(name, ranks, self._num_ranks)
        met = {}
        for rank in ranks:
            everything = tuple(self._last.get(rank, {}).values())
            met[rank] = self.add(
                rank,
                lane,
                op,
                tag=tag,
                reads=(reads or {}).get(rank, ()),
                writes=(writes or {}).get(rank, ()),
                after=everything if after is None else after.get(rank, ()),
                work=(work or {}).get(rank, ()),
            )
        return met

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
