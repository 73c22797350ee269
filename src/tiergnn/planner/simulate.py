"""Simulate: the clock of a schedule on a machine: when each action of every rank starts and ends.

Lanes take their actions in order. What meets starts when all have come and ends together. An
action first takes the seconds that nothing can lengthen, then sends its bytes, link by link; on a
wire with n transfers each goes at 1/n of the rate that it would have alone, and at ``duplex_frac``
of that while the opposite wire is busy. Transfers on one wire keep their order of ending whatever
joins or leaves, so its progress is one number, and an event costs a heap operation. Where one
thread of the host queues all that a GPU does, nothing begins before it has come so far; a step
that is recorded is queued at once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from functools import cache, partial
from heapq import heappop, heappush

from tiergnn.hardware.machine import OPPOSITE, Link, Machine
from tiergnn.planner.cost import Costs, LinkUse
from tiergnn.schedule.actions import Action, Done, Op
from tiergnn.schedule.meeting import meetings
from tiergnn.schedule.order import waits
from tiergnn.schedule.recording import LONGEST_S, recordable
from tiergnn.schedule.schedule import Schedule
from tiergnn.schedule.timeline import Span, Timeline

_ROUNDING = 1e-9  # of sums in another order
_CORES = "cores"  # a wire of each rank on a CPU
# Rows that a kernel reads in place and copies that are not pinned go over the wire of bulk copies.
WIRE = {"zero_copy": "h2d", "pageable": "h2d", "peer_copy": "peer", "host_gather": "host_copy"}


def simulate(schedule: Schedule, machine: Machine, costs: Costs) -> Timeline:
    """The predicted Timeline of a schedule that ``check`` accepts. The same input, the same bits.

    Raises PlanError for a link that the machine lacks, and where actions wait forever.
    """
    costs = costs.of_schedule(schedule)
    if costs.queues and recordable(schedule):
        recorded = _timeline(schedule, machine, replace(costs, queues=False))
        if recorded.seconds <= LONGEST_S:
            return recorded
    return _timeline(schedule, machine, costs)


def _timeline(schedule: Schedule, machine: Machine, costs: Costs) -> Timeline:
    clock = _Clock(schedule, machine, costs)
    clock.run()
    return clock.timeline()


def wire_of(machine: Machine, link: str) -> str:
    """What a link's transfers share with those of other links."""
    if link == _CORES:
        return link
    return machine.links[link].wire or WIRE.get(link, link)


def takes(machine: Machine, costs: Costs, done: Done) -> tuple[float, tuple[LinkUse, ...]]:
    """Seconds that nothing can lengthen, then what is sent, in turn, over wires that others may
    share. On a CPU lanes compute and copy on its cores, each at its part of the rate."""
    fixed_s, uses = costs.parts(done)
    uses = tuple(use for use in uses if use.num_bytes)
    if machine.device.kind != "cpu":
        return fixed_s, uses
    copied = [use for use in uses if use.link not in ("network", "disk_read", "disk_write")]
    links = machine.links
    # What a rank copies is at its share of the rate of all.
    busy_s = fixed_s + sum(u.num_bytes / u.Bps * links[u.link].devices for u in reversed(copied))
    sent = tuple(use for use in uses if use not in copied)
    return 0.0, (LinkUse(_CORES, 1, 1 / busy_s), *sent) if busy_s else sent


def least_s(done: Iterable[Done], machine: Machine, costs: Costs) -> float:
    """Seconds that no order of these actions is below: of the busiest lane or wire of a rank.

    Raises PlanError for a link that the machine lacks.
    """
    busy: dict[tuple[int, str], float] = defaultdict(float)
    for each, times in Counter(done).items():
        fixed_s, uses = takes(machine, costs, each)
        busy[each.rank, f"lane {each.lane}"] += times * fixed_s
        for use in uses:
            use_s = times * use.num_bytes / use.Bps
            busy[each.rank, f"lane {each.lane}"] += use_s
            busy[each.rank, wire_of(machine, use.link)] += use_s
    return (1 - _ROUNDING) * max(busy.values(), default=0.0)


