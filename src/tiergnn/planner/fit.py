"""Fit: what measured timelines teach about costs: one factor for each class of work.

Errors are made least by non-negative least squares, as fractions of their steps where they are of
steps: what counts is how long a step takes, and a small action may be off by half. Each factor is
held lightly to what it was, so that classes without data stay. Nothing is random: the same samples
give the same factors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import nnls

from tiergnn.errors import PlanError
from tiergnn.planner.cost import CLASSES, Costs
from tiergnn.schedule.actions import Action, Op
from tiergnn.schedule.schedule import Schedule
from tiergnn.schedule.timeline import Timeline

_HOLD = 1e-3  # weight of "stays as it was", where one sample's relative error weighs 1
# Of a step: below it an action's error is told as a fraction of this much, and weighs so.
_TOLD_FRAC, _WEIGHED_FRAC = 0.05, 0.5
_LEAST_FACTOR = 0.01  # no work is free


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """Relative errors |predicted - measured| / measured of the actions that a class dominates."""

    cost_class: str
    num_samples: int
    factor: float
    mean_before: float
    worst_before: float
    mean_after: float
    worst_after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The costs that were learned, and how far they are from what was measured; prints a table."""

    costs: Costs
    residuals: tuple[Residual, ...]  # by class; the last, "all", is of all samples

    def __str__(self) -> str:
        lines = [
            f"{'class':<12}{'actions':>8}{'factor':>8}   error before: mean, worst   after: "
            "mean, worst"
        ]
        for row in self.residuals:
            factor = f"{row.factor:8.3f}" if row.cost_class != "all" else " " * 8
            before = f"{row.mean_before:13.1%}{row.worst_before:10.1%}"
            after = f"{row.mean_after:17.1%}{row.worst_after:8.1%}"
            lines.append(f"{row.cost_class:<12}{row.num_samples:>8}{factor}   {before}{after}")
        return "\n".join(lines)


def fit(costs: Costs, samples: Iterable[tuple[Schedule, Timeline]]) -> Fit:
    """Learn from steps that were run: each span is its action's seconds, alone on its lane.

    The moments of a statistic are work of its stage's FORWARD, and their seconds count to it; what
    comes before the first action is the host's, and counts to its STEP.
    Raises PlanError where a timeline is not of its schedule, or nothing in it takes time.
    """
    shares: list[list[float]] = []
    seconds: list[float] = []
    told: list[float] = []
    weighed: list[float] = []
    for schedule, timeline in samples:
        as_run = costs.of_schedule(schedule)
        pairs = _pairs(schedule, timeline)
        shares += [_by_class(as_run, action) for action, _ in pairs]
        seconds += [span_s for _, span_s in pairs]
        told += [max(span_s, _TOLD_FRAC * timeline.seconds) for _, span_s in pairs]
        weighed += [max(span_s, _WEIGHED_FRAC * timeline.seconds) for _, span_s in pairs]
    return _learned(costs, shares, seconds, told, weighed)


def fit_actions(costs: Costs, actions: Sequence[Action], seconds: Sequence[float]) -> Fit:
    """As ``fit``, from actions and their measured seconds, against which errors are measured.

    Raises PlanError without an action that takes time.
    """
    shares = [_by_class(costs, action) for action in actions]
    return _learned(costs, shares, seconds, seconds, seconds)


def _learned(
    costs: Costs,
    by_class: Sequence[Sequence[float]],
    seconds: Sequence[float],
    told: Sequence[float],
    weighed: Sequence[float],
) -> Fit:
    """``told`` and ``weighed`` are the seconds of which errors are fractions: those that residuals
    tell, and those whose squares are made least."""
    shares, measured = np.array(by_class), np.asarray(seconds, np.float64)
    usable = (shares.sum(axis=1) > 0) & (measured > 0) if len(shares) else np.zeros(0, dtype=bool)
    if not usable.any():
        raise PlanError("no action that was measured takes time: nothing to learn from")
    shares, measured = shares[usable], measured[usable]
    against = np.asarray(weighed, np.float64)[usable]
    factors = _least_squares(shares, measured, against)
    # Errors against measured seconds, noise and all, favour low ones: once more against predicted.
    factors = _least_squares(shares, measured, np.maximum(shares @ factors, against / 2))
    seen = shares.sum(axis=0) > 0
    learned = {
        name: round(float(costs.factor(name) * factors[i]), 6)
        for i, name in enumerate(CLASSES)
        if seen[i] or name in costs.factors
    }
    better = replace(costs, factors=learned)
    whole = np.asarray(told, np.float64)[usable]
    before = np.abs(shares.sum(axis=1) - measured) / whole
    after = np.abs(shares @ factors - measured) / whole
    return Fit(costs=better, residuals=_residuals(better, shares, before, after))


def _least_squares(shares: np.ndarray, measured: np.ndarray, against: np.ndarray) -> np.ndarray:
    """One factor a class, of seconds by action and class."""
    rows = np.vstack([shares / against[:, None], np.sqrt(_HOLD) * np.eye(len(CLASSES))])
    wanted = np.concatenate([measured / against, np.full(len(CLASSES), np.sqrt(_HOLD))])
    return np.maximum(nnls(rows, wanted)[0], _LEAST_FACTOR)


def _residuals(
    costs: Costs, shares: np.ndarray, before: np.ndarray, after: np.ndarray
) -> tuple[Residual, ...]:
    largest = shares.argmax(axis=1)
    groups = {name: largest == i for i, name in enumerate(CLASSES) if (largest == i).any()}
    groups["all"] = np.ones(len(largest), dtype=bool)
    return tuple(
        Residual(
            cost_class=name,
            num_samples=int(group.sum()),
            factor=costs.factor(name),
            mean_before=float(before[group].mean()),
            worst_before=float(before[group].max()),
            mean_after=float(after[group].mean()),
            worst_after=float(after[group].max()),
        )
        for name, group in groups.items()
    )


def _by_class(costs: Costs, action: Action) -> list[float]:
    """Seconds of each class as the costs have them now, in the order of CLASSES."""
    found: dict[str, float] = defaultdict(float)
    for share in costs.shares(action):
        found[share.cost_class] += share.seconds * costs.factor(share.cost_class)
    return [found[name] for name in CLASSES]


def _pairs(schedule: Schedule, timeline: Timeline) -> list[tuple[Action, float]]:
    by_index = {action.index: action for action in schedule.actions}
    pairs: list[tuple[Action, float]] = []
    before: dict[tuple[int, int, int], float] = defaultdict(float)  # seconds of moments by place
    for span in sorted(timeline.spans, key=lambda span: span.index):
        action = by_index.get(span.index)
        if action is None or action.label != span.label:
            raise PlanError(
                f"a timeline of another schedule: its span {span.index} is {span.label!r}, "
                f"the action {action.label if action else 'missing'!r}",
                culprit=schedule.strategy,
            )
        if action.op is Op.BARRIER:
            continue  # it waits for the slowest
        seconds, place = span.end_s - span.start_s, (action.rank, action.stage, action.part)
        if action.op in (Op.MOMENTS, Op.COMMIT) and not action.work:
            before[place] += seconds
            continue
        if action.op in (Op.FORWARD, Op.RECOMPUTE):
            seconds += before.pop(place, 0.0)
        if action.op == Op.STEP:
            seconds += min(each.start_s for each in timeline.spans)
        pairs.append((action, seconds))
    return pairs
