"""Staged runs give the numbers of the resident one: losses, gradients, statistics, predictions."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.nets import NETS
from tests.runtime.staging import OF_EDGES, Pair, least_host, random_graph
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.schedule.actions import Lane, Op
from tiergnn.schedule.check import peaks

# Dropout in all but two; BatchNorm in deep, gin and basic gcn; residuals in deep; jumping knowledge
# in jumping cat and basic gcn; a layer that we do not have in own layer.
MODELS = ("gcn", "sage", "gin", "gat", "gatv2", "own layer", "deep", "jumping cat", "basic gcn")
WAYS = {
    "grinnder": ("grinnder", {}),
    "buckets": ("grinnder", {"gradients": "buckets"}),
    "edges in host": ("grinnder", {"topology": "host"}),
    "hongtu": ("hongtu", {}),
    "disk": ("grinnder", {"tier": "disk"}),
    "disk buckets": ("grinnder", {"tier": "disk", "gradients": "buckets"}),
}


def run(model, way, num_parts, scratch, *, seed=0, size=(40, 150), dtype=torch.float64, epochs=5):
    strategy, knobs = WAYS[way]
    graph = random_graph(*size, seed, edges=model in OF_EDGES)
    knobs = Knobs(parts=num_parts, **knobs)
    if knobs.tier == "disk":
        pair = least_host(model, graph, knobs, seed=seed, scratch=scratch, extra=400)
    else:
        pair = Pair.make(model, graph, strategy, knobs, seed=seed, dtype=dtype)
    try:
        pair.compare(1e-10 if dtype == torch.float64 else 1e-5, epochs)
    finally:
        pair.staged.close()
    return pair


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", MODELS)
def test_exact(model, way, tmp_path):
    """Every model in every way; the parts go round."""
    turn = MODELS.index(model) + list(WAYS).index(way)
    run(model, way, (2, 7, 16, 1)[turn % 4], tmp_path, epochs=3)


@pytest.mark.slow
@pytest.mark.parametrize("num_parts", [1, 2, 7, 16])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", NETS)
def test_exact_in_all_parts(model, way, num_parts, tmp_path):
    run(model, way, num_parts, tmp_path, seed=num_parts)


@pytest.mark.parametrize("model", ["weighted", "dropped", "stacked", "appnp"])
def test_rows_of_edges_and_odd_models(model, tmp_path):
    run(model, "grinnder", 3, tmp_path, epochs=2)
    run(model, "disk", 3, tmp_path, epochs=2)


@pytest.mark.parametrize("model", ["gcn", "deep"])
def test_float32(model, tmp_path):
    run(model, "buckets", 7, tmp_path, dtype=torch.float32)


@given(
    model=st.sampled_from(["gcn", "gat", "gin"]),
    way=st.sampled_from(["grinnder", "buckets", "hongtu"]),
    num_parts=st.integers(1, 9),
    size=st.tuples(st.integers(2, 25), st.integers(0, 60)),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=25, deadline=None)
def test_any_graph_in_any_parts(model, way, num_parts, size, seed):
    """Empty parts, parts without labels or edges, more parts than nodes."""
    run(model, way, num_parts, None, size=size, seed=seed, epochs=1)


def test_the_same_bits_twice():
    graph = random_graph(60, 300, 1)
    found = []
    for _ in range(2):
        pair = Pair.make("deep", graph, "grinnder", Knobs(parts=5))
        losses = []
        for epoch in range(3):
            losses.append(pair.step(epoch)[0])
            pair.move()
        found.append((losses, [p.detach().clone() for p in pair.staged.model.parameters()]))
        pair.staged.close()
    assert found[0][0] == found[1][0]
    assert all(torch.equal(a, b) for a, b in zip(found[0][1], found[1][1], strict=True))


@pytest.mark.parametrize("way", WAYS)
def test_what_is_moved_and_held_is_the_plans(way, tmp_path):
    """Bytes of every copy, and of every tier at its fullest; no lane is left behind."""
    before = threading.active_count()
    pair = run("gcn", way, 4, tmp_path, epochs=1)
    staged = pair.staged
    actions = {action.index: action for action in staged.schedule.actions}
    spans = staged.timeline.spans
    steps = [a for a in staged.schedule.actions if a.op is not Op.STEP]
    assert [span.index for span in spans] == [action.index for action in steps]
    moved = dict.fromkeys(Lane, 0)
    for span in spans:
        if actions[span.index].op is Op.COPY:
            assert span.moved_bytes == actions[span.index].moved_bytes, actions[span.index]
            moved[span.lane] += span.moved_bytes
    assert moved[Lane.H2D] > 0
    assert moved[Lane.D2H] > 0
    assert (moved[Lane.DISK_READ] > 0) == way.startswith("disk")
    for schedule, found in ((staged.schedule, staged.peak_bytes),):
        for (_, tier), (num_bytes, _) in peaks(schedule).items():
            assert 0 < found[tier] <= max(num_bytes, peaks(staged.evaluation)[0, tier][0])
    assert threading.active_count() <= before + 1  # the disk engine's may end a little later
    assert list(tmp_path.iterdir()) == []
