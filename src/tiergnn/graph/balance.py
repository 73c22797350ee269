"""What parts should hold equal shares of, and moving nodes until they do.

Legend: V nodes, E edges, K parts, C criteria.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numba
import numpy as np

from tiergnn.errors import ConfigError, unknown
from tiergnn.graph.csr import Graph
from tiergnn.graph.undirected import View

# Largest load over mean load that is accepted when the caller names no other bound. Splits are
# small and what is counted in them is the loss, so they are levelled to the single node.
TOLERANCE = {"nodes": 1.03, "edges": 1.05, "split": 1.0}
_MAX_PASSES = 40
# Shares of an edge tolerance that ``rebalance`` tries to fill, one after the other: nodes come in
# lumps of edges, and a move that would overshoot is not made.
_AIMS = (0.9, 0.5, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Criterion:
    """Something to share out evenly: ``weight`` [V] int64 adds up to ``total`` over all parts."""

    name: str  # "nodes", "edges" (in-edges), or the name of a split
    tolerance: float  # accepted largest load over mean load, 1 or more
    weight: np.ndarray

    @property
    def total(self) -> int:
        return int(self.weight.sum())

    def bounds(self, num_parts: int) -> tuple[int, int]:
        """Smallest and largest accepted load of a part, widened to what whole nodes allow.

        A split is bounded on both sides; of nodes no part may have none while there are enough.
        """
        total = self.total
        low, high = total // num_parts, -(-total // num_parts)
        mean = total / num_parts
        high = max(high, int(mean * self.tolerance + 1e-9))
        if self.name == "nodes":
            low = min(low, 1)
        elif self.name == "edges":
            low = 0
        else:
            low = min(low, int(np.ceil(mean * (2 - self.tolerance) - 1e-9)))
        return low, high

    def loads(self, part_of: np.ndarray, num_parts: int) -> np.ndarray:
        """int64 [K]: the share of each part."""
        return sum_by_part(part_of, self.weight, num_parts)

    def holds(self, loads: np.ndarray) -> bool:
        """Whether every part's load is accepted."""
        low, high = self.bounds(loads.size)
        return bool(loads.min() >= low and loads.max() <= high)


def read_balance(
    graph: Graph, balance: Mapping[str, float | None] | Iterable[str] | str
) -> list[Criterion]:
    """Criteria by name, with the tolerances given or else those of ``TOLERANCE``.

    Splits alone would leave the size of parts free, so nodes join them.
    Raises ConfigError on a name that is neither nodes, edges nor a split, and on a tolerance
    below 1.
    """
    if isinstance(balance, str):
        balance = (balance,)
    known = ["nodes", "edges", *graph.splits]
    asked = dict(balance) if isinstance(balance, Mapping) else dict.fromkeys(balance)
    if not asked:
        raise ConfigError("balance names nothing", hint="one or more of " + ", ".join(known))
    if not {"nodes", "edges"} & asked.keys():
        asked = {"nodes": None, **asked}
    found = []
    for name, tolerance in asked.items():
        if name not in known:
            raise unknown("balance", name, known)
        if tolerance is None:
            tolerance = TOLERANCE.get(name, TOLERANCE["split"])
        if not 1 <= tolerance < np.inf:
            raise ConfigError(
                f"balance of {name!r} needs a largest load over mean load of 1 or more, "
                f"had {tolerance!r}",
                hint="1.03 for at most 3 % above the mean",
            )
        weight = weigh(graph, name)
        found.append(Criterion(name=name, tolerance=float(tolerance), weight=weight))
    return found


def weigh(graph: Graph, name: str) -> np.ndarray:
    """int64 [V]: what each node adds to its part's load of nodes, in-edges, or a split."""
    if name == "nodes":
        return np.broadcast_to(np.int64(1), graph.num_nodes)
    if name == "edges":
        return graph.in_degree
    weight = np.zeros(graph.num_nodes, np.int64)
    weight[graph.splits[name]] = 1
    return weight


