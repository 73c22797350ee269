"""Even tasks from ragged rows.

A CSR is walked as one sequence of P row ends and E edges, cut into T equal tasks: a hub is shared
by several tasks, and many empty rows by one. T depends on P and E only, so that the order of a sum
does not depend on the number of threads.

Legend: P destinations, S sources, E edges, D columns, T tasks.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tiergnn.kernels.rows import njit

AHEAD = 32  # edges between asking for a row and reading it
_TASK, _MOST_TASKS = 8192, 1024  # row ends and edges; tasks


def even_tasks(num_rows: int, num_edges: int) -> tuple[int, int]:
    """(number of tasks, row ends and edges in each)."""
    total = num_rows + num_edges
    num_tasks = min(max(1, total // _TASK), _MOST_TASKS)
    return num_tasks, -(-total // num_tasks)


@njit
def cut(rowptr, step, task):
    """Where a task starts: the row that it is in, and the edge that it takes first."""
    num_rows = rowptr.size - 1
    position = min(task * step, num_rows + rowptr[num_rows])
    low, high = 0, num_rows
    while low < high:  # the last row that starts at or before the position
        middle = (low + high + 1) // 2
        if rowptr[middle] + middle <= position:
            low = middle
        else:
            high = middle - 1
    return low, position - low


def in_order(
    weight_E: Tensor | None, edge_E: Tensor | None, dtype: torch.dtype
) -> np.ndarray | None:
    """Weights as ``dtype``, in the order of ``edge`` (None: their own)."""
    if weight_E is None:
        return None
    ordered = weight_E.detach().to(dtype)
    if edge_E is not None:
        ordered = ordered.index_select(0, edge_E)
    return ordered.contiguous().numpy()
