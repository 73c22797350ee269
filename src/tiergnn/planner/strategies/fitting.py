"""Fitting: whether what a schedule holds fits a machine; if not, the least that would do."""

from __future__ import annotations

from collections.abc import Sequence

from tiergnn.errors import PlanError
from tiergnn.hardware.machine import TIERS, Machine
from tiergnn.schedule.check import peaks
from tiergnn.schedule.schedule import Schedule
from tiergnn.units import format_bytes

_FLAGS = {"device": "device_memory", "host": "host_memory", "disk": "disk"}


def shortfall(
    schedule: Schedule, machine: Machine, tiers: Sequence[str] = TIERS
) -> PlanError | None:
    """The error for the tier that a schedule overfills with most; None where all (``tiers``) fits.

    Ranks of one host share its memory and its disk.
    """
    needs: dict[tuple[str, int], int] = {}
    kinds: dict[tuple[str, int], dict[str, int]] = {}
    for (rank, tier), (num_bytes, by_kind) in peaks(schedule).items():
        if tier not in tiers:
            continue
        place = (tier, rank if tier == "device" else rank // machine.num_devices)
        needs[place] = needs.get(place, 0) + num_bytes
        held = kinds.setdefault(place, {})
        for kind, amount in by_kind.items():
            held[kind] = held.get(kind, 0) + amount
    over = [
        (num_bytes, *place)
        for place, num_bytes in needs.items()
        if num_bytes > machine.tier(place[0]).available_bytes
    ]
    if not over:
        return None
    (num_bytes, tier, number), *others = sorted(over, key=lambda one: -one[0])
    room = machine.tier(tier)
    whose = f"of rank {number}" if tier == "device" else f"of host {number}"
    kind, most = max(kinds[tier, number].items(), key=lambda item: item[1])
    error = PlanError(
        f"{schedule.strategy}: {tier} memory {whose} needs {format_bytes(num_bytes)}, "
        f"has {format_bytes(room.available_bytes)} ({room})\n"
        f"  largest: {kind}, {format_bytes(most)}",
        hint=f"{_FLAGS[tier]} of at least {num_bytes} bytes, or other knobs",
    )
    error.short = (tier, num_bytes)
    error.also_short = tuple((other, held) for held, other, _ in others if other != tier)
    return error


def fitted(schedule: Schedule, machine: Machine, tiers: Sequence[str] = TIERS) -> Schedule:
    """The schedule; raises PlanError where it does not fit (these tiers of) the machine."""
    error = shortfall(schedule, machine, tiers)
    if error is not None:
        raise error
    return schedule
