"""Forwards that are run again for their backward make what that reads, and no more."""

from __future__ import annotations

import pytest
from torch.utils.flop_counter import FlopCounterMode

from tests.runtime.staging import OF_EDGES, Pair, random_graph
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.schedule.actions import Op
from tiergnn.schedule.contents import What
from tiergnn.workload import PRODUCTS

STRATEGIES = {"sliced": {"slices": 3}, "grinnder": {}, "hongtu": {}}
MODELS = ("gcn", "sage", "gin", "deep", "gat", "gatv2", "weighted")


def made(model, strategy):
    graph = random_graph(60, 200, 0, edges=model in OF_EDGES)
    return Pair.make(model, graph, strategy, Knobs(parts=3, **STRATEGIES[strategy]))


@pytest.mark.parametrize(
    ("model", "strategy"),
    # Learned weights of edges are made anew for every slice, and not planned.
    [(m, s) for m in MODELS for s in STRATEGIES if (m, s) != ("weighted", "sliced")],
)
def test_what_a_step_multiplies_is_the_plans(model, strategy):
    pair = made(model, strategy)
    with FlopCounterMode(display=False) as found:
        pair.staged.train_step(pair.share, 0)
    actions = [a for a in pair.staged.schedule.actions if a.op not in (Op.LOSS, Op.STEP)]
    works = [work for action in actions for work in action.work if work.kind in PRODUCTS]
    assert found.get_total_flops() == sum(work.amount for work in works)
    pair.staged.close()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("model", "again"),
    # The output, for the loss; what relu tells of itself; rows whose moments a BatchNorm takes.
    [
        ("gcn", {"h3"}),
        ("sage", {"h1", "h3"}),
        ("gin", {"h1", "h2", "h3", "h4"}),
        ("deep", {"h0", "h1", "h2", "h3", "h4", "h5"}),  # and not h4a
    ],
)
def test_what_is_made_again_is_what_backward_reads(model, again, strategy):
    pair = made(model, strategy)
    of = pair.staged.schedule.buffer_of
    rows = {
        of[name].holds.of
        for action in pair.staged.schedule.actions
        if action.op is Op.RECOMPUTE
        for name in action.writes
        if of[name].holds is not None and of[name].holds.what is What.ROWS
    }
    assert rows == again
    pair.staged.close()
