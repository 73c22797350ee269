"""Choose: every strategy tried with the knobs that may pay, and the fastest plan that fits."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from tiergnn.errors import ConfigError, PlanError, unknown
from tiergnn.graph.shape import GraphShape, Layout, expected_layout
from tiergnn.hardware.machine import Machine
from tiergnn.planner import pareto
from tiergnn.planner.caching import caches
from tiergnn.planner.cost import Costs
from tiergnn.planner.keeping import recomputes
from tiergnn.planner.plan import Least, Plan
from tiergnn.planner.refusal import refusal
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.planner.strategies.known import KNOBS, STRATEGIES, TRIED
from tiergnn.planner.ways import staged
from tiergnn.units import format_bytes, format_seconds
from tiergnn.workload import Extent, Workload

ON_ONE = ("resident", "sliced", "grinnder", "hongtu")
ON_SEVERAL = ("halo", "leo", "nfp", "mgg", "uva")
_RECOMPUTES = 12  # sets of stages tried, spread over the frontier
_RECOMPUTES_OF_RANKS = 4


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One strategy with its knobs: a plan that fits, or why it is none. One that another beats
    whatever the clock says (``least`` is known of it) was neither written nor clocked."""

    tried: Plan
    refused: PlanError | None = None
    least: Least | None = None

    @property
    def strategy(self) -> str:
        return self.tried.strategy

    @property
    def knobs(self) -> Knobs:
        return self.tried.knobs

    @property
    def plan(self) -> Plan | None:
        return self.tried if self.refused is None else None

    @property
    def fits(self) -> bool:
        """A plan, or what would be one if none beat it."""
        return self.refused is None or self.least is not None

    @property
    def text(self) -> str:
        """What was tried, after the strategy's name."""
        return f"{self.knobs} prepared" if self.tried.workload.prepared else str(self.knobs)

    @property
    def seconds(self) -> float:
        return self.tried.seconds if self.refused is None else float("inf")

    @property
    def peak_bytes(self) -> Mapping[str, int]:
        """Of one that fits."""
        return self.tried.peak_bytes if self.least is None else self.least.peak_bytes


@dataclass(frozen=True, kw_only=True)
class Rivals:
    """The plans of one device that were clocked. ``frontier``: fewer bytes count, too."""

    frontier: bool
    clocked: list[Trial] = field(default_factory=list)

    def lost(self, plan: Plan) -> Trial | None:
        """The trial of a plan that one of them is known to beat. Raises PlanError where it does not
        fit."""
        if plan.least is None:
            return None
        seconds, peak_bytes = plan.least
        for trial in self.clocked:
            smaller = not self.frontier or _within(trial.peak_bytes, peak_bytes)
            if smaller and trial.seconds < seconds:
                error = PlanError(
                    f"{plan.strategy} takes {format_seconds(seconds)} or more, {trial.strategy} "
                    f"{trial.text} {format_seconds(trial.seconds)}: not written"
                )
                return Trial(tried=replace(plan), refused=error, least=plan.least)
        return None


def _within(held: Mapping[str, int], room: Mapping[str, int]) -> bool:
    """Whether bytes by tier are nowhere more than others."""
    return all(num_bytes <= room.get(tier, 0) for tier, num_bytes in held.items())


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the garbage collector, which walks over all actions again and again (a third of the
    time) and finds nothing: they are in no circles."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@dataclass(frozen=True, kw_only=True)
