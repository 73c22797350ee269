"""Packed: the room of the tasks that a GPU's kernels cut a block into (``kernels.tasks``)."""

from __future__ import annotations

DENSE_DEGREE = 128  # the mean in-degree from which on tasks are large
MOST, MOST_DENSE = 256, 1024  # edges of a task
MOST_MERGED = 128  # parts that one task merges
CUT_BYTES = 1 / 8  # an edge, at most, of the tasks and parts of rows that are cut
PACKED_BYTES = 64  # at whose multiples arrays start that lie in one piece of memory
_INT32 = 2**31


def packed_bytes(num_rows: int, num_edges: int) -> int:
    """The room of the tasks of such a block, whatever the degrees.

    A whole row is one task; long ones are cut, so that there is one more for every ``MOST`` edges
    at most. That is at most ``CUT_BYTES`` an edge beyond what they take.
    """
    return _packed_bytes(num_rows, num_edges, MOST, 4 if num_rows < _INT32 else 8)


def _packed_bytes(num_rows: int, num_edges: int, most: int, row_bytes: int) -> int:
    cut = min(num_rows, num_edges // (most + 1))  # rows that have more than one task
    more = num_edges // most if cut else 0
    tasks, parts = num_rows + more, cut + more
    start_bytes = 4 if num_edges < _INT32 else 8
    arrays = tasks * row_bytes, tasks * start_bytes, 4 * tasks, 4 * parts
    held = sum(-(-array // PACKED_BYTES) * PACKED_BYTES for array in arrays)
    return held + (_packed_bytes(cut, parts, MOST_MERGED, row_bytes) if cut else 0)
