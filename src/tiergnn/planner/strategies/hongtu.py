"""HongTu: parts staged through host memory, with snapshots of gathered rows: the baseline.

After HongTu (SIGMOD 2024) as GriNNder describes it: activations lie in host memory, a part's
gathered rows go there too, to come back in backward in one piece. No disk, no order of parts.
"""

from __future__ import annotations

import math

from tiergnn.graph.shape import GraphShape, Layout
from tiergnn.hardware.machine import Machine
from tiergnn.planner.strategies.draft import Draft
from tiergnn.planner.strategies.fitting import Fitting, fit
from tiergnn.planner.strategies.home import Home
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.planner.strategies.staged import Staged
from tiergnn.schedule.schedule import Schedule
from tiergnn.workload import Workload

USES = ("parts", "storage", "topology")


def write(
    workload: Workload, shape: GraphShape, layout: Layout, machine: Machine, knobs: Knobs
) -> Schedule:
    """One training step. Raises PlanError where a tier is too small, with what would do."""
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

    def written(*, sizing: bool) -> Draft:
        draft = Draft("hongtu", workload, shape, layout, machine, knobs, uses=USES, sizing=sizing)
        staged = Staged(draft, Home(draft, disk=False, capacity_bytes=math.inf), snapshot=training)
        if training:
            staged.write()
        else:
            staged.write_evaluation()
        return draft

    sized = written(sizing=True).sized()
    fit(sized, machine)
    return Fitting(sized, lambda: written(sizing=False).finish())
