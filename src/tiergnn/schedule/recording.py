"""Recording: which steps a GPU is told once, and does again as one piece (``runtime/capture``)."""

from __future__ import annotations

from tiergnn.schedule.actions import Lane, Op
from tiergnn.schedule.schedule import Schedule

LONGEST_S = 5.0  # of a step that is replayed, inside which nobody can stop it
_LANES = {Lane.COMPUTE, Lane.H2D, Lane.D2H}


def recordable(schedule: Schedule) -> bool:
    """Whether the device of one rank does all of a training step."""
    lanes = {action.lane for action in schedule.actions if action.op is not Op.STEP}
    trains = any(action.op is Op.STEP for action in schedule.actions)
    return trains and schedule.num_ranks == 1 and lanes <= _LANES
