"""LEO: own rows, replicas on the device, replicas in host memory, and the rest from its owner.

After LEO: the boundary rows that serve most edges are replicated, fresh every layer; all classes
of sources are read side by side. The narrower of a stage's sums and its outputs refreshes the
replicas (``refreshing``), those of inputs are filled once, and backward has replicas of its own.
With ``managed`` the replicas are what unified memory makes of it, a model and no measurement.
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

USES = (
    "ranks", "recompute", "storage", "pipeline", "device_cache_frac", "host_cache_frac",
    "asynchronous", "exchange", "managed", "pieces",
)  # fmt: skip

# What of ``exchange`` is tried with the best caches, besides what they were chosen with.
TRIED = {"exchange": ("outputs",)}

SIMULATED = {
    "managed": "it models the page faults of CUDA's unified memory, for comparisons; "
    "no rank has its rows in such memory"
}


def write(
    workload: Workload, shape: GraphShape, layout: Layout, machine: Machine, knobs: Knobs
) -> Schedule:
    """One training step of ``ranks``. Raises PlanError where a tier is too small."""
    draft = Draft("leo", workload, shape, layout, machine, knobs, uses=USES)
    return written(draft, InPlace, training=True)


def evaluation(
    workload: Workload, shape: GraphShape, layout: Layout, machine: Machine, knobs: Knobs
) -> Schedule:
    """One evaluation: each rank is left with the output's rows of its part."""
    draft = Draft("leo", workload, shape, layout, machine, knobs, uses=USES)
    return written(draft, InPlace, training=False)
