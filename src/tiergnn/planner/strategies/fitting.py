"""Fitting: whether what a schedule holds fits a machine; if not, the least that would do."""

from __future__ import annotations

from tiergnn.errors import PlanError
from tiergnn.hardware.machine import Machine
from tiergnn.schedule.check import peaks
from tiergnn.schedule.schedule import Schedule
from tiergnn.units import format_bytes

_FLAGS = {"device": "device_memory", "host": "host_memory", "disk": "disk"}


def shortfall(schedule: Schedule, machine: Machine) -> PlanError | None:
    """The error for the first tier that a schedule overfills; None where all fits.

    Ranks of one host share its memory and its disk.
    """
    needs: dict[tuple[str, int], int] = {}
    kinds: dict[tuple[str, int], dict[str, int]] = {}
    for (rank, tier), (num_bytes, by_kind) in peaks(schedule).items():
        place = (tier, rank if tier == "device" else rank // machine.num_devices)
        needs[place] = needs.get(place, 0) + num_bytes
        held = kinds.setdefault(place, {})
        for kind, amount in by_kind.items():
            held[kind] = held.get(kind, 0) + amount
    for (tier, number), num_bytes in sorted(needs.items(), key=lambda item: -item[1]):
        room = machine.tier(tier)
        if num_bytes > room.available_bytes:
            whose = f"of rank {number}" if tier == "device" else f"of host {number}"
            kind, most = max(kinds[tier, number].items(), key=lambda item: item[1])
            error = PlanError(
                f"{schedule.strategy}: {tier} memory {whose} needs {format_bytes(num_bytes)}, "
                f"has {format_bytes(room.available_bytes)} ({room})\n"
                f"  largest: {kind}, {format_bytes(most)}",
                hint=f"{_FLAGS[tier]} of at least {num_bytes} bytes, or other knobs",
            )
            error.short = (tier, num_bytes)
            return error
    return None


def fitted(schedule: Schedule, machine: Machine) -> Schedule:
    """The schedule; raises PlanError where it does not fit the machine."""
    error = shortfall(schedule, machine)
    if error is not None:
        raise error
    return schedule
