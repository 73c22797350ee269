"""Fitting: whether what a schedule holds fits a machine; if not, the least that would do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tiergnn.errors import PlanError
from tiergnn.hardware.machine import TIERS, Machine
from tiergnn.schedule.capacity import Place
from tiergnn.schedule.check import peaks
from tiergnn.schedule.schedule import Schedule
from tiergnn.schedule.sizing import Sized
from tiergnn.units import format_bytes, format_needed

_FLAGS = {"device": "device_memory", "host": "host_memory", "disk": "disk"}
_TRIES = 4  # to find how many slices fit
_SPARE = 0.1  # of a tier: what is left when no better number of slices is looked for


class Fitting(NamedTuple):
    """A schedule that fits: sized, and what writes it down."""

    sized: Sized
    write: Callable[[], Schedule]


def shortfall(
    found: Schedule | Sized, machine: Machine, tiers: Sequence[str] = TIERS
) -> PlanError | None:
    """The error for the tier that is overfilled with most; None where all (``tiers``) fits.

    Ranks of one host share its memory and its disk.
    """
    needs: dict[tuple[str, int], int] = {}
    kinds: dict[tuple[str, int], dict[str, int]] = {}
    for (rank, tier), (num_bytes, by_kind) in _held(found).items():
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
    needed, had = format_needed(num_bytes, room.available_bytes)
    had += f" ({room})" if room.reserved_bytes else ""
    error = PlanError(
        f"{found.strategy}: {tier} memory {whose} needs {needed}, has {had}\n"
        f"  largest: {kind}, {format_bytes(most)}",
        hint=f"{_FLAGS[tier]} of at least {num_bytes} bytes, or other knobs",
    )
    error.short = (tier, num_bytes)
    error.also_short = tuple((other, held) for held, other, _ in others if other != tier)
    return error


def fit(found: Schedule | Sized, machine: Machine, tiers: Sequence[str] = TIERS) -> None:
    """Raises PlanError where it does not fit (these tiers of) the machine."""
    error = shortfall(found, machine, tiers)
    if error is not None:
        raise error


def fitted(schedule: Schedule, machine: Machine) -> Schedule:
    """The schedule; raises as ``fit``."""
    fit(schedule, machine)
    return schedule


def most_slices(
    least: Sized, sized: Callable[[int], Sized], limit: int, machine: Machine, tier: str
) -> int:
    """About the largest number of slices up to a limit with which a tier holds all, found in few
    tries, since each slice takes about as much. ``least`` has none.
    """
    room = machine.tier(tier).available_bytes
    low, held, high = 0, held_bytes(least, tier), limit + 1
    farther = TIERS[TIERS.index(tier) + 1 :]
    far = sum(held_bytes(least, other) for other in farther)  # in slices that come nearer
    if held > room or 2 * (room - held) * limit < far:
        return 0
    guess = min(limit, max(1, (room - held) * limit // max(1, far)))
    for _ in range(_TRIES):
        if not low < guess < high or (low and room - held < _SPARE * room):
            break
        needs = held_bytes(sized(guess), tier)
        slice_bytes = max(1, (needs - held) // (guess - low))
        if needs <= room:
            low, held = guess, needs
        else:
            high = guess
        guess = min(high - 1, low + (room - held) // slice_bytes)
    return low


def held_bytes(found: Schedule | Sized, tier: str) -> int:
    """Of rank 0."""
    return _held(found).get((0, tier), (0, {}))[0]


def _held(found: Schedule | Sized) -> Mapping[Place, tuple[int, Mapping[str, int]]]:
    return found.held if isinstance(found, Sized) else peaks(found)
