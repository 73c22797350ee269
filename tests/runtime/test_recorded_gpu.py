"""Staged steps that are recorded as a CUDA graph: the numbers of those that are not."""

from __future__ import annotations

import pytest
import torch

from tests.runtime.staging import OF_EDGES, Pair, random_graph
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.runtime import steps as module
from tiergnn.runtime.capture import EAGER
from tiergnn.runtime.staged_walk import Stopped
from tiergnn.training.scoring import Scoring

pytestmark = pytest.mark.gpu
MODELS = ("gcn", "sage", "gin", "gat", "gatv2", "deep", "weighted")
WAYS = {
    "sliced": ("sliced", {"slices": 3}),
    "edges in turns": ("sliced", {"slices": 3, "topology": "turns"}),
    "edges in host memory": ("sliced", {"slices": 2, "topology": "host"}),
    "grinnder": ("grinnder", {}),
}
STEPS = EAGER + 3


def made(model, strategy, knobs, *, capture, dtype=torch.float32):
    graph = random_graph(400, 3_000, 0, edges=model in OF_EDGES)
    pair = Pair.make(
        model, graph, strategy, Knobs(parts=3, **knobs), dtype=dtype, device="cuda", capture=capture
    )
    staged = pair.staged
    scoring = Scoring(graph, dict(graph.splits), staged.device)
    return staged, scoring.by_parts(staged.parts.gids, staged.device)


def trained(staged, share, steps=STEPS):
    """Losses, gradients, buffers and outputs of some steps."""
    found = []
    optimizer = torch.optim.Adam(staged.model.parameters(), lr=0.05)
    for step in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss = staged.train_step(share, step)
        grads = [None if p.grad is None else p.grad.clone() for p in staged.model.parameters()]
        staged.update(optimizer.step)
        buffers = [b.clone() for b in staged.model.buffers()]
        found.append((loss, grads, buffers, staged.infer()))
    return found


def same(one, other):
    if one is None or other is None:
        return one is other
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


CELLS = [
    (model, way)
    for model in MODELS
    for way in WAYS
    # Edges in turns are for sums that need them one way at a time.
    if model not in ("gat", "gatv2", "weighted") or "turns" not in way
]


@pytest.mark.parametrize(("model", "way"), CELLS)
def test_the_same_bits(model, way):
    strategy, knobs = WAYS[way]
    found = []
    for capture in (False, True):
        staged, share = made(model, strategy, knobs, capture=capture)
        found.append(trained(staged, share))
        if capture:
            steps = staged._steps
            # Of grinnder's the host adds rows; parts' views of edges that weigh something are cut
            # into tasks anew, for which it waits.
            recorded = strategy == "sliced" and model != "weighted"
            assert steps.replays == recorded, steps.refused
        staged.close()
    assert same(*found)


def test_a_replay_has_a_timeline_of_its_own():
    staged, share = made("deep", "sliced", {"slices": 3, "topology": "turns"}, capture=True)
    trained(staged, share)
    first = staged.timeline
    staged.model.zero_grad()
    torch.cuda.synchronize()
    staged.train_step(share, STEPS)
    second = staged.timeline
    assert first is not None
    assert second is not None
    assert first.moved_bytes() == second.moved_bytes()
    assert [span.index for span in first.spans] == [span.index for span in second.spans]
    assert first.spans != second.spans
    ends = [span.end_s for span in second.spans]
    assert 0 < max(ends) < 1
    assert all(span.start_s <= span.end_s for span in second.spans)
    staged.close()


def test_evaluations_take_what_the_record_keeps():
    staged, share = made("gcn", "sliced", {"slices": 3}, capture=True)
    trained(staged, share)
    torch.cuda.synchronize()
    reserved = torch.cuda.memory_reserved()
    for step in range(3):
        staged.infer()
        staged.model.zero_grad()
        staged.train_step(share, step)
    assert torch.cuda.memory_reserved() <= reserved + 2**21
    staged.close()


def test_a_first_evaluation_shares_no_memory_with_a_record():
    """What it makes and keeps would be written over."""
    staged, share = made("deep", "sliced", {"slices": 3}, capture=True)
    plain, of_plain = made("deep", "sliced", {"slices": 3}, capture=False)
    for run, own in ((staged, share), (plain, of_plain)):
        for step in range(STEPS):
            run.model.zero_grad()
            run.train_step(own, step)
    assert staged._steps.replays
    staged.infer()
    assert not staged._steps.replays
    for step in range(2):
        staged.model.zero_grad()
        staged.train_step(share, step)
        assert staged._steps.replays
    plain.infer()
    for step in range(2):
        plain.model.zero_grad()
        plain.train_step(of_plain, step)
    assert same(staged.infer(), plain.infer())
    staged.close()
    plain.close()


def test_what_cannot_be_recorded_runs_as_it_is():
    staged, share = made("gcn", "sliced", {"slices": 3}, capture=True)
    plain, of_plain = made("gcn", "sliced", {"slices": 3}, capture=False)

    def asking(out, part):
        loss = share(out, part)
        return loss * (1.0 if float(loss.detach()) > -1 else 2.0)

    assert same(trained(staged, asking), trained(plain, of_plain))
    assert staged._steps.refused
    torch.cuda.empty_cache()  # works after a recording that failed, too
    staged.close()
    plain.close()


def test_a_replay_is_stopped_before_it_begins():
    staged, share = made("gcn", "sliced", {"slices": 3}, capture=True)
    trained(staged, share)
    staged.model.zero_grad()
    before = [b.clone() for b in (*staged.model.buffers(), *staged.model.parameters())]
    staged.stop_when(lambda: True)
    with pytest.raises(Stopped):
        staged.train_step(share, 0)
    assert same(before, [*staged.model.buffers(), *staged.model.parameters()])
    staged.stop_when(lambda: False)
    assert staged.train_step(share, 0) > 0
    staged.close()


def test_long_steps_are_not_recorded(monkeypatch):
    monkeypatch.setattr(module, "LONGEST_S", 0.0)
    staged, share = made("gcn", "sliced", {"slices": 3}, capture=True)
    assert trained(staged, share)
    assert not staged._steps.replays
    staged.close()


def test_gradients_that_are_added_to():
    """A step that adds to gradients is not the recorded one; the next one is again."""
    staged, share = made("gcn", "sliced", {"slices": 3}, capture=True)
    plain, of_plain = made("gcn", "sliced", {"slices": 3}, capture=False)
    for run, own in ((staged, share), (plain, of_plain)):
        trained(run, own)
        run.model.zero_grad()
        run.train_step(own, 7)
        run.train_step(own, 8)
    grads = [[p.grad for p in run.model.parameters()] for run in (staged, plain)]
    assert same(*grads)
    assert same(trained(staged, share, 2), trained(plain, of_plain, 2))
    staged.close()
    plain.close()
