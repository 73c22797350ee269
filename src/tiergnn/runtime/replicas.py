"""Replicas: which rows of others a rank keeps, by its schedules, and which edges go to those.

Legend: H rows of others that a part reads, numbered by how many of its edges they serve.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import torch
from torch import Tensor

from tiergnn.kernels.block import Block
from tiergnn.runtime.own_part import OwnPart
from tiergnn.runtime.rank_transfers import Where
from tiergnn.runtime.rank_visits import TABLES
from tiergnn.runtime.source_classes import Cut, Reach, cut_by, cut_of
from tiergnn.schedule.actions import Op
from tiergnn.schedule.contents import Content, What
from tiergnn.schedule.schedule import Schedule
from tiergnn.transport.transport import Transport

_SUMS = (Op.AGGREGATE, Op.RECOMPUTE, Op.BACKWARD)


def replicas_in(schedule: Schedule, *, given: bool = False) -> list[Content]:
    """What ranks keep of rows of others; ``given``: from the beginning."""
    held = [b.holds for b in schedule.buffers if b.holds is not None and (b.given or not given)]
    return [holds for holds in held if holds.rows is not None]


def by_cuts(
    schedules: Sequence[Schedule], rank: int, into: Reach, out: Reach
) -> list[dict[Hashable, Block]]:
    """A rank's edges, and those that leave its rows, by the classes that actions go over."""
    cuts: tuple[set[Cut], set[Cut]] = (set(), set())
    for schedule in schedules:
        of = schedule.buffer_of
        for action in schedule.actions:
            if action.rank == rank and action.op in _SUMS and action.slice >= 0:
                read = [of[name].holds for name in action.reads]
                tables = [holds for holds in read if holds and holds.what in TABLES]
                tables.sort(key=lambda holds: holds.part != rank)
                cuts[action.op is Op.BACKWARD].add(cut_of(tables))
    return [cut_by(reach, found) for reach, found in zip((into, out), cuts, strict=True)]


def replicated(schedules: Sequence[Schedule], part: OwnPart, into: Reach, out: Reach) -> Where:
    """Of which rows of others replicas are that are copied from where those lie."""
    found: dict[tuple[What, tuple[int, int]], dict[int, tuple[Tensor, Tensor]]] = {}
    for schedule in schedules:
        for action in schedule.actions:
            if action.rank != part.rank or action.op is not Op.COPY:
                continue
            buffer = schedule.buffer_of[action.writes[0]]
            if buffer.holds is None or buffer.holds.rows is None:
                continue
            reach = out if buffer.holds.what is What.GRAD_REPLICAS else into
            room = part.device if buffer.tier == "device" else torch.device("cpu")
            found[buffer.holds.what, buffer.holds.rows] = {
                owner: (at.to(room), rows.to(part.device))
                for owner, (at, rows) in reach.where(*buffer.holds.rows).items()
            }
    return found


def replicas_of_inputs(
    schedules: Sequence[Schedule],
    part: OwnPart,
    into: Reach,
    inputs: Mapping[str, Tensor],
    transport: Transport,
) -> dict[Content, Tensor]:
    """Others' rows of inputs that are there from the beginning. All ranks bring them together."""
    wanted = {holds for schedule in schedules for holds in replicas_in(schedule, given=True)}
    found: dict[Content, Tensor] = {}
    for name in sorted({holds.of for holds in wanted}):
        brought = _brought(inputs[name].cpu(), part, transport, name)
        for holds in wanted:
            if (holds.of, holds.part) == (name, part.rank) and holds.rows is not None:
                rows = brought[into.brought(*holds.rows)]
                found[holds] = rows.pin_memory() if part.device.type == "cuda" else rows
    return found


def block_of_replicas(
    schedules: Sequence[Schedule], part: OwnPart, into: Reach, transport: Transport
) -> Block | None:
    """The rows of others whose row-local code runs here, as a block without edges that knows their
    degrees, which their owners tell. All ranks make theirs together; None where sums refresh none.
    """
    summed = [h for s in schedules for h in replicas_in(s) if h.what is What.SUM_REPLICAS]
    if not summed:
        return None
    degree = into.block.in_degree
    own = torch.stack([part.gid, degree, degree - into.loops()], dim=1)
    told = _brought(own, part, transport, "degrees")
    most = max((h.rows[1] for h in summed if h.rows and h.part == part.rank), default=0)
    told = told[into.brought(0, most)].to(part.device)
    return Block.bare(
        told[:, 1:].contiguous(),
        told[:, 0].contiguous(),
        num_graph_nodes=part.block.num_graph_nodes or 0,
        num_graph_edges=part.block.num_graph_edges or 0,
    )


def _brought(own: Tensor, part: OwnPart, transport: Transport, what: str) -> Tensor:
    """Of rows in host memory that each rank has of its own ones [P, ...] those of the others' rows
    that this part reads [H, ...], by owner."""
    given = own[part.sent_rows.cpu()]
    return transport.exchange(given, part.sent_to, part.reads_of, tag=f"rows of {what}")
