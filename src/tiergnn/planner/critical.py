"""The critical path of a timeline: which lane bounds the step, and who waits for whom."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from tiergnn.schedule.actions import Op
from tiergnn.schedule.meeting import meetings
from tiergnn.schedule.order import waits
from tiergnn.schedule.schedule import Schedule
from tiergnn.schedule.timeline import Timeline

LaneOf = tuple[int, str]  # rank, lane
_PASSING = frozenset({Op.RESERVE, Op.RELEASE, Op.BARRIER})


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Seconds in which a lane stood still because an action of another was not done."""

    rank: int
    lane: str
    for_rank: int
    for_lane: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """The chain of actions, each the last that the next waited for, that ends the step.

    ``share_s`` is each lane's seconds on it, the most first; ``gap_s`` what passed between an
    action and the next though nothing more was waited for (issuing it, on a measured timeline).
    ``stalls`` are of the whole timeline, the longest first.
    """

    actions: tuple[int, ...]
    share_s: tuple[tuple[LaneOf, float], ...]
    gap_s: float
    stalls: tuple[Stall, ...]

    @property
    def bound(self) -> LaneOf | None:
        """The lane that bounds the step: making it faster is what shortens it."""
        return self.share_s[0][0] if self.share_s else None


def critical_path(timeline: Timeline, schedule: Schedule) -> CriticalPath:
    """Of a predicted or a measured timeline; actions without a span took no time.

    Raises PlanError for a schedule whose actions wait for each other in a circle.
    """
    trace = _Trace(timeline, schedule)
    actions, share_s, gap_s = trace.path()
    return CriticalPath(actions=actions, share_s=share_s, gap_s=gap_s, stalls=trace.stalls())


class _Trace:
    def __init__(self, timeline: Timeline, schedule: Schedule):
        self.schedule = schedule
        groups = {i: group for group in meetings(schedule) for i in group}
        own = waits(schedule)
        self.needs = [[j for k in groups.get(i, (i,)) for j in own[k]] for i in range(len(own))]
        spans = {span.index: span for span in timeline.spans}
        self.start, self.end = [0.0] * len(own), [0.0] * len(own)
        self.walk = schedule.order.walk
        for i in self.walk:
            if i in spans:
                self.start[i], self.end[i] = spans[i].start_s, spans[i].end_s
            else:
                self.start[i] = self.end[i] = max((self.end[j] for j in self.needs[i]), default=0.0)

    def last(self, i: int) -> int | None:
        """What an action waited for to the last; of equals, what is on its lane."""
        lane = self.lane(i)
        return max(
            self.needs[i], key=lambda j: (self.end[j], self.lane(j) == lane, j), default=None
        )

    def lane(self, i: int) -> LaneOf:
        action = self.schedule.actions[i]
        return action.rank, action.lane.value

    def path(self) -> tuple[tuple[int, ...], tuple[tuple[LaneOf, float], ...], float]:
        if not self.end:
            return (), (), 0.0
        at: int | None = max(range(len(self.end)), key=lambda i: (self.end[i], i))
        actions, gap_s = [], 0.0
        share_s: dict[LaneOf, float] = defaultdict(float)
        while at is not None:
            actions.append(at)
            share_s[self.lane(at)] += self.end[at] - self.start[at]
            earlier = self.last(at)
            gap_s += self.start[at] - (0.0 if earlier is None else self.end[earlier])
            at = earlier
        ranked = sorted(share_s.items(), key=lambda item: (-item[1], item[0]))
        return tuple(reversed(actions)), tuple(ranked), gap_s

    def stalls(self) -> tuple[Stall, ...]:
        seconds: dict[tuple[LaneOf, LaneOf], float] = defaultdict(float)
        done_s: dict[LaneOf, float] = {}
        sources = self._sources()
        for action in self.schedule.actions:
            i, lane = action.index, self.lane(action.index)
            at = self.last(i)
            cause = lane if at is None else sources[at]
            if cause != lane:
                until = min(self.start[i], max((self.end[j] for j in self.needs[i]), default=0.0))
                stalled = until - done_s.get(lane, 0.0)
                if stalled > 0:
                    seconds[lane, cause] += stalled
            done_s[lane] = self.end[i]
        found = (
            Stall(rank=rank, lane=lane, for_rank=for_rank, for_lane=for_lane, seconds=stalled)
            for ((rank, lane), (for_rank, for_lane)), stalled in seconds.items()
        )
        return tuple(sorted(found, key=lambda s: (-s.seconds, s.rank, s.lane, s.for_rank)))

    def _sources(self) -> list[LaneOf]:
        """The lane whose work each action stands for: making room and meeting pass a wait on."""
        found = [self.lane(i) for i in range(len(self.end))]
        for i in self.walk:
            passing = self.schedule.actions[i].op in _PASSING or self.end[i] == self.start[i]
            at = self.last(i)
            if passing and at is not None:
                found[i] = found[at]
        return found
