"""Edges: what a block's edges take where they lie and where they are brought.

With them lie those without loops, where some stages leave these out and some do not, and the tasks
that a GPU's kernels cut rows into.

Legend: P rows of a block, S its sources, E its edges.
"""

from __future__ import annotations

from dataclasses import replace

from tiergnn.packed import packed_bytes
from tiergnn.planner.strategies.draft import Draft
from tiergnn.workload import Extent


def csr_bytes(draft: Draft, extent: Extent) -> int:
    """A block's in-edges."""
    return 8 * (extent.rows + 1) + draft.shape.id_bytes * extent.edges


def transposed_bytes(draft: Draft, extent: Extent) -> int:
    """A block's out-edges, where each stands among the in-edges, and weights in that order."""
    position = 4 if extent.edges < 2**31 else 8
    weight = 4 if draft.shape.weighted else 0
    return 8 * (extent.sources + 1) + (draft.shape.id_bytes + position + weight) * extent.edges


def block_bytes(draft: Draft, extent: Extent) -> int:
    """A part's in-edges, and which rows and edges of the graph its own are."""
    ids = 8 * extent.sources + (8 * extent.edges if draft.edge_ids else 0)
    return csr_bytes(draft, extent) + ids


def held_edges(draft: Draft, extent: Extent, loops: int) -> tuple[Extent, ...]:
    """The edges that are held of a block with so many loops: all of them, or those without loops,
    or both."""
    kind = draft.workload.topology.without_loops
    bare = replace(extent, edges=extent.edges - loops)
    if kind == "alone":
        return (bare,)
    return (extent, bare) if kind == "beside" and loops else (extent,)


def in_edge_bytes(draft: Draft, held: tuple[Extent, ...], num_ids: int) -> int:
    """Of in-edges; ``num_ids`` rows know which of the graph they are, edges where they need to."""
    ids = 8 * num_ids + (8 * held[0].edges if draft.edge_ids else 0)
    return _csr_and_task_bytes(draft, held) + ids


def out_edge_bytes(draft: Draft, held: tuple[Extent, ...]) -> int:
    """Of out-edges."""
    found = sum(
        transposed_bytes(draft, extent) + _task_bytes(draft, extent.sources, extent.edges)
        for extent in held
    )
    weights = 4 if draft.shape.weighted else 0  # which stay with the first
    return found - weights * sum(extent.edges for extent in held[1:])


def turned_bytes(draft: Draft, held: tuple[Extent, ...]) -> int:
    """Of out-edges that take turns with in-edges, in the form of these; and of degrees, for
    means."""
    return _csr_and_task_bytes(draft, held) + 8 * held[0].rows


def _csr_and_task_bytes(draft: Draft, held: tuple[Extent, ...]) -> int:
    return sum(
        csr_bytes(draft, extent) + _task_bytes(draft, extent.rows, extent.edges) for extent in held
    )


def _task_bytes(draft: Draft, num_rows: int, num_edges: int) -> int:
    """A CPU's kernels keep nothing of the kind."""
    return packed_bytes(num_rows, num_edges) if draft.machine.device.kind == "cuda" else 0
