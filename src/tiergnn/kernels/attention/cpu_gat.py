"""GAT attention on the CPU: one pass over in-edges forward, one over out-edges backward.

Forward reads each edge's source row once, under a running softmax. Backward makes the coefficients
again from the scores and two numbers a row, while it reads each edge's destination gradient once.
The gradient of score_dst needs no pass: leaky_relu has two slopes, so that sum is the sum over the
*steep* edges (those whose argument is positive), which forward keeps for it as one more row.

Legend: P destinations, S sources, E edges, K heads, F features; C columns of one head rounded up
to whole vectors. Every array is a Span.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from tiergnn.kernels import simd
from tiergnn.kernels.attention.cpu_rows import (
    CHUNK,
    TILE_INTS,
    clear,
    copy,
    fill,
    keep_factors,
    load_row,
    move_sum,
    new_tile,
    row_range,
    span_of,
    store_row,
)
from tiergnn.kernels.attention.cpu_softmax import (
    absorb,
    inverse_total,
    merge,
    reset,
    state_at,
    state_size,
)
from tiergnn.kernels.span import Span, number, rest

TILE = 32


class Inputs(NamedTuple):
    """Edges and virtual loops have terms of their own only if ``scored``."""

    h: Span  # [S*K*F]
    src: Span  # [S*K]
    dst: Span  # [P*K]
    edge: Span  # [E*K]
    loop: Span  # [P*K]
    heads: int
    width: int
    scored: bool


class Outputs(NamedTuple):
    """All but ``out`` are for backward, and written only if ``keep``."""

    out: Span  # [P*K*F]
    best: Span  # [P*K] maximum of the logits
    inverse: Span  # [P*K] of the sum of exponentials
    steep: Span  # [P*K*F] out's share of the steep edges
    steep_total: Span  # [P*K] and that of the coefficients before dropout
    keep: bool


class Grads(NamedTuple):
    """Those of edges and loops are written only if asked for."""

    h: Span  # [S*K*F]
    src: Span  # [S*K]
    edge: Span  # [E*K]
    loop: Span  # [P*K]
    needs_edge: bool
    needs_loop: bool


def scratch(heads: int, width: int) -> tuple[int, int, int]:
    """How many int64, narrow and float64 numbers a call of ``forward`` or ``backward`` needs."""
    sums = 3 * heads + 2 * heads * simd.padded(width) + simd.padded(heads)
    return TILE * (TILE_INTS + heads), 3 * TILE * heads + sums, sums


@njit(cache=True, nogil=True)
def _edge_score(x, edge, row, k):
    """The edge's own term of a logit; that of the row's virtual loop when edge is -1."""
    if not x.scored:
        return number(x.src, 0)
    if edge < 0:
        return x.loop[row * x.heads + k]
    return x.edge[edge * x.heads + k]


@njit(cache=True, nogil=True)
def _finish(row, has_edges, x, state, outputs):
    heads, width, room = x.heads, x.width, simd.padded(x.width)
    for k in range(heads):
        inverse = inverse_total(state, heads, k, has_edges)
        at, flat, steep = (row * heads + k) * width, k * room, (heads + k) * room
        for f in range(width):
            value = (state.acc[flat + f] + state.acc[steep + f]) * inverse
            outputs.out[at + f] = number(outputs.out, value)
        if outputs.keep:
            i = row * heads + k
            outputs.best[i] = number(outputs.out, state.best[k])
            outputs.inverse[i] = number(outputs.out, inverse)
            outputs.steep_total[i] = number(outputs.out, state.total[heads + k] * inverse)
            for f in range(width):
                outputs.steep[at + f] = number(outputs.out, state.acc[steep + f] * inverse)


@njit(cache=True, nogil=True)
def forward(first, last, rows, x, options, outputs, parts, ints, floats, doubles):
    heads, width = x.heads, x.width
    tile = new_tile(TILE, heads, ints, floats)
    steep = rest(ints, TILE * TILE_INTS)
    logit = rest(floats, TILE * heads)
    state = state_at(floats, 2 * TILE * heads, heads)
    whole = state_at(doubles, 0, heads)
    slope = number(x.src, options.negative_slope)
    streams = (x.h, heads * width), (x.src, heads)
    for task in range(first, last):
        row_0, row_1 = row_range(rows, task)
        for row in range(row_0, row_1):
            low, high, begins, ends = span_of(rows, task, row)
            in_parts = high - low > CHUNK or not (begins and ends)
            if in_parts:
                reset(whole, heads, width)
            reset(state, heads, width)
            n, chunk, seen = 0, 0, 0
            if begins and options.self_loop:
                tile.far[0], tile.edge[0], n = row, -1, 1
            while low < high or n > 0:
                n, low = fill(rows, row, low, high, n, options.self_loop, tile, streams)
                for t in range(n):
                    for k in range(heads):
                        value = x.src[tile.far[t] * heads + k] + x.dst[row * heads + k]
                        value += _edge_score(x, tile.edge[t], row, k)
                        steep[t * heads + k] = value > 0
                        logit[t * heads + k] = value if value > 0 else value * slope
                if options.threshold:
                    keep_factors(n, heads, row, rows, options, tile)
                absorb(n, heads, width, tile, logit, steep, x.h, state)
                chunk, seen, n = chunk + n, seen + n, 0
                if in_parts and chunk > 0 and (chunk >= CHUNK or low == high):
                    merge(state, heads, width, whole)
                    reset(state, heads, width)
                    chunk = 0
            if not in_parts:
                _finish(row, seen > 0, x, state, outputs)
            elif begins and ends:
                _finish(row, seen > 0, x, whole, outputs)
            elif seen:
                size = state_size(heads, width)
                parts.row[2 * task + begins] = row
                copy(whole.best, size, rest(parts.state, (2 * task + begins) * size))


@njit(cache=True, nogil=True)
def forward_join(num_tasks, x, outputs, parts, doubles):
    """Finish the rows that several tasks share."""
    heads, width = x.heads, x.width
    whole = state_at(doubles, 0, heads)
    before = np.int64(-1)
    for slot in range(2 * num_tasks):
        row = parts.row[slot]
        if row >= 0:
            if row != before:
                if before >= 0:
                    _finish(before, True, x, whole, outputs)
                reset(whole, heads, width)
                before = row
            part = state_at(parts.state, slot * state_size(heads, width), heads)
            merge(part, heads, width, whole)
    if before >= 0:
        _finish(before, True, x, whole, outputs)


@njit(cache=True, nogil=True)
def destinations(first, last, x, options, grad, outputs, stats, grad_dst):
    """What out-edges need of rows, [P*4K]: score, maximum, inverse, <grad, out>; and grad of score.

    A task is a row here.
    """
    heads, width = x.heads, x.width
    slope = number(x.src, options.negative_slope)
    for row in range(first, last):
        stat = row * 4 * heads
        for k in range(heads):
            i = row * heads + k
            inner = simd.dot(grad, i * width, outputs.out, i * width, width)
            steep = simd.dot(grad, i * width, outputs.steep, i * width, width)
            stats[stat + k] = x.dst[i]
            stats[stat + heads + k] = outputs.best[i]
            stats[stat + 2 * heads + k] = outputs.inverse[i]
            stats[stat + 3 * heads + k] = inner
            # Over all edges the logits' gradients sum to zero, so the flat slope cancels.
            grad_dst[i] = (1 - slope) * (steep - inner * outputs.steep_total[i])


@njit(cache=True, nogil=True)
def _edge_grads(n, row, x, grad, stats, own, tile, alpha, bent, acc, grads):
    """Add a tile's edges to acc, the sums for h [K*C] and the score [K] of one source."""
    heads, width, room = x.heads, x.width, simd.padded(x.width)
    for t in range(n):
        stat, at = tile.far[t] * 4 * heads, tile.far[t] * heads * width
        for k in range(heads):
            i = t * heads + k
            coefficient = alpha[i] * stats[stat + 2 * heads + k]
            inner = simd.dot(own, k * room, grad, at + k * width, width)
            inner = tile.factor[i] * inner - stats[stat + 3 * heads + k]
            score = coefficient * inner * bent[i]
            weight = coefficient * tile.factor[i]
            simd.axpy(acc, k * room, grad, at + k * width, weight, width)
            acc[heads * room + k] += score
            if tile.edge[t] < 0:
                if grads.needs_loop:
                    grads.loop[row * heads + k] = score
            elif grads.needs_edge:
                grads.edge[tile.edge[t] * heads + k] = score


