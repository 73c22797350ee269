"""Keeping: which stages keep what backward needs, and which run again, on one block of rows.

Legend: P rows of the block.
"""

from __future__ import annotations

from tiergnn.planner.cost import Costs
from tiergnn.planner.search import Choice, Stage, frontier
from tiergnn.planner.strategies.resident import works
from tiergnn.schedule.actions import Action, Lane, Op
from tiergnn.workload import Extent, StageWork, Workload


def recomputes(
    workload: Workload, extent: Extent, evenness: float, costs: Costs, most: int
) -> list[tuple[int, ...]]:
    """Sets of stages to run again, fastest first: ``most`` (and the last one) of those on the exact
    frontier of the chain of stages, spread over it."""
    stages = [
        _choices(stage, extent, _forward_s(stage, extent, evenness, workload.dtype, costs))
        for stage in workload.stages
    ]
    points = list(frontier(stages))
    step = max(1, -(-len(points) // most))
    numbers = [stage.index for stage in workload.stages]
    found = [
        tuple(n for n, name in zip(numbers, point.names, strict=True) if name == "recompute")
        for point in (*points[::step], points[-1])
    ]
    return list(dict.fromkeys(found))


def _choices(stage: StageWork, extent: Extent, forward_s: float) -> Stage:
    kept, held = stage.kept.at(extent), stage.kept_held.at(extent)
    back = stage.backward_held.at(extent)
    keep = Choice(
        name="keep",
        seconds=0.0,
        kept=(kept, 0, 0),
        forward=(max(0, held - kept), 0, 0),
        backward=(back, 0, 0),
    )
    again = Choice(
        name="recompute",
        seconds=forward_s,
        forward=(stage.forward_held.at(extent), 0, 0),
        backward=(max(held, kept + back), 0, 0),
    )
    return Stage(name=f"s{stage.index}", choices=(keep, again))


def _forward_s(
    stage: StageWork, extent: Extent, evenness: float, dtype: str, costs: Costs
) -> float:
    work = works(stage.forward, extent, evenness, dtype)
    return costs.seconds(Action(index=0, rank=0, lane=Lane.COMPUTE, op=Op.FORWARD, work=work))
