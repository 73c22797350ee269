"""A row pointer and its columns: checked in host memory, and turned into those of the out-edges.

Legend: P destinations, S sources, E edges.
"""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from tiergnn.errors import GraphError
from tiergnn.graph.occurrences import count_nodes, node_ranges
from tiergnn.threads import spread


def check_csr(rowptr: np.ndarray, col: np.ndarray, num_src: int) -> None:
    """Raise GraphError unless rowptr ascends from 0 to E and col lies in 0..S-1. One pass."""
    if rowptr[0] != 0 or rowptr[-1] != col.size:
        raise GraphError(
            f"rowptr needs to go from 0 to {col.size}, the edges of col; "
            f"goes from {rowptr[0]} to {rowptr[-1]}"
        )
    row, edge = _first_fault(rowptr, col, num_src)
    if row >= 0:
        raise GraphError(
            f"rowptr needs to ascend; goes from {rowptr[row]} to {rowptr[row + 1]}",
            culprit=f"row {row}",
        )
    if edge >= 0:
        raise GraphError(
            f"col needs 0..{num_src - 1}, the sources of the block; has {col[edge]}",
            culprit=f"edge {edge}",
        )


@numba.njit(cache=True, nogil=True)
def _first_fault(rowptr, col, num_src):
    """The first row that descends and the first edge out of range, or -1. One thread, no torch: a
    child process that was forked has none of the threads that torch would wait for."""
    for row in range(rowptr.size - 1):
        if rowptr[row + 1] < rowptr[row]:
            return row, -1
    low, high = 0, -1  # no branch out of the loop, so that it is one of vectors
    for e in range(col.size):
        low, high = min(low, col[e]), max(high, col[e])
    if low >= 0 and high < num_src:
        return -1, -1
    for e in range(col.size):
        if col[e] < 0 or col[e] >= num_src:
            return -1, e
    return -1, -1


def out_edges(rowptr: Tensor, col: Tensor, num_src: int) -> tuple[Tensor, Tensor, Tensor]:
    """The row pointer int64 [S+1] of the out-edges, their destinations [E] and their places among
    the edges [E], int32 where these fit. A stable sort, linear in edges in host memory."""
    index = torch.int32 if col.numel() < 2**31 else torch.int64
    if col.device.type == "cpu":
        starts = torch.zeros(num_src + 2, dtype=torch.int64)
        dst_t, edge_t = torch.empty_like(col), torch.empty(col.numel(), dtype=index)
        made = starts.numpy(), dst_t.numpy(), edge_t.numpy()
        transpose(rowptr.numpy(), col.numpy(), *made)
        return starts[:-1], dst_t, edge_t
    by_src, order = torch.sort(col, stable=True)
    order = order.to(index)  # the sort's own is of int64, and goes
    sources = torch.arange(num_src + 1, device=col.device, dtype=by_src.dtype)
    rowptr_t = torch.searchsorted(by_src, sources)
    del by_src
    rows = torch.arange(rowptr.numel() - 1, device=col.device, dtype=col.dtype)
    dst = torch.repeat_interleave(rows, rowptr.diff(), output_size=col.numel())
    return rowptr_t, dst.index_select(0, order), order


def transpose(
    rowptr: np.ndarray, col: np.ndarray, starts: np.ndarray, dst_t: np.ndarray, edge_t: np.ndarray
) -> None:
    """Counting sort of the edges by source; starts int64 [S+2] of zeros becomes the row pointer
    [S+1]. Stable, and over threads: each has a range of sources with as many edges."""
    # Two slots ahead, so that placing the edges moves each start to where its row begins.
    count_nodes(col, starts[2:])
    np.cumsum(starts, out=starts)
    num_src = starts.size - 2
    ranges = node_ranges(num_src, col.size)
    shares = np.linspace(0, col.size, ranges + 1).astype(np.int64)
    bounds = np.searchsorted(starts[1:-1], shares)
    bounds[0], bounds[-1] = 0, num_src

    def place(first: int, last: int) -> None:
        _place(rowptr, col, bounds[first], bounds[last], starts, dst_t, edge_t)

    spread(place, ranges, ranges)


@numba.njit(cache=True, nogil=True)
def _place(rowptr, col, first, last, starts, dst_t, edge_t):
    """The edges of sources first..last-1."""
    size = np.uint64(last - first)
    for row in range(rowptr.size - 1):
        for e in range(rowptr[row], rowptr[row + 1]):
            source = col[e]
            if np.uint64(source - first) < size:  # below 0 it is larger than any
                slot = starts[source + 1]
                dst_t[slot] = row
                edge_t[slot] = e
                starts[source + 1] = slot + 1