class Choosing:
    """All that a choice is made from. ``layout_of`` gives the graph in so many parts, with so many
    hot rows counted.

    ``storage`` names dtypes that rows may be stored in off the device, at the price of exactness;
    without any, every plan gives the numbers of one device. ``hot_frac`` of the rows stay on the
    device, of the strategies that can; None: what pays is looked for. ``thorough`` tries the slow
    places too, for a frontier; with ``fewer`` plans may leave some of the ranks out. ``prepared``
    is the workload where rows that the graph and its features decide are made once, if there are
    any.
    """

    workload: Workload
    shape: GraphShape
    machine: Machine
    ranks: int = 1
    factors: tuple[tuple[str, float], ...] = ()
    storage: tuple[str, ...] = ()
    hot_frac: float | None = None
    prepared: Workload | None = None
    layout_of: Callable[[int, float], Layout] | None = None
    notes: tuple[str, ...] = ()
    scratch: str = ""  # the folder on the disk tier, for the plans that use it
    thorough: bool = False
    fewer: bool = False
    most_parts: int = 64  # what they pass to each other grows with their square
    most_slices: int = 32

    def layout(self, num_parts: int, hot_frac: float = 0.0) -> Layout:
        """The graph in so many parts, counted or drawn up once."""
        if self.layout_of is None:
            hot_frac = 0.0  # expected of any layout
        if (num_parts, hot_frac) not in self._layouts:
            self._layouts[num_parts, hot_frac] = (
                expected_layout(self.shape, num_parts)
                if self.layout_of is None
                else self.layout_of(num_parts, hot_frac)
            )
        return self._layouts[num_parts, hot_frac]

    @cached_property
    def _layouts(self) -> dict[tuple[int, float], Layout]:
        return {}

    def trial(
        self,
        name: str,
        knobs: Knobs,
        workload: Workload | None = None,
        rivals: Rivals | None = None,
    ) -> Trial:
        """Write, prove and clock one plan, unless one of its rivals is known to beat it; it is one
        of them then."""
        plan = self._plan(name, knobs, workload)
        try:
            lost = rivals and rivals.lost(plan)
            if lost:
                return lost
            _ = plan.timeline
        except PlanError as error:
            return Trial(tried=plan, refused=error)
        trial = Trial(tried=plan)
        if rivals is not None:
            rivals.clocked.append(trial)
        return trial

    def lost(self, name: str, knobs: Knobs, rivals: Rivals) -> Trial | None:
        """A trial, where it is refused or one of its rivals is known to beat it."""
        plan = self._plan(name, knobs, None)
        try:
            return rivals.lost(plan)
        except PlanError as error:
            return Trial(tried=plan, refused=error)

    def _plan(self, name: str, knobs: Knobs, workload: Workload | None) -> Plan:
        return Plan(
            strategy=name,
            knobs=knobs,
            workload=workload or self.workload,
            shape=self.shape,
            layout=self.layout(max(knobs.parts, knobs.ranks), knobs.hot_frac),
            machine=self.machine,
            factors=dict(self.factors),
            notes=self.notes,
            scratch=self.scratch,
        )

    @property
    def counts(self) -> tuple[int, ...]:
        """How many ranks are tried: ``ranks``, and 1, 2, 4, ... below it where ``fewer`` may be."""
        if not self.fewer:
            return (self.ranks,)
        return (*(2**i for i in range((self.ranks - 1).bit_length())), self.ranks)

    def trials(self, strategies: Sequence[str] = ()) -> list[Trial]:
        """All that are worth trying, in the order in which they were tried.

        Of several numbers of ranks each has its strategies: those of one device, those of several.
        """
        for name in strategies:
            if name not in STRATEGIES:
                raise unknown("strategy", name, STRATEGIES)
        able = [name for name in STRATEGIES if not self.hot_frac or "hot_frac" in KNOBS[name]]
        found, rivals = [], Rivals(frontier=self.thorough or self.fewer)
        with _uncollected():
            for count in self.counts:
                known = ON_ONE if count == 1 else ON_SEVERAL
                if strategies and not self.fewer:
                    known = tuple(strategies)  # what does not go with the number of ranks says so
                for name in known:
                    if name in able and (not strategies or name in strategies):
                        found += self._of(name, count, rivals)
        if self.hot_frac and not found:
            tried = strategies[0] if strategies else f"no strategy of {self.ranks} ranks"
            raise ConfigError(
                f"{tried} has {'no ' * bool(strategies)}hot rows",
                hint=f"{' or '.join(able)} on one rank, or no hot_frac",
            )
        return found

    def _of(self, name: str, ranks: int, rivals: Rivals) -> Iterator[Trial]:
        if name == "resident":
            return self._resident(rivals)
        return staged(self, name, rivals) if name in ON_ONE else self._ranked(name, ranks)

    def _resident(self, rivals: Rivals) -> Iterator[Trial]:
        """Everything on one device: all is kept, or some stages run again; rows are prepared, or,
        as that takes memory, not."""
        nodes, edges = self.shape.num_nodes, self.shape.num_edges
        extent = Extent(nodes, nodes, edges)
        for workload in filter(None, (self.prepared, self.workload)):
            for recompute in self._recomputes(workload, extent, _RECOMPUTES):
                yield self.trial("resident", Knobs(recompute=recompute), workload, rivals)

    def _ranked(self, name: str, ranks: int) -> Iterator[Trial]:
        """One part a rank; stages run again where keeping everything does not fit, or when
        ``thorough``. Of a strategy with caches with those that pay in the room that is left; of
        one that keeps inputs of others without them, too."""
        part = max(self.layout(ranks).parts, key=lambda one: one.edges)
        extent = Extent(part.rows, part.sources, part.edges)
        for dtype in (None, *(self.storage if "storage" in KNOBS[name] else ())):
            for recompute in self._recomputes(self.workload, extent, _RECOMPUTES_OF_RANKS):
                knobs = Knobs(ranks=ranks, storage=dtype, recompute=recompute)
                bare = self.trial(name, knobs)
                yield bare
                if "keep_inputs" in KNOBS[name] and self.workload.gathered_inputs:
                    yield self.trial(name, replace(knobs, keep_inputs=False))
                if bare.plan is None:
                    continue
                if "device_cache_frac" in KNOBS[name]:
                    yield from self._cached(bare.plan)
                if not self.thorough:
                    break

    def _cached(self, bare: Plan) -> Iterator[Trial]:
        """A plan without caches with those that pay, and the fastest of them otherwise."""
        tried = [self.trial(bare.strategy, knobs) for knobs in caches(bare)]
        yield from tried
        fitting = [trial for trial in tried if trial.plan is not None]
        if not fitting:
            return
        found = min(fitting, key=lambda trial: trial.seconds)
        for knob, values in TRIED.get(bare.strategy, {}).items():
            for value in values:
                other = self.trial(bare.strategy, replace(found.knobs, **{knob: value}))
                if other.plan is None or other.tried.schedule != found.tried.schedule:
                    yield other

    def _recomputes(self, workload: Workload, extent: Extent, most: int) -> list[tuple[int, ...]]:
        """Sets of stages to run again, none of them first."""
        costs = Costs(machine=self.machine, factors=dict(self.factors))
        evenness = self.shape.out_degrees.evenness
        found = recomputes(workload, extent, evenness, costs, most)
        return list(dict.fromkeys([(), *found]))


