"""What an action of a staged walk waits for."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedule.legal import random_legal
from tiergnn.runtime.staged_walk import _awaited


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_waiting_for_the_last_of_each_lane_is_waiting_for_all(seed):
    """Lanes take their actions in order: whoever waits for one has waited for those before it, and
    what a lane waited for once is done for all that it does later."""
    steps = [a for a in random_legal(seed, ranks=2, steps=40).actions if a.rank == 0]
    lane_of = {action.index: action.lane for action in steps}
    found = _awaited(steps)
    assert sum(map(len, found.values())) <= sum(len(action.after) for action in steps)
    waited: dict[tuple, int] = {}
    for action in steps:
        for i in found[action.index]:
            key = action.lane, lane_of[i]
            assert i in action.after
            assert i > waited.get(key, -1)  # nothing is waited for twice
            waited[key] = i
        for i in action.after:
            if i in lane_of and lane_of[i] != action.lane:
                assert i <= waited[action.lane, lane_of[i]]
