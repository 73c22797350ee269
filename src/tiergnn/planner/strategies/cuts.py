"""Cuts: how a tensor is cut by columns, and where its slices lie."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise

from tiergnn.errors import PlanError
from tiergnn.hardware.machine import TIERS
from tiergnn.planner.strategies.draft import Draft
from tiergnn.schedule.contents import Content, What
from tiergnn.schedule.schedule import Schedule
from tiergnn.workload import StageWork


@dataclass(slots=True)
class Cut:
    """A tensor in slices: columns of each, the tier in which it lies, and the buffers that are
    there, by the number of a slice and a block (-1: all rows)."""

    of: str  # the tensor whose widths it has
    kind: str
    columns: tuple[int, ...]
    tiers: tuple[str, ...]
    given: bool
    homes: dict[tuple[int, int], str] = field(default_factory=dict)
    awaited: tuple[int, int] | None = None  # a slice, or a block (-1: all), still to be written
    spans: list[tuple[int, int]] = field(init=False)  # first column of each and the next one's
    within: dict[str, list[int]] = field(init=False)  # tier -> its slices, which are neighbours

    def __post_init__(self) -> None:
        self.spans = list(pairwise(accumulate(self.columns, initial=0)))
        self.within = {tier: [i for i, t in enumerate(self.tiers) if t == tier] for tier in TIERS}

    def at(self, index: int) -> tuple[int, int] | None:
        """The columns of a slice; None: all of them."""
        return None if len(self.columns) == 1 else self.spans[index]

    def lacks(self, places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Those of which rows are still to be written."""
        if self.awaited is None:
            return []
        index, part = self.awaited
        return [(i, p) for i, p in places if index in (-1, i) and (part in (-1, p) or p < 0)]

    def of_tier(self, tier: str) -> tuple[int, int] | None:
        """The columns of all slices in a tier."""
        found = self.within[tier]
        if len(found) == len(self.tiers):
            return None
        before = sum(self.columns[: found[0]])
        return before, before + sum(self.columns[i] for i in found)


@lru_cache(maxsize=1 << 16)
def holding(name: str, part: int = -1, columns: tuple[int, int] | None = None) -> Content:
    """``h1`` or ``h1.grad``: of a block of rows, or of all."""
    of, dot, _ = name.rpartition(".grad")
    return Content(What.GRAD if dot else What.ROWS, of or name, part, columns=columns)


def units_of(draft: Draft) -> dict[str, int]:
    """Into how many units, columns or heads, tensors can be cut. Raises PlanError for a stage that
    does not take them by columns."""
    units: dict[str, int] = {}
    for stage in draft.workload.stages:
        if stage.kind != "graph":
            continue
        _check(draft, stage)
        names = [stage.gathers[0], *(n for n in stage.before if like(draft, stage, n))]
        for name in names:
            units[name] = min(units.get(name, draft.width(name)), draft.units(stage))
    return units | {name: draft.width(name) for name in draft.workload.prepared}


def _check(draft: Draft, stage: StageWork) -> None:
    if not stage.columnwise:
        raise PlanError(
            f"sliced: stage {stage.index} ({stage.op}) does not work on every column by itself",
            hint="the strategy grinnder",
        )
    edges = [n for n in (*stage.gathers, *stage.reads) if draft.of_edges(n)]
    if draft.knobs.topology == "turns" and not (stage.divisible and not edges):
        raise PlanError(
            f"sliced: stage {stage.index} ({stage.op}) takes edges both ways at once, or what "
            "they carry, and topology=turns has them one way at a time",
            hint="topology=host",
        )
    made = [n for n in stage.reads if draft.of_edges(n) and n not in draft.workload.inputs]
    if made:
        raise PlanError(
            f"sliced: stage {stage.index} reads rows of edges that another stage makes: {made[0]}",
            hint="the strategy grinnder",
        )


def like(draft: Draft, stage: StageWork, name: str) -> bool:
    """Whether rows are cut as those are that a stage gathers."""
    return draft.width(name) == draft.width(stage.gathers[0])


def slices_of(schedule: Schedule, limit: int) -> tuple[int, int]:
    """How many of ``limit`` slices on the device, and of the others in host memory, give inputs the
    places that they have in a schedule."""
    tiers: dict[str, list[str]] = {}
    for buffer in schedule.buffers:
        of = "" if buffer.holds is None else buffer.holds.of
        if buffer.given and of and buffer.name.startswith(f"{of}.c"):
            tiers.setdefault(of, []).append(buffer.tier)

    def least(places: Iterable[tuple[int, int]]) -> int:
        """With which each (many, all) has as many as that."""
        found = list(places)
        numbers = range(limit + 1)
        return next((n for n in numbers if all(int(n / limit * b) == a for a, b in found)), limit)

    device = [(found.count("device"), len(found)) for found in tiers.values()]
    host = [(found.count("host"), len(found) - found.count("device")) for found in tiers.values()]
    return least(device), least(host)
