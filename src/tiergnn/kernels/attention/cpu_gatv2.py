"""GATv2 attention on the CPU: one pass over in-edges forward; in-edges, then out-edges backward.

The logit of an edge is <att, leaky_relu(pre)>, pre = x_src + x_dst + edge_attr @ edge_weight, made
again wherever it is needed. Gradients that all edges add to, those of att and edge_weight, are one
sum a task, added in the order of the tasks.

Legend: P destinations, S sources, E edges, K heads, F features, D edge features, T tasks; C columns
of one head rounded up to whole vectors. Every array is a Span.
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

TILE = 16


class Inputs(NamedTuple):
    """Edges and virtual loops have features only if ``attrs``, their number, is above 0."""

    src: Span  # [S*K*F]
    dst: Span  # [P*K*F]
    att: Span  # [K*C]
    edge: Span  # [E*D]
    weight: Span  # [D*K*C]
    loop: Span  # [P*D]
    heads: int
    width: int
    attrs: int


class Outputs(NamedTuple):
    """Beside out: maximum of the logits, inverse of the sum of exponentials."""

    out: Span  # [P*K*F]
    best: Span  # [P*K]
    inverse: Span  # [P*K]


class Grads(NamedTuple):
    """What the pass over in-edges writes; those of edges and loops only if asked for."""

    dst: Span  # [P*K*F]
    edge: Span  # [E*D]
    loop: Span  # [P*D]
    shared: Span  # float64 [T*(1+D)*K*C]: each task's sums for att, then weight
    needs_edge: bool
    needs_loop: bool


def scratch(heads: int, width: int, attrs: int) -> tuple[int, int, int]:
    """How many int64, narrow and float64 numbers a call of any of the passes needs."""
    size = heads * simd.padded(width)
    narrow = 2 * TILE * heads + TILE * size + 3 * heads + (6 + attrs) * size
    return TILE * (TILE_INTS + heads), narrow, 3 * heads + 2 * size


@njit(cache=True, nogil=True)
def _logits(n, row, x, own, other, slope, tile, pre, stride, logit):
    """pre, ``stride`` numbers an edge, and the logit of a tile's edges.

    own is this end's row, padded; other holds the far ends' rows; virtual loops have features of
    their own.
    """
    heads, width, room = x.heads, x.width, simd.padded(x.width)
    size = heads * room
    for t in range(n):
        there, at = tile.far[t] * heads * width, t * stride
        for k in range(heads):
            simd.add(pre, at + k * room, own, k * room, other, there + k * width, width)
        for d in range(x.attrs):
            if tile.edge[t] < 0:
                value = x.loop[row * x.attrs + d]
            else:
                value = x.edge[tile.edge[t] * x.attrs + d]
            simd.axpy(pre, at, x.weight, d * size, value, size)
        for k in range(heads):
            inner = simd.leaky_dot(pre, at + k * room, x.att, k * room, slope, room)
            logit[t * heads + k] = inner


@njit(cache=True, nogil=True)
def _finish(row, has_edges, x, state, outputs):
    heads, width, room = x.heads, x.width, simd.padded(x.width)
    for k in range(heads):
        inverse = inverse_total(state, heads, k, has_edges)
        outputs.best[row * heads + k] = number(outputs.out, state.best[k])
        outputs.inverse[row * heads + k] = number(outputs.out, inverse)
        for f in range(width):
            value = number(outputs.out, state.acc[k * room + f] * inverse)
            outputs.out[(row * heads + k) * width + f] = value


@njit(cache=True, nogil=True)
def forward(first, last, rows, x, options, outputs, parts, ints, floats, doubles):
    heads, width = x.heads, x.width
    size = heads * simd.padded(width)
    tile = new_tile(TILE, heads, ints, floats)
    side = rest(ints, TILE * TILE_INTS)  # one sum does: every edge is on side 0
    clear(side, TILE * heads, 0)
    logit = rest(floats, TILE * heads)
    own = rest(logit, TILE * heads)
    pre = rest(own, size)
    clear(own, 2 * size, 0)
    state = state_at(pre, size, heads)
    whole = state_at(doubles, 0, heads)
    slope = number(x.att, options.negative_slope)
    streams = ((x.src, heads * width),)
    for task in range(first, last):
        row_0, row_1 = row_range(rows, task)
        for row in range(row_0, row_1):
            low, high, begins, ends = span_of(rows, task, row)
            in_parts = high - low > CHUNK or not (begins and ends)
            if in_parts:
                reset(whole, heads, width)
            reset(state, heads, width)
            load_row(x.dst, row * heads * width, heads, width, own)
            n, chunk, seen = 0, 0, 0
            if begins and options.self_loop:
                tile.far[0], tile.edge[0], n = row, -1, 1
            while low < high or n > 0:
                n, low = fill(rows, row, low, high, n, options.self_loop, tile, streams)
                _logits(n, row, x, own, x.src, slope, tile, pre, 0, logit)
                if options.threshold:
                    keep_factors(n, heads, row, rows, options, tile)
                absorb(n, heads, width, tile, logit, side, x.src, state)
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
                kept = state_size(heads, width)
                parts.row[2 * task + begins] = row
                copy(whole.best, kept, rest(parts.state, (2 * task + begins) * kept))


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
def _edge_grads(t, row, x, tile, step, grads, shared):
    """What ``step``, the gradient of one edge's pre, adds to its features' and their weight's."""
    size = x.heads * simd.padded(x.width)
    for d in range(x.attrs):
        if tile.edge[t] < 0:
            at = row * x.attrs + d
            value = x.loop[at]
            if grads.needs_loop:
                grads.loop[at] = simd.dot(step, 0, x.weight, d * size, size)
        else:
            at = tile.edge[t] * x.attrs + d
            value = x.edge[at]
            if grads.needs_edge:
                grads.edge[at] = simd.dot(step, 0, x.weight, d * size, size)
        simd.axpy(shared, (1 + d) * size, step, 0, value, size)


