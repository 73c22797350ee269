"""What the CPU's attention kernels share: even tasks, tiles of edges, sums cut in parts.

A task is a run of edges and row ends of fixed length, so a hub is shared by several tasks and many
empty rows by one. A row that lies in one task is written by it; the parts of any other row go to
slots, two a task, which are joined in order: every sum has one order, whatever the threads.
At most CHUNK edges are summed in the dtype of the sum; their sums are added in float64.

Legend: T tasks, K heads, F features; C columns of one head rounded up to whole vectors; n edges of
a tile. Every array is a Span.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from tiergnn.kernels import simd
from tiergnn.kernels.attention.cpu_words import quad_words
from tiergnn.kernels.span import Span, number, rest

CHUNK = 512
AHEAD = 16  # edges between asking for a row and reading it
_TASK_UNITS, _MAX_TASKS = 2048, 256


class Rows(NamedTuple):
    """A CSR of P rows, or of the out-edges of S sources, cut into tasks."""

    cuts: Span  # int64 [2T+2]: row and edge where each task begins
    rowptr: Span  # int64 [P+1]
    col: Span  # [E]
    edge: Span  # [E] position in the block of each edge, when it is not where the edge stands
    eid: Span  # int64 [E] by position in the block, when there are any
    gid: Span  # int64, of the destinations, when there are any
    num_tasks: int
    num_rows: int
    num_edges: int
    num_dst: int
    num_graph_edges: int
    has_edge: bool
    has_eid: bool
    has_gid: bool


class Tile(NamedTuple):
    """A few edges of one row, n of them in use. Edge -1 is the row's virtual self-loop."""

    size: int
    far: Span  # int64 [n]: the row at the edge's other end
    edge: Span  # int64 [n]: position in the block
    factor: Span  # [n*K]: what multiplies the coefficient (dropout)
    row_id: Span  # int64 [n], scratch
    words: Span  # int64 [4*n], scratch


TILE_INTS = 7  # int64 numbers of a tile, an edge


def num_tasks(num_rows: int, num_edges: int) -> int:
    return min(_MAX_TASKS, -(-(num_rows + num_edges) // _TASK_UNITS))


@njit(cache=True, nogil=True)
def cut(rowptr, num_rows, num_tasks, cuts):
    """A row is one unit an edge and then one for its end; tasks get equal numbers of units."""
    units = num_rows + rowptr[num_rows]
    for task in range(num_tasks + 1):
        unit = units * task // num_tasks
        low, high = 0, num_rows
        while low < high:  # the last row that begins at or before the unit
            middle = (low + high + 1) // 2
            if rowptr[middle] + middle <= unit:
                low = middle
            else:
                high = middle - 1
        cuts[2 * task] = low
        cuts[2 * task + 1] = unit - low


@njit(cache=True, nogil=True)
def row_range(rows, task):
    """First row of a task, and the row after the last that it holds a share of.

    A row that begins exactly where the next task does is that task's alone: a share of no edges
    would bring the row's self-loop a second time.
    """
    last = rows.cuts[2 * task + 2]
    shared = last < rows.num_rows and rows.cuts[2 * task + 3] > rows.rowptr[last]
    return rows.cuts[2 * task], last + 1 if shared else last


@njit(cache=True, nogil=True)
def span_of(rows, task, row):
    """(first edge, end, begins here, ends here) of a task's share of a row."""
    begins = row > rows.cuts[2 * task] or rows.cuts[2 * task + 1] == rows.rowptr[row]
    ends = row < rows.cuts[2 * task + 2]
    low = rows.rowptr[row] if begins else rows.cuts[2 * task + 1]
    high = rows.rowptr[row + 1] if ends else rows.cuts[2 * task + 3]
    return low, high, begins, ends


@njit(cache=True, nogil=True)
def new_tile(size, heads, ints, floats):
    """A tile in scratch of size * TILE_INTS and size * heads numbers; its factors are 1."""
    clear(floats, size * heads, 1)
    far, edge, row_id, words = (
        ints,
        rest(ints, size),
        rest(ints, 2 * size),
        rest(ints, 3 * size),
    )
    return Tile(size, far, edge, floats, row_id, words)


@njit(cache=True, nogil=True)
def fill(rows, row, at, high, n, skip_loops, tile, streams):
    """Put the edges from ``at`` on behind the n in the tile; returns (n, the edge to go on with).

    ``streams``: pairs (rows, columns) of which the far end's row is read soon.
    """
    while n < tile.size and at < high:
        ahead = np.int64(rows.col[min(at + AHEAD, rows.num_edges - 1)])
        for x, columns in streams:
            simd.prefetch(x, ahead * columns, columns)
        far = np.int64(rows.col[at])
        if not (skip_loops and far == row):
            tile.far[n] = far
            tile.edge[n] = np.int64(rows.edge[at]) if rows.has_edge else at
            n += 1
        at += 1
    return n, at


@njit(cache=True, nogil=True)
def keep_factors(n, heads, row, rows, options, tile):
    """What dropout multiplies each coefficient of a tile by: 0 or 1 / (1 - p)."""
    for t in range(n):
        edge = tile.edge[t]
        if edge < 0:
            tile.row_id[t] = rows.num_graph_edges + (rows.gid[row] if rows.has_gid else row)
        else:
            tile.row_id[t] = rows.eid[edge] if rows.has_eid else edge
    scale = number(tile.factor, options.scale)
    zero = number(tile.factor, 0)
    first, last = options.head, options.head + heads
    for quad in range(first // 4, (last + 3) // 4):
        quad_words(tile.row_id, n, quad, options.key[0], options.key[1], options.site, tile.words)
        for head in range(max(first, 4 * quad), min(last, 4 * quad + 4)):
            for t in range(n):
                kept = tile.words[4 * t + head - 4 * quad] >= options.threshold
                tile.factor[t * heads + head - first] = scale if kept else zero


@njit(cache=True, nogil=True)
def clear(x, count, value):
    for i in range(count):
        x[i] = number(x, value)


@njit(cache=True, nogil=True)
def copy(x, count, out):
    for i in range(count):
        out[i] = x[i]


@njit(cache=True, nogil=True)
def move_sum(x, count, total):
    """total += x, in float64; x = 0."""
    for i in range(count):
        total[i] += x[i]
        x[i] = number(x, 0)


@njit(cache=True, nogil=True)
def load_row(x, at, heads, width, out):
    """Read a row into whole vectors a head; what is behind a head's columns stays as it is."""
    room = simd.padded(width)
    for k in range(heads):
        for f in range(width):
            out[k * room + f] = x[at + k * width + f]


@njit(cache=True, nogil=True)
def store_row(x, heads, width, out, at):
    """Write a row whose heads take whole vectors."""
    room = simd.padded(width)
    for k in range(heads):
        for f in range(width):
            out[at + k * width + f] = number(out, x[k * room + f])


@njit(cache=True, nogil=True)
def join_sums(num_tasks, part_row, part_acc, size, first, heads, width, out, total):
    """out[row] = sum of the row's parts, in order.

    part_row [2T] is -1 where a slot is unused; part_acc [2T*size]; the columns wanted begin at
    ``first``, padded by head. ``total`` is scratch for a padded row, in float64.
    """
    room = simd.padded(width)
    before = np.int64(-1)
    for slot in range(2 * num_tasks):
        row = part_row[slot]
        if row >= 0:
            if row != before:
                clear(total, heads * room, 0)
            for c in range(heads * room):
                total[c] += part_acc[slot * size + first + c]
            store_row(total, heads, width, out, row * heads * width)
            before = row
