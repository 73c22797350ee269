"""Planning an exchange: boundary rows to all that read them, in stages over relays, or directly.

After DGCL (Cai et al., 2021): shortest paths from the ranks that hold a row to the nearest reader
that misses it, priced by what the stages already carry. Ours routes chunks of classes instead of
rows, lets a rank wait before it sends, routes each chunk again once all others are there, and keeps
peer-to-peer where no plan is predicted faster.

Legend: C chunks, W ranks, L ways of wires.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tiergnn.errors import ConfigError
from tiergnn.graph.boundary import Demand
from tiergnn.hardware.topology import Topology
from tiergnn.planner.routing import route
from tiergnn.schedule.exchange import ExchangePlan, Send, direct

_PIECES = 2048  # chunks that a plan is made of, where rows allow; more where classes are more
_MOST_CLASSES = 65_536
_EFFORT = 1.2e9  # steps of the search: about two seconds
_LITTLE = 3e5  # steps of one attempt below which more are made ...
_MORE = 30  # ... up to so many, by prices that are off
_PASSES = 3  # times that every chunk is routed again
_STAGES = (2, 3, 4, 7)  # limits that are tried, and W - 1 where it is less


def plan_exchange(
    topology: Topology,
    demands: Iterable[Demand],
    row_bytes: int,
    *,
    method: str = "best",
    seed: int = 0,
) -> ExchangePlan:
    """The exchange of ``demands`` that is predicted fastest; the same arguments, the same plan.

    method: "planned" or "direct", or "best": the faster of both, peer-to-peer where they are equal.
    Demands may be of any number of rows: the work goes by their number, not by rows. More than some
    thousands (``Boundary.within``) leave little time to improve on the first plan.
    Raises ConfigError for another method or more than 65,536 demands, PlanError for a rank that the
    topology has no device for.
    """
    wanted = tuple(demands)
    if method not in ("best", "planned", "direct"):
        raise ConfigError(f"an exchange is best, planned or direct, had {method!r}")
    if len(wanted) > _MOST_CLASSES:
        raise ConfigError(
            f"wanted at most {_MOST_CLASSES} demands, had {len(wanted)}",
            hint="Boundary.within(8192) asks for fewer",
        )
    plain = direct(topology, wanted, row_bytes)
    if method == "direct" or not wanted or (method == "best" and topology.num_devices < 3):
        return plain
    planned = ExchangePlan(
        topology=topology,
        demands=wanted,
        row_bytes=row_bytes,
        method="planned",
        sends=_search(topology, wanted, row_bytes, seed),
    )
    better = planned.seconds < plain.seconds * (1 - 1e-9)
    return planned if better or method == "planned" else plain


def _search(
    topology: Topology, demands: tuple[Demand, ...], row_bytes: int, seed: int
) -> tuple[Send, ...]:
    """The best of several limits of stages and orders, within the effort that is allowed."""
    num_ranks = topology.num_devices
    demand, start, stop = _chunks(demands)
    rows = stop - start
    owner = np.array([need.owner for need in demands], np.int32)[demand]
    sets = [sum(1 << reader for reader in need.readers) for need in demands]
    readers = np.array(sets, np.uint64)[demand]
    fanout = np.array([len(need.readers) for need in demands], np.int64)[demand]
    ways, ptr = _ways(topology)
    way_s = np.repeat([row_bytes / wire.Bps for wire in topology.wires], 2)
    limits = sorted({min(limit, max(1, num_ranks - 1)) for limit in _STAGES})
    draws = np.random.default_rng(seed)
    steps = float(fanout.sum()) * num_ranks**2 * max(1.0, ways.size / num_ranks**2)
    spent, best_s, best = 0.0, np.inf, None
    for attempt in range(2 + int(min(_MORE, _LITTLE / steps))):
        order, taste = draws.permutation(rows.size), np.ones(num_ranks**2)
        if attempt == 1:
            order = np.argsort(-rows * fanout, kind="stable")
        elif attempt > 1:
            taste = 2.0 ** draws.uniform(-1.0, 1.0, num_ranks**2)
        for limit in limits:
            left = (_EFFORT - spent) / (steps * limit)
            if best is not None and left < 1:
                continue
            passes = int(min(_PASSES, max(0.0, left - 1)))
            spent += steps * limit * (1 + passes)
            seconds, sends, count = route(
                owner, readers, rows, order, limit, num_ranks,
                ways, ptr, way_s, topology.stage_s, taste, passes,
            )  # fmt: skip
            if seconds < best_s * (1 - 1e-9):
                best_s, best = seconds, (sends, count)
    assert best is not None
    return _merged(*best, demand, start, stop)


def _chunks(demands: tuple[Demand, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(demand, start, stop) int64 [C]: classes in pieces of about equal size."""
    rows = np.array([need.rows for need in demands], np.int64)
    most = max(1, -(-int(rows.sum()) // _PIECES))
    pieces = -(-rows // most)
    demand = np.repeat(np.arange(rows.size), pieces)
    first = np.cumsum(pieces) - pieces
    place = np.arange(demand.size) - first[demand]
    start = place * rows[demand] // pieces[demand]
    stop = (place + 1) * rows[demand] // pieces[demand]
    return demand, start, stop


def _ways(topology: Topology) -> tuple[np.ndarray, np.ndarray]:
    """Ways int32 between each two ranks, one pair after the other, and pointers int64 [W*W+1]."""
    ranks = range(topology.num_devices)
    paths = [topology.path(sender, receiver) for sender in ranks for receiver in ranks]
    ptr = np.concatenate([[0], np.cumsum([len(path) for path in paths])]).astype(np.int64)
    return np.array([way for path in paths for way in path], np.int32), ptr


def _merged(
    sends: np.ndarray, count: np.ndarray, demand: np.ndarray, start: np.ndarray, stop: np.ndarray
) -> tuple[Send, ...]:
    """Sends of chunks as sends of demands, neighbours that take the same way as one."""
    used = np.arange(sends.shape[1]) < count[:, None]
    chunk = np.nonzero(used)[0]
    stage, sender, receiver = sends[used].T.astype(np.int64)
    stage = np.unique(stage, return_inverse=True)[1]  # stages that nothing uses are left out
    keys = np.stack([stage, sender, receiver, demand[chunk]])
    order = np.lexsort((start[chunk], *keys[::-1]))
    keys, first, last = keys[:, order], start[chunk][order], stop[chunk][order]
    fresh = np.ones(order.size, bool)
    fresh[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0) | (first[1:] != last[:-1])
    begins = np.flatnonzero(fresh)
    ends = np.append(begins[1:], order.size) - 1
    table = np.stack([*keys[:, begins], first[begins], last[ends]], axis=1)
    return tuple(
        Send(stage=s, sender=u, receiver=v, demand=d, start=i, stop=j)
        for s, u, v, d, i, j in table.tolist()
    )
