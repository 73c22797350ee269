"""An edge list in memory put in order: directions, self-loops, duplicates.

Legend: E edges given, G edges of the graph, D columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tiergnn.errors import GraphError
from tiergnn.graph.order import csr_order, missing_loops, sum_runs
from tiergnn.graph.table import STORED, Table

DUPLICATES = ("keep", "sum", "refuse")
SELF_LOOPS = ("keep", "remove", "add")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ordered:
    """The edges of a graph in CSR order, and where each came from."""

    rowptr: np.ndarray  # int64 [V+1]
    col: np.ndarray  # [G]
    given: np.ndarray  # [G]: position in the edge list, -1 for an added loop
    first: np.ndarray  # bool [G]: the first edge of its (source, destination) pair


def order_edges(
    src: np.ndarray, dst: np.ndarray, num_nodes: int, *, undirected: bool, self_loops: str
) -> Ordered:
    """Expand and sort edges as ``from_edges`` says. src and dst are contiguous ids in range."""
    given = None
    if self_loops == "remove":
        given = np.flatnonzero(src != dst)
        src, dst = src[given], dst[given]
    if undirected:
        ends = np.stack([src, dst], axis=1)
        kept = np.ones(ends.shape, np.bool_)
        kept[:, 1] = src != dst
        kept = np.flatnonzero(kept)
        src, dst = ends.reshape(-1)[kept], ends[:, ::-1].reshape(-1)[kept]
        given = kept >> 1 if given is None else given[kept >> 1]
    if self_loops == "add":
        loops = missing_loops(src, dst, num_nodes).astype(src.dtype)
        given = np.arange(src.size) if given is None else given
        given = np.concatenate([given, np.full(loops.size, -1, given.dtype)])
        src, dst = np.concatenate([src, loops]), np.concatenate([dst, loops])
    rowptr, order = csr_order(src, dst, num_nodes)
    col = src[order]
    first = np.ones(col.size, np.bool_)
    first[1:] = col[1:] != col[:-1]
    first[rowptr[:-1][np.diff(rowptr) > 0]] = True
    return Ordered(
        rowptr=rowptr, col=col, given=order if given is None else given[order], first=first
    )


def refuse_duplicate(edges: Ordered) -> None:
    """Raise GraphError naming the first pair that occurs twice, by position in the input."""
    again = np.flatnonzero(~edges.first)
    if again.size == 0:
        return
    # Of all repeats, the one that a reader of the input meets first.
    edge = int(again[np.argmin(edges.given[again])])
    before = edge - 1
    dst = int(np.searchsorted(edges.rowptr, edge, side="right")) - 1
    raise GraphError(
        f"edge {edges.col[edge]} -> {dst} is given twice, "
        f"at positions {edges.given[before]} and {edges.given[edge]} "
        f"({again.size} such repeats in all)",
        hint="duplicates='keep', or 'sum' to add their weights",
    )


def sum_duplicates(edges: Ordered, weight: np.ndarray | None) -> tuple[Ordered, np.ndarray]:
    """One edge a pair, with the sum of its weights (float32 counts where there were none)."""
    ones = np.ones(edges.col.size, np.float32) if weight is None else weight
    starts = np.flatnonzero(edges.first)
    if starts.size == edges.col.size:
        return edges, ones
    total = sum_runs(ones.reshape(-1, 1), starts)[:, 0].astype(ones.dtype)
    merged = Ordered(
        rowptr=np.searchsorted(starts, edges.rowptr).astype(np.int64),
        col=edges.col[starts],
        given=edges.given[starts],
        first=edges.first[starts],
    )
    return merged, total


def follow(rows: np.ndarray, given: np.ndarray, new: int) -> np.ndarray:
    """Rows of the input carried to their edges; added loops get ``new``."""
    if rows.shape[0] == 0:
        return np.full((given.size, *rows.shape[1:]), new, rows.dtype)
    out = rows[given]
    out[given < 0] = new
    return out


def sum_rows(table: Table, first: np.ndarray) -> Table:
    """Sums of each run of rows, a run beginning where ``first`` is True.

    Added in float64 in input order and rounded once to the stored dtype. Raises GraphError when an
    int8 or uint8 sum does not fit, or the rows are booleans.
    """
    starts = np.flatnonzero(first)
    if starts.size == table.num_rows:
        return table
    if table.dtype == "bool":
        raise GraphError(
            "boolean edge_attr cannot be summed over duplicate edges",
            hint="duplicates='keep', or edge_attr as uint8",
        )
    total = sum_runs(widen(table.data, table.dtype), starts)
    return replace(table, data=round_sums(total, table.dtype))


def widen(data: np.ndarray, dtype: str) -> np.ndarray:
    """Stored bits of a table's ``dtype`` as float64, contiguous, without its scale."""
    if dtype == "bfloat16":
        data = (data.astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(data, dtype=np.float64)


def round_sums(total: np.ndarray, dtype: str) -> np.ndarray:
    """float64 sums as the stored bits of ``dtype``; GraphError when an integer does not fit."""
    if dtype in ("int8", "uint8"):
        limits = np.iinfo(dtype)
        bad = (total < limits.min) | (total > limits.max)
        if bad.any():
            raise GraphError(
                f"the sum of edge_attr over duplicate edges is {total[bad][0]:.0f}, "
                f"which {dtype} does not hold",
                hint="duplicates='keep', or edge_attr as float32",
            )
    return to_bfloat16(total) if dtype == "bfloat16" else total.astype(STORED[dtype])


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """float64 values rounded once, to nearest even, to bfloat16 bits (uint16)."""
    single = values.astype(np.float32)
    # Rounding twice would err on ties that only float64 can tell from their neighbours: mark the
    # first rounding in the last bit (round to odd), which the second one then reads rightly.
    bits = single.view(np.uint32)
    away = np.abs(single.astype(np.float64)) > np.abs(values)
    inexact = single.astype(np.float64) != values
    odd = np.where(inexact, (bits - away.astype(np.uint32)) | 1, bits)
    odd = np.where(np.isfinite(single), odd, bits).astype(np.uint64)
    rounded = (odd + 0x7FFF + ((odd >> 16) & 1)) >> 16
    return np.where(np.isnan(single), 0x7FC0, rounded).astype(np.uint16)
