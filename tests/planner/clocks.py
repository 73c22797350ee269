"""Schedules on the simulator's clock, for machines whose links move a byte a second."""

from __future__ import annotations

from tests.schedule.legal import machine
from tiergnn.hardware.machine import Curve, Link, Machine
from tiergnn.planner.cost import Costs
from tiergnn.planner.simulate import simulate
from tiergnn.schedule.actions import Lane
from tiergnn.schedule.schedule import Schedule
from tiergnn.schedule.timeline import Timeline

COMPUTE, H2D, D2H, PEER = Lane.COMPUTE, Lane.H2D, Lane.D2H, Lane.PEER


def clocked(schedule: Schedule, on: Machine | None = None) -> Timeline:
    on = on or machine(schedule.num_ranks)
    return simulate(schedule, on, Costs.of(on))


def at(timeline: Timeline) -> dict[int, tuple[float, float]]:
    return {span.index: (span.start_s, span.end_s) for span in timeline.spans}


def link(rate: float = 1.0, **fields) -> Link:
    return Link(Bps=Curve.flat(rate), **fields)