@njit(cache=True, nogil=True)
def backward(
    first, last, rows, x, options, grad, stats, grads, part_row, part_acc, ints, floats, doubles
):
    """``rows`` are the out-edges of sources; grad [P*K*F], stats [P*4K]; part_acc has 2T
    sums for h [K*C] and the score [K], each rounded up to whole vectors.
    """
    heads, width, room = x.heads, x.width, simd.padded(x.width)
    score_at = heads * room
    size = score_at + simd.padded(heads)
    tile = new_tile(TILE, heads, ints, floats)
    alpha, bent = rest(floats, TILE * heads), rest(floats, 2 * TILE * heads)
    own = rest(floats, 3 * TILE * heads)
    acc = rest(own, score_at)
    clear(own, score_at, 0)
    slope, one = number(x.src, options.negative_slope), number(x.src, 1)
    streams = (grad, heads * width), (stats, 4 * heads)
    for task in range(first, last):
        row_0, row_1 = row_range(rows, task)
        for row in range(row_0, row_1):
            low, high, begins, ends = span_of(rows, task, row)
            in_parts = high - low > CHUNK or not (begins and ends)
            load_row(x.h, row * heads * width, heads, width, own)
            clear(acc, size, 0)
            if in_parts:
                clear(doubles, size, 0)
            n, chunk, seen = 0, 0, 0
            if begins and options.self_loop and row < rows.num_dst:
                tile.far[0], tile.edge[0], n = row, -1, 1
            while low < high or n > 0:
                n, low = fill(rows, row, low, high, n, options.self_loop, tile, streams)
                for t in range(n):
                    stat = tile.far[t] * 4 * heads
                    for k in range(heads):
                        value = x.src[row * heads + k] + stats[stat + k]
                        value += _edge_score(x, tile.edge[t], row, k)
                        bent[t * heads + k] = one if value > 0 else slope
                        value = value if value > 0 else value * slope
                        alpha[t * heads + k] = value - stats[stat + heads + k]
                for i in range(n * heads):
                    alpha[i] = simd.exp(alpha[i])
                if options.threshold:
                    keep_factors(n, heads, row, rows, options, tile)
                _edge_grads(n, row, x, grad, stats, own, tile, alpha, bent, acc, grads)
                chunk, seen, n = chunk + n, seen + n, 0
                if in_parts and (chunk >= CHUNK or low == high):
                    move_sum(acc, size, doubles)
                    chunk = 0
            if not (begins and ends):
                if seen:
                    part_row[2 * task + begins] = row
                    copy(doubles, size, rest(part_acc, (2 * task + begins) * size))
            elif in_parts:
                store_row(doubles, heads, width, grads.h, row * heads * width)
                store_row(rest(doubles, score_at), 1, heads, grads.src, row * heads)
            else:
                store_row(acc, heads, width, grads.h, row * heads * width)
                store_row(rest(acc, score_at), 1, heads, grads.src, row * heads)
