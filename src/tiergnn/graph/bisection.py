"""Bisection: parts of a small graph, by halving it over and over.

Legend: n nodes, K parts.
"""

from __future__ import annotations

import heapq

import numba
import numpy as np

from tiergnn.graph.draws import draw, stream_key
from tiergnn.graph.level import Level

_TRIES = 8  # halves grown from different nodes; the one that cuts least is taken
_PASSES = 3
_FEW = 1 << 11  # nodes up to which looking at all is cheaper than a queue
_BARRED = -(1 << 61)  # a gain of nodes that may not move
_NEXT = 2  # side of a node that the growing half touches


def bisect(level: Level, size: np.ndarray, num_parts: int, slack: float, seed: int) -> np.ndarray:
    """int32 [n]: K parts of equal size, or as near as whole nodes allow; few edges cut.

    size int32 [n], 1 or more. slack: how far over its share a part may be in the end, as a
    fraction. Each half grows from a random node, always by the node that is tied to it most, and
    is mended by passes of Fiduccia and Mattheyses ("A linear-time heuristic for improving network
    partitions", DAC 1982). n log n for each of log K depths.
    """
    part_of = np.zeros(level.num_nodes, np.int32)
    count = min(num_parts, level.num_nodes)
    if count > 1:
        depth = (count - 1).bit_length()
        step = (1 + slack) ** (1 / depth) - 1
        key = stream_key(seed, 0)
        _bisect_all(level.rowptr, level.col, level.weight, size, count, step, key, part_of)
    return part_of


