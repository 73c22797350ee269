"""Staged, sliced and ranked runs on CUDA: the numbers of the resident run, and the same bits twice.

Ranks are threads that share one device.
"""

from __future__ import annotations

import pytest
import torch

from tests.runtime.ranking import compare
from tests.runtime.staging import OF_EDGES, Pair, random_graph
from tests.runtime.test_staged import WAYS
from tiergnn.planner.strategies.knobs import Knobs

pytestmark = pytest.mark.gpu
MODELS = ("gcn", "sage", "gin", "gat", "gatv2", "deep", "weighted")
STAGED = {name: way for name, way in WAYS.items() if "disk" not in name}


def pair(model, strategy, dtype=torch.float64, **knobs):
    graph = random_graph(400, 3_000, 0, edges=model in OF_EDGES)
    return Pair.make(model, graph, strategy, Knobs(**knobs), dtype=dtype, device="cuda")


@pytest.mark.parametrize("way", STAGED)
@pytest.mark.parametrize("model", MODELS)
def test_staged(model, way):
    strategy, knobs = STAGED[way]
    made = pair(model, strategy, parts=3, **knobs)
    made.compare(1e-10, 3)
    made.staged.close()


@pytest.mark.parametrize("model", MODELS)
def test_through_the_disk(model, tmp_path):
    graph = random_graph(400, 3_000, 0, edges=model in OF_EDGES)
    made = Pair.make(
        model, graph, "grinnder", Knobs(parts=3, tier="disk"), device="cuda", scratch=tmp_path
    )
    made.compare(1e-10, 3)
    made.staged.close()


@pytest.mark.parametrize("model", MODELS)
def test_sliced(model):
    made = pair(model, "sliced", slices=3)
    made.compare(1e-10, 3)
    made.staged.close()


@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_staged_in_float32(model):
    made = pair(model, "grinnder", torch.float32, parts=3)
    made.compare(1e-5, 3)
    made.staged.close()


def test_the_same_bits_twice():
    losses = []
    for _ in "ab":
        made = pair("deep", "grinnder", torch.float32, parts=4)
        losses.append([made.step(epoch)[0] for epoch in range(5)])
        made.staged.close()
    assert losses[0] == losses[1]


@pytest.mark.parametrize("strategy", ["halo", "nfp", "mgg"])
@pytest.mark.parametrize("model", ["gcn", "sage", "gat", "deep"])
def test_ranks_that_share_the_device(model, strategy):
    graph = random_graph(400, 3_000, 0, edges=model in OF_EDGES)
    compare(model, graph, strategy, 3, device="cuda")
