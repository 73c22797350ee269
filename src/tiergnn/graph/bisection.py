"""Bisection: parts of a small graph, by halving it over and over.

Legend: n nodes, K parts. A piece is what is to be halved: some nodes, numbered from 0 in order, and
the edges between them.
"""

from __future__ import annotations

import heapq

import numba
import numpy as np

from tiergnn.graph.draws import draw, stream_key
from tiergnn.graph.level import Level

_TRIES = 8  # halves grown from different nodes; the one that cuts least is taken
_PASSES = 3
_BITS = 11
_FEW = 1 << _BITS  # nodes up to which looking at all is cheaper than a queue
_BARRED = -(1 << 61)  # about the rank of nodes that may not move: neighbours' moves change it, too


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
        given = (level.rowptr, level.col, level.weight, size, level.two_way)
        _bisect_all(*given, count, step, key, part_of)
    return part_of


@numba.njit(cache=True, nogil=True)
def _bisect_all(rowptr, col, weight, size, two_way, num_parts, slack, key, part_of):
    num_nodes = part_of.size
    order = np.arange(num_nodes)
    local = np.full(num_nodes, -1, np.int32)  # -1: not of this piece
    todo = [(0, num_nodes, 0, num_parts)]  # nodes order[a:b] become parts low..high
    while len(todo):
        a, b, low, high = todo.pop()
        nodes = order[a:b]
        parts = high - low
        if parts == 1:
            for v in nodes:
                part_of[v] = low
            continue
        piece = _cut_out(rowptr, col, weight, size, nodes, local)
        own_size, strength = piece[3], _strengths(piece)
        left = parts // 2
        total, largest = np.int64(0), np.int64(0)
        for i in range(nodes.size):
            total += own_size[i]
            largest = max(largest, own_size[i])
        want = total * left // parts
        room = max(np.int64(slack * want), largest // 2)
        # Whole nodes: neither half may get fewer nodes than it has parts.
        least, most = left, nodes.size - (parts - left)
        bounds = (want, room, np.int64(least), np.int64(most))
        side, best = np.empty(nodes.size, np.int8), np.empty(nodes.size, np.int8)
        rank = np.empty((3, nodes.size), np.int64)
        tries = _TRIES if nodes.size <= _FEW else 1
        best_off, best_cut = np.int64(0), np.int64(0)
        for turn in range(tries):
            luck = draw(key, np.uint64(low * 64 + turn) + (np.uint64(high) << np.uint64(32)))
            cut = _grow(piece, bounds, strength, luck, side, rank)
            if not two_way:  # growing saw readers' edges alone
                cut = _weigh(piece, side, rank)
            off, cut = _mend(piece, bounds, side, rank, cut)[1:]
            if turn == 0 or (off, cut) < (best_off, best_cut):
                best_off, best_cut = off, cut
                best[:] = side
        for _ in range(_PASSES):
            cut = _weigh(piece, best, rank)
            if not _mend(piece, bounds, best, rank, cut)[0]:
                break
        kept = nodes.copy()
        i, j = 0, np.sum(best == 0)
        middle = a + j
        for k in range(kept.size):
            if best[k] == 0:
                nodes[i] = kept[k]
                i += 1
            else:
                nodes[j] = kept[k]
                j += 1
        todo.append((a, middle, low, low + left))
        todo.append((middle, b, low + left, high))


@numba.njit(cache=True, nogil=True)
def _cut_out(rowptr, col, weight, size, nodes, local):
    """The piece of ``nodes``: pointers, columns, weights and sizes.

    Loops are left out, and edges that occur several times become one.
    """
    num_inside = 0
    for i in range(nodes.size):
        local[nodes[i]] = i
    for v in nodes:
        for e in range(rowptr[v], rowptr[v + 1]):
            num_inside += local[col[e]] >= 0 and col[e] != v
    ptr = np.zeros(nodes.size + 1, np.int64)
    to, tie = np.empty(num_inside, np.int32), np.empty(num_inside, np.int64)
    own_size = np.empty(nodes.size, np.int64)
    slot = np.full(nodes.size, -1, np.int64)
    n = 0
    for i in range(nodes.size):
        v, start = nodes[i], n
        own_size[i] = size[v]
        for e in range(rowptr[v], rowptr[v + 1]):
            u = local[col[e]]
            if u >= 0 and u != i:
                more = np.int64(weight[e]) if weight.size else np.int64(1)
                if slot[u] >= start:
                    tie[slot[u]] += more
                else:
                    slot[u], to[n], tie[n] = n, u, more
                    n += 1
        ptr[i + 1] = n
    for v in nodes:
        local[v] = -1
    return ptr, to, tie, own_size


@numba.njit(cache=True, nogil=True)
def _strengths(piece):
    """int64 [n]: what the edges of each node weigh."""
    ptr, _, tie, size = piece
    strength = np.zeros(size.size, np.int64)
    for v in range(size.size):
        for e in range(ptr[v], ptr[v + 1]):
            strength[v] += tie[e]
    return strength


@numba.njit(cache=True, nogil=True, inline="always")
def _rank(gain, v, num_nodes):
    """Gain of node v, and below it the node where they are few: the largest rank names the first.

    So one pass that vectorises finds the best node. ``rank >> _BITS`` is the gain again.
    """
    return (gain << _BITS) + (_FEW - 1 - v if num_nodes <= _FEW else 0)


@numba.njit(cache=True, nogil=True)
def _top(queue, rank):
    """The first node with most gain, or -1. Few nodes are looked at; many are queued.

    An entry of the queue may promise too much; a node whose gain has grown has another entry.
    """
    if rank.size <= _FEW:
        most = rank[0]
        for i in range(1, rank.size):
            most = max(most, rank[i])
        return np.int64(-1) if most < _BARRED // 2 else np.int64(_FEW - 1 - (most & (_FEW - 1)))
    while len(queue):
        score, v = queue[0]
        if score > -rank[v] or rank[v] < _BARRED // 2:
            heapq.heappop(queue)
        elif score < -rank[v]:
            heapq.heapreplace(queue, (-rank[v], v))
        else:
            return v
    return np.int64(-1)


@numba.njit(cache=True, nogil=True)
def _weigh(piece, side, rank):
    """Fill rank of both sides by the edges no longer cut were a node to leave; returns the cut."""
    ptr, to, tie, size = piece
    cut = np.int64(0)
    for v in range(size.size):
        within, across = np.int64(0), np.int64(0)
        for e in range(ptr[v], ptr[v + 1]):
            if side[to[e]] == side[v]:
                within += tie[e]
            else:
                across += tie[e]
        rank[side[v], v], rank[1 - side[v], v] = _rank(across - within, v, size.size), _BARRED
        cut += across * (side[v] == 0)
    return cut


@numba.njit(cache=True, nogil=True)
def _grow(piece, bounds, strength, luck, side, rank):
    """Side 0 grows to ``want``, always by the node with most edges to it less those to others.

    rank [3, n] is of nodes by the side that they may leave, then of those that the growing half
    touches. Returns the edges cut.
    """
    ptr, to, tie, size = piece
    want, _, least_nodes, most_nodes = bounds
    inner, outer, near = rank[0], rank[1], rank[2]
    side[:] = 1
    inner[:] = _BARRED
    near[:] = _BARRED
    for v in range(size.size):
        outer[v] = _rank(-strength[v], v, size.size)
    cut = np.int64(0)
    queue = [(np.int64(0), np.int64(0))]
    queue.pop()
    grown, count, tried = np.int64(0), 0, 0
    offset = np.int64(luck % np.uint64(size.size))
    while count < most_nodes and (grown < want or count < least_nodes):
        v = _top(queue, near)
        while v < 0 and tried < size.size:  # the first, or another piece of the graph
            u = (offset + tried) % size.size
            tried += 1
            if side[u] == 1:
                v = u
        if v < 0 or (count >= max(1, least_nodes) and grown + size[v] - want > want - grown):
            break
        gain = outer[v] >> _BITS
        cut -= gain
        side[v] = 0
        inner[v], outer[v], near[v] = _rank(-gain, v, size.size), _BARRED, _BARRED
        grown += size[v]
        count += 1
        for e in range(ptr[v], ptr[v + 1]):
            u = to[e]
            outer[u] += tie[e] << (_BITS + 1)
            near[u] = outer[u]
            inner[u] -= tie[e] << (_BITS + 1)
            if size.size > _FEW and side[u] == 1:
                heapq.heappush(queue, (-outer[u], np.int64(u)))
    return cut


@numba.njit(cache=True, nogil=True)
def _mend(piece, bounds, side, rank, cut):
    """One pass: nodes change sides, best first, each once; what came after the best is undone.

    rank and cut as ``_weigh`` leaves them. Returns whether anything got better, how far the halves
    are out of bounds, and the edges cut.
    """
    ptr, to, tie, size = piece
    want, room, least_nodes, most_nodes = bounds
    num_nodes = size.size
    inside, count, largest = np.int64(0), 0, np.int64(0)
    for v in range(num_nodes):
        largest = max(largest, size[v])
        if side[v] == 0:
            inside += size[v]
            count += 1
    queues = ([(np.int64(0), np.int64(0))], [(np.int64(0), np.int64(0))])
    queues[0].pop()
    queues[1].pop()
    for v in range(num_nodes if num_nodes > _FEW else 0):
        queued = abs(inside - want) > room
        for e in range(ptr[v], ptr[v + 1]):
            queued |= side[to[e]] != side[v]
        if queued:
            queues[side[v]].append((-rank[side[v], v], np.int64(v)))
    heapq.heapify(queues[0])
    heapq.heapify(queues[1])
    moved = np.empty(num_nodes, np.int64)
    num_moved, num_kept, num_barred = 0, 0, 0
    start_off, start_cut = max(np.int64(0), abs(inside - want) - room), cut
    best_off, best_cut = start_off, cut
    patience = 50 + num_nodes // 20
    while num_moved - num_kept + num_barred < patience:
        first = _top(queues[0], rank[0])
        second = _top(queues[1], rank[1])
        # On the way the halves may be one node further out of bounds.
        limit = max(room + largest, abs(inside - want))
        v = np.int64(-1)
        if first >= 0 and count > least_nodes and abs(inside - size[first] - want) <= limit:
            v = first
        if second >= 0 and count < most_nodes and abs(inside + size[second] - want) <= limit:
            if abs(inside - want) > room and v >= 0:
                v = first if inside > want else second
            elif v < 0 or rank[1, second] >> _BITS > rank[0, first] >> _BITS:
                v = second
        if v < 0:
            v = max(first, second)
            if v < 0:
                break
            rank[side[v], v] = _BARRED
            num_barred += 1
            continue
        here = side[v]
        inside += -size[v] if here == 0 else size[v]
        count += -1 if here == 0 else 1
        cut -= rank[here, v] >> _BITS
        rank[here, v] = _BARRED
        side[v] = 3 - here  # decided for this pass: 3 was 0 and is 1 now, 2 was 1
        moved[num_moved] = v
        num_moved += 1
        off = max(np.int64(0), abs(inside - want) - room)
        if off < best_off or (off == best_off and cut < best_cut):
            best_off, best_cut, num_kept = off, cut, num_moved
        for e in range(ptr[v], ptr[v + 1]):
            u = to[e]
            rank[here, u] += tie[e] << (_BITS + 1)
            rank[1 - here, u] -= tie[e] << (_BITS + 1)
            if num_nodes > _FEW and side[u] == here:
                heapq.heappush(queues[here], (-rank[here, u], np.int64(u)))
    for i in range(num_moved):
        v = moved[i]
        here = 3 - side[v]
        side[v] = 1 - here if i < num_kept else here
    return best_off < start_off or best_cut < start_cut, best_off, best_cut
