"""Shares: how the boundary rows of a part are held, and what each class of sources serves."""

from __future__ import annotations

from dataclasses import dataclass

from tiergnn.planner.strategies.draft import Draft


@dataclass(frozen=True, slots=True)
class Shares:
    """How the boundary rows of a part are held, and the edges that each class serves."""

    device_rows: int
    host_rows: int
    remote_rows: int
    local_edges: int
    device_edges: int
    host_edges: int
    remote_edges: int


def shares_of(draft: Draft, rank: int) -> Shares:
    """The hottest boundary rows on the device, the next in host memory, the rest at their owners.

    Caches are fractions of all rows of the graph (LEO's alpha), at most a part's boundary rows.
    """
    part, knobs = draft.layout.parts[rank], draft.knobs
    nodes = draft.whole.rows
    device = min(part.halo, int(knobs.device_cache_frac * nodes))
    host = min(part.halo - device, int(knobs.host_cache_frac * nodes))
    on_device, cached = part.edges_served(device), part.edges_served(device + host)
    return Shares(
        device_rows=device,
        host_rows=host,
        remote_rows=part.halo - device - host,
        local_edges=part.local_edges,
        device_edges=int(on_device),
        host_edges=int(cached) - int(on_device),
        remote_edges=part.edges - part.local_edges - int(cached),
    )
