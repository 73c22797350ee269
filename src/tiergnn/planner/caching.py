"""Caching: the cache shares of ``leo`` by the placement program, its prices read off schedules.

What a lane of a rank does is linear in the rows and the edges of each class of sources, so a few
schedules of one step (no cache, half of the boundary rows in one, all of them) tell what a row and
an edge of a class cost on every lane, and what a cached row holds. Lanes of a step run side by side
between two meetings and no longer, which the program does not see: it is asked for the best with
lanes side by side and for the best with lanes in turn, and the clock decides.

Legend: D rows cached on the device, H rows cached in host memory, R remote rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import nnls

from tiergnn.graph.shape import PartShape
from tiergnn.hardware.machine import Tier
from tiergnn.planner.placement import Charge, Lane, Question, blocks_of
from tiergnn.planner.placing import place
from tiergnn.planner.plan import Plan
from tiergnn.planner.strategies.knobs import Knobs

_ROOMY = Tier(2**60)
_FRACS = (1.0, 0.5, 0.25, 0.1)
_TRIES = 4  # at room that less of a cache leaves


@dataclass(frozen=True, slots=True)
class _Probe:
    """What a step does of one rank: seconds by lane, bytes by tier, with so many rows and edges of
    each class."""

    rows: tuple[int, int, int]
    edges: tuple[float, float, float]
    lane_s: dict[str, float]
    held: dict[str, int]


def caches(plan: Plan) -> Iterator[Knobs]:
    """Knobs with the best caches for a plan of ``leo`` that has none and fits: in the room that it
    leaves, lanes in turn and, where they are, side by side; then in parts of what those take."""
    rank = _busiest(plan)
    part = plan.layout.parts[rank]
    if not part.halo:
        return
    probes = [_probe(plan, rank, d, h) for d, h in ((0, 0), (0.5, 0), (1, 0), (0, 0.5), (0, 1))]
    seen = {plan.knobs}
    for overlapped in (False, True)[: 1 + plan.knobs.pipeline]:
        most = part.halo
        for frac in _FRACS:
            rows, knobs = _placed(plan, part, probes, int(frac * most), overlapped)
            most = rows if frac == 1.0 else most
            if knobs not in seen:
                seen.add(knobs)
                yield knobs


def _busiest(plan: Plan) -> int:
    """The rank that reads most of others."""
    parts = plan.layout.parts
    return max(range(len(parts)), key=lambda rank: parts[rank].edges - parts[rank].local_edges)


def _with(plan: Plan, part: PartShape, device_rows: int, host_rows: int) -> Knobs:
    nodes = plan.shape.num_nodes  # half a row more, so that a fraction of all rows is whole rows
    device, host = ((r + 0.5) / nodes if r else 0.0 for r in (device_rows, host_rows))
    return replace(plan.knobs, device_cache_frac=min(1.0, device), host_cache_frac=min(1.0, host))


def _probe(plan: Plan, rank: int, device_frac: float, host_frac: float) -> _Probe:
    """With fractions of the boundary rows in each cache, whether they fit or not."""
    part = plan.layout.parts[rank]
    device, host = round(device_frac * part.halo), round(host_frac * part.halo)
    tried = _roomy(plan, _with(plan, part, device, host))
    on_device, cached = part.edges_served(device), part.edges_served(device + host)
    lane_s = {lane: s for (r, lane), s in tried.timeline.busy_s().items() if r == rank}
    return _Probe(
        rows=(device, host, part.halo - device - host),
        edges=(on_device, cached - on_device, part.edges - part.local_edges - cached),
        lane_s=lane_s,
        held=tried.peak_bytes,
    )


def _roomy(plan: Plan, knobs: Knobs) -> Plan:
    """The plan with other knobs where memory has no end."""
    machine = replace(plan.machine, host=_ROOMY, device=replace(plan.machine.device, memory=_ROOMY))
    return replace(plan, machine=machine, knobs=knobs)


def _placed(
    plan: Plan, part: PartShape, probes: list[_Probe], most_rows: int, overlapped: bool
) -> tuple[int, Knobs]:
    """The placement of so many rows on the device at most, in the room that no cache leaves; how
    many there are."""
    bare = probes[0]
    ranks = min(plan.knobs.ranks, plan.machine.num_devices)
    device_room = plan.machine.device.memory.available_bytes - bare.held.get("device", 0)
    host_room = plan.machine.host.available_bytes // ranks - bare.held.get("host", 0)
    asked = _question(part, probes, overlapped)
    host_row_bytes = max(1.0, _extra(probes, "host", 0, part.halo) / part.halo)
    host_bytes = int(max(0, host_room) / host_row_bytes) * asked.row_bytes
    most_bytes = min(max(0, device_room), most_rows * asked.row_bytes)
    # What rows of the host's cache are summed in takes room whatever their number: without, too.
    for most_host_bytes in (host_bytes, 0):
        asked = replace(asked, device_bytes=most_bytes, host_bytes=most_host_bytes)
        found = _fitting(plan, part, probes, asked)
        if found is not None and (found[1].device_cache_frac or found[1].host_cache_frac):
            return found
    return 0, plan.knobs


def _fitting(
    plan: Plan, part: PartShape, probes: list[_Probe], asked: Question
) -> tuple[int, Knobs] | None:
    """The placement that is asked for, or in as much less room as it takes to fit the device; None
    where a few tries do not get there."""
    device_bytes, host_bytes = asked.device_bytes, asked.host_bytes
    device_row_bytes = max(1.0, _extra(probes, "device", part.halo, 0) / part.halo)
    passing_bytes = max(1.0, _extra(probes, "device", 0, part.halo) / part.halo)
    for _ in range(_TRIES):
        found = place(replace(asked, device_bytes=device_bytes, host_bytes=host_bytes))
        device, host = found.rows("device"), found.rows("host")
        # Both caches together may fill a moment that neither fills alone: the schedule tells.
        tried = _roomy(plan, _with(plan, part, device, host))
        over = tried.peak_bytes.get("device", 0) - plan.machine.device.memory.available_bytes
        if over <= 0:
            return device, tried.knobs
        less = min(device, int(over / device_row_bytes) + 1)
        over -= round(less * device_row_bytes)
        device_bytes = (device - less) * asked.row_bytes
        if over > 0:  # rows of the host's cache pass through the device as well
            host_bytes = max(0, host - int(over / passing_bytes) - 1) * asked.row_bytes
    return None


def _extra(probes: list[_Probe], tier: str, device: int, host: int) -> int:
    """Bytes that caches of so many rows add to a tier, each by itself."""
    bare, _, all_device, _, all_host = probes
    added = 0.0
    for rows, full, index in ((device, all_device, 0), (host, all_host, 1)):
        most = full.held.get(tier, 0) - bare.held.get(tier, 0)
        added += rows * most / full.rows[index]
    return int(added) + 1


def _question(part: PartShape, probes: list[_Probe], overlapped: bool) -> Question:
    """The placement's question but for its budgets, counted in rows of the device's cache."""
    names = sorted({lane for probe in probes for lane in probe.lane_s})
    lanes = []
    for name in names:
        base_s, charges = _charges(probes, name)
        lanes.append(Lane(name=name, base_s=base_s, **charges))
    row_bytes = max(1, -(-_extra(probes, "device", part.halo, 0) // part.halo))
    return Question(
        blocks=blocks_of(part),
        lanes=tuple(lanes),
        row_bytes=row_bytes,
        device_bytes=0,
        host_bytes=0,
        overlapped=overlapped,
    )


def _charges(probes: list[_Probe], name: str) -> tuple[float, dict[str, Charge]]:
    """What a lane takes wherever rows lie, and for a row and an edge of each class, none below 0:
    nearest to what the schedules' lanes took."""
    rows = np.array([probe.rows for probe in probes], np.float64)
    edges = np.array([probe.edges for probe in probes], np.float64)
    taken = np.array([probe.lane_s.get(name, 0.0) for probe in probes])
    # A remote row costs by its edges alone; where nothing is cached all of them are remote.
    table = np.column_stack([np.ones(len(probes)), rows[:, :2], edges])
    scale = np.maximum(table.max(axis=0), 1.0)
    found = nnls(table / scale, taken)[0] / scale
    base, device_row, host_row, *edge = found.tolist()
    return base, {
        "device": Charge(device_row, edge[0]),
        "host": Charge(host_row, edge[1]),
        "remote": Charge(0.0, edge[2]),
    }
