"""Bytes that a resident run holds on its device, by purpose: those of its schedules, proven.

A run's evaluation finds more there than its own schedule says: what training keeps between steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tiergnn.graph.shape import GraphShape
from tiergnn.planner.strategies import resident
from tiergnn.schedule.check import peaks
from tiergnn.workload import Workload

_DEVICE = (0, "device")
# What of a training step's buffers is there while the model is evaluated; the last gradients stay
# until the next step clears them.
_STAY = ("topology.out", "optimizer", "gradients", "d.x")


@dataclass(frozen=True, slots=True)
class Held:
    """The most bytes held at once, an upper bound; ``kinds`` (of buffers) add up to it."""

    num_bytes: int
    kinds: Mapping[str, int]


def step_held(workload: Workload, shape: GraphShape, recompute: Iterable[int] = ()) -> Held:
    """Of a training step; ``recompute`` as in the resident strategy."""
    return Held(*peaks(resident.training(workload, shape, recompute=recompute))[_DEVICE])


def evaluation_held(
    workload: Workload, shape: GraphShape, training: Workload | None = None
) -> Held:
    """Of an evaluation (a workload traced for it), by itself or between steps of ``training``."""
    held, kinds = peaks(resident.evaluation(workload, shape))[_DEVICE]
    if training is None:
        return Held(held, kinds)
    more = dict(kinds)
    for buffer in resident.training(training, shape).buffers:
        if buffer.name in _STAY and (buffer.name != "d.x" or training.row_kind("x").grad):
            more[buffer.kind] = more.get(buffer.kind, 0) + buffer.num_bytes
    return Held(sum(more.values()), dict(sorted(more.items(), key=lambda item: -item[1])))
