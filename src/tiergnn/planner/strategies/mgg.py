"""MGG: own rows on the device, other ranks' rows read in place, side by side; no cache.

After MGG (OSDI 2023): neighbours split by where they lie, remote ones read one by one from peers
while local ones are aggregated.
"""

from __future__ import annotations

from tiergnn.graph.shape import GraphShape, Layout
from tiergnn.hardware.machine import Machine
from tiergnn.planner.strategies.draft import Draft
from tiergnn.planner.strategies.inplace import InPlace
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.planner.strategies.ranked import written
from tiergnn.schedule.schedule import Schedule
from tiergnn.workload import Workload

USES = ("ranks", "recompute", "pipeline")


def write(
    workload: Workload, shape: GraphShape, layout: Layout, machine: Machine, knobs: Knobs
) -> Schedule:
    """One training step of ``ranks``. Raises PlanError where a tier is too small."""
    draft = Draft("mgg", workload, shape, layout, machine, knobs, uses=USES)
    return written(draft, InPlace, training=True)


def evaluation(
    workload: Workload, shape: GraphShape, layout: Layout, machine: Machine, knobs: Knobs
) -> Schedule:
    """One evaluation: each rank is left with the output's rows of its part."""
    draft = Draft("mgg", workload, shape, layout, machine, knobs, uses=USES)
    return written(draft, InPlace, training=False)
