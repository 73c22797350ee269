"""How a fault of a schedule is told: what was wanted and had, the lines around it, the way out."""

from __future__ import annotations

from tiergnn.errors import PlanError
from tiergnn.schedule.schedule import HERE, Schedule

AROUND = 3  # lines before and after
CLIP = 200  # characters of a line that is only there for orientation


def fault(schedule: Schedule, at: int, problem: str, hint: str) -> PlanError:
    """The error for the action at ``at`` in the schedule; it is for the caller to raise."""
    lines = ["the schedule"]
    for i in range(max(0, at - AROUND), min(len(schedule.actions), at + AROUND + 1)):
        text = str(schedule.actions[i])
        if i == at:
            lines.append(f"    {text}  {HERE}")
        else:
            lines.append("    " + (text if len(text) <= CLIP else text[: CLIP - 4] + " ..."))
    return PlanError(problem, culprit="\n".join(lines), hint=hint)