def best(trials: Sequence[Trial], *, has_disk: bool = True) -> Plan:
    """The fastest plan; of equals the first tried.

    Raises PlanError where none fits: what is short, of what, and the least change that would do.
    """
    fitting = [trial for trial in trials if trial.plan is not None]
    if not fitting:
        raise refusal(trials, has_disk=has_disk)
    chosen = min(fitting, key=lambda trial: trial.seconds).plan
    assert chosen is not None
    return chosen


def undominated(trials: Sequence[Trial]) -> list[Trial]:
    """Those that no other beats in seconds, bytes of every tier and ranks, fastest first."""
    fitting = [trial for trial in trials if trial.plan is not None]
    if not fitting:
        return []
    costs = np.array([_costs_of(trial) for trial in fitting])
    kept = sorted(pareto.undominated(costs).tolist(), key=lambda i: tuple(costs[i]))
    return [fitting[i] for i in kept]


def _costs_of(trial: Trial) -> tuple[float, ...]:
    assert trial.plan is not None
    held = trial.plan.peak_bytes
    tiers = (float(held.get(tier, 0)) for tier in ("device", "host", "disk"))
    return (trial.seconds, *tiers, float(trial.knobs.ranks))


def comparison(trials: Sequence[Trial]) -> list[tuple[str, ...]]:
    """Rows for people: strategy, knobs, seconds, busiest lane, bytes by tier, or that refused."""
    rows = []
    for trial in trials:
        if not trial.fits:
            rows.append((trial.strategy, trial.text, "refused", "", "", "", ""))
            continue
        held, known = trial.peak_bytes, trial.least
        tiers = (
            format_bytes(held[tier]) if held.get(tier) else "-"
            for tier in ("device", "host", "disk")
        )
        rows.append(
            (
                trial.strategy,
                trial.text,
                f">= {format_seconds(known.seconds)}" if known else format_seconds(trial.seconds),
                "" if known else trial.tried.bottleneck,
                *tiers,
            )
        )
    return rows
