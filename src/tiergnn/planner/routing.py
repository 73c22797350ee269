"""Routes of chunks of rows through stages: shortest paths over what the wires carry already.

A chunk is a class of rows or a piece of one. Its state is (stage, rank): waiting costs nothing, a
send from stage s to s + 1 what it adds to the exchange. All edges lead a stage on, so the shortest
path is found stage by stage, without a heap.

Legend: C chunks, S stages, W ranks, L ways of wires, T seconds that ways carry bytes, int32 and
float64 arrays.
"""

from __future__ import annotations

import numba
import numpy as np

_LOAD = 0.02  # of a send's own seconds: a light bias to short and fast ways
_CROWD = 0.1  # of a send's own seconds on its busiest way, times how full that is


@numba.njit(cache=True, nogil=True)
def _price(load_T, top, ways, ptr, way_s, pair, rows):
    """What a send adds: growth of its stage, and little for work that does not show yet.

    That a stage costs something by itself is left to the limit of stages: no chunk alone is worth
    opening one, all of them together are.
    """
    longest = top
    own = 0.0
    crowd = 0.0
    for i in range(ptr[pair], ptr[pair + 1]):
        takes = rows * way_s[ways[i]]
        after = load_T[ways[i]] + takes
        longest = max(longest, after)
        own += takes
        crowd = max(crowd, takes * after)
    growth = longest - top
    return growth + _LOAD * own + (_CROWD * crowd / longest if longest > 0.0 else 0.0) + 1e-12


@numba.njit(cache=True, nogil=True)
def _move(load_ST, stage, ways, ptr, way_s, pair, rows):
    for i in range(ptr[pair], ptr[pair + 1]):
        load_ST[stage, ways[i]] += rows * way_s[ways[i]]


@numba.njit(cache=True, nogil=True)
def _route(c, owner, readers, rows, load_ST, top, ways, ptr, way_s, taste, out, count, scratch):
    """Route chunk c to all its readers; writes out[c, :, 3] (stage, sender, receiver)."""
    dist, came, since = scratch
    num_stages, num_ranks = load_ST.shape[0], since.size
    never = num_stages + 1
    for r in range(num_ranks):
        since[r] = never
    since[owner[c]] = 0
    missing = readers[c]
    used = 0
    while missing:
        for r in range(num_ranks):
            dist[0, r] = 0.0 if since[r] == 0 else np.inf
        for s in range(num_stages):
            for r in range(num_ranks):
                dist[s + 1, r] = 0.0 if since[r] <= s + 1 else dist[s, r]
                came[s + 1, r] = -1
            for u in range(num_ranks):
                if dist[s, u] == np.inf:
                    continue
                for v in range(num_ranks):
                    if since[v] < never or dist[s, u] >= dist[s + 1, v]:
                        continue
                    pair = u * num_ranks + v
                    price = _price(load_ST[s], top[s], ways, ptr, way_s, pair, rows[c])
                    price *= taste[pair]
                    if dist[s, u] + price < dist[s + 1, v]:
                        dist[s + 1, v] = dist[s, u] + price
                        came[s + 1, v] = u
        nearest = -1
        for r in range(num_ranks):
            wanted = (missing >> np.uint64(r)) & np.uint64(1)
            if wanted != 0 and (nearest < 0 or dist[num_stages, r] < dist[num_stages, nearest]):
                nearest = r
        v, s = nearest, num_stages
        while since[v] > s:  # back to a rank that holds the rows by then
            u = came[s, v]
            s -= 1
            if u < 0:
                continue  # v waits
            pair = u * num_ranks + v
            _move(load_ST, s, ways, ptr, way_s, pair, rows[c])
            for i in range(ptr[pair], ptr[pair + 1]):
                top[s] = max(top[s], load_ST[s, ways[i]])
            out[c, used, 0], out[c, used, 1], out[c, used, 2] = s, u, v
            used += 1
            since[v] = s + 1
            missing &= ~(np.uint64(1) << np.uint64(v))
            v = u
    count[c] = used


@numba.njit(cache=True, nogil=True)
def _refill(rows, load_ST, top, ways, ptr, way_s, num_ranks, out, count):
    """Loads from scratch, so that rounding never gathers."""
    load_ST[:] = 0.0
    for c in range(rows.size):
        for i in range(count[c]):
            pair = out[c, i, 1] * num_ranks + out[c, i, 2]
            _move(load_ST, out[c, i, 0], ways, ptr, way_s, pair, rows[c])
    for s in range(top.size):
        top[s] = load_ST[s].max()


@numba.njit(cache=True, nogil=True)
def _total(top, stage_s):
    seconds = 0.0
    for s in range(top.size):
        if top[s] > 0.0:
            seconds += top[s] + stage_s
    return seconds


@numba.njit(cache=True, nogil=True)
def route(
    owner, readers, rows, order, num_stages, num_ranks, ways, ptr, way_s, stage_s, taste, passes
):
    """Route all chunks in ``order``; then ``passes`` times take each out and route it anew.

    owner int32 [C], readers uint64 [C], rows int64 [C]; ptr int64 [W*W+1] into ways: those from
    rank u to v are at u * W + v; way_s float64 [L]: seconds a row; taste float64 [W*W] multiplies
    the prices of pairs when chunks are routed first. Gives the best that was met: its seconds,
    sends int32 [C, W-1, 3] (stage, sender, receiver) and their number int32 [C].
    """
    load_ST = np.zeros((num_stages, way_s.size))
    top = np.zeros(num_stages)
    out = np.zeros((owner.size, max(1, num_ranks - 1), 3), np.int32)
    count = np.zeros(owner.size, np.int32)
    scratch = (
        np.empty((num_stages + 1, num_ranks)),
        np.full((num_stages + 1, num_ranks), -1, np.int32),
        np.empty(num_ranks, np.int32),
    )
    for c in order:
        _route(c, owner, readers, rows, load_ST, top, ways, ptr, way_s, taste, out, count, scratch)
    _refill(rows, load_ST, top, ways, ptr, way_s, num_ranks, out, count)
    taste = np.ones_like(taste)
    best, best_out, best_count = _total(top, stage_s), out.copy(), count.copy()
    for _ in range(passes):
        for c in order:
            for i in range(count[c]):
                pair = out[c, i, 1] * num_ranks + out[c, i, 2]
                _move(load_ST, out[c, i, 0], ways, ptr, way_s, pair, -rows[c])
            for i in range(count[c]):
                s = out[c, i, 0]
                top[s] = load_ST[s].max()
                if top[s] < 1e-15:
                    load_ST[s] = 0.0
                    top[s] = 0.0
            _route(
                c, owner, readers, rows, load_ST, top, ways, ptr, way_s, taste, out, count, scratch
            )
        _refill(rows, load_ST, top, ways, ptr, way_s, num_ranks, out, count)
        seconds = _total(top, stage_s)
        if seconds < best * (1 - 1e-9):
            best, best_out[:], best_count[:] = seconds, out, count
    return best, best_out, best_count
