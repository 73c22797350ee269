"""Again: what a forward takes that is run again for its backward."""

from __future__ import annotations

from tiergnn.planner.strategies.draft import Draft
from tiergnn.workload import AgainWork, StageWork


def again_of(draft: Draft, stage: StageWork) -> AgainWork:
    """Without the products that only other stages read, unless the loss or moments ask for some."""
    again = stage.again
    asked = stage is draft.ending or again is None or any(map(draft.statistics, again.unread))
    if again is None or asked:
        return AgainWork(unread=(), works=stage.forward, held=stage.kept_held)
    return again
