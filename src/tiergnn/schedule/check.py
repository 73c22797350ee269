"""Check: proves that a schedule cannot go wrong on a machine, whatever the lanes' speeds.

Whatever interleaving its lanes, ``after`` and meetings allow: what an action reads was reserved,
written and is not released; no two actions race for a buffer; every reserve is released once; no
tier overflows; ranks cannot wait for each other forever; and a STEP sees gradients that are whole.
The proofs: ``names``, ``meeting``, ``order``, ``walk``, ``capacity``.
"""

from __future__ import annotations

from tiergnn.errors import PlanError
from tiergnn.hardware.machine import Machine, Tier
from tiergnn.schedule.capacity import Fullest, Place, Tables
from tiergnn.schedule.fault import fault
from tiergnn.schedule.names import check_names
from tiergnn.schedule.schedule import Schedule
from tiergnn.schedule.walk import Walk
from tiergnn.units import format_bytes, format_needed


def check(schedule: Schedule, machine: Machine) -> None:
    """Prove a schedule. Raises PlanError at its first fault, with the lines around it.

    What it accepts holds on every interleaving. It may refuse what none violates in one respect
    only: where one rank's reserves and releases on several lanes, or those of several ranks that
    share a tier, are not ordered, their largest balances count as if they fell together.
    """
    check_names(schedule, machine)
    order = schedule.order
    Walk(schedule, order).run()
    _check_capacity(schedule, machine, schedule.tables)


def peaks(schedule: Schedule) -> dict[Place, tuple[int, dict[str, int]]]:
    """(rank, tier) -> the most bytes ever held there, proven, and what of each kind that is.

    Of a schedule that ``check`` accepts; raises PlanError for one whose order has a circle.
    """
    tables = schedule.tables
    found = {place: tables.fullest([place]) for place in tables.places}
    return {place: (full.num_bytes, full.kinds) for place, full in found.items()}


def _check_capacity(schedule: Schedule, machine: Machine, tables: Tables) -> None:
    groups: dict[tuple[str, int], list[Place]] = {}
    for rank, tier in tables.places:
        shared = rank if tier == "device" else rank // machine.num_devices
        groups.setdefault((tier, shared), []).append((rank, tier))
    for (tier, number), places in groups.items():
        full = tables.fullest(places)
        room = machine.tier(tier)
        if full.num_bytes > room.available_bytes:
            if tier == "device":
                whose = f"of rank {number}"
            else:
                whose = f"of ranks {','.join(str(rank) for rank, _ in places)} together"
            error = _overflow(schedule, f"{tier} tier {whose}", room, full)
            error.short = (tier, full.num_bytes)
            raise error


def _overflow(schedule: Schedule, whose: str, room: Tier, full: Fullest) -> PlanError:
    over = full.num_bytes - room.available_bytes
    largest = max(full.buffers, key=lambda buffer: buffer.num_bytes)
    kinds = ", ".join(f"{kind} {format_bytes(held)}" for kind, held in full.kinds.items() if held)
    needed, had = format_needed(full.num_bytes, room.available_bytes)
    problem = (
        f"{whose} needs {needed}, has {had}"
        + (f" ({room})" if room.reserved_bytes else "")
        + f": {over} bytes too many\n  held: {kinds}\n"
        f"  largest: {largest.name}, {largest.kind}, {format_bytes(largest.num_bytes)}"
    )
    hint = f"at least {full.num_bytes} bytes there, or more parts, or another tier for some of it"
    if full.index < 0:
        return PlanError(problem, culprit="what is given before the first action", hint=hint)
    return fault(schedule, full.index, problem, hint)
