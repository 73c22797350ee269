"""Choose: every strategy tried with the knobs that may pay, and the fastest plan that fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tiergnn.errors import PlanError, unknown
from tiergnn.graph.shape import GraphShape, Layout, expected_layout
from tiergnn.hardware.machine import Machine
from tiergnn.planner import pareto
from tiergnn.planner.cost import Costs
from tiergnn.planner.plan import Plan
from tiergnn.planner.search import Choice, Stage, frontier
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.planner.strategies.known import KNOBS, STRATEGIES
from tiergnn.planner.strategies.resident import works
from tiergnn.schedule.actions import Action, Lane, Op
from tiergnn.units import format_bytes, format_seconds
from tiergnn.workload import Extent, StageWork, Workload

ON_ONE = ("resident", "sliced", "grinnder", "hongtu")
ON_SEVERAL = ("halo", "leo", "nfp", "mgg", "uva")
_MOST_PARTS = 64  # what parts pass to each other grows with their square; so many plan in seconds
_MOST_SLICES = 32
_BLOCKS = 4  # of rows for each slice of columns: both shrink what is at hand at once
_RECOMPUTES = 12  # sets of stages tried, spread over the frontier


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One strategy with its knobs: a plan, or why there is none."""

    strategy: str
    knobs: Knobs
    plan: Plan | None
    refused: PlanError | None = None

    @property
    def seconds(self) -> float:
        return float("inf") if self.plan is None else self.plan.seconds


