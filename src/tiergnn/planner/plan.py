"""Plan: one decision, frozen and printable: a strategy, its knobs, and what they were decided for.

Everything else follows from it and is computed when asked for: the schedule, what it holds in each
tier, its predicted timeline. So a plan is small on disk, and can be asked how it would do on
another machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from tiergnn import frozen
from tiergnn.errors import ConfigError, PlanError, unknown
from tiergnn.graph.shape import GraphShape, Layout
from tiergnn.hardware.machine import TIERS, Machine
from tiergnn.hardware.presets import resolve
from tiergnn.planner.cost import Costs
from tiergnn.planner.simulate import least_s, simulate
from tiergnn.planner.strategies.fitting import Fitting
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.planner.strategies.known import SIZED, STRATEGIES
from tiergnn.schedule.check import check, peaks
from tiergnn.schedule.schedule import Schedule
from tiergnn.schedule.timeline import Timeline
from tiergnn.units import format_bytes, format_seconds
from tiergnn.workload import Workload

FORMAT = "tiergnn-plan"
VERSION = 1


class Least(NamedTuple):
    """Seconds that a plan takes at least, and tier -> the most bytes that it holds there."""

    seconds: float
    peak_bytes: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan:
    """How to train ``workload`` on a graph of this shape with a machine.

    ``machine`` holds the budgets that were given; ``factors`` are what measured runs taught of its
    costs. ``notes`` tell what was assumed. ``scratch`` is the folder on the disk tier.
    """

    strategy: str
    knobs: Knobs
    workload: Workload
    shape: GraphShape
    layout: Layout
    machine: Machine
    factors: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    scratch: str = ""

    def __post_init__(self) -> None:
        """Raises ConfigError where what it was decided for contradicts itself."""
        if self.strategy not in STRATEGIES:
            raise unknown("strategy", self.strategy, STRATEGIES)
        _ = self.costs
        for name, wanted in (("rows", self.shape.num_nodes), ("edges", self.shape.num_edges)):
            found = sum(getattr(part, name) for part in self.layout.parts)
            if found != wanted:
                raise ConfigError(
                    f"layout.parts: wanted {wanted} {name} in all, as the shape has, had {found}"
                )

    @cached_property
    def schedule(self) -> Schedule:
        """One training step, proven. Raises PlanError where it does not fit the machine."""
        if self.fitting is None:
            write = STRATEGIES[self.strategy]
            made = write(self.workload, self.shape, self.layout, self.machine, self.knobs)
        else:
            made = self.fitting.write()
        vars(self).pop("fitting", None)  # which writes nothing more, and cannot be pickled
        check(made, self.machine)
        return made

    @cached_property
    def fitting(self) -> Fitting | None:
        """What sizing tells before there is a schedule; None of a strategy that is not sized.
        Raises PlanError where it does not fit the machine."""
        if self.strategy not in SIZED:
            return None
        size = SIZED[self.strategy]
        return size(self.workload, self.shape, self.layout, self.machine, self.knobs)

    @cached_property
    def least(self) -> Least | None:
        """What is known before there is a schedule; raises as ``fitting``."""
        if self.fitting is None:
            return None
        sized, peak_bytes = self.fitting.sized, dict[str, int]()
        for (_, tier), (num_bytes, _) in sized.held.items():
            peak_bytes[tier] = max(num_bytes, peak_bytes.get(tier, 0))
        return Least(least_s(sized.done, self.machine, self.costs), peak_bytes)

    def check_room(self) -> None:
        """Raises PlanError where it does not fit the machine; sooner than ``schedule`` where its
        strategy can be sized."""
        if self.fitting is None:
            _ = self.schedule

    def check_graph(self, num_nodes: int, num_edges: int) -> None:
        """Raises PlanError for a graph of other counts than the plan's."""
        planned = (self.shape.num_nodes, self.shape.num_edges)
        if planned != (num_nodes, num_edges):
            raise PlanError(
                f"the plan is for {planned[0]:,} nodes and {planned[1]:,} edges, the graph has "
                f"{num_nodes:,} and {num_edges:,}",
                hint="tiergnn.plan(graph, model)",
            )

    @property
    def costs(self) -> Costs:
        return Costs(machine=self.machine, factors=self.factors)

    @cached_property
    def timeline(self) -> Timeline:
        """The predicted timeline of one training step."""
        return simulate(self.schedule, self.machine, self.costs)

    @property
    def seconds(self) -> float:
        """Predicted, of one training step."""
        return self.timeline.seconds

    @property
    def bottleneck(self) -> str:
        """The busiest lane."""
        return self.timeline.bottleneck

    @cached_property
    def held(self) -> dict[str, dict[str, int]]:
        """tier -> kind -> bytes at the fullest moment of the tier; of the fullest rank."""
        fullest: dict[str, tuple[int, dict[str, int]]] = {}
        for (_, tier), found in peaks(self.schedule).items():
            fullest[tier] = max(fullest.get(tier, (-1, {})), found, key=lambda one: one[0])
        return {tier: fullest[tier][1] for tier in TIERS if tier in fullest}

    @property
    def peak_bytes(self) -> dict[str, int]:
        """tier -> the most bytes ever held there, by the fullest rank."""
        return {tier: sum(kinds.values()) for tier, kinds in self.held.items()}

    def on(self, machine: Machine | str | Path) -> Plan:
        """The same decision on another machine, a preset's name or a JSON file; what was learned of
        this one is dropped, and so are budgets. Raises as ``hardware.presets.resolve``."""
        found = machine if isinstance(machine, Machine) else resolve(machine)
        return replace(self, machine=found, factors={})

    def explain(self) -> str:
        """For people: bytes per tier and kind, predicted seconds, what bounds them."""
        exact = "counted" if self.layout.exact else "expected of random parts"
        lines = [
            f"{self.strategy} {self.knobs} on {self.machine.name}",
            f"  predicted {format_seconds(self.seconds)} a step; the busiest lane is "
            f"{self.bottleneck}",
        ]
        if names := self.workload.prepared:
            kinds = (self.workload.row_kind(name) for name in names)
            widths = ", ".join(str(kind.width) for kind in kinds)
            lines.append(
                f"  prepared once, of the graph and its features: rows of {widths} numbers"
            )
        if self.layout.num_parts > 1:
            lines.append(f"  {self.layout.num_parts} parts ({self.layout.method}), {exact}")
        for tier, kinds in self.held.items():
            room = format_bytes(self.machine.tier(tier).available_bytes)
            lines.append(f"  {tier}: {format_bytes(sum(kinds.values()))} of {room}")
            lines += [f"    {kind:<12}{format_bytes(n):>12}" for kind, n in kinds.items() if n]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    def __str__(self) -> str:
        return self.explain()

    def __repr__(self) -> str:
        return (
            f"<Plan {self.strategy} {self.knobs} of {self.workload.name} "
            f"on {self.machine.name}: print it>"
        )

    def save(self, path: str | Path) -> None:
        """Raises StoreError when the file cannot be written."""
        frozen.save(path, FORMAT, VERSION, self)

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Raises StoreError for a file that cannot be read, ConfigError for anything else in it."""
        return frozen.load(cls, path, FORMAT, VERSION)
