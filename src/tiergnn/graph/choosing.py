"""Which partitioner to take: by the size of the graph and the memory there is. Pure."""

from __future__ import annotations

from tiergnn.units import format_bytes, format_count

# METIS took 123 bytes an entry of the undirected view on R-MAT, and 2 to 5 us an edge.
_METIS_BYTES = 125
_METIS_EDGES = 2_000_000
# Of the graph's topology, beside it; see ``switching``.
_SWITCHING_SHARE = 0.3
_SWITCHING_LEAST = 64 << 20


def choose(
    num_nodes: int,
    num_edges: int,
    topology_bytes: int,
    num_parts: int,
    *,
    free_bytes: int,
    has_metis: bool,
) -> tuple[str, str]:
    """Name of a method, and one line of why it.

    METIS where it takes seconds and fits; else the switching-aware partitioner, whose halos are
    about as small; blocks where no cut can matter or nothing else fits.
    """
    if num_parts == 1 or num_edges == 0 or num_parts >= num_nodes:
        what = "one part" if num_parts == 1 else "no edges" if num_edges == 0 else "a part a node"
        return "block", f"{what}: there is nothing to choose"
    free = f"{format_bytes(free_bytes)} of memory free"
    edges = f"{format_count(num_edges)} edges"
    switching_bytes = max(_SWITCHING_LEAST, int(_SWITCHING_SHARE * topology_bytes))
    if switching_bytes > free_bytes:
        return "block", f"switching takes up to {format_bytes(switching_bytes)}, {free}"
    if not has_metis:
        return "switching", f"pymetis is not installed; {edges}, {free}"
    if num_edges > _METIS_EDGES:
        return "switching", f"{edges}: METIS is for up to {format_count(_METIS_EDGES)}"
    metis_bytes = 2 * num_edges * _METIS_BYTES
    if metis_bytes > free_bytes:
        return "switching", f"METIS takes up to {format_bytes(metis_bytes)}, {free}"
    return "metis", f"{edges} take METIS seconds and {format_bytes(metis_bytes)} at most, {free}"
