"""The switching-aware partitioner: few rows read from other parts, in little memory.

Legend: V nodes, E edges, n nodes of a level, m clusters, C criteria, K parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numba
import numpy as np

from tiergnn.errors import ConfigError
from tiergnn.graph.balance import Criterion, rebalance, sum_by_part
from tiergnn.graph.bisection import bisect
from tiergnn.graph.clusters import cluster
from tiergnn.graph.contraction import contract
from tiergnn.graph.copies import copy_bytes, spare_copies
from tiergnn.graph.csr import Graph
from tiergnn.graph.draws import stream_key
from tiergnn.graph.level import DEGREE, ONE, Level, Loads, is_two_way
from tiergnn.graph.refinement import Shares, refine
from tiergnn.graph.undirected import View
from tiergnn.threads import num_processors

Progress = Callable[[str, int, int], None]

# What may be held beside the graph in all: a share of its bytes, but this much of any graph.
_SHARE = 0.25
_LEAST_BYTES = 64 << 20
_SMALLEST = 32  # nodes a part at which merging ends
_LUMPS = 24  # clusters that make up a part, at least
_GROWTH = 10  # mean nodes in the largest cluster of a level
_GUARD = 3.0  # largest accepted load of edges over mean load where none is asked for
_FREE = (0, 1 << 62)  # bounds of a load that may be anything
_REBALANCE_BYTES = 80  # a node, of ``rebalance``
_SIZE_TOTAL = 1 << 30  # what the sizes of all nodes add up to
_CLUSTERING, _HALVING, _REFINING = 0, 1000, 2000  # streams of random numbers


@dataclass(slots=True)
class _Steps:
    """Tells progress of one phase, a step a call."""

    progress: Progress | None
    phase: str
    total: int
    done: int = 0

    def __call__(self) -> None:
        self.done = min(self.done + 1, self.total)
        if self.progress is not None:
            self.progress(self.phase, self.done, self.total)


def switching(
    graph: Graph,
    num_parts: int,
    criteria: list[Criterion],
    seed: int,
    *,
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> np.ndarray:
    """int32 [V]: parts whose rows and halos together are few, in time linear in edges.

    Nodes are merged into clusters, clusters into larger ones, by label propagation whose clusters
    have a largest size; the smallest graph is halved until there are K parts; then each level's
    nodes move to where more of their edges lie, and at last to where fewer rows must be copied.
    No part takes more than its bounds; a load that whole clusters could not meet is levelled by
    moving single nodes.
    Edges are balanced to three times the mean even where they are not asked for.
    Raises ConfigError on 2**31 nodes or more.
    The same for any number of threads (None: all processors that this process may use). Beside
    the graph it holds a quarter of its bytes, or 64 MiB: it merges further, and forgets the
    weakest edges between clusters, where that would not do.
    """
    if graph.num_nodes >= 2**31:
        raise ConfigError(
            f"method 'switching' numbers nodes in 32 bits, the graph has {graph.num_nodes}",
            hint="method='block'",
        )
    if min(num_parts, graph.num_nodes) <= 1:
        return np.zeros(graph.num_nodes, np.int32)
    budget = max(_LEAST_BYTES, int(_SHARE * graph.topology_bytes))
    finest = _finest(graph, criteria, budget, num_threads or num_processors())
    levels, labels, size = _merge(finest, graph, num_parts, criteria, seed, budget, progress)
    slack = min(c.tolerance for c in criteria) - 1
    part_of = bisect(levels[-1], size, num_parts, slack, _derived(seed, _HALVING))
    del size
    bounds = _bounds(graph, criteria, num_parts)
    # Splits are levelled last: held to the node, they would stop nearly every move before.
    loose = bounds.copy()
    loose[[c for c, held in enumerate(criteria) if held.name not in ("nodes", "edges")]] = _FREE
    for depth in range(len(labels), 0, -1):
        shares = Shares.of(levels.pop(), part_of, num_parts, loose)
        refine(shares, 8, _derived(seed, _REFINING + depth), lambda: None)
        part_of = _of_members(shares.part_of, labels.pop())
    shares = Shares.of(finest, part_of, num_parts, loose)
    hasty = graph.topology_bytes > budget
    rounds = 4 if hasty else 8
    tell = _Steps(progress, "refine", rounds * finest.num_steps)
    refine(shares, rounds, _derived(seed, _REFINING), tell)
    held = _unmet(shares.load, bounds, criteria, graph, budget)
    if held:
        # Where a graph is directed this sees who is read, not who reads: it only breaks ties.
        view = View(xadj=graph.rowptr, adjncy=graph.col, eweight=np.empty(0, np.int64))
        part_of = rebalance(shares.part_of, num_parts, held, view)
        shares = Shares.of(finest, part_of, num_parts, bounds)
    fits = copy_bytes(graph.num_nodes, num_parts) <= budget // 2
    if fits:
        # Of a graph that is large beside the budget a second round spares little for its time.
        turns = 1 if hasty else 3
        tell = _Steps(progress, "copies", 2 * turns * finest.num_steps)
        spare_copies(replace(shares, bounds=bounds), turns, tell)
    return shares.part_of


def _unmet(
    load: np.ndarray, bounds: np.ndarray, criteria: list[Criterion], graph: Graph, budget: int
) -> list[Criterion]:
    """What single nodes must still level: nothing, or all that is asked for.

    The bound of edges that nobody asked for joins where there is memory for that.
    """
    holds = np.all((bounds[:, :1] <= load) & (load <= bounds[:, 1:]), axis=1)
    asked = holds[: len(criteria)].all()
    if holds.all():
        return []
    if len(criteria) < len(bounds):
        if _REBALANCE_BYTES * graph.num_nodes <= budget:
            guard = Criterion(name="edges", tolerance=_GUARD, weight=graph.in_degree)
            return [*criteria, guard]
        if asked:
            return []
    return criteria


def _derived(seed: int, stream: int) -> int:
    return int(stream_key(seed, stream))


def _finest(graph: Graph, criteria: list[Criterion], budget: int, num_threads: int) -> Level:
    """The graph itself. Readers are listed once, or of few nodes at a time, as memory allows."""
    two_way = is_two_way(graph.rowptr, graph.col, num_threads)
    shift = 3
    while not two_way and graph.topology_bytes >> shift > budget // 8 and shift < 8:
        shift += 1
    return Level(
        rowptr=graph.rowptr,
        col=graph.col,
        weight=np.empty(0, np.int32),
        load=_loads(graph, criteria),
        two_way=two_way,
        shift=shift,
        num_threads=num_threads,
        keep=graph.topology_bytes <= budget // 4,
    )


def _merge(
    finest: Level,
    graph: Graph,
    num_parts: int,
    criteria: list[Criterion],
    seed: int,
    budget: int,
    progress: Progress | None,
) -> tuple[list[Level], list[np.ndarray], np.ndarray]:
    """Levels from the graph to the smallest; clusters int32 [n] of each but the last; its sizes.

    A graph that is large beside the budget is merged in one go, for each level takes memory.
    """
    levels, labels, size = [finest], [], _sizes(graph, criteria)
    hasty = graph.topology_bytes > budget
    while levels[-1].num_nodes > _SMALLEST * num_parts:
        level, depth = levels[-1], len(labels)
        rounds = 6 if hasty and depth == 0 else 3
        most = _SIZE_TOTAL // (_LUMPS * num_parts)
        if not (hasty and depth == 0):
            most = min(most, _GROWTH * (_SIZE_TOTAL // level.num_nodes))
        tell: Callable[[], None] = lambda: None  # noqa: E731
        if depth == 0:
            tell = _Steps(progress, "cluster", rounds * level.num_steps)
        key = _derived(seed, _CLUSTERING + depth)
        # Listing readers costs more than it tells while many nodes merge at once.
        seen = replace(level, two_way=True) if hasty and depth == 0 else level
        label, count = cluster(seen, size, max(most, int(size.max())), rounds, key, tell)
        if count > 0.9 * level.num_nodes:
            break
        load = Loads.of(np.ascontiguousarray(level.load.by_part(label, count).T))
        size = sum_by_part(label, size, count).astype(np.int32)
        levels.append(contract(level, label, load, budget // 5))
        labels.append(label)
    return levels, labels, size


def _loads(graph: Graph, criteria: list[Criterion]) -> Loads:
    """What is held level. Edges always are."""
    known = {"nodes": ONE, "edges": DEGREE}
    splits = [c.weight for c in criteria if c.name not in known]
    names = [c.name for c in criteria]
    if "edges" not in names:
        names.append("edges")
    places = iter(range(len(splits)))
    column = [known[name] if name in known else next(places) for name in names]
    stored = np.empty((graph.num_nodes, len(splits)), np.int8)
    for i, weight in enumerate(splits):
        stored[:, i] = weight
    return Loads(np.array(column), stored, graph.rowptr)


@numba.njit(cache=True, nogil=True)
def _of_members(part_of, label):
    """label [n] turned, in place, into the parts of the clusters that it names."""
    for v in range(label.size):
        label[v] = part_of[label[v]]
    return label


@numba.njit(cache=True, nogil=True)
def _largest_degree(rowptr):
    most = np.int64(0)
    for v in range(rowptr.size - 1):
        most = max(most, rowptr[v + 1] - rowptr[v])
    return most


def _bounds(graph: Graph, criteria: list[Criterion], num_parts: int) -> np.ndarray:
    """int64 [C, 2]: least and most of each load."""
    bounds = [c.bounds(num_parts) for c in criteria]
    if all(c.name != "edges" for c in criteria):
        largest = int(_largest_degree(graph.rowptr))
        bounds.append((0, max(int(_GUARD * graph.num_edges / num_parts), 2 * largest)))
    return np.array(bounds, np.int64)


def _sizes(graph: Graph, criteria: list[Criterion]) -> np.ndarray:
    """int32 [V]: a node's mean share of what is asked to be level; splits are left out."""
    held = [c for c in criteria if c.name in ("nodes", "edges") and c.total]
    size = np.zeros(graph.num_nodes, np.float32)
    for c in held:
        size += c.weight * np.float32(_SIZE_TOTAL / c.total / len(held))
    return np.maximum(size, 1).astype(np.int32)
