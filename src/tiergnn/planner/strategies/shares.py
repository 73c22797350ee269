"""Shares: how the boundary rows of a part are held, and what each class of sources serves."""

from __future__ import annotations

from dataclasses import dataclass

from tiergnn.planner.strategies.draft import Draft
from tiergnn.schedule.contents import Content, What
from tiergnn.schedule.schedule import Writer
from tiergnn.workload import StageWork


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


def shares_of(draft: Draft, rank: int, leaving: bool = False) -> Shares:
    """``leaving``: of the edges that leave the part's rows, which backward goes over.

    The hottest boundary rows on the device, the next in host memory, the rest at their owners.

    Caches are fractions of all rows of the graph (LEO's alpha), at most a part's boundary rows.
    """
    part, knobs = draft.layout.part(rank, leaving=leaving), draft.knobs
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


@dataclass(slots=True)
class Replicas:
    """Replicas of one rank: buffers, "" where there are none."""

    device: str = ""
    host: str = ""
    given: bool = False  # of inputs: there before the first action


def replicas_of(
    draft: Draft, stage: StageWork, rank: int, *, given: bool, leaving: bool = False
) -> Replicas:
    """Room for the replicas of what a stage gathers; ``given`` ones are there and filled."""
    shares, name = shares_of(draft, rank, leaving), stage.gathers[0]
    held, what = Replicas(given=given), What.GRAD_REPLICAS if leaving else What.REPLICAS
    inputs = draft.workload.inputs  # are held as they are computed with
    stored = sum(
        draft.row_bytes(each) if each in inputs else draft.stored_bytes(each)
        for each in stage.gathers
    )
    for first, rows, tier, row_bytes in (
        (0, shares.device_rows, "device", draft.sum_bytes(stage)),
        (shares.device_rows, shares.host_rows, "host", stored),
    ):
        if not rows or draft.knobs.managed:
            continue
        label = f"{name}.cache.p{rank}" + ("@host" if tier == "host" else "")
        holds, size = Content(what, name, rank, rows=(first, first + rows)), rows * row_bytes
        if given:
            buffer = draft.writer.given(label, rank, tier, "cache", size, holds=holds)
        else:
            buffer = draft.take(label, "cache", size, rank=rank, tier=tier, holds=holds)
        setattr(held, tier, buffer)
    return held


def forget(writer: Writer, rank: int, replicas: Replicas) -> None:
    """Give replicas back."""
    buffers = [buffer for buffer in (replicas.device, replicas.host) if buffer]
    if buffers:
        writer.release(rank, *buffers)