class _Wire:
    """A resource that transfers share equally. ``level`` counts seconds of an undivided rate."""

    def __init__(self, duplex_frac: float):
        self.duplex_frac = duplex_frac
        self.opposite: list[_Wire] = []
        self.ends: list[tuple[float, int]] = []  # heap: level at which a transfer ends, action
        self.level = self.speed = self.since = 0.0
        self.version = 0

    def advance(self, now: float) -> None:
        self.level += (now - self.since) * self.speed
        self.since = now
        if not self.ends:
            self.level = 0.0

    def pace(self) -> None:
        """How fast the level rises from now on."""
        frac = self.duplex_frac if any(wire.ends for wire in self.opposite) else 1.0
        self.speed = frac / len(self.ends) if self.ends else 0.0


class _Clock:
    """The state of one simulation."""

    def __init__(self, schedule: Schedule, machine: Machine, costs: Costs):
        self.schedule, self.machine, self.costs = schedule, machine, costs
        num = len(schedule.actions)
        self.start, self.end = [0.0] * num, [0.0] * num
        self.finished = 0
        self.gives: list[list[int]] = [[] for _ in range(num)]
        self.waiting = [0] * num
        for i, needs in enumerate(waits(schedule)):
            self.waiting[i] = len(needs)
            for j in needs:
                self.gives[j].append(i)
        self.group: dict[int, tuple[int, ...]] = {}
        for group in meetings(schedule):
            self.group |= dict.fromkeys(group, group)
        self.queued = self._queued()
        self.absent = {group[0]: len(group) for group in self.group.values()}
        self.running = dict(self.absent)
        self.uses: dict[int, list[LinkUse]] = {}
        self.takes = cache(partial(takes, machine, costs))  # of parts and slices that are alike
        self.wires = self._wires()
        self.events: list[tuple[float, int, int, _Wire | None]] = []
        self.versions = 0
        self.held: dict[tuple[int, str], int] = defaultdict(int)
        for buffer in schedule.buffers:
            self.held[buffer.rank, buffer.tier] += buffer.num_bytes if buffer.given else 0
        self.peak = dict(self.held)

    def run(self) -> None:
        now = 0.0
        for i in [i for i, waiting in enumerate(self.waiting) if not waiting]:
            self._arrive(i, now)
        while self.events:
            now, number, i, wire = heappop(self.events)
            if wire is None:
                self._proceed(i, now)
            elif wire.version == number:
                self._leave(wire, now)
        if self.finished < len(self.schedule.actions):
            _ = self.schedule.order  # raises: names the circle
            raise AssertionError("actions in order that never ran")

    def _queued(self) -> list[float]:
        """When the host, which queues all that a device does, has come to each action."""
        found, clock = [0.0] * len(self.schedule.actions), 0.0
        for i, action in enumerate(self.schedule.actions):
            clock += self.costs.queueing_s(action)
            found[i] = clock
        return found

    def _arrive(self, i: int, now: float) -> None:
        group = self.group.get(i)
        if group is None:
            self._start(i, now)
            return
        self.absent[group[0]] -= 1
        if not self.absent[group[0]]:
            for j in group:
                self._start(j, now)

    def _start(self, i: int, now: float) -> None:
        action = self.schedule.actions[i]
        now = self.start[i] = max(now, self.queued[i])
        if action.op == Op.RESERVE:
            self._hold(action, 1)
        busy = action.work or action.op is Op.BARRIER
        fixed_s, uses = self.takes(action.done) if busy else (0.0, ())
        self.uses[i] = [*reversed(uses)]
        heappush(self.events, (now + fixed_s, 0, i, None))

    def _proceed(self, i: int, now: float) -> None:
        """The next transfer of an action, or its end."""
        if self.uses[i]:
            use = self.uses[i].pop()
            wire = self.wires[wire_of(self.machine, use.link), self.schedule.actions[i].rank]
            self._join(wire, i, use, now)
            return
        group = self.group.get(i)
        if group is None:
            self._finish((i,), now)
            return
        self.running[group[0]] -= 1
        if not self.running[group[0]]:
            self._finish(group, now)

    def _finish(self, actions: Iterable[int], now: float) -> None:
        for i in actions:
            self.end[i] = now
            self.finished += 1
            if self.schedule.actions[i].op == Op.RELEASE:
                self._hold(self.schedule.actions[i], -1)
        for i in actions:
            for j in self.gives[i]:
                self.waiting[j] -= 1
                if not self.waiting[j]:
                    self._arrive(j, now)

    def _hold(self, action: Action, sign: int) -> None:
        for name in action.writes:
            buffer = self.schedule.buffer_of[name]
            place = (buffer.rank, buffer.tier)
            self.held[place] += sign * buffer.num_bytes
            self.peak[place] = max(self.peak.get(place, 0), self.held[place])

    # Wires

    def _wires(self) -> dict[tuple[str, int], _Wire]:
        """(wire, rank) -> what its transfers share with those of the other ranks of its group."""
        links: dict[str, list[Link]] = defaultdict(list)
        for name, link in self.machine.links.items():
            links[wire_of(self.machine, name)].append(link)
        shared: dict[tuple[str, int, int], _Wire] = {}
        found: dict[tuple[str, int], _Wire] = {}
        for rank in range(self.schedule.num_ranks):
            found[_CORES, rank] = _Wire(1.0)
            host, local = divmod(rank, self.machine.num_devices)
            for name, ways in links.items():
                group = local // max(link.devices for link in ways)
                wire = _Wire(min(link.duplex_frac for link in ways))
                found[name, rank] = shared.setdefault((name, host, group), wire)
            for name, other in OPPOSITE.items():
                if name in links and other in links:
                    wire, facing = found[name, rank], found[other, rank]
                    if facing not in wire.opposite:
                        wire.opposite.append(facing)
        return found

    def _join(self, wire: _Wire, i: int, use: LinkUse, now: float) -> None:
        wire.advance(now)
        heappush(wire.ends, (wire.level + use.num_bytes / use.Bps, i))
        self._turn(wire, now, facing=len(wire.ends) == 1)

    def _leave(self, wire: _Wire, now: float) -> None:
        """The transfer that ends first is through, and all that end with it."""
        wire.since, wire.level = now, wire.ends[0][0]
        through = []
        while wire.ends and wire.ends[0][0] <= wire.level:
            through.append(heappop(wire.ends)[1])
        self._turn(wire, now, facing=not wire.ends)
        for i in through:
            self._proceed(i, now)

    def _turn(self, wire: _Wire, now: float, *, facing: bool) -> None:
        """A wire, and those opposite where it woke or fell silent, go on at a new pace."""
        for each in (wire, *(wire.opposite if facing else ())):
            each.advance(now)
            each.pace()
            self.versions += 1
            each.version = self.versions
            if each.ends:
                ends_s = now + max(0.0, each.ends[0][0] - each.level) / each.speed
                heappush(self.events, (ends_s, each.version, -1, each))

    def timeline(self) -> Timeline:
        spans = [
            Span(
                index=action.index,
                rank=action.rank,
                lane=action.lane.value,
                label=action.label,
                start_s=self.start[action.index],
                end_s=self.end[action.index],
                moved_bytes=action.moved_bytes,
            )
            for action in self.schedule.actions
        ]
        spans.sort(key=lambda span: (span.start_s, span.index))
        peak = tuple((rank, tier, held) for (rank, tier), held in sorted(self.peak.items()))
        return Timeline(source="predicted", spans=tuple(spans), peak_bytes=peak)
