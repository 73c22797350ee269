"""Solving a placement: a linear program, rounded; a mixed-integer one where that is coarse.

Rows of a block are alike, so a block may be split: over fractions of blocks the program is linear,
and its optimum has few split blocks (one for each cache, lane and hidden lane at most). For fixed
prices of time and memory a row's cost in a class is a line over its hotness, so the best classes
are the lower envelope of three lines: each takes one stretch of the ranking, but for ties.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby, permutations
from typing import Any, NamedTuple

import numpy as np

from tiergnn.errors import ConfigError, PlanError
from tiergnn.planner.placement import CLASSES, Placement, Question, Run

_NODES = 20_000  # of branch and bound: a bound that is no clock
_SLOWER = 1e-6  # that a placement may be for having fewer runs
_LOOSE = 1e-7  # by which solutions may break what HiGHS calls satisfied


class _Rows(NamedTuple):
    """rows [B, 3] of each block in each class, and edges served by one of its rows [B]."""

    taken: np.ndarray
    hotness: np.ndarray

    @property
    def rows(self) -> np.ndarray:
        return self.taken.sum(axis=0)

    @property
    def edges(self) -> np.ndarray:
        return self.hotness @ self.taken


@lru_cache(maxsize=256)
def place(question: Question, *, gap: float = 1e-3, exact: bool = False) -> Placement:
    """The fastest placement, to a ``gap`` that it states; of equally fast ones, the least work.

    Whole rows are placed. ``exact`` asks the mixed-integer program at once.
    Raises PlanError when no placement hides the lanes that are to be hidden.
    """
    if not 0 <= gap < 1:
        raise ConfigError(f"a gap is a fraction of 1, had {gap}")
    ranked = sorted(question.blocks, key=lambda block: -block[1] / block[0])
    counts = np.array([rows for rows, _ in ranked], np.float64)
    hotness = np.array([edges / rows for rows, edges in ranked], np.float64)
    if not ranked:
        return _result(question, _Rows(np.zeros((0, 3)), hotness), 0.0, "lp")
    program = _Program(question, counts, hotness)
    best, bound = program.relaxed()
    found = None if exact else _rounded(question, best, counts, hotness)
    if found is not None and _gap(question, found, bound) <= gap:
        return _result(question, found, bound, "lp")
    taken, bound = program.whole(gap)
    found = _Rows(np.column_stack([taken, counts - taken.sum(axis=1)]), hotness)
    return _result(question, _tidy(question, found), bound, "milp")


class _Program:
    """The program for HiGHS: of each block what the device's and the host's cache take; seconds.

    Shares of blocks when relaxed, rows when whole: HiGHS takes what is below 1e-9 for nothing, so
    either way the figures that matter are brought near 1.
    """

    def __init__(self, question: Question, counts: np.ndarray, hotness: np.ndarray):
        row_s, edge_s = question.charge_s
        each_s = row_s[:, :, None] + edge_s[:, :, None] * hotness  # [lanes, 3, B] of a row
        self._counts, self._caps = counts, question.capacity_rows
        self._base_s = np.array([lane.base_s for lane in question.lanes]) + each_s[:, 2] @ counts
        # What a cached row adds to each lane, [lanes, 2 B].
        self._added_s = (each_s[:, :2] - each_s[:, 2:]).reshape(self._base_s.size, -1)
        index = {lane.name: i for i, lane in enumerate(question.lanes)}
        self._hidden = [(index[a], index[b]) for a, b in question.hidden]
        self._overlapped = question.overlapped

    def _solve(
        self, unit: np.ndarray, scale: float, *, whole: bool, most: float | None, gap: float
    ) -> Any:
        """Take so many ``unit`` [2 B] rows, whole ones or any. Without ``most`` the least seconds,
        else, within so many, the least work. Seconds are counted in ``scale``.
        """
        import scipy.optimize  # most plans do without
        from scipy.sparse import coo_array

        optimize: Any = scipy.optimize  # its types know bounds of one number only

        num, added, base = self._counts.size, self._added_s * unit / scale, self._base_s / scale
        if not self._overlapped:
            longest, top = added.sum(axis=0)[None], base.sum()[None]
        else:
            longest, top = added, base
        hidden = [added[a] - added[b] for a, b in self._hidden]
        capped = np.kron(np.eye(2), np.ones(num)) * unit
        level = unit.max(initial=1.0)  # of the capacities' rows
        table = np.concatenate([longest, np.reshape(hidden, (-1, 2 * num)), capped / level])
        seconds = np.zeros((len(table), 1))
        seconds[: len(longest)] = -1
        tops = [-top, [base[b] - base[a] for a, b in self._hidden], np.array(self._caps) / level]
        at, one = np.arange(num), np.ones(2 * num)
        once = coo_array((one, (np.tile(at, 2), np.arange(2 * num))), shape=(num, 2 * num + 1))
        limit = np.tile(self._counts, 2) / unit
        goal = np.append(np.zeros(2 * num), 1.0) if most is None else np.append(added.sum(0), 0.0)
        return optimize.milp(
            goal,
            integrality=np.append(np.full(2 * num, int(whole)), 0),
            bounds=optimize.Bounds(
                np.append(np.zeros(2 * num), -np.inf),
                np.append(limit, np.inf if most is None else most),
            ),
            constraints=[
                optimize.LinearConstraint(np.hstack([table, seconds]), ub=np.concatenate(tops)),
                optimize.LinearConstraint(once, ub=limit[:num]),
            ],
            options={"mip_rel_gap": gap, "node_limit": _NODES},
        )

    def relaxed(self) -> tuple[np.ndarray, float]:
        """Rows [B, 2] of the fastest fractional placement with the least work; its seconds."""
        unit = np.tile(self._counts, 2)
        # Where nothing takes next to no time, a cache takes at most 10^9 of it: the solver refuses
        # numbers that are as good as infinite.
        most = float(np.abs(self._added_s * unit).max(initial=0))
        scale = max(float(self._base_s.max()), 1e-9 * most) or 1.0
        first = _checked(self._solve(unit, scale, whole=False, most=None, gap=0.0))
        least = first.fun * (1 + 1e-9)
        second = self._solve(unit, scale, whole=False, most=least + 1e-12, gap=0.0)
        best = second.x if second.x is not None else first.x
        return (best[:-1] * unit).reshape(2, -1).T, float(first.fun) * scale

    def whole(self, gap: float) -> tuple[np.ndarray, float]:
        """Whole rows [B, 2] of the fastest placement, and a bound below which none is."""
        sizes = np.abs(self._added_s)
        scale = float(np.median(sizes[sizes > 0])) if sizes.any() else 1.0
        found = _checked(
            self._solve(np.ones(sizes.shape[1]), scale, whole=True, most=None, gap=gap)
        )
        return np.rint(found.x[:-1]).reshape(2, -1).T, float(found.mip_dual_bound) * scale


def _checked(found: Any) -> Any:
    if found.x is None:
        raise PlanError(
            f"no placement hides the lanes that are to be hidden: {found.message}",
            hint="a question without hidden lanes",
        )
    return found


def _rounded(
    question: Question, best: np.ndarray, counts: np.ndarray, hotness: np.ndarray
) -> _Rows | None:
    """Whole rows near the fractional optimum, the fastest that is allowed; None if none is."""
    near = np.clip(best, 0, counts[:, None])
    device = np.floor(near[:, 0] + _LOOSE * np.maximum(1, near[:, 0]))
    apart = np.floor(near[:, 1] + _LOOSE * np.maximum(1, near[:, 1]))
    both = np.floor(near.sum(axis=1) + _LOOSE * np.maximum(1, near.sum(axis=1))) - device
    tried = []
    for host in (apart, both):  # a row between the caches goes to none, or to the host's
        host = np.clip(host, 0, counts - device)
        found = _Rows(np.column_stack([device, host, counts - device - host]), hotness)
        if question.allows(found.rows, _lane_s(question, found)):
            tried.append(_tidy(question, found))
    return min(tried, key=lambda found: _rank(question, found), default=None)


def _tidy(question: Question, found: _Rows) -> _Rows:
    """The same in fewer runs, where there is such a placement that is allowed and no slower."""
    best, least = found, _rank(question, found)[0]
    for tried in _few_runs(found):
        seconds = _rank(question, tried)[0]
        allowed = question.allows(tried.rows, _lane_s(question, tried))
        if allowed and seconds <= least * (1 + _SLOWER) and _runs(tried) < _runs(best):
            best = tried
    return best


def _few_runs(found: _Rows) -> Iterator[_Rows]:
    """Placements with as many rows of each class: one stretch each; or one class at an end of the
    ranking and another as a window in what is left, serving as near as can be as many edges.
    """
    ends = np.append(0.0, np.cumsum(found.taken.sum(axis=1)))
    served = np.append(0.0, np.cumsum(found.taken.sum(axis=1) * found.hotness))
    rows, edges = found.rows, found.edges

    def stretches(*pieces: tuple[int, float]) -> _Rows:
        """Classes in order of the ranking, and how many rows each takes next."""
        stops = np.append(0.0, np.cumsum([count for _, count in pieces]))
        taken = np.zeros_like(found.taken)
        for (place, _), low, high in zip(pieces, stops[:-1], stops[1:], strict=True):
            inside = np.minimum(ends[1:], high) - np.maximum(ends[:-1], low)
            taken[:, place] += np.clip(inside, 0, None)
        return _Rows(taken, found.hotness)

    for a, b, c in permutations(range(3)):
        yield stretches((a, rows[a]), (b, rows[b]), (c, rows[c]))
    for end, inner, outer in permutations(range(3)):
        for start in (0.0, rows[end]):  # the end is the cold one, or the hot one
            low, high = start, start + rows[outer]
            while low < high:  # a later window serves fewer edges
                middle = (low + high) // 2
                inside = np.interp([middle, middle + rows[inner]], ends, served)
                low, high = (middle + 1, high) if np.diff(inside) > edges[inner] else (low, middle)
            before, after = low - start, start + rows[outer] - low
            window = ((outer, before), (inner, rows[inner]), (outer, after))
            yield stretches(
                *(((end, rows[end]), *window) if start else (*window, (end, rows[end])))
            )


def _runs(found: _Rows) -> int:
    return len(_stretches(found))


def _stretches(found: _Rows) -> list[Run]:
    """Runs over the ranking; within a block the device's rows come first, the remote ones last."""
    block, place = np.nonzero(found.taken)
    rows = found.taken[block, place]
    pieces = zip(place.tolist(), rows.tolist(), (rows * found.hotness[block]).tolist(), strict=True)
    runs = []
    for which, group in groupby(pieces, key=lambda piece: piece[0]):
        held = list(group)
        runs.append(Run(CLASSES[which], round(sum(p[1] for p in held)), sum(p[2] for p in held)))
    return runs


def _lane_s(question: Question, found: _Rows) -> np.ndarray:
    return question.lane_s(found.rows, found.edges)


def _rank(question: Question, found: _Rows) -> tuple[float, float]:
    lane_s = _lane_s(question, found)
    return question.seconds(lane_s), float(lane_s.sum())


def _gap(question: Question, found: _Rows, bound: float) -> float:
    seconds = question.seconds(_lane_s(question, found))
    return max(0.0, (seconds - bound) / seconds) if seconds else 0.0


def _result(question: Question, found: _Rows, bound: float, solver: str) -> Placement:
    lane_s = _lane_s(question, found)
    names = [lane.name for lane in question.lanes]
    return Placement(
        runs=tuple(_stretches(found)),
        seconds=question.seconds(lane_s),
        lane_s=tuple(zip(names, lane_s.tolist(), strict=True)),
        row_bytes=question.row_bytes,
        gap=_gap(question, found, bound) if found.taken.size else 0.0,
        solver=solver,
    )
