"""Resident: a step as its schedule says, the timeline of a run, and a schedule of one's own."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import tiergnn as tg
from tests.training.models import community, net
from tiergnn.planner.strategies import resident
from tiergnn.runtime.executor import Resident
from tiergnn.runtime.outline import counts_of, outline
from tiergnn.schedule.actions import Op
from tiergnn.schedule.timeline import Timeline

QUIET = {"progress": False}


@pytest.mark.parametrize("recompute", [False, True], ids=["keep", "recompute"])
@pytest.mark.parametrize("kind", ["gcn", "gat", "sage"])
def test_a_step_is_one_graph_of_the_whole(kind, recompute):
    """Dropout on; a given schedule is walked."""
    graph = community(200)
    model = net(graph, kind, dropout=0.5)
    held = Resident(model, graph)
    if recompute:
        work = outline(held.programs[True], dtype=torch.float32, learned=False)
        again = [stage.index for stage in work.stages]
        schedule = resident.training(work, counts_of(graph), recompute=again)
        held = Resident(model, graph, schedule=schedule)
        assert held.schedule is schedule
    assert recompute == any(a.op == Op.RECOMPUTE for a in held.schedule.actions)
    y = torch.from_numpy(graph.y)

    def loss_of(out):
        return F.cross_entropy(out, y)

    loss = loss_of(held.forward(True, 3))
    loss.backward()
    want = [p.grad for p in model.parameters()]
    model.zero_grad()
    assert held.train_step(loss_of, 3) == float(loss.detach())
    for p, grad in zip(model.parameters(), want, strict=True):
        torch.testing.assert_close(p.grad, grad, rtol=0 if not recompute else 1e-5, atol=1e-7)
    assert torch.equal(held.infer(), held.forward(False))


def test_gradients_add_up_over_steps():
    graph = community(60)
    model = net(graph)
    held = Resident(model, graph)
    y = torch.from_numpy(graph.y)
    for _ in range(2):
        held.train_step(lambda out: F.cross_entropy(out, y), 0)
    twice = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    held.train_step(lambda out: F.cross_entropy(out, y), 0)
    for p, grad in zip(model.parameters(), twice, strict=True):
        torch.testing.assert_close(2 * p.grad, grad)


def test_a_run_keeps_the_timeline_of_its_last_epoch(tmp_path):
    graph = community(120)
    run = tg.train(graph, net(graph), epochs=3, out=tmp_path / "run", **QUIET)
    kept = Timeline.load(tmp_path / "run" / "timeline.json")
    assert kept == run.timeline
    assert kept.source == "measured"
    assert {span.label for span in kept.spans} >= {"LOSS", "STEP", "BACKWARD s0", "FORWARD s0"}
    actions = {action.index: action.label for action in run.schedule.actions}
    assert all(actions[span.index] == span.label for span in kept.spans)
    assert 0 < kept.seconds <= run.history[-1]["seconds"]
    assert kept.peak_bytes[0][:2] == (0, "device")
    assert tg.train(graph, net(graph), epochs=1, out=tmp_path / "run", overwrite=True, **QUIET)


def test_an_optimizer_with_a_closure_walks_as_often_as_it_asks():
    graph = community(120)
    run = tg.train(graph, net(graph), epochs=3, optimizer="lbfgs", **QUIET)
    assert run.losses[-1] < run.losses[0]
    labels = [span.label for span in run.timeline.spans]
    assert "LOSS" in labels
    assert "STEP" not in labels  # the whole walk is inside of it


def test_learned_rows_train_in_a_walk():
    from dataclasses import replace

    bare = replace(community(120), x=None)
    run = tg.train(
        bare, {"name": "gcn", "hidden_channels": 8}, features="embedding:8", epochs=10, lr=0.05,
        **QUIET,
    )  # fmt: skip
    assert run.losses[-1] < run.losses[0]
    assert run.schedule.buffer_of["d.x"].kind == "gradients"
