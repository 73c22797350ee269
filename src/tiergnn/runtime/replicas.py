"""Replicas: which rows of others a rank keeps, by its schedules, and which edges go to those.

Legend: H rows of others that a part reads, numbered by how many of its edges they serve.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from tiergnn.kernels.block import Block
from tiergnn.runtime.own_part import OwnPart
from tiergnn.runtime.rank_transfers import Where
from tiergnn.runtime.rank_visits import TABLES
from tiergnn.runtime.source_classes import Cut, Fetch, Reach, cut_of
from tiergnn.schedule.actions import Op
from tiergnn.schedule.contents import Content, What
from tiergnn.schedule.schedule import Schedule
from tiergnn.transport.transport import Transport

_SUMS = (Op.AGGREGATE, Op.RECOMPUTE, Op.BACKWARD)


def replicas_in(schedule: Schedule, *, given: bool = False) -> list[Content]:
    """What ranks keep of rows of others; ``given``: from the beginning."""
    held = [b.holds for b in schedule.buffers if b.holds is not None and (b.given or not given)]
    return [holds for holds in held if holds.rows is not None]


def cuts_of(schedules: Sequence[Schedule], rank: int) -> tuple[set[Cut], set[Cut]]:
    """The classes that a rank's actions go over: of its edges, and of those that leave its rows."""
    cuts: tuple[set[Cut], set[Cut]] = (set(), set())
    for schedule in schedules:
        of = schedule.buffer_of
        for action in schedule.actions:
            if action.rank == rank and action.op in _SUMS and action.slice >= 0:
                read = [of[name].holds for name in action.reads]
                tables = [holds for holds in read if holds and holds.what in TABLES]
                tables.sort(key=lambda holds: holds.part != rank)
                cuts[action.op is Op.BACKWARD].add(cut_of(tables))
    return cuts


def replicated(schedules: Sequence[Schedule], part: OwnPart, into: Reach, out: Reach) -> Where:
    """Of which rows of others replicas are that are copied from where those lie."""
    found: dict[tuple[What, tuple[int, int]], Fetch] = {}
    for schedule in schedules:
        for action in schedule.actions:
            if action.rank != part.rank or action.op is not Op.COPY:
                continue
            buffer = schedule.buffer_of[action.writes[0]]
            source = schedule.buffer_of[action.reads[0]].holds
            if buffer.holds is None or buffer.holds.rows is None:
                continue
            if source is not None and source.rows is not None:
                continue  # a rank's own replicas, passed on
            reach = out if buffer.holds.what is What.GRAD_REPLICAS else into
            key = buffer.holds.what, buffer.holds.rows
            if key not in found:
                found[key] = reach.fetch(*buffer.holds.rows).on(part.device)
    return found


def replicas_of_inputs(
    schedules: Sequence[Schedule],
    part: OwnPart,
    into: Reach,
    inputs: Mapping[str, Tensor],
    transport: Transport,
    brought: dict[str, Tensor],
) -> dict[Content, Tensor]:
    """Replicas of others' rows of inputs that are there from the beginning. All ranks bring them
    together; ``brought`` has those that were brought before, and gets the others."""
    wanted = {holds for schedule in schedules for holds in replicas_in(schedule, given=True)}
    _bring(wanted, part, inputs, transport, brought)
    found: dict[Content, Tensor] = {}
    for holds in wanted:
        if holds.part == part.rank and holds.rows is not None:
            rows = brought[holds.of][into.brought(*holds.rows)]
            found[holds] = rows.pin_memory() if part.device.type == "cuda" else rows
    return found


def halos_of_inputs(
    schedules: Sequence[Schedule],
    part: OwnPart,
    inputs: Mapping[str, Tensor],
    transport: Transport,
    brought: dict[str, Tensor],
) -> dict[Content, Tensor]:
    """Likewise all of others' rows that parts read, by themselves [H, ...] or behind own ones
    [P + H, ...], on the device."""
    held = {b.holds for s in schedules for b in s.buffers if b.given and b.holds is not None}
    wanted = {holds for holds in held if holds.what in (What.HALO, What.SOURCES)}
    _bring(wanted, part, inputs, transport, brought)
    found: dict[Content, Tensor] = {}
    for holds in wanted:
        if holds.part == part.rank:
            rows = brought[holds.of].to(part.device)
            alone = holds.what is What.HALO
            found[holds] = rows if alone else torch.cat([inputs[holds.of], rows])
    return found


def _bring(
    wanted: Collection[Content],
    part: OwnPart,
    inputs: Mapping[str, Tensor],
    transport: Transport,
    brought: dict[str, Tensor],
) -> None:
    """Others' rows of the inputs that are not among ``brought`` yet."""
    for name in sorted({holds.of for holds in wanted} - brought.keys()):
        brought[name] = _brought(inputs[name].cpu(), part, transport, name)


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
