"""The strategies by name: what writes a schedule of one training step.

To add one: a file with ``write`` and ``USES`` (its knobs), a line here, golden texts of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from tiergnn.errors import PlanError
from tiergnn.graph.shape import GraphShape, Layout
from tiergnn.hardware.machine import Machine
from tiergnn.planner.strategies import (
    grinnder,
    halo,
    hongtu,
    leo,
    mgg,
    nfp,
    resident,
    sliced,
    uva,
)
from tiergnn.planner.strategies.fitting import Fitting
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.schedule.schedule import Schedule
from tiergnn.workload import Workload

Write = Callable[[Workload, GraphShape, Layout, Machine, Knobs], Schedule]
# The last one is a training step, beside which an evaluation has its inputs.
WriteBeside = Callable[[Workload, GraphShape, Layout, Machine, Knobs, Schedule], Schedule]

STRATEGIES: dict[str, Write] = {
    "resident": resident.write,
    "hongtu": hongtu.write,
    "grinnder": grinnder.write,
    "sliced": sliced.write,
    "uva": uva.write,
    "mgg": mgg.write,
    "leo": leo.write,
    "halo": halo.write,
    "nfp": nfp.write,
}

# Those that are sized before they are written.
SIZED: dict[str, Callable[[Workload, GraphShape, Layout, Machine, Knobs], Fitting]] = {
    "hongtu": hongtu.fitting,
    "grinnder": grinnder.fitting,
    "sliced": sliced.fitting,
}

# Those that training carries out, besides resident: name -> what writes a pass of evaluation.
EVALUATIONS: dict[str, WriteBeside] = {
    "hongtu": hongtu.evaluation,
    "grinnder": grinnder.evaluation,
    "sliced": sliced.evaluation,
}

# Those of the latter that take rows prepared of the graph and its features.
PREPARING = ("sliced",)

# Those that may have the edges of one direction at a time on the device: topology "turns".
TURNING = ("sliced",)

# Those that ranks carry out, likewise.
RANKED: dict[str, Write] = {
    "halo": halo.evaluation,
    "nfp": nfp.evaluation,
    "mgg": mgg.evaluation,
    "uva": uva.evaluation,
    "leo": leo.evaluation,
}

# name -> the knobs that it reads; it refuses any other that is set.
KNOBS: dict[str, tuple[str, ...]] = {
    "resident": resident.USES,
    "hongtu": hongtu.USES,
    "grinnder": grinnder.USES,
    "sliced": sliced.USES,
    "uva": uva.USES,
    "mgg": mgg.USES,
    "leo": leo.USES,
    "halo": halo.USES,
    "nfp": nfp.USES,
}

# name -> knobs and the values that are tried with the best caches, beside those that these were
# chosen with: of the strategies that have caches (``device_cache_frac``).
TRIED: dict[str, dict[str, tuple[str, ...]]] = {"leo": leo.TRIED}

# name -> knobs with which a plan is simulated and never carried out, and why.
SIMULATED: dict[str, dict[str, str]] = {"leo": leo.SIMULATED}


def check_ranked(name: str, knobs: Knobs) -> None:
    """Raises PlanError for what no rank carries out."""
    if name not in RANKED:
        raise PlanError(f"{name} is not carried out by ranks", hint=", ".join(RANKED))
    for knob in knobs.changed:
        if why := SIMULATED.get(name, {}).get(knob):
            raise PlanError(
                f"{name} with {knob} is simulated alone: {why}",
                hint=f"a plan of {name} without {knob}",
            )