def blend(criteria: list[Criterion], scale: int = 1 << 40) -> np.ndarray:
    """int64 [V]: one weight a node, each criterion adding about ``scale`` in all.

    Evenly shared, it bounds the sum of a part's shares, though not each of them.
    """
    weight = np.zeros_like(criteria[0].weight)
    for criterion in criteria:
        if criterion.total:
            weight += criterion.weight * max(1, scale // criterion.total)
    return weight


def cut(weight: np.ndarray, num_parts: int) -> np.ndarray:
    """int64 [K+1]: where to cut nodes, in the order given, into runs of nearly equal weight.

    weight int64 [V], 0 or more. A node belongs to the run in which the middle of its weight falls,
    so equal weights give runs whose lengths differ by one at most.
    """
    total = int(weight.sum())
    if total == 0:
        weight, total = np.ones_like(weight), weight.size
    twice_middle = 2 * np.cumsum(weight) - weight
    starts = [-(-2 * total * part // num_parts) for part in range(num_parts)]
    ptr = np.searchsorted(twice_middle, np.array(starts, np.int64))
    return np.append(ptr, weight.size)


@numba.njit(cache=True, nogil=True)
def sum_by_part(part_of, weight, num_parts):
    """int64 [num_parts]: the sum of weight over each part's nodes."""
    out = np.zeros(num_parts, np.int64)
    for v in range(part_of.size):
        out[part_of[v]] += weight[v]
    return out


@numba.njit(cache=True, nogil=True)
def cut_weight(part_of, xadj, adjncy, eweight):
    """Weight of the entries of a view (``undirected_view``) that join two parts."""
    total = 0
    for v in range(part_of.size):
        for e in range(xadj[v], xadj[v + 1]):
            if part_of[adjncy[e]] != part_of[v]:
                total += eweight[e] if eweight.size else 1
    return total


def rebalance(
    part_of: np.ndarray, num_parts: int, criteria: list[Criterion], view: View
) -> np.ndarray:
    """Move nodes until every part's loads are within bounds, then where fewer edges are cut.

    part_of int32 [V]; returns a new one. Deterministic. What cannot be met (one node heavier than
    a part's share) is brought as near as moving single nodes brings it.

    Greedy: each move lowers the excess, best edge gain first; splits come before nodes and edges,
    which count in units of a mean part. Then boundary nodes move where fewer edges are cut and no
    excess grows.
    """
    part_of = part_of.copy()
    criteria = [c for c in criteria if c.total]
    if num_parts == 1 or not criteria:
        return part_of
    load = np.stack([c.loads(part_of, num_parts) for c in criteria])
    weight = np.stack([c.weight for c in criteria], axis=1)
    splits = np.array([c.name not in ("nodes", "edges") for c in criteria])
    unit = num_parts / np.array([c.total for c in criteria]) * np.where(splits, 1e6, 1.0)
    for aim in _AIMS:
        bounds = np.array([_aim(c, aim).bounds(num_parts) for c in criteria], np.int64)
        state = (view.xadj, view.adjncy, view.eweight, weight, bounds, unit, part_of, load)
        if _relieve_all(criteria, state):
            break
    bounds = np.array([c.bounds(num_parts) for c in criteria], np.int64)
    state = (view.xadj, view.adjncy, view.eweight, weight, bounds, unit, part_of, load)
    for _ in range(_MAX_PASSES):
        if _refine(*state) * 1000 <= part_of.size:
            break
    return part_of


def _aim(criterion: Criterion, share: float) -> Criterion:
    if criterion.name != "edges":
        return criterion
    return replace(criterion, tolerance=1 + share * (criterion.tolerance - 1))


def _relieve_all(criteria: list[Criterion], state: tuple[np.ndarray, ...]) -> bool:
    """Make relieving moves until everything holds (True) or none is left."""
    load = state[-1]
    for _ in range(_MAX_PASSES):
        if all(c.holds(row) for c, row in zip(criteria, load, strict=True)):
            return True
        gain = _gains(*state)
        queue = np.flatnonzero(gain > -np.inf)
        if _relieve(queue[np.argsort(-gain[queue], kind="stable")], *state) == 0:
            return False
    return False


@numba.njit(cache=True, nogil=True)
def _excess(load, low, high):
    return max(load - high, 0) + max(low - load, 0)


@numba.njit(cache=True, nogil=True)
def _change(v, source, target, weight, bounds, unit, load):
    """Change of the total excess, in mean parts, were v to move from source to target."""
    change = 0.0
    for c in range(load.shape[0]):
        w = weight[v, c]
        if w:
            low, high = bounds[c, 0], bounds[c, 1]
            before = _excess(load[c, source], low, high) + _excess(load[c, target], low, high)
            after = _excess(load[c, source] - w, low, high)
            after += _excess(load[c, target] + w, low, high)
            change += (after - before) * unit[c]
    return change


@numba.njit(cache=True, nogil=True)
def _connect(v, xadj, adjncy, eweight, part_of, tie):
    """Add to tie [K] the weight of v's edges into each part."""
    for e in range(xadj[v], xadj[v + 1]):
        tie[part_of[adjncy[e]]] += eweight[e] if eweight.size else 1


@numba.njit(cache=True, nogil=True)
def _disconnect(v, xadj, adjncy, part_of, tie):
    for e in range(xadj[v], xadj[v + 1]):
        tie[part_of[adjncy[e]]] = 0


@numba.njit(cache=True, nogil=True)
def _wanted(v, source, weight, bounds, load, short):
    """Whether v is of a kind that its part has too much of, or another part too little."""
    for c in range(load.shape[0]):
        if weight[v, c] and (load[c, source] > bounds[c, 1] or short[c]):
            return True
    return False


@numba.njit(cache=True, nogil=True)
def _shortages(bounds, load):
    short = np.zeros(load.shape[0], np.bool_)
    for c in range(load.shape[0]):
        short[c] = load[c].min() < bounds[c, 0]
    return short


@numba.njit(cache=True, nogil=True)
def _relief(v, source, weight, bounds, unit, load, tie):
    """The part that v may leave source for with the least loss of edges, or -1.

    Only moves that lower the excess count; the more they lower it the better among equals.
    """
    best, best_tie, best_change = -1, 0, 0.0
    for target in range(load.shape[1]):
        if target != source and (best < 0 or tie[target] >= best_tie):
            change = _change(v, source, target, weight, bounds, unit, load)
            if change < -1e-12 and (best < 0 or tie[target] > best_tie or change < best_change):
                best, best_tie, best_change = target, tie[target], change
    return best


@numba.njit(cache=True, nogil=True)
def _gains(xadj, adjncy, eweight, weight, bounds, unit, part_of, load):
    """float64 [V]: edges no longer cut by each node's best relieving move, -inf for none."""
    tie = np.zeros(load.shape[1], np.int64)
    short = _shortages(bounds, load)
    gain = np.full(part_of.size, -np.inf)
    for v in range(part_of.size):
        source = part_of[v]
        if _wanted(v, source, weight, bounds, load, short):
            _connect(v, xadj, adjncy, eweight, part_of, tie)
            target = _relief(v, source, weight, bounds, unit, load, tie)
            if target >= 0:
                gain[v] = tie[target] - tie[source]
            _disconnect(v, xadj, adjncy, part_of, tie)
    return gain


@numba.njit(cache=True, nogil=True)
def _move(v, target, weight, part_of, load):
    for c in range(load.shape[0]):
        load[c, part_of[v]] -= weight[v, c]
        load[c, target] += weight[v, c]
    part_of[v] = target


@numba.njit(cache=True, nogil=True)
def _relieve(queue, xadj, adjncy, eweight, weight, bounds, unit, part_of, load):
    """Make the relieving moves of ``queue`` in order; returns how many still helped."""
    tie = np.zeros(load.shape[1], np.int64)
    short = _shortages(bounds, load)
    moved = 0
    for i in range(queue.size):
        v = queue[i]
        source = part_of[v]
        if _wanted(v, source, weight, bounds, load, short):
            _connect(v, xadj, adjncy, eweight, part_of, tie)
            target = _relief(v, source, weight, bounds, unit, load, tie)
            _disconnect(v, xadj, adjncy, part_of, tie)
            if target >= 0:
                _move(v, target, weight, part_of, load)
                short = _shortages(bounds, load)
                moved += 1
    return moved


@numba.njit(cache=True, nogil=True)
def _refine(xadj, adjncy, eweight, weight, bounds, unit, part_of, load):
    """Move nodes where fewer edges are cut and no excess grows; returns how many moved."""
    tie = np.zeros(load.shape[1], np.int64)
    moved = 0
    for v in range(part_of.size):
        source = part_of[v]
        _connect(v, xadj, adjncy, eweight, part_of, tie)
        best = source
        for e in range(xadj[v], xadj[v + 1]):
            target = part_of[adjncy[e]]
            if tie[target] > tie[best] and (
                _change(v, source, target, weight, bounds, unit, load) <= 0
            ):
                best = target
        _disconnect(v, xadj, adjncy, part_of, tie)
        if best != source:
            _move(v, best, weight, part_of, load)
            moved += 1
    return moved
