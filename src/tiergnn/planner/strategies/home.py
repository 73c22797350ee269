"""Home: rows of parts in host memory and on disk, kept by what will be read next.

What a schedule reads is known when it is written, so that the cache in host memory evicts what is
needed furthest in the future (Belady, 1966), leaves out what nobody needs before all that it holds
(it goes past the host to the disk), and never writes what nobody reads again.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush

from tiergnn.planner.strategies.draft import Draft
from tiergnn.schedule.actions import Lane, Op, Work, moved
from tiergnn.schedule.contents import Content

PASSING = 3  # entries on their way through host memory: one read, one copied, one written


@dataclass(slots=True)
class _Entry:
    num_bytes: int
    kind: str
    holds: Content
    host: str = ""  # its buffers; "": not there
    disk: str = ""
    stale: bool = False  # whether the disk lacks what host memory has
    given: bool = False
    cached: bool = False  # counted in the cache's bytes; else it only passes


class Home:
    """Entries of rank 0 by name. ``capacity_bytes`` of host memory hold them, the disk the rest.

    ``disk`` False: all stay in host memory. ``trace`` lists every read in its order, as an earlier
    writing of the same schedule recorded it in ``reads``.
    """

    def __init__(
        self, draft: Draft, *, disk: bool, capacity_bytes: float, trace: Iterable[str] = ()
    ) -> None:
        self._draft, self._writer, self._disk = draft, draft.writer, disk
        self._capacity, self._held = capacity_bytes, 0
        self._entries: dict[str, _Entry] = {}
        self._passing: deque[str] = deque()
        self._times: dict[str, list[int]] = defaultdict(list)
        for time, name in enumerate(trace):
            self._times[name].append(time)
        self._later: list[tuple[float, int, str]] = []  # heap of _queue
        self._queued = 0
        self.reads: list[str] = []

    def given(self, name: str, kind: str, num_bytes: int, holds: Content) -> None:
        """An entry that is there before and after: on the disk, or else in host memory."""
        entry = _Entry(num_bytes, kind, holds, given=True)
        tier = "disk" if self._disk else "host"
        buffer = self._writer.given(f"{name}@{tier}", 0, tier, kind, num_bytes, holds=holds)
        if self._disk:
            entry.disk = buffer
        else:
            entry.host = buffer
        self._entries[name] = entry

    def has(self, name: str) -> bool:
        return name in self._entries

    def read(self, name: str) -> str:
        """The buffer in host memory with the entry; it is fetched where it lies on the disk.

        It stays until ``PASSING`` more entries were asked for.
        """
        self.reads.append(name)
        entry = self._entries[name]
        if not entry.host:
            self._place(name, entry, Lane.DISK_READ)
            self._copy(Lane.DISK_READ, entry.disk, entry.host, entry.num_bytes, "disk_read")
        elif entry.cached:
            self._queue(name)
        return entry.host

    def modify(self, name: str) -> str:
        """As ``read``, for what will be added to: the disk's copy is stale then."""
        host = self.read(name)
        self._entries[name].stale = True
        return host

    def store(
        self,
        name: str,
        kind: str,
        num_bytes: int,
        source: str,
        *,
        stage: int,
        part: int,
        holds: Content,
    ) -> None:
        """A new entry, from a device buffer."""
        entry = self._create(name, kind, num_bytes, Lane.D2H, holds)
        self._writer.add(
            0,
            Lane.D2H,
            Op.COPY,
            stage=stage,
            part=part,
            reads=[source],
            writes=[entry.host],
            work=[moved(num_bytes, self._draft.link("d2h"))],
        )
        if not entry.cached:
            self._write_back(name, entry)

    def clear(self, name: str, kind: str, num_bytes: int, holds: Content) -> str:
        """A new entry of zeros; gives its buffer in host memory."""
        entry = self._create(name, kind, num_bytes, Lane.HOST, holds)
        self._writer.add(
            0,
            Lane.HOST,
            Op.ZERO,
            writes=[entry.host],
            work=[Work(kind="stream", amount=num_bytes, place="host")],
        )
        return entry.host

    def drop(self, *names: str) -> None:
        """Entries that nobody reads again."""
        for name in names:
            entry = self._entries[name]
            if entry.given:
                if self._disk and entry.host:
                    self._leave(name, entry, Lane.DISK_READ)
                continue
            if entry.host:
                entry.stale = False
                self._leave(name, entry, Lane.HOST)
            if entry.disk:
                self._writer.release(0, entry.disk, lane=Lane.DISK_WRITE)
            del self._entries[name]

    def close(self) -> None:
        """Let go of what is left."""
        self.drop(*self._entries)

    def _next(self, name: str) -> float:
        times = self._times.get(name, [])
        index = bisect_right(times, len(self.reads) - 1)
        return times[index] if index < len(times) else math.inf

    def _create(self, name: str, kind: str, num_bytes: int, lane: Lane, holds: Content) -> _Entry:
        assert name not in self._entries, name
        entry = self._entries[name] = _Entry(num_bytes, kind, holds, stale=True)
        self._place(name, entry, lane)
        return entry

    def _place(self, name: str, entry: _Entry, lane: Lane) -> None:
        """Room in host memory for an entry: in the cache, or else as one that passes."""
        entry.cached = self._make_room(entry.num_bytes, self._next(name))
        if entry.cached:
            self._held += entry.num_bytes
            self._queue(name)
        else:
            if len(self._passing) == PASSING:
                oldest = self._passing[0]
                self._leave(oldest, self._entries[oldest], Lane.DISK_WRITE)
            self._passing.append(name)
        kind = entry.kind if entry.cached else "staging"
        entry.host = self._draft.take(
            f"{name}@host", kind, entry.num_bytes, tier="host", lane=lane, holds=entry.holds
        )

    def _make_room(self, num_bytes: int, needed: float) -> bool:
        """Evict what is needed later than ``needed`` until the bytes fit; False if they cannot."""
        room = self._capacity - self._held
        if num_bytes <= room:
            return True
        if num_bytes > self._capacity:
            return False
        victims: dict[str, None] = {}
        passed = []
        while num_bytes > room and self._later and -self._later[0][0] > needed:
            when, _, name = queued = heappop(self._later)
            entry = self._entries.get(name)
            if entry is None or not entry.cached or name in victims or self._next(name) != -when:
                continue  # it left, or was read and is queued anew
            passed.append(queued)
            if name not in self.reads[-PASSING:]:
                victims[name] = None
                room += entry.num_bytes
        fits = num_bytes <= room
        for queued in passed:
            if not fits or queued[2] not in victims:
                heappush(self._later, queued)
        for victim in victims if fits else ():
            self._leave(victim, self._entries[victim], Lane.DISK_WRITE)
        return fits

    def _queue(self, name: str) -> None:
        """Note when a cached entry is needed next, which only a read of it changes; of those that
        nobody needs the first noted leaves first."""
        if self._capacity == math.inf:
            return  # where none ever leaves
        self._queued += 1
        heappush(self._later, (-self._next(name), self._queued, name))

    def _leave(self, name: str, entry: _Entry, lane: Lane) -> None:
        """Give the room in host memory back; what the disk lacks goes there first."""
        if entry.stale:
            self._write_back(name, entry)
        self._writer.release(0, entry.host, lane=lane)
        entry.host = ""
        if entry.cached:
            self._held -= entry.num_bytes
            entry.cached = False
        else:
            self._passing.remove(name)

    def _write_back(self, name: str, entry: _Entry) -> None:
        if not entry.disk:
            entry.disk = self._draft.take(
                f"{name}@disk",
                entry.kind,
                entry.num_bytes,
                tier="disk",
                lane=Lane.DISK_WRITE,
                holds=entry.holds,
            )
        self._copy(Lane.DISK_WRITE, entry.host, entry.disk, entry.num_bytes, "disk_write")
        entry.stale = False

    def _copy(self, lane: Lane, source: str, target: str, num_bytes: int, link: str) -> None:
        self._writer.add(
            0,
            lane,
            Op.COPY,
            reads=[source],
            writes=[target],
            work=[moved(num_bytes, self._draft.link(link))],
        )