@njit(cache=True, nogil=True)
def destinations(
    first, last, rows, x, options, grad, stats, grads, part_row, part_acc, ints, floats, doubles
):
    """Gradients of x_dst, att, edge features and their weight; grad [P*K*F], stats [P*3K]."""
    heads, width, room = x.heads, x.width, simd.padded(x.width)
    size = heads * room
    tile = new_tile(TILE, heads, ints, floats)
    alpha = rest(floats, TILE * heads)
    pre = rest(alpha, TILE * heads)
    own = rest(pre, TILE * size)
    own_grad, step, acc = rest(own, size), rest(own, 2 * size), rest(own, 3 * size)
    shared = rest(own, 4 * size)
    clear(pre, (TILE + 5 + x.attrs) * size, 0)
    slope, one = number(x.att, options.negative_slope), number(x.att, 1)
    streams = ((x.src, heads * width),)
    for task in range(first, last):
        all_shared = rest(grads.shared, task * (1 + x.attrs) * size)
        shared_edges = 0
        row_0, row_1 = row_range(rows, task)
        for row in range(row_0, row_1):
            low, high, begins, ends = span_of(rows, task, row)
            in_parts = high - low > CHUNK or not (begins and ends)
            load_row(x.dst, row * heads * width, heads, width, own)
            load_row(grad, row * heads * width, heads, width, own_grad)
            clear(acc, size, 0)
            if in_parts:
                clear(doubles, size, 0)
            stat = row * 3 * heads
            n, chunk, seen = 0, 0, 0
            if begins and options.self_loop:
                tile.far[0], tile.edge[0], n = row, -1, 1
            while low < high or n > 0:
                n, low = fill(rows, row, low, high, n, options.self_loop, tile, streams)
                _logits(n, row, x, own, x.src, slope, tile, pre, size, alpha)
                for t in range(n):
                    for k in range(heads):
                        alpha[t * heads + k] -= stats[stat + k]
                for i in range(n * heads):
                    alpha[i] = simd.exp(alpha[i])
                if options.threshold:
                    keep_factors(n, heads, row, rows, options, tile)
                for t in range(n):
                    at = tile.far[t] * heads * width
                    for k in range(heads):
                        i, c = t * heads + k, k * room
                        inner = simd.dot(own_grad, c, x.src, at + k * width, width)
                        inner = tile.factor[i] * inner - stats[stat + 2 * heads + k]
                        logit = alpha[i] * stats[stat + heads + k] * inner
                        p = t * size + c
                        simd.leaky_slopes(step, c, pre, p, x.att, c, logit, slope, room)
                        simd.leaky_axpy(shared, c, pre, p, logit, slope, room)
                    simd.axpy(acc, 0, step, 0, one, size)
                    _edge_grads(t, row, x, tile, step, grads, shared)
                chunk, seen, shared_edges, n = chunk + n, seen + n, shared_edges + n, 0
                if in_parts and (chunk >= CHUNK or low == high):
                    move_sum(acc, size, doubles)
                    chunk = 0
                if shared_edges >= CHUNK:
                    move_sum(shared, (1 + x.attrs) * size, all_shared)
                    shared_edges = 0
            if not (begins and ends):
                if seen:
                    part_row[2 * task + begins] = row
                    copy(doubles, size, rest(part_acc, (2 * task + begins) * size))
            elif in_parts:
                store_row(doubles, heads, width, grads.dst, row * heads * width)
            else:
                store_row(acc, heads, width, grads.dst, row * heads * width)
        move_sum(shared, (1 + x.attrs) * size, all_shared)


