"""Ranks give the numbers of one device: losses, gradients, statistics, predictions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.runtime.ranking import compare, ranked, start_processes
from tests.runtime.staging import OF_EDGES, random_graph
from tiergnn.errors import RankError
from tiergnn.planner.strategies.known import KNOBS
from tiergnn.schedule.actions import Op
from tiergnn.schedule.check import peaks
from tiergnn.schedule.schedule import Schedule

# Dropout in all; BatchNorm and residuals in deep, BatchNorm in gin; maxima in stacked; weights that
# are learned in weighted, given ones in data.
STRATEGIES = ("halo", "nfp", "mgg", "uva", "leo 0.1 0.2", "leo 0.1 0.2 inputs")
CASES = [
    ("halo", "gcn", 1), ("halo", "gcn", 2), ("halo", "gat", 3), ("halo", "gatv2", 2),
    ("halo", "deep", 4), ("halo", "gin", 3), ("halo", "stacked", 3), ("halo", "weighted", 2),
    ("halo", "data", 3), ("nfp", "gcn", 3), ("nfp", "gat", 2), ("nfp", "deep", 4),
    ("nfp", "data", 2), ("mgg", "gcn", 3), ("mgg", "gat", 3), ("mgg", "deep", 2),
    ("mgg", "data", 3), ("uva", "gcn", 1), ("uva", "gat", 3), ("uva", "deep", 2),
    ("uva", "data", 3), ("uva", "gin", 4), ("leo 0 0", "gcn", 1), ("leo 0 0", "sage", 4),
    ("leo 1 0", "deep", 3), ("leo 0 1", "gin", 2), ("leo 0.1 0.2", "deep", 3),
    ("leo 0.2 0.1", "gat", 3), ("leo 0.1 0.2", "data", 3), ("leo 0.3 1", "gcn", 8),
]  # fmt: skip


MOVING = [
    *((strategy, "gcn", None) for strategy in STRATEGIES),
    *((way, "gcn", "float32") for way in STRATEGIES if "storage" in KNOBS[way.split()[0]]),
    ("halo", "gat", None), ("mgg", "gat", None), ("uva", "gat", None), ("uva", "gat", "float32"),
]  # fmt: skip


@pytest.mark.parametrize(("strategy", "model", "num_ranks"), CASES)
def test_exact(strategy, model, num_ranks):
    """Directed graphs with loops, repeats and nodes without edges; parts at random."""
    compare(model, random_graph(40, 150, 1, edges=model in OF_EDGES), strategy, num_ranks)


@pytest.mark.parametrize(("strategy", "model", "storage"), MOVING)
def test_what_is_moved_and_held_is_the_plans(strategy, model, storage):
    found, plan = ranked(model, random_graph(60, 300, 2), strategy, 3, storage=storage)
    for rank, seen in enumerate(found):
        for action, moved in seen.moved:
            if action.op in (Op.EXCHANGE, Op.COPY, Op.AGGREGATE, Op.BACKWARD, Op.ACCUMULATE):
                assert moved == action.moved_bytes, action
        assert any(moved for action, moved in seen.moved if action.op is not Op.REDUCE)
        for tier in seen.peaks:
            most = [peaks(schedule).get((rank, tier), (0,))[0] for schedule in seen.schedules]
            assert 0 < seen.peaks[tier] <= max(most)
    assert plan.strategy == strategy.split()[0]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_same_bits_twice(strategy):
    """On every rank, as ``compare`` sees; and in every run."""
    runs = [ranked("gcn", random_graph(40, 150, 3), strategy, 3)[0][0] for _ in range(2)]
    assert runs[0].losses == runs[1].losses
    assert all(torch.equal(a, b) for a, b in zip(runs[0].grads, runs[1].grads, strict=True))


@pytest.mark.parametrize("model", ["gin", "stacked"])
def test_inputs_of_others_are_kept_or_brought_in_each_pass(model):
    """To the same bits, by fewer exchanges in training and evaluation; what is held and moved is
    the plan's."""
    graph = random_graph(40, 150, 3)
    kept, brought = (
        ranked(model, graph, "halo", 3, keep_inputs=keep_inputs)[0] for keep_inputs in (True, False)
    )
    for mine, other in zip(kept, brought, strict=True):
        assert mine.losses == other.losses
        for a, b in zip(mine.grads, other.grads, strict=True):
            assert a is b is None or torch.equal(a, b)
        counts = [[_exchanges(schedule) for schedule in seen.schedules] for seen in (mine, other)]
        assert [b - a for a, b in zip(*counts, strict=True)] == [3, 3]
        for seen in (mine, other):
            assert all(moved == a.moved_bytes for a, moved in seen.moved if a.op is Op.EXCHANGE)
    assert torch.equal(kept[0].out, brought[0].out)
    for rank, seen in enumerate(kept):
        most = max(peaks(schedule)[rank, "device"][0] for schedule in seen.schedules)
        assert 0 < seen.peaks["device"] <= most


def _exchanges(schedule: Schedule) -> int:
    return sum(action.op is Op.EXCHANGE for action in schedule.actions)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("num_nodes", "num_edges"), [(3, 5), (4, 0)])
def test_more_ranks_than_nodes(strategy, num_nodes, num_edges):
    """Empty parts, parts without labels or edges."""
    compare("gcn", random_graph(num_nodes, num_edges, 1), strategy, 5)


def test_float32():
    graph = random_graph(40, 150, 4, dtype=np.float32)
    compare("gcn", graph, "halo", 3, dtype=torch.float32)


def test_recomputed_stages():
    compare("gcn", random_graph(40, 150, 5), "halo", 3, recompute=(1, 2))


def test_a_plan_of_other_ranks_is_refused():
    with pytest.raises(RankError, match="the plan is for 3 ranks, there are 2"):
        ranked("gcn", random_graph(40, 150, 1), "halo", 3, started=2)


@pytest.mark.parametrize(
    ("transport", "strategies"),
    [("shared", ("mgg", "uva")), ("gloo", ("halo", "nfp"))],
)
def test_processes(transport, strategies, tmp_path):
    cases = [(strategy, "gcn") for strategy in strategies]
    start_processes(cases, (40, 150, 1), 2, transport, tmp_path)


def test_two_runs_over_one_transport(tmp_path):
    """Rows that others read in place are each run's own."""
    start_processes([("mgg", "gcn"), ("mgg", "deep")], (40, 150, 1), 2, "shared", tmp_path)
