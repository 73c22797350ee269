"""Evaluations of staged runs give, and hold, the output of the nodes that are asked for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.planner.strategies.cases import machine
from tests.runtime.staging import Pair, close, random_graph, workload
from tiergnn.errors import PlanError
from tiergnn.hardware.machine import Tier
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.runtime.staged import Staged
from tiergnn.schedule.actions import Op
from tiergnn.schedule.check import peaks

WAYS = {
    "grinnder": ("grinnder", {}),
    "hongtu": ("hongtu", {}),
    "disk": ("grinnder", {"tier": "disk"}),
    "sliced": ("sliced", {"slices": 2}),
    "sliced, in turns": ("sliced", {"slices": 3, "topology": "turns"}),
}


def asking(pair, asked, scratch, **changes):
    """The run of a pair again, of whose output some is asked for."""
    staged = pair.staged
    return Staged(
        staged.model, pair.graph, replace(staged.plan, **changes),
        labelled=pair.graph.splits["train"], dtype=torch.float64, parts=pair.parts,
        evaluated=workload("gcn", torch.float64, False), asked=asked, scratch=scratch,
    )  # fmt: skip


def answers(schedule) -> int:
    return sum(b.num_bytes for b in schedule.buffers if b.lasting and not b.given)


@pytest.mark.parametrize("way", WAYS)
def test_the_rows_that_are_asked_for_and_no_others(way, tmp_path):
    strategy, knobs = WAYS[way]
    graph = random_graph(40, 150, 0)
    pair = Pair.make("gcn", graph, strategy, Knobs(parts=4, **knobs), scratch=tmp_path)
    want = pair.resident.infer()
    alone = np.flatnonzero(pair.parts.part_of == 1)  # of one part, and none of the others
    staged = asking(pair, alone, tmp_path)
    row_bytes = want[0].numel() * want.element_size()
    for ids in (alone, np.arange(0, 40, 7), np.zeros(0, np.int64), None, alone):
        some = None if ids is None else torch.from_numpy(ids)
        found = staged.infer(some)
        close(found, want if some is None else want[some], 1e-9)
        num_nodes = 40 if ids is None else len(ids)
        assert answers(staged.evaluation) == num_nodes * row_bytes
        moved = [a for a in staged.evaluation.actions if a.op is Op.COPY and "answer" in str(a)]
        assert sum(action.moved_bytes for action in moved) == num_nodes * row_bytes
        before = staged.evaluation
        assert torch.equal(staged.infer(None if some is None else some.clone()), found)
        assert staged.evaluation is before  # written once
    train = staged.train_step(pair.share, 0)
    assert train == pair.staged.train_step(pair.share, 0)
    for each in (staged, pair.staged):
        each.close()


def test_what_does_not_fit_is_refused_when_it_is_asked_for():
    """And what was asked for before still is there."""
    graph = random_graph(40, 150, 0)
    pair = Pair.make("gcn", graph, "hongtu", Knobs(parts=4))
    some = torch.from_numpy(graph.splits["train"][:5])
    staged = asking(pair, some.numpy(), None)
    (held, _) = peaks(staged.evaluation)[0, "host"]
    staged.plan = replace(staged.plan, machine=replace(machine(1), host=Tier(held - 1)))
    with pytest.raises(PlanError, match="host memory"):
        staged.infer()
    close(staged.infer(some), pair.resident.infer()[some], 1e-9)
    for each in (staged, pair.staged):
        each.close()


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_inputs_lie_where_training_steps_have_them(tier, tmp_path):
    """An evaluation has more room for slices, and would have taken more of the device and of host
    memory beside the steps for good."""
    graph = random_graph(60, 300, 0)
    knobs, there = Knobs(parts=4, slices=6, tier=tier), machine(1)
    whole = Pair.make("sage", graph, "sliced", knobs, scratch=tmp_path)  # gathers features
    held = {t: peaks(whole.staged.schedule).get((0, t), (0,))[0] for t in ("device", "host")}
    whole.staged.close()
    spread = set()
    for frac in (0.7, 0.8, 0.9):
        device = replace(there.device, memory=Tier(int(frac * held["device"])))
        pair = Pair.make(
            "sage", graph, "sliced", knobs, scratch=tmp_path, there=replace(there, device=device)
        )
        given = [
            {(b.name, b.tier) for b in schedule.buffers if b.given and b.kind == "features"}
            for schedule in (pair.staged.schedule, pair.staged.evaluation)
        ]
        assert given[0] == given[1]
        spread |= {found for _, found in given[0]}
        pair.compare(1e-10, epochs=1)
        pair.staged.close()
    assert {"device", "host"} <= spread
