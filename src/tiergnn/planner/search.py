"""Search: the plans of a chain of stages that no other beats in seconds and in bytes of every tier.

Every stage has choices. What a choice holds has one of three lives:

    lasting   the whole step: parameters, caches, rows that stay
    kept      from the stage's forward to its backward
    forward, backward   while that pass of the stage runs, beyond the above

Forward runs the stages in order, backward in reverse, so while stage i runs, either way, what the
stages up to i keep is there, and the peak of a tier is

    sum of lasting + max over i of (kept of stages 0..i + max(forward, backward) of stage i).

Peaks do not add up, but they build up from the last stage to the first: with P the peak of stages
i.. alone, P_i = kept_i + max(work_i, P_i+1). So (seconds, P, lasting) of the stages from i on is
all that the stages before need to know, and a state that is no better in any of them can go.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np

from tiergnn.errors import ConfigError, PlanError, unknown
from tiergnn.hardware.machine import TIERS
from tiergnn.planner.chain import Beam, Limits, Table, Walk, prices_of, walk
from tiergnn.planner.pareto import undominated
from tiergnn.units import format_bytes

_NONE = (0,) * len(TIERS)
_BEAMS = (300, 3_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One way to run a stage; bytes by ``TIERS`` (device, host, disk)."""

    name: str
    seconds: float
    lasting: tuple[int, ...] = _NONE
    kept: tuple[int, ...] = _NONE
    forward: tuple[int, ...] = _NONE
    backward: tuple[int, ...] = _NONE

    def __post_init__(self) -> None:
        for held in (self.lasting, self.kept, self.forward, self.backward):
            if len(held) != len(TIERS) or min(held) < 0:
                raise ConfigError(
                    f"bytes are 0 or more in each of {', '.join(TIERS)}; had {held}",
                    culprit=f"choice {self.name}",
                )
        if not 0 <= self.seconds < math.inf:
            raise ConfigError(f"choice {self.name} takes {self.seconds} seconds")

    @property
    def work(self) -> tuple[int, ...]:
        """Bytes of the larger pass."""
        return tuple(max(pair) for pair in zip(self.forward, self.backward, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage and its choices.

    ``turn_s[a][b]`` are the seconds that choice b costs more after choice a of the stage before
    (rows that change their tier or dtype); inf excludes the pair. Empty: nothing, ever.
    """

    name: str
    choices: tuple[Choice, ...]
    turn_s: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Budgets:
    """Bytes of each tier that a plan may hold; None: any."""

    device: int | None = None
    host: int | None = None
    disk: int | None = None

    def __post_init__(self) -> None:
        if any(b is not None and b < 0 for b in (self.device, self.host, self.disk)):
            raise ConfigError(f"budgets are 0 bytes or more, had {self}")

    @property
    def most(self) -> np.ndarray:
        """float64 by ``TIERS``; inf where any is allowed."""
        budgets = (self.device, self.host, self.disk)
        return np.array([math.inf if b is None else b for b in budgets], np.float64)

    def but(self, tiers: str | Sequence[str], num_bytes: int | None) -> Budgets:
        """With other budgets for one tier, or for some."""
        names = (tiers,) if isinstance(tiers, str) else tiers
        return replace(self, **dict.fromkeys(names, num_bytes))

    def within(self, other: Budgets) -> Budgets:
        """The smaller budget of each tier."""
        least = np.minimum(self.most, other.most)
        return Budgets(*(int(b) if math.isfinite(b) else None for b in least.tolist()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A plan of the frontier; ``picks`` are the places of its choices, one a stage."""

    seconds: float
    device_bytes: int
    host_bytes: int
    disk_bytes: int
    picks: tuple[int, ...]
    names: tuple[str, ...]

    @property
    def tier_bytes(self) -> tuple[int, int, int]:
        return (self.device_bytes, self.host_bytes, self.disk_bytes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Frontier:
    """The points that no other beats, fastest first: seconds [M], held bytes [M, 3], picks [M, N].

    Exact, but for ``thin`` above 0: then to every plan within ``budgets`` / (1 + thin) there is a
    point with at most (1 + thin) times its seconds and its bytes in every tier.
    """

    stages: tuple[Stage, ...]
    budgets: Budgets
    thin: float
    seconds: np.ndarray
    held: np.ndarray
    picks: np.ndarray = field(repr=False)

    def __len__(self) -> int:
        return self.seconds.size

    def __getitem__(self, index: int) -> Point:
        return self._point(range(len(self))[index])

    def __iter__(self) -> Iterator[Point]:
        return map(self._point, range(len(self)))

    def _point(self, index: int) -> Point:
        picks = tuple(self.picks[index].tolist())
        device, host, disk = map(int, self.held[index])
        return Point(
            seconds=float(self.seconds[index]),
            device_bytes=device,
            host_bytes=host,
            disk_bytes=disk,
            picks=picks,
            names=tuple(
                stage.choices[pick].name for stage, pick in zip(self.stages, picks, strict=True)
            ),
        )


def frontier(
    stages: Sequence[Stage], *, budgets: Budgets | None = None, thin: float = 0.0
) -> Frontier:
    """The Pareto set over seconds and bytes of each tier, of all plans within ``budgets``.

    Of plans that are equal in all of these, one. Raises ConfigError for stages that are none and
    PlanError when an exact search would hold too many states.
    """
    stages, budgets = tuple(stages), budgets or Budgets()
    if not 0 <= thin < math.inf:
        raise ConfigError(f"thin is 0 or more, had {thin}")
    tables = _tables(stages)
    limits = Limits.of(np.append(math.inf, budgets.most), tables)
    return _frontier(stages, budgets, walk(tables, limits, thin=thin), thin)


def fastest(plans: Frontier | Sequence[Stage], budgets: Budgets) -> Point:
    """The fastest plan within the budgets, exactly: of a frontier, or straight from the stages.

    From the stages it takes no frontier: a beam at the prices of the linear relaxation finds a
    good plan, and the search is then exact among what may be as fast. Raises PlanError when no plan
    fits: wanted, had, the largest consumer, and the smallest change that would do.
    """
    if isinstance(plans, Frontier):
        inside = np.flatnonzero((plans.held <= budgets.most).all(axis=1))
        if inside.size:
            return plans[int(inside[0])]
        plans, budgets = plans.stages, budgets.within(plans.budgets)
    stages = tuple(plans)
    found = least(stages, budgets, "seconds")
    if found is None:
        raise _impossible(stages, budgets)
    return found


def curve(
    stages: Sequence[Stage], budgets: Budgets, tier: str = "device", num_points: int = 24
) -> tuple[Point, ...]:
    """Points of the frontier of seconds over one tier's bytes, the other tiers within budgets.

    Each is the exact fastest plan for one of so many budgets of the tier, evenly from the least
    that works to what the fastest plan holds. Fastest first. Raises PlanError as ``fastest`` does.
    """
    top = fastest(stages, budgets)
    place = _place(tier)
    low = least(stages, budgets, tier)
    assert low is not None  # a plan fits
    spread = np.linspace(low.tier_bytes[place], top.tier_bytes[place], num_points)
    points = [fastest(stages, budgets.but(tier, int(held))) for held in np.floor(spread)]
    unique = {(point.seconds, point.tier_bytes[place]): point for point in (*points, top)}
    costs = np.array(list(unique))
    return tuple(list(unique.values())[i] for i in undominated(costs))


def least(stages: Sequence[Stage], budgets: Budgets, goal: str) -> Point | None:
    """The plan within the budgets with the least "seconds", or bytes of a tier; None if none fits.

    Of several the first found: only the goal is the least there is.
    """
    stages = tuple(stages)
    tables = _tables(stages)
    at = 0 if goal == "seconds" else 1 + _place(goal)
    if at:  # seconds do not matter then, but excluded pairs do
        tables = [
            replace(t, seconds=0 * t.seconds, turn=np.where(np.isfinite(t.turn), 0.0, np.inf))
            for t in tables
        ]
    most = np.append(math.inf, budgets.most)
    free = np.flatnonzero(~np.isfinite(most[1:]) & (np.arange(1, most.size) != at))
    tables = [t.without(free) for t in tables]
    prices = prices_of(tables, most, at)
    found = None
    for width in _BEAMS:
        tried = walk(tables, Limits.of(most, tables, prices), beam=Beam(width, prices))
        if len(tried.seconds):
            found, most[at] = tried, float(tried.costs[:, at].min())
    exact = walk(tables, Limits.of(most, tables, prices))
    found = exact if len(exact.seconds) else found
    if found is None:
        return None
    return point_of(stages, found.picks[int(found.costs[:, at].argmin())])


def point_of(stages: Sequence[Stage], picks: Sequence[int] | np.ndarray) -> Point:
    """What the plan of these choices, one a stage, takes and holds. Excluded pairs take inf."""
    chosen = [stage.choices[pick] for stage, pick in zip(stages, picks, strict=True)]
    seconds = 0.0
    for i in reversed(range(len(chosen))):  # in the order in which the search adds
        last = i + 1 == len(chosen) or not stages[i + 1].turn_s
        turn = 0.0 if last else stages[i + 1].turn_s[picks[i]][picks[i + 1]]
        seconds += chosen[i].seconds + turn
    device, host, disk = (_peak(chosen, tier)[0] for tier in range(len(TIERS)))
    return Point(
        seconds=seconds,
        device_bytes=device,
        host_bytes=host,
        disk_bytes=disk,
        picks=tuple(map(int, picks)),
        names=tuple(choice.name for choice in chosen),
    )


def _peak(chosen: Sequence[Choice], tier: int) -> tuple[int, int]:
    """The most bytes that a tier holds, and at which stage."""
    lasting = sum(choice.lasting[tier] for choice in chosen)
    kept = accumulate(choice.kept[tier] for choice in chosen)
    phases = [held + choice.work[tier] for held, choice in zip(kept, chosen, strict=True)]
    most = max(phases)
    return lasting + most, phases.index(most)


def _place(tier: str) -> int:
    if tier not in TIERS:
        raise unknown("tier", tier, TIERS)
    return TIERS.index(tier)


def _impossible(stages: tuple[Stage, ...], budgets: Budgets) -> PlanError:
    """Why no plan fits: the budget that has to grow by the smallest share, or all that have to."""
    had = budgets.most
    asked = [tier for tier in TIERS if math.isfinite(had[_place(tier)])]
    alone = {tier: least(stages, budgets.but(tier, None), tier) for tier in asked}
    enough = {tier: point for tier, point in alone.items() if point}
    if enough:
        need = {tier: point.tier_bytes[_place(tier)] for tier, point in enough.items()}
        first = min(need, key=lambda tier: (need[tier] / max(1, had[_place(tier)]), need[tier]))
        changes = sorted(need, key=lambda tier: tier != first)
        hint = ", or ".join(f"a {tier} budget of {_exact(need[tier])}" for tier in changes)
        return _refusal(stages, enough[first], first, had, hint)
    grown, last = budgets, None
    for tier in asked:  # none alone will do: the least of the first, then of the next beside it
        later = asked[asked.index(tier) + 1 :]
        last = least(stages, grown.but(tier, None).but(later, None), tier)
        if last is None:
            return PlanError(
                "no plan is allowed, whatever the budgets: every chain of choices has a pair that "
                "is excluded"
            )
        grown = grown.but(tier, max(int(had[_place(tier)]), last.tier_bytes[_place(tier)]))
    if last is None:
        return PlanError("no plan is allowed: every chain of choices has a pair that is excluded")
    short = [tier for tier in asked if grown.most[_place(tier)] > had[_place(tier)]]
    hint = " and ".join(
        f"a {tier} budget of {_exact(int(grown.most[_place(tier)]))}" for tier in short
    )
    return _refusal(stages, last, short[0], had, hint)


def _refusal(
    stages: tuple[Stage, ...], point: Point, tier: str, had: np.ndarray, hint: str
) -> PlanError:
    place = _place(tier)
    chosen = [stage.choices[pick] for stage, pick in zip(stages, point.picks, strict=True)]
    _, at = _peak(chosen, place)
    parts = [
        (bytes_, f"stage {stage.name} ({choice.name}), {what}")
        for i, (stage, choice) in enumerate(zip(stages, chosen, strict=True))
        for bytes_, what in (
            (choice.lasting[place], "held all step"),
            (choice.kept[place] if i <= at else 0, "kept for backward"),
            (choice.work[place] if i == at else 0, "while it runs"),
        )
    ]
    largest = max(parts, key=lambda part: part[0])
    return PlanError(
        f"{tier} tier needs {_exact(point.tier_bytes[place])} at the least, "
        f"has {_exact(int(had[place]))}",
        culprit=f"largest: {largest[1]}, {_exact(largest[0])}",
        hint=hint,
    )


def _exact(num_bytes: int) -> str:
    """Rounded for people, and as it would have to be asked for."""
    return f"{format_bytes(num_bytes)} ({num_bytes} bytes)"


def _frontier(stages: tuple[Stage, ...], budgets: Budgets, found: Walk, thin: float) -> Frontier:
    return Frontier(
        stages=stages,
        budgets=budgets,
        thin=thin,
        seconds=found.seconds,
        held=found.held.astype(np.int64),
        picks=found.picks,
    )


def _tables(stages: tuple[Stage, ...]) -> list[Table]:
    """Raises ConfigError for stages that are none."""
    if not stages or not all(stage.choices for stage in stages):
        raise ConfigError("a search needs one stage or more, each with one choice or more")
    for before, stage in zip((None, *stages), stages, strict=False):
        rows = len(before.choices) if before else 0
        shape = [len(row) for row in stage.turn_s]
        if stage.turn_s and shape != [len(stage.choices)] * rows:
            raise ConfigError(
                f"turn_s needs {rows} rows of {len(stage.choices)}, had rows of {shape}",
                culprit=f"stage {stage.name}",
            )
        if any(not turn >= 0 for row in stage.turn_s for turn in row):
            raise ConfigError("turn_s are 0 or more", culprit=f"stage {stage.name}")
    return [_table(stage) for stage in stages]


def _table(stage: Stage) -> Table:
    def column(name: str) -> np.ndarray:
        return np.array([getattr(choice, name) for choice in stage.choices], np.float64)

    turn = np.array(stage.turn_s or [[0.0] * len(stage.choices)], np.float64)
    return Table(column("seconds"), column("lasting"), column("kept"), column("work"), turn)
