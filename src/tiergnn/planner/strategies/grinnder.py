"""GriNNder: parts staged through host memory and disk, gathered again in backward.

After GriNNder (its partition-wise caching, regathering and bypass), with what it leaves open:
host memory evicts by what is needed furthest ahead, parts are walked back and forth, gradients may
be kept in buckets so that not even one layer must fit in host memory, and the rows most read may
stay on the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tiergnn.graph.shape import GraphShape, Layout
from tiergnn.hardware.machine import Machine
from tiergnn.planner.strategies.draft import Draft
from tiergnn.planner.strategies.fitting import fitted, shortfall
from tiergnn.planner.strategies.home import Home
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.planner.strategies.staged import Staged
from tiergnn.schedule.check import peaks
from tiergnn.schedule.schedule import Schedule
from tiergnn.workload import Workload

USES = ("parts", "storage", "topology", "tier", "gradients", "hot_frac")

_TRIES = 4  # at a size of the cache


def write(
    workload: Workload, shape: GraphShape, layout: Layout, machine: Machine, knobs: Knobs
) -> Schedule:
    """One training step. With the tier "disk", what of host memory is left is the disk's cache.

    Raises PlanError where a tier is too small, with what would do.
    """
    return _write(workload, shape, layout, machine, knobs, training=True)


def evaluation(
    workload: Workload, shape: GraphShape, layout: Layout, machine: Machine, knobs: Knobs
) -> Schedule:
    """One pass of a workload that was traced for evaluation; raises as ``write``."""
    return _write(workload, shape, layout, machine, knobs, training=False)


def _write(
    workload: Workload,
    shape: GraphShape,
    layout: Layout,
    machine: Machine,
    knobs: Knobs,
    *,
    training: bool,
) -> Schedule:
    def written(capacity_bytes: float, trace: Iterable[str] = ()) -> tuple[Schedule, list[str]]:
        draft = Draft("grinnder", workload, shape, layout, machine, knobs, uses=USES)
        disk = knobs.tier == "disk"
        home = Home(draft, disk=disk, capacity_bytes=capacity_bytes, trace=trace)
        staged = Staged(draft, home, piecewise=disk, serpentine=True)
        if training:
            staged.write()
        else:
            staged.write_evaluation()
        return draft.finish(), home.reads

    roomy, trace = written(math.inf)
    if knobs.tier == "host":
        return fitted(roomy, machine)
    # The order of reads does not depend on the cache, so the first writing tells it.
    if shortfall(roomy, machine) is None:
        return written(math.inf, trace)[0]
    fitted(roomy, machine, ("device",))  # which the cache of the disk changes nothing of
    least, _ = written(0, trace)
    fitted(least, machine, ("host",))
    available = machine.tier("host").available_bytes
    room = available - peaks(least)[0, "host"][0]
    for _ in range(_TRIES):
        schedule, _ = written(room, trace)
        over = peaks(schedule)[0, "host"][0] - available
        if over <= 0:
            return fitted(schedule, machine)
        room -= over  # other entries pass through host memory now, and larger ones
    return least