@numba.njit(cache=True, nogil=True)
def _bisect_all(rowptr, col, weight, size, num_parts, slack, key, part_of):
    num_nodes = part_of.size
    order = np.arange(num_nodes)
    side = np.full(num_nodes, -1, np.int8)  # -1: not of this half
    best = np.empty(num_nodes, np.int8)
    gain = np.zeros(num_nodes, np.int64)
    todo = [(0, num_nodes, 0, num_parts)]  # nodes order[a:b] become parts low..high
    while len(todo):
        a, b, low, high = todo.pop()
        nodes = order[a:b]
        parts = high - low
        if parts == 1:
            for v in nodes:
                part_of[v] = low
            continue
        left = parts // 2
        total, largest = np.int64(0), np.int64(0)
        for v in nodes:
            total += size[v]
            largest = max(largest, size[v])
        want = total * left // parts
        room = max(np.int64(slack * want), largest // 2)
        # Whole nodes: neither half may get fewer nodes than it has parts.
        least_nodes, most_nodes = left, nodes.size - (parts - left)
        tries = _TRIES if nodes.size <= _FEW else 1
        best_off, best_cut = np.int64(0), np.int64(0)
        for turn in range(tries):
            luck = draw(key, np.uint64(low * 64 + turn) + (np.uint64(high) << np.uint64(32)))
            _grow(rowptr, col, weight, size, nodes, want, least_nodes, most_nodes, luck, side, gain)
            off, cut = _mend(
                rowptr, col, weight, size, nodes, want, room, least_nodes, most_nodes, side, gain
            )[1:]
            if turn == 0 or (off, cut) < (best_off, best_cut):
                best_off, best_cut = off, cut
                for v in nodes:
                    best[v] = side[v]
        for v in nodes:
            side[v] = best[v]
        for _ in range(_PASSES):
            if not _mend(
                rowptr, col, weight, size, nodes, want, room, least_nodes, most_nodes, side, gain
            )[0]:
                break
        for v in nodes:
            best[v] = side[v]
        n = 0
        for v in nodes:
            side[v] = -1
            n += best[v] == 0
        kept = nodes.copy()
        i, j = 0, n
        for v in kept:
            if best[v] == 0:
                nodes[i] = v
                i += 1
            else:
                nodes[j] = v
                j += 1
        todo.append((a, a + n, low, low + left))
        todo.append((a + n, b, low + left, high))


@numba.njit(cache=True, nogil=True, inline="always")
def _weigh(weight, e):
    return np.int64(weight[e]) if weight.size else np.int64(1)


@numba.njit(cache=True, nogil=True)
def _top(queue, nodes, here, side, gain):
    """The node of side ``here`` with most gain, or -1. Few nodes are looked at; many are queued.

    An entry of the queue may promise too much; a node whose gain has grown has another entry.
    """
    if nodes.size <= _FEW:
        best, best_gain = np.int64(-1), np.int64(_BARRED // 2)
        for v in nodes:
            if side[v] == here and gain[v] > best_gain:
                best, best_gain = np.int64(v), gain[v]
        return best
    while len(queue):
        score, v = queue[0]
        if side[v] != here or score > -gain[v] or gain[v] < _BARRED // 2:
            heapq.heappop(queue)
        elif score < -gain[v]:
            heapq.heapreplace(queue, (-gain[v], v))
        else:
            return v
    return np.int64(-1)


@numba.njit(cache=True, nogil=True)
def _grow(rowptr, col, weight, size, nodes, want, least_nodes, most_nodes, luck, side, gain):
    """Side 0 grows to ``want``, always by the node with most edges to it less those to others."""
    for v in nodes:
        side[v] = 1
    for v in nodes:
        gain[v] = 0
        for e in range(rowptr[v], rowptr[v + 1]):
            if side[col[e]] == 1 and col[e] != v:
                gain[v] -= _weigh(weight, e)
    queue = [(np.int64(0), np.int64(0))]
    queue.pop()
    grown, count, tried = np.int64(0), 0, 0
    offset = np.int64(luck % np.uint64(nodes.size))
    while count < most_nodes and (grown < want or count < least_nodes):
        v = _top(queue, nodes, _NEXT, side, gain)
        while v < 0 and tried < nodes.size:  # the first, or another piece of the graph
            u = nodes[(offset + tried) % nodes.size]
            tried += 1
            if side[u] == 1:
                v = np.int64(u)
        if v < 0 or (count >= max(1, least_nodes) and grown + size[v] - want > want - grown):
            break
        side[v] = 0
        grown += size[v]
        count += 1
        for e in range(rowptr[v], rowptr[v + 1]):
            u = col[e]
            if side[u] > 0 and u != v:
                side[u] = _NEXT
                gain[u] += 2 * _weigh(weight, e)
                if nodes.size > _FEW:
                    heapq.heappush(queue, (-gain[u], np.int64(u)))
    for v in nodes:
        side[v] = min(side[v], 1)


@numba.njit(cache=True, nogil=True)
def _mend(
    rowptr, col, weight, size, nodes, want, room, least_nodes, most_nodes, side, gain
):  # fmt: skip
    """One pass: nodes change sides, best first, each once; what came after the best is undone.

    Returns whether anything got better, how far the halves are out of bounds, and the edges cut.
    """
    inside, count, cut, largest = np.int64(0), 0, np.int64(0), np.int64(0)
    for v in nodes:
        largest = max(largest, size[v])
        if side[v] == 0:
            inside += size[v]
            count += 1
    queues = ([(np.int64(0), np.int64(0))], [(np.int64(0), np.int64(0))])
    queues[0].pop()
    queues[1].pop()
    for v in nodes:
        gain[v] = 0
        crossing = False
        for e in range(rowptr[v], rowptr[v + 1]):
            u = col[e]
            if side[u] >= 0 and u != v:
                if side[u] == side[v]:
                    gain[v] -= _weigh(weight, e)
                else:
                    gain[v] += _weigh(weight, e)
                    cut += _weigh(weight, e) * (side[v] == 0)
                    crossing = True
        if nodes.size > _FEW and (crossing or abs(inside - want) > room):
            queues[side[v]].append((-gain[v], np.int64(v)))
    heapq.heapify(queues[0])
    heapq.heapify(queues[1])
    moved = np.empty(nodes.size, np.int64)
    num_moved, num_kept, num_barred = 0, 0, 0
    start_off, start_cut = max(np.int64(0), abs(inside - want) - room), cut
    best_off, best_cut = start_off, cut
    patience = 50 + nodes.size // 20
    while num_moved - num_kept + num_barred < patience:
        first = _top(queues[0], nodes, 0, side, gain)
        second = _top(queues[1], nodes, 1, side, gain)
        # On the way the halves may be one node further out of bounds.
        limit = max(room + largest, abs(inside - want))
        v = np.int64(-1)
        if first >= 0 and count > least_nodes and abs(inside - size[first] - want) <= limit:
            v = first
        if second >= 0 and count < most_nodes and abs(inside + size[second] - want) <= limit:
            if abs(inside - want) > room and v >= 0:
                v = first if inside > want else second
            elif v < 0 or gain[second] > gain[first]:
                v = second
        if v < 0:
            v = max(first, second)
            if v < 0:
                break
            gain[v] = _BARRED
            num_barred += 1
            continue
        here = side[v]
        inside += -size[v] if here == 0 else size[v]
        count += -1 if here == 0 else 1
        cut -= gain[v]
        side[v] = 3 - here  # decided for this pass: 3 was 0 and is 1 now, 2 was 1
        moved[num_moved] = v
        num_moved += 1
        off = max(np.int64(0), abs(inside - want) - room)
        if off < best_off or (off == best_off and cut < best_cut):
            best_off, best_cut, num_kept = off, cut, num_moved
        for e in range(rowptr[v], rowptr[v + 1]):
            u = col[e]
            if side[u] >= 0 and side[u] <= 1 and u != v:
                if side[u] == here:
                    gain[u] += 2 * _weigh(weight, e)
                    if nodes.size > _FEW:
                        heapq.heappush(queues[here], (-gain[u], np.int64(u)))
                else:
                    gain[u] -= 2 * _weigh(weight, e)
    for i in range(num_moved):
        v = moved[i]
        here = 3 - side[v]
        side[v] = 1 - here if i < num_kept else here
    return best_off < start_off or best_cut < start_cut, best_off, best_cut
