"""Timeline: when each action ran, predicted or measured: one type for both."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from tiergnn import frozen

FORMAT = "tiergnn-timeline"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One action's time on its lane; ``index`` is its place in the schedule."""

    index: int
    rank: int
    lane: str
    label: str
    start_s: float
    end_s: float
    moved_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The spans of one step, by start; ``source`` is "predicted" or "measured".

    ``peak_bytes`` is (rank, tier, bytes): the most held at once.
    """

    source: str
    spans: tuple[Span, ...]
    peak_bytes: tuple[tuple[int, str, int], ...] = ()

    @property
    def seconds(self) -> float:
        return max((span.end_s for span in self.spans), default=0.0)

    def busy_s(self) -> dict[tuple[int, str], float]:
        """(rank, lane) -> seconds in which it did something."""
        busy: dict[tuple[int, str], float] = defaultdict(float)
        for span in self.spans:
            busy[span.rank, span.lane] += span.end_s - span.start_s
        return dict(busy)

    def idle_s(self) -> dict[tuple[int, str], float]:
        """(rank, lane) -> seconds of the whole step in which a lane did nothing."""
        return {key: max(0.0, self.seconds - busy) for key, busy in self.busy_s().items()}

    def moved_bytes(self) -> dict[str, int]:
        """lane -> bytes moved, all ranks together."""
        moved: dict[str, int] = defaultdict(int)
        for span in self.spans:
            moved[span.lane] += span.moved_bytes
        return dict(moved)

    @property
    def bottleneck(self) -> str:
        """The lane that is busiest on the rank where it is; "" without spans."""
        busy = self.busy_s()
        return max(busy, key=lambda key: busy[key])[1] if busy else ""

    def save(self, path: str | Path) -> None:
        """Raises StoreError when the file cannot be written."""
        frozen.save(path, FORMAT, VERSION, self)

    @classmethod
    def load(cls, path: str | Path) -> Timeline:
        """Raises StoreError for a file that cannot be read, ConfigError for anything else in it."""
        return frozen.load(cls, path, FORMAT, VERSION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What one kind of action took on a lane, all ranks and parts together; counts may differ."""

    lane: str
    label: str  # of the operation and its stage: ``FORWARD s1``
    predicted: int
    measured: int
    predicted_s: float
    measured_s: float

    @property
    def error_frac(self) -> float:
        """How far the prediction is off, of what was measured; infinite where nothing was."""
        off = self.predicted_s - self.measured_s
        return off / self.measured_s if self.measured_s else (math.inf if off else 0.0)


def side_by_side(predicted: Timeline, measured: Timeline) -> tuple[Beside, ...]:
    """Two timelines of one schedule by lane and kind of action, what took longest first."""
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0, 0.0, 0.0])
    for at, timeline in enumerate((predicted, measured)):
        for span in timeline.spans:
            words = span.label.split()
            label = " ".join(words[:1] + [word for word in words[1:] if word[0] == "s"])
            row = sums[span.lane, label]
            row[at] += 1
            row[2 + at] += span.end_s - span.start_s
    rows = (
        Beside(
            lane=lane,
            label=label,
            predicted=int(row[0]),
            measured=int(row[1]),
            predicted_s=row[2],
            measured_s=row[3],
        )
        for (lane, label), row in sums.items()
    )
    return tuple(sorted(rows, key=lambda r: (-max(r.predicted_s, r.measured_s), r.lane, r.label)))
