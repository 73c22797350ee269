"""One rank alone on a GPU, which reads others' rows in pinned host memory: the numbers that it gave
among virtual ranks of the same GPU."""

from __future__ import annotations

import pytest
import torch

from tests.runtime.ranking import make
from tests.runtime.staging import workload
from tests.runtime.test_alone import (
    GRAPH,
    PARTS,
    RANK,
    RANKS,
    WAYS,
    absent_ranks,
    planned,
    with_what_others_gave,
)
from tiergnn.runtime.capture import EAGER
from tiergnn.runtime.ranked import Ranked
from tiergnn.training.scoring import Scoring
from tiergnn.transport.alone import Alone

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("way", WAYS)
def test_with_what_others_gave(way):
    with_what_others_gave(way, "cuda")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", ["deep", "gin"])
def test_recorded_steps_are_those_that_are_not(model, way):
    """Meetings stand in order on the device, so that it does everything."""
    plan, found = planned(way, model), []
    for capture in (False, True):
        t = Alone(RANK, RANKS, absent_ranks())
        ranked = Ranked(
            make(model, plan), GRAPH, plan, t, labelled=GRAPH.splits["train"], device="cuda",
            dtype=torch.float64, parts=PARTS, evaluated=workload(model, torch.float64, False),
            capture=capture,
        )  # fmt: skip
        scoring = Scoring(GRAPH, dict(GRAPH.splits), ranked.device)
        share = scoring.by_parts({RANK: ranked.rows}, ranked.device)
        values = []
        for step in range(EAGER + 3):
            ranked.model.zero_grad()
            values.append(torch.tensor(ranked.train_step(share, step)))
            values += [p.grad.cpu() for p in ranked.model.parameters() if p.grad is not None]
            values.append(ranked.infer().cpu())
        assert ranked._steps.replays == capture, ranked.unrecorded
        values += [buffer.cpu() for buffer in ranked.model.buffers()]
        found.append(values)
        ranked.close()
        t.close()
    assert len(found[0]) == len(found[1])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("way", ["halo", "leo 0.1 0.2"])
def test_what_cannot_be_recorded_runs_as_it_is(way):
    """A recording that fails leaves nothing held, places in host memory neither."""
    plan, found = planned(way, "deep"), []
    for asks in (False, True):
        t = Alone(RANK, RANKS, absent_ranks())
        ranked = Ranked(
            make("deep", plan), GRAPH, plan, t, labelled=GRAPH.splits["train"], device="cuda",
            dtype=torch.float64, parts=PARTS, evaluated=workload("deep", torch.float64, False),
            capture=asks,
        )  # fmt: skip
        scoring = Scoring(GRAPH, dict(GRAPH.splits), ranked.device)
        share = scoring.by_parts({RANK: ranked.rows}, ranked.device)

        def asking(out, rank, share=share, asks=asks):
            loss = share(out, rank)
            return loss * (1.0 if not asks or float(loss.detach()) > -1 else 2.0)

        found.append([ranked.train_step(asking, step) for step in range(EAGER + 3)])
        assert bool(ranked.unrecorded)
        ranked.close()
        t.close()
    assert found[0] == found[1]
