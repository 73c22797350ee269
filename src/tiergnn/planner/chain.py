"""The chain behind ``search``: dynamic programming from the last stage to the first, as arrays.

A state is (seconds, peaks, lasting) of the stages from i on, peaks and lasting by tier; see
``search`` for why that is all that counts. It goes when another is no worse in everything, or when
no choice of the stages before keeps it within the limits.

Legend: C choices of a stage, M states, Q directions, T tiers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np

from tiergnn.errors import PlanError
from tiergnn.hardware.machine import TIERS
from tiergnn.planner.pareto import undominated

NUM_TIERS = len(TIERS)
_MOST_STATES = 2_000_000
_SLACK = 1e-9  # of sums in floating point: pruning errs on the side of keeping


@dataclass(frozen=True, slots=True)
class Table:
    """A stage: seconds [C], bytes [C, T], turn [C of the stage before (or 1), C] in seconds."""

    seconds: np.ndarray
    lasting: np.ndarray
    kept: np.ndarray
    work: np.ndarray
    turn: np.ndarray

    @property
    def costs(self) -> np.ndarray:
        """[C, 1 + T]: what a choice adds to seconds, and at least to what is held in the end."""
        return np.column_stack([self.seconds, self.kept + self.lasting])

    def without(self, tiers: np.ndarray) -> Table:
        """As if nothing were held in these tiers (by number): they add no states then."""
        lasting, kept, work = self.lasting.copy(), self.kept.copy(), self.work.copy()
        for held in (lasting, kept, work):
            held[:, tiers] = 0
        return Table(self.seconds, lasting, kept, work, self.turn)


@dataclass(frozen=True, slots=True)
class Limits:
    """``most`` [1 + T] seconds and bytes (inf: any), and the ``directions`` [Q, 1 + T] in which
    they are looked at: whatever the stages before choose, a weighted sum of what they add is at
    least the sum of each one's least, and with it the state's must be within that of ``most``.
    """

    most: np.ndarray
    directions: np.ndarray

    @classmethod
    def of(
        cls, most: np.ndarray, tables: Sequence[Table], prices: np.ndarray | None = None
    ) -> Limits:
        """Each limit by itself, mixes of them, and mixes near ``prices`` [1 + T] where given."""
        finite = np.isfinite(most)
        spread = sum((np.ptp(table.costs, axis=0) for table in tables), np.zeros(most.size))
        scale = np.where(spread > 0, spread, 1.0)
        mixes = [mix for mix in product(range(5), repeat=most.size) if sum(mix) == 4]
        directions = [np.eye(most.size), np.array(mixes, np.float64) / scale]
        if prices is not None:
            near = [(1.0,) if p in (0.0, 1.0) else (0.6, 1.0, 1.6) for p in prices.tolist()]
            directions.insert(0, prices * np.array(list(product(*near))))
        every = np.concatenate(directions)
        every = every[~every[:, ~finite].any(axis=1) & every.any(axis=1)]
        return cls(most, every)


@dataclass(frozen=True, slots=True)
class Beam:
    """Keep ``width`` states a stage, those of the least seconds and bytes at ``prices`` [1 + T]."""

    width: int
    prices: np.ndarray


@dataclass(frozen=True, slots=True)
class Walk:
    """Whole plans: seconds [M], held [M, T], and their choices, [M, stages]."""

    seconds: np.ndarray
    held: np.ndarray
    picks: np.ndarray

    @property
    def costs(self) -> np.ndarray:
        """[M, 1 + T]."""
        return np.column_stack([self.seconds, self.held])


def walk(
    tables: Sequence[Table],
    limits: Limits,
    *,
    thin: float = 0.0,
    beam: Beam | None = None,
) -> Walk:
    """The undominated plans within the limits, fastest first; some of them with a beam.

    ``thin``: of states within a small factor of each other one stays at each stage, and of plans
    within a larger one; all factors together are 1 + thin. Raises PlanError when there are more
    states than memory should hold.
    """
    grain = math.log1p(thin) / 2
    floors = _floors(tables, limits)
    idle = _idle(tables)
    states, first = np.zeros((1, 1 + 2 * NUM_TIERS)), np.zeros(1, np.int64)
    trail: list[tuple[np.ndarray, np.ndarray]] = []
    for i in reversed(range(len(tables))):
        turn = tables[i + 1].turn if i + 1 < len(tables) else np.zeros((1, 1))
        states, picks, back = _extend(tables[i], turn, states, first)
        if len(states) > _MOST_STATES:
            raise PlanError(
                f"an exact search would hold more than {_MOST_STATES:,} states",
                culprit=f"stage {i} of {len(tables)}",
                hint="tighter budgets, fewer choices, or thin=0.1 for a frontier within 10%",
            )
        states[:, 1 : 1 + NUM_TIERS] = np.maximum(states[:, 1 : 1 + NUM_TIERS], idle[i])
        keep = _within(states, picks, limits, floors[i])
        if beam:
            keep = keep[_cheapest(states[keep], beam)]
        keep = keep[_survivors(states[keep], picks[keep], tables[i].turn if i else None)]
        keep = keep[_apart(states[keep], picks[keep], grain / len(tables))]
        states, first = states[keep], picks[keep]
        trail.append((first, back[keep]))
    whole = _sums(states)
    inside = np.flatnonzero((whole <= limits.most).all(axis=1))  # to the byte, without slack
    last = inside[undominated(whole[inside])]
    at = last = last[_apart(whole[last], np.zeros(len(last)), grain)]
    chosen = []
    for picks, back in reversed(trail):
        chosen.append(picks[at])
        at = back[at]
    return Walk(whole[last, 0], whole[last, 1:], np.stack(chosen, axis=1))


def prices_of(tables: Sequence[Table], most: np.ndarray, goal: int) -> np.ndarray:
    """[1 + T]: 1 for the goal (0 seconds, then tiers), and for what of it one more of each other
    limit would save, by the linear relaxation of the plan with the least of it within ``most``;
    work and turns left out.
    """
    from scipy.optimize import linprog
    from scipy.sparse import block_diag

    costs = np.concatenate([table.costs for table in tables])
    prices = np.zeros(most.size)
    prices[goal] = 1.0
    bounded = np.setdiff1d(np.flatnonzero(np.isfinite(most)), goal)
    if not bounded.size:
        return prices
    scale = np.maximum(costs[:, bounded].max(axis=0), 1.0)
    unit = max(float(costs[:, goal].max()), 1e-300)
    # What does not fit costs more than any plan does, so that there always is a solution.
    high, slack = 10.0 * len(tables), -np.eye(bounded.size)
    ones = block_diag([np.ones((1, len(table.seconds))) for table in tables]).toarray()
    found = linprog(
        np.append(costs[:, goal] / unit, np.full(bounded.size, high)),
        A_ub=np.hstack([(costs[:, bounded] / scale).T, slack]),
        b_ub=most[bounded] / scale,
        A_eq=np.hstack([ones, np.zeros((len(tables), bounded.size))]),
        b_eq=np.ones(len(tables)),
        method="highs",
    )
    if found.x is not None:
        prices[bounded] = np.maximum(-found.ineqlin.marginals, 0) * unit / scale
    return prices


def _sums(states: np.ndarray) -> np.ndarray:
    """[M, 1 + T]: seconds, and what is held at the most: peaks and what lasts beside them."""
    return np.column_stack(
        [states[:, 0], states[:, 1 : 1 + NUM_TIERS] + states[:, 1 + NUM_TIERS :]]
    )


def _floors(tables: Sequence[Table], limits: Limits) -> list[np.ndarray]:
    """For each stage [C, Q]: the least that the stages before add, in each direction, turns on the
    way and into each choice included; inf where no chain leads to it.
    """
    directions = limits.directions
    floors = [np.zeros((len(tables[0].seconds), len(directions)))]
    for table, after in pairwise(tables):
        spent = (floors[-1] + table.costs @ directions.T)[:, None]
        turn = after.turn[:, :, None]
        step = np.where(np.isfinite(turn), np.nan_to_num(turn, posinf=0) * directions[:, 0], np.inf)
        floors.append((spent + step).min(axis=0))
    return floors


def _within(
    states: np.ndarray, picks: np.ndarray, limits: Limits, floors: np.ndarray
) -> np.ndarray:
    """Indices of the states that may end within the limits."""
    reached = np.asarray(np.isfinite(floors).all(axis=1))
    keep = np.flatnonzero(reached[picks])
    sums = np.ascontiguousarray(_sums(states[keep]).T)
    for direction, floor in zip(limits.directions, floors.T, strict=True):
        most = float(direction @ np.where(direction > 0, limits.most, 0.0))
        least = floor[picks[keep]]
        inside = direction @ sums + least <= most + _SLACK * (most + least)
        if not inside.all():
            keep, sums = keep[inside], sums[:, inside]
    return keep


def _cheapest(states: np.ndarray, beam: Beam) -> np.ndarray:
    if len(states) <= beam.width:
        return np.arange(len(states))
    price = _sums(states) @ beam.prices
    return np.sort(np.argpartition(price, beam.width)[: beam.width])


def _idle(tables: Sequence[Table]) -> list[np.ndarray]:
    """For each stage, the peak [T] up to which that of it and those after changes no plan's.

    Whatever the stage before chooses, its own work then holds as much, or leads to a peak that
    does not count in its turn.
    """
    idle = [np.zeros(NUM_TIERS)]
    for table in tables[:-1]:
        idle.append(np.maximum(table.work, idle[-1] - table.kept).min(axis=0))
    return idle


def _extend(
    table: Table, turn: np.ndarray, states: np.ndarray, first: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every choice before every state. Gives states, their choices, and which they came from."""
    turns = np.broadcast_to(turn, (len(table.seconds), turn.shape[1]))[:, first]
    picks, back = np.nonzero(np.isfinite(turns))
    after = states[back]
    tiers, lasting = slice(1, 1 + NUM_TIERS), slice(1 + NUM_TIERS, None)
    after[:, 0] += table.seconds[picks] + turns[picks, back]
    after[:, tiers] = table.kept[picks] + np.maximum(table.work[picks], after[:, tiers])
    after[:, lasting] += table.lasting[picks]
    return after, picks, back


def _survivors(states: np.ndarray, picks: np.ndarray, turn: np.ndarray | None) -> np.ndarray:
    """Indices of the states that no other beats, among those that turns treat alike."""
    alike = np.zeros(len(picks), np.int64)
    if turn is not None and len(picks):
        _, kind = np.unique(turn, axis=1, return_inverse=True)
        alike = kind.reshape(-1)[picks]
    kept = [np.zeros(0, np.int64)]
    for kind in np.unique(alike):
        group = np.flatnonzero(alike == kind)
        kept.append(group[undominated(states[group])])
    return np.concatenate(kept)


def _apart(costs: np.ndarray, picks: np.ndarray, grain: float) -> np.ndarray:
    """Indices of one of all rows with equal picks whose costs lie in one cell of logarithms."""
    if not grain:
        return np.arange(len(costs))
    cells = np.floor(np.log(np.maximum(costs, 1e-300)) / grain)
    return np.sort(np.unique(np.column_stack([picks, cells]), axis=0, return_index=True)[1])
