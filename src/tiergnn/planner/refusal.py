"""Refusal: where no plan fits, the nearest misses and the bytes with which each would do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tiergnn.errors import PlanError
from tiergnn.hardware.machine import TIERS, Machine, Tier
from tiergnn.planner import pareto
from tiergnn.units import format_bytes

if TYPE_CHECKING:
    from tiergnn.planner.choose import Trial

_FLAGS = {"device": "device_memory", "host": "host_memory", "disk": "disk"}
_MISSES = 4  # told where nothing fits
_TRIES = 6  # to find what is short behind what was short: at least one tier has more each time


@dataclass(frozen=True, slots=True)
class Miss:
    """A trial that overfills tiers: what each of them needs, as far as is known, and in words."""

    trial: Trial
    needs: Mapping[str, int]
    problems: tuple[str, ...]


def refusal(trials: Sequence[Trial], *, has_disk: bool) -> PlanError:
    """The error for trials of which none fits; its ``short`` and ``also_short`` are of the nearest.

    Given the bytes that it names for a trial, that trial is accepted.
    """
    missed = [miss for miss in map(_missed, trials) if miss is not None]
    if not missed:
        reasons = dict.fromkeys(str(trial.refused) for trial in trials)
        return PlanError("no strategy can plan this\n" + "\n".join(reasons))
    nearest = _nearest(missed)
    ways = []
    for miss in nearest:
        aside = {"device": miss.trial.tried.machine.device.memory.reserved_bytes}
        each = (_budget(tier, needed + aside.get(tier, 0)) for tier, needed in miss.needs.items())
        ways.append(f"{' and '.join(each)}, by {miss.trial.strategy} {miss.trial.text}")
    if any("host" in miss.needs for miss in nearest) and not has_disk:
        ways.append("disk=FOLDER (--disk), whose disk holds what memory cannot")
    told = dict.fromkeys(problem for miss in nearest for problem in miss.problems)
    error = PlanError("no plan fits\n" + "\n".join(told), hint="\n  or:  ".join(ways))
    error.short, *also = nearest[0].needs.items()
    error.also_short = tuple(also)
    return error


def _budget(tier: str, num_bytes: int) -> str:
    return f"{_FLAGS[tier]} of {num_bytes:,} bytes ({format_bytes(num_bytes)})"


def _missed(trial: Trial) -> Miss | None:
    needs = _shorts(trial.refused)
    if trial.refused is None or not needs:
        return None
    return Miss(trial, needs, (trial.refused.problem,))


def _shorts(error: PlanError | None) -> dict[str, int]:
    """Each tier that a plan overfills, and the bytes that would have done."""
    if error is None or error.short is None:
        return {}
    return dict((error.short, *error.also_short))


def _nearest(missed: Sequence[Miss]) -> list[Miss]:
    """Of the misses that no other beats in every tier, those that are least short, in full.

    What is known of a miss is never more than it needs, so those that lie farther for what is known
    need not be told in full.
    """
    found, whole = list(missed), set[int]()
    while True:
        needs = np.array([[miss.needs.get(tier, 0) for tier in TIERS] for miss in found], float)
        kept = pareto.undominated(needs).tolist()
        nearest = sorted(kept, key=lambda i: needs[i].sum())[:_MISSES]
        partly = next((i for i in nearest if i not in whole), None)
        if partly is None:
            return [found[i] for i in nearest]
        found[partly] = _in_full(found[partly])
        whole.add(partly)


def _in_full(miss: Miss) -> Miss:
    """What is short behind what was short: the same decision again where the tiers have that."""
    tried, needs, problems = miss.trial.tried, dict(miss.needs), list(miss.problems)
    for _ in range(_TRIES):
        try:
            replace(tried, machine=_roomy(tried.machine, needs)).check_room()
        except PlanError as error:
            more = {tier: n for tier, n in _shorts(error).items() if n > needs.get(tier, 0)}
            if not more:
                break
            needs |= more
            problems.append(error.problem)
        else:
            break
    return Miss(miss.trial, needs, tuple(problems))


def _roomy(machine: Machine, needs: Mapping[str, int]) -> Machine:
    """The machine with so much in each tier that needs it."""
    room = {tier: Tier(num_bytes) for tier, num_bytes in needs.items()}
    return replace(
        machine,
        device=replace(machine.device, memory=room.get("device", machine.device.memory)),
        host=room.get("host", machine.host),
        disk=room.get("disk", machine.disk),
    )
