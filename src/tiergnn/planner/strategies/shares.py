"""Shares: how the boundary rows of a part are held, and what each class of sources serves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tiergnn.planner.strategies.draft import Draft
from tiergnn.planner.strategies.pieces import cut
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


class Piece(NamedTuple):
    """Some of the replicas of a rank in a buffer of their own: those of others' rows from a number
    to another."""

    buffer: str
    rows: tuple[int, int]

    @property
    def num_rows(self) -> int:
        return self.rows[1] - self.rows[0]


@dataclass(frozen=True, slots=True)
class Replicas:
    """Replicas of one rank, by tier, hottest first. ``given``: of inputs, there before the first
    action."""

    device: tuple[Piece, ...] = ()
    host: tuple[Piece, ...] = ()
    given: bool = False

    @property
    def buffers(self) -> list[str]:
        return [piece.buffer for piece in (*self.device, *self.host)]


def replicas_of(
    draft: Draft,
    stage: StageWork,
    rank: int,
    pieces: tuple[int, int],
    *,
    given: bool,
    leaving: bool = False,
) -> Replicas:
    """Room for the replicas of what a stage gathers, in so many ``pieces`` on the device and in
    host memory; ``given`` ones are there and filled."""
    shares, name = shares_of(draft, rank, leaving), stage.gathers[0]
    what = What.GRAD_REPLICAS if leaving else What.REPLICAS
    inputs = draft.workload.inputs  # are held as they are computed with
    stored = sum(
        draft.row_bytes(each) if each in inputs else draft.stored_bytes(each)
        for each in stage.gathers
    )
    device, middle = shares.device_rows, shares.device_rows + shares.host_rows
    found: dict[str, tuple[Piece, ...]] = {}
    for first, last, tier, count, row_bytes in (
        (0, device, "device", pieces[0], draft.sum_bytes(stage)),
        (device, middle, "host", pieces[1], stored),
    ):
        if first == last or draft.knobs.managed:
            continue
        label = f"{name}.cache.p{rank}" + ("@host" if tier == "host" else "")
        made: list[Piece] = []
        for a, b in cut(first, last, count):
            size, holds = (b - a) * row_bytes, Content(what, name, rank, rows=(a, b))
            if given:
                unique = f"{label}~{len(made)}" if made else label
                buffer = draft.writer.given(unique, rank, tier, "cache", size, holds=holds)
            else:
                buffer = draft.room(label, rank, tier, "cache", size, holds)
            made.append(Piece(buffer, (a, b)))
        if not given:
            draft.writer.reserve(rank, *(piece.buffer for piece in made))
        found[tier] = tuple(made)
    return Replicas(**found, given=given)


def forget(writer: Writer, rank: int, replicas: Replicas) -> None:
    """Give replicas back."""
    if replicas.buffers:
        writer.release(rank, *replicas.buffers)