@njit(cache=True, nogil=True)
def sources(
    first, last, rows, x, options, grad, stats, grad_src, part_row, part_acc, ints, floats, doubles
):
    """Gradient of x_src, as a value and as an argument of the logits.

    ``rows`` are the out-edges of sources; grad [P*K*F] and stats [P*3K].
    """
    heads, width, room = x.heads, x.width, simd.padded(x.width)
    size = heads * room
    tile = new_tile(TILE, heads, ints, floats)
    alpha = rest(floats, TILE * heads)
    pre = rest(alpha, TILE * heads)
    own = rest(pre, TILE * size)
    step, acc = rest(own, size), rest(own, 2 * size)
    clear(pre, (TILE + 3) * size, 0)
    slope, one = number(x.att, options.negative_slope), number(x.att, 1)
    streams = (grad, heads * width), (x.dst, heads * width), (stats, 3 * heads)
    for task in range(first, last):
        row_0, row_1 = row_range(rows, task)
        for row in range(row_0, row_1):
            low, high, begins, ends = span_of(rows, task, row)
            in_parts = high - low > CHUNK or not (begins and ends)
            load_row(x.src, row * heads * width, heads, width, own)
            clear(acc, size, 0)
            if in_parts:
                clear(doubles, size, 0)
            n, chunk, seen = 0, 0, 0
            if begins and options.self_loop and row < rows.num_dst:
                tile.far[0], tile.edge[0], n = row, -1, 1
            while low < high or n > 0:
                n, low = fill(rows, row, low, high, n, options.self_loop, tile, streams)
                _logits(n, row, x, own, x.dst, slope, tile, pre, size, alpha)
                for t in range(n):
                    for k in range(heads):
                        alpha[t * heads + k] -= stats[tile.far[t] * 3 * heads + k]
                for i in range(n * heads):
                    alpha[i] = simd.exp(alpha[i])
                if options.threshold:
                    keep_factors(n, heads, row, rows, options, tile)
                for t in range(n):
                    stat, at = tile.far[t] * 3 * heads, tile.far[t] * heads * width
                    for k in range(heads):
                        i, c = t * heads + k, k * room
                        coefficient = alpha[i] * stats[stat + heads + k]
                        inner = simd.dot(own, c, grad, at + k * width, width)
                        inner = tile.factor[i] * inner - stats[stat + 2 * heads + k]
                        logit, weight = coefficient * inner, coefficient * tile.factor[i]
                        p = t * size + c
                        simd.leaky_slopes(step, c, pre, p, x.att, c, logit, slope, room)
                        simd.axpy(acc, c, grad, at + k * width, weight, width)
                    simd.axpy(acc, 0, step, 0, one, size)
                chunk, seen, n = chunk + n, seen + n, 0
                if in_parts and (chunk >= CHUNK or low == high):
                    move_sum(acc, size, doubles)
                    chunk = 0
            if not (begins and ends):
                if seen:
                    part_row[2 * task + begins] = row
                    copy(doubles, size, rest(part_acc, (2 * task + begins) * size))
            elif in_parts:
                store_row(doubles, heads, width, grad_src, row * heads * width)
            else:
                store_row(acc, heads, width, grad_src, row * heads * width)
