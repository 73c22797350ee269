"""What the measured actions of `rank_alone_gpu.py` teach, and where they are kept."""

from __future__ import annotations

import gzip
import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rank_alone_cells import RANK, Sample
from tiergnn import frozen
from tiergnn.hardware.machine import Machine
from tiergnn.planner.cost import Costs
from tiergnn.planner.fit import Fit, fit
from tiergnn.planner.simulate import simulate


def learn(samples: Sequence[tuple[dict[str, Any], Sample]], machine: Machine) -> Fit:
    """What the measured actions of all rows teach; each row gets its seconds by that, with what a
    step takes beyond its actions (the host's, and the parameters' move), in the median of all steps
    of its model."""
    taught = fit(Costs.of(machine), [sample for _, sample in samples])
    around: dict[str, list[float]] = defaultdict(list)
    for row, _ in samples:
        around[_model(row)].append(row["around_s"])
    for row, (schedule, _) in samples:
        spans = simulate(schedule, machine, taught.costs).spans
        own = (s.end_s for s in spans if s.rank == RANK and s.label != "STEP")
        row["fitted_s"] = max(own) + statistics.median(around[_model(row)])
    return taught


def _model(row: dict[str, Any]) -> str:
    return row["cell"].split()[1]


def keep(path: Path, samples: list[tuple[dict[str, Any], Sample]], machine: Machine) -> None:
    """What was run and when, to learn from it again."""
    runs = [
        [row["cell"], row["way"], schedule.to_json(), frozen.encode(timeline)]
        for row, (schedule, timeline) in samples
    ]
    text = json.dumps({"machine": frozen.encode(machine), "runs": runs})
    path.write_bytes(gzip.compress(text.encode()))
