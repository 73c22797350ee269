"""GriNNder: parts staged through host memory and disk, gathered again in backward.

After GriNNder (its partition-wise caching, regathering and bypass), with what it leaves open:
host memory evicts by what is needed furthest ahead, parts are walked back and forth, gradients may
be kept in buckets so that not even one layer must fit in host memory, and the rows most read may
stay on the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tiergnn.graph.shape import GraphShape, Layout
from tiergnn.hardware.machine import Machine
from tiergnn.planner.strategies.draft import Draft
from tiergnn.planner.strategies.fitting import Fitting, fit, held_bytes, shortfall
from tiergnn.planner.strategies.home import Home
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.planner.strategies.staged import Staged
from tiergnn.schedule.schedule import Schedule
from tiergnn.schedule.sizing import Sized
from tiergnn.workload import Workload

USES = ("parts", "storage", "topology", "tier", "gradients", "hot_frac")

_TRIES = 4  # at a size of the cache


def write(
    workload: Workload, shape: GraphShape, layout: Layout, machine: Machine, knobs: Knobs
) -> Schedule:
    """One training step. With the tier "disk", what of host memory is left is the disk's cache.

    Raises PlanError where a tier is too small, with what would do.
    """
    return fitting(workload, shape, layout, machine, knobs).write()


def evaluation(
    workload: Workload,
    shape: GraphShape,
    layout: Layout,
    machine: Machine,
    knobs: Knobs,
    step: Schedule,
) -> Schedule:
    """One pass of a workload that was traced for evaluation, beside training steps; raises as
    ``write``. The knobs alone say where inputs lie, and not a ``step``."""
    return fitting(workload, shape, layout, machine, knobs, training=False).write()


def fitting(
    workload: Workload,
    shape: GraphShape,
    layout: Layout,
    machine: Machine,
    knobs: Knobs,
    *,
    training: bool = True,
) -> Fitting:
    """The schedule that fits. Raises PlanError where none does."""

    def written(
        capacity_bytes: float, trace: Iterable[str] = (), *, sizing: bool = False
    ) -> tuple[Draft, list[str]]:
        draft = Draft("grinnder", workload, shape, layout, machine, knobs, uses=USES, sizing=sizing)
        disk = knobs.tier == "disk"
        home = Home(draft, disk=disk, capacity_bytes=capacity_bytes, trace=trace)
        staged = Staged(draft, home, piecewise=disk, serpentine=True)
        if training:
            staged.write()
        else:
            staged.write_evaluation()
        return draft, home.reads

    def sized(capacity_bytes: float) -> Sized:
        return written(capacity_bytes, trace, sizing=True)[0].sized()

    def fitting_in(capacity_bytes: float, found: Sized) -> Fitting:
        return Fitting(found, lambda: written(capacity_bytes, trace)[0].finish())

    trace: Sequence[str] = ()
    if knobs.tier == "host":
        roomy = sized(math.inf)
        fit(roomy, machine)
        return fitting_in(math.inf, roomy)
    # The order of reads does not depend on the cache, so a writing without one tells it.
    draft, trace = written(0, sizing=True)
    least = draft.sized()
    fit(least, machine, ("device", "host"))
    roomy = sized(math.inf)
    if shortfall(roomy, machine) is None:
        return fitting_in(math.inf, roomy)
    available = machine.tier("host").available_bytes
    room = available - held_bytes(least, "host")
    for _ in range(_TRIES):
        tried = sized(room)
        over = held_bytes(tried, "host") - available
        if over <= 0:
            fit(tried, machine)
            return fitting_in(room, tried)
        room -= over  # other entries pass through host memory now, and larger ones
    fit(least, machine)
    return fitting_in(0, least)
