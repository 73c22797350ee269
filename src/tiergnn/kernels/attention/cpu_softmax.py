"""The running softmax of one row, and the sum of rows that it weighs.

Legend: K heads, F features; C columns of one head rounded up to whole vectors; n edges of a tile.
Edges are of two sides, 0 and 1, whose sums are kept apart: GAT's gradient wants them so.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numba.extending import register_jitable

from tiergnn.kernels import simd
from tiergnn.kernels.attention.cpu_rows import clear
from tiergnn.kernels.span import Span, number, rest


class State(NamedTuple):
    """What a softmax over some edges of a row has come to."""

    best: Span  # [K] maximum of the logits
    total: Span  # [2*K] sum of their exponentials
    acc: Span  # [2*K*C] weighted sums of rows


class Parts(NamedTuple):
    """Slots 2t and 2t+1 are for the row that task t inherits and the row that it hands on."""

    row: Span  # int64 [2T]; -1: unused
    state: Span  # float64 [2T*state_size]


@register_jitable
def state_size(heads: int, width: int) -> int:
    return 3 * heads + 2 * heads * simd.padded(width)


@njit(cache=True, nogil=True)
def state_at(x, at, heads):
    """The state that is kept in ``state_size`` numbers of x from ``at`` on."""
    best = rest(x, at)
    return State(best, rest(best, heads), rest(best, 3 * heads))


@njit(cache=True, nogil=True)
def reset(state, heads, width):
    clear(state.best, heads, -np.inf)
    clear(state.total, 2 * heads, 0)
    clear(state.acc, 2 * heads * simd.padded(width), 0)


@njit(cache=True, nogil=True)
def _finite(best):
    """The maximum, or 0 where no logit above -inf was seen: exp(-inf - 0) is 0."""
    return best if best != -np.inf else np.float32(0)


@njit(cache=True, nogil=True)
def absorb(n, heads, width, tile, logit_nK, side_nK, x, state):
    """Add a tile's edges and their rows of x to the state; logit_nK is overwritten."""
    room = simd.padded(width)
    for k in range(heads):
        highest = state.best[k]
        for t in range(n):
            if logit_nK[t * heads + k] > highest:
                highest = logit_nK[t * heads + k]
        if highest > state.best[k]:
            shrink = simd.exp(state.best[k] - highest)
            state.best[k] = highest
            for i in range(k, 2 * heads, heads):
                state.total[i] *= shrink
                for c in range(i * room, (i + 1) * room):
                    state.acc[c] *= shrink
    for k in range(heads):
        lowered = _finite(state.best[k])
        for t in range(n):
            logit_nK[t * heads + k] -= lowered
    for i in range(n * heads):
        logit_nK[i] = simd.exp(logit_nK[i])
    for t in range(n):
        row = tile.far[t] * heads * width
        for k in range(heads):
            i = t * heads + k
            slot = side_nK[i] * heads + k
            state.total[slot] += logit_nK[i]
            weight = logit_nK[i] * tile.factor[i]
            simd.axpy(state.acc, slot * room, x, row + k * width, weight, width)


@njit(cache=True, nogil=True)
def merge(part, heads, width, state):
    """Add a part's edges to a state, which is in float64."""
    room = simd.padded(width)
    for k in range(heads):
        new_best = np.float64(part.best[k])
        highest = max(state.best[k], new_best)
        lowered = _finite(highest)
        old, new = simd.exp(state.best[k] - lowered), simd.exp(new_best - lowered)
        state.best[k] = highest
        for i in range(k, 2 * heads, heads):
            state.total[i] = state.total[i] * old + part.total[i] * new
            for c in range(i * room, (i + 1) * room):
                state.acc[c] = state.acc[c] * old + part.acc[c] * new


@njit(cache=True, nogil=True)
def inverse_total(state, heads, k, has_edges):
    """1 over the sum of head k's exponentials; PyG's 1e-16 keeps a row without edges finite.

    NaN where every logit is -inf: so is torch's softmax.
    """
    if has_edges and state.best[k] == -np.inf:
        return number(state.total, np.nan)
    return 1 / (state.total[k] + state.total[heads + k] + number(state.total, 1e-16))