@dataclass(frozen=True, kw_only=True)
class Choosing:
    """All that a choice is made from. ``layout_of`` gives the graph in so many parts.

    ``storage`` names dtypes that rows may be stored in off the device, at the price of exactness;
    without any, every plan gives the numbers of one device. ``thorough`` tries the slow places too,
    for a frontier.
    """

    workload: Workload
    shape: GraphShape
    machine: Machine
    ranks: int = 1
    factors: tuple[tuple[str, float], ...] = ()
    storage: tuple[str, ...] = ()
    layout_of: Callable[[int], Layout] | None = None
    notes: tuple[str, ...] = ()
    thorough: bool = False

    def layout(self, num_parts: int) -> Layout:
        if self.layout_of is not None:
            return self.layout_of(num_parts)
        return expected_layout(self.shape, num_parts)

    def trial(self, name: str, knobs: Knobs) -> Trial:
        """Write, prove and clock one plan."""
        plan = Plan(
            strategy=name,
            knobs=knobs,
            workload=self.workload,
            shape=self.shape,
            layout=self.layout(max(knobs.parts, knobs.ranks)),
            machine=self.machine,
            factors=dict(self.factors),
            notes=self.notes,
        )
        try:
            _ = plan.timeline
        except PlanError as error:
            return Trial(strategy=name, knobs=knobs, plan=None, refused=error)
        return Trial(strategy=name, knobs=knobs, plan=plan)

    def trials(self, strategies: Sequence[str] = ()) -> list[Trial]:
        """All that are worth trying, by strategy, in the order in which they were tried."""
        names = strategies or (ON_ONE if self.ranks == 1 else ON_SEVERAL)
        for name in names:
            if name not in STRATEGIES:
                raise unknown("strategy", name, STRATEGIES)
        return [trial for name in names for trial in self._of(name)]

    def _of(self, name: str) -> Iterator[Trial]:
        if name == "resident":
            yield from self._resident()
        elif name in ON_ONE:
            yield from self._staged(name)
        else:
            yield from self._ranks(name)

    # One device that holds everything: which stages keep, which run again

    def _resident(self) -> Iterator[Trial]:
        keep = self.trial("resident", Knobs())
        yield keep
        tried: set[tuple[int, ...]] = {()}
        for recompute in self._recomputes():
            if recompute not in tried:
                tried.add(recompute)
                yield self.trial("resident", Knobs(recompute=recompute))

    def _recomputes(self) -> list[tuple[int, ...]]:
        """Sets of stages to run again: of the exact frontier over the chain of stages."""
        extent = Extent(self.shape.num_nodes, self.shape.num_nodes, self.shape.num_edges)
        stages = [self._stage(stage, extent) for stage in self.workload.stages]
        points = list(frontier(stages))
        step = max(1, -(-len(points) // _RECOMPUTES))
        picked = [*points[::step], points[-1]]
        numbers = [stage.index for stage in self.workload.stages]
        return [
            tuple(n for n, name in zip(numbers, point.names, strict=True) if name == "recompute")
            for point in picked
        ]

    def _stage(self, stage: StageWork, extent: Extent) -> Stage:
        forward_s = self._seconds(stage, extent)
        kept, held = stage.kept.at(extent), stage.kept_held.at(extent)
        back = stage.backward_held.at(extent)
        bare = stage.forward_held.at(extent)
        return Stage(
            name=f"s{stage.index}",
            choices=(
                Choice(
                    name="keep",
                    seconds=0.0,
                    kept=(kept, 0, 0),
                    forward=(max(0, held - kept), 0, 0),
                    backward=(back, 0, 0),
                ),
                Choice(
                    name="recompute",
                    seconds=forward_s,
                    forward=(bare, 0, 0),
                    backward=(max(held, kept + back), 0, 0),
                ),
            ),
        )

    def _seconds(self, stage: StageWork, extent: Extent) -> float:
        evenness = self.shape.out_degrees.evenness
        return Costs(machine=self.machine, factors=dict(self.factors)).seconds(
            Action(
                index=0,
                rank=0,
                lane=Lane.COMPUTE,
                op=Op.FORWARD,
                work=works(stage.forward, extent, evenness, self.workload.dtype),
            )
        )

    # One device that others stand behind: parts or slices, and where they lie

    def _staged(self, name: str) -> Iterator[Trial]:
        """By dtype of storage: the nearest places for rows and edges that fit, then the others.

        Farther places are slower; they are tried when none nearer fits, or all of them when
        ``thorough``.
        """
        for storage in (None, *self.storage):
            for base in self._places(name):
                fits = False
                for trial in self._cuts(name, replace(base, storage=storage)):
                    fits |= trial.plan is not None
                    yield trial
                if fits and not self.thorough:
                    break

    def _may_fit(self, before: tuple[str, int] | None, short: tuple[str, int], more: int) -> bool:
        """Whether ``more`` finer cuts could fit, if each saved as large a share as the last did.

        Later ones save less, since what does not depend on the parts stays.
        """
        if before is None or before[0] != short[0]:
            return more > 0
        share = short[1] / before[1]
        room = self.machine.tier(short[0]).available_bytes
        return share < 1 and short[1] * share**more <= room

    def _places(self, name: str) -> list[Knobs]:
        kept = [Knobs()]
        ways = {"topology": ("host",), "gradients": ("buckets",), "tier": ("disk",)}
        if self.machine.disk is None:
            del ways["tier"]
        for knob, others in ways.items():
            if knob in KNOBS[name]:
                kept += [replace(knobs, **{knob: other}) for other in others for knobs in kept]
        return kept

    def _cuts(self, name: str, base: Knobs) -> Iterator[Trial]:
        """The fewest parts (or slices) that fit, and twice as many; the last refusal if none."""
        if name == "sliced":
            cuts = [replace(base, slices=n, parts=_BLOCKS * n) for n in _doubling(4, _MOST_SLICES)]
        else:
            most = min(_MOST_PARTS, max(2, self.shape.num_nodes))
            cuts = [replace(base, parts=n) for n in _doubling(2, most)]
        fitting, last, before = 0, None, None
        for i, knobs in enumerate(cuts):
            trial = self.trial(name, knobs)
            if trial.plan is None:
                last, short = trial, _short(trial)
                if short is None or not self._may_fit(before, short, len(cuts) - 1 - i):
                    break
                before = short
                continue
            yield trial
            fitting += 1
            if fitting == 2:
                return
        if not fitting and last is not None:
            yield last

    # Several devices

    def _ranks(self, name: str) -> Iterator[Trial]:
        base = Knobs(ranks=self.ranks)
        if name != "leo":
            yield self.trial(name, base)
            return
        for device in (0.0, 0.1, 0.25, 0.5, 1.0):
            for host in (0.0, 0.15):
                knobs = replace(base, device_cache_frac=device, host_cache_frac=host)
                if device + host <= 1.0:
                    yield self.trial(name, knobs)


def _doubling(first: int, last: int) -> Iterator[int]:
    while first <= last:
        yield first
        first *= 2


def _short(trial: Trial) -> tuple[str, int] | None:
    return None if trial.refused is None else trial.refused.short


def best(trials: Sequence[Trial]) -> Plan:
    """The fastest plan; of equals the first tried.

    Raises PlanError where none fits: what is short, of what, and the least change that would do.
    """
    fitting = [trial for trial in trials if trial.plan is not None]
    if not fitting:
        raise _refusal(trials)
    chosen = min(fitting, key=lambda trial: trial.seconds).plan
    assert chosen is not None
    return chosen


def _refusal(trials: Sequence[Trial]) -> PlanError:
    """The nearest miss of each tier, the nearest of all first."""
    nearest: dict[str, Trial] = {}
    for trial in sorted(trials, key=lambda one: (_short(one) or ("", 0))[1]):
        short = _short(trial)
        if short is not None:
            nearest.setdefault(short[0], trial)
    if not nearest:
        reasons = dict.fromkeys(str(trial.refused) for trial in trials)
        return PlanError("no strategy can plan this\n" + "\n".join(reasons))
    told, ways = [], []
    for tier, trial in nearest.items():
        assert trial.refused is not None
        needed = (_short(trial) or ("", 0))[1]
        told.append(trial.refused.problem)
        flag = {"device": "device_memory", "host": "host_memory"}.get(tier, tier)
        by = f"{trial.strategy} {trial.knobs}"
        ways.append(f"{flag} of {needed:,} bytes ({format_bytes(needed)}), by {by}")
    error = PlanError("no plan fits\n" + "\n".join(told), hint="\n  or:  ".join(ways))
    error.short = next(_short(trial) for trial in nearest.values())
    return error


def undominated(trials: Sequence[Trial]) -> list[Trial]:
    """Those that no other beats in seconds and in bytes of every tier, fastest first."""
    fitting = [trial for trial in trials if trial.plan is not None]
    if not fitting:
        return []
    costs = np.array([_costs_of(trial) for trial in fitting])
    kept = sorted(pareto.undominated(costs).tolist(), key=lambda i: tuple(costs[i]))
    return [fitting[i] for i in kept]


def _costs_of(trial: Trial) -> tuple[float, ...]:
    assert trial.plan is not None
    held = trial.plan.peak_bytes
    return (trial.seconds, *(float(held.get(tier, 0)) for tier in ("device", "host", "disk")))


def comparison(trials: Sequence[Trial]) -> list[tuple[str, ...]]:
    """Rows for people: strategy, knobs, seconds, busiest lane, bytes by tier, or why refused."""
    rows = []
    for trial in trials:
        if trial.plan is None:
            rows.append((trial.strategy, str(trial.knobs), "refused", "", "", "", ""))
            continue
        held = trial.plan.peak_bytes
        tiers = (
            format_bytes(held[tier]) if held.get(tier) else "-"
            for tier in ("device", "host", "disk")
        )
        rows.append(
            (
                trial.strategy,
                str(trial.knobs),
                format_seconds(trial.seconds),
                trial.plan.bottleneck,
                *tiers,
            )
        )
    return rows
