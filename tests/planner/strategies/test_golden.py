"""Schedules of a tiny case as text: a change of a strategy shows here line by line.

TIERGNN_GOLDEN=1 writes the texts anew.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.planner.strategies.cases import graph_case, machine
from tiergnn.graph.shape import Histogram
from tiergnn.planner.models import classic
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.planner.strategies.known import STRATEGIES
from tiergnn.schedule.check import check
from tiergnn.schedule.schedule import Schedule

FOLDER = Path(__file__).parent / "golden"
CASES = {
    "hongtu": ("hongtu", Knobs(parts=2)),
    "grinnder": ("grinnder", Knobs(parts=2)),
    "grinnder-disk": ("grinnder", Knobs(parts=2, tier="disk", gradients="buckets")),
    "sliced": ("sliced", Knobs(parts=2, slices=2)),
    "uva": ("uva", Knobs(ranks=2)),
    "mgg": ("mgg", Knobs(ranks=2)),
    "leo": ("leo", Knobs(ranks=2, device_cache_frac=0.25, host_cache_frac=0.125)),
    "leo-pieces": ("leo", Knobs(ranks=2, device_cache_frac=0.5, host_cache_frac=0.5, pieces=2)),
    "leo-managed": ("leo", Knobs(ranks=2, managed=True)),
    "halo": ("halo", Knobs(ranks=2)),
    "halo-inputs": ("halo", Knobs(ranks=2)),
    "nfp": ("nfp", Knobs(ranks=2)),
}
MODELS = {"halo-inputs": "gin"}  # whose first layer sums its inputs as they are
BUDGETS = {  # of the strategies that take what there is
    "grinnder-disk": {"host_bytes": 700},
    "sliced": {"device_bytes": 2184 + 160},
}


@pytest.mark.parametrize("case", CASES)
def test_text(case):
    name, knobs = CASES[case]
    workload = classic(MODELS.get(case, "gcn"), 4, 2, hidden=3, layers=2)
    graph = graph_case(8, 24, 2, 4, seed=7)
    there = machine(2).with_budgets(**BUDGETS.get(case, {}))
    even = Histogram((3,), (8.0,))  # so that what is made of degrees has no part in this
    shape = replace(graph.shape, in_degrees=even, out_degrees=even)
    schedule = STRATEGIES[name](workload, shape, graph.layout, there, knobs)
    check(schedule, there)
    path = FOLDER / f"{case}.txt"
    if os.environ.get("TIERGNN_GOLDEN") == "1":
        path.write_text(str(schedule))
    assert str(schedule) == path.read_text()
    assert Schedule.parse(path.read_text()) == schedule
