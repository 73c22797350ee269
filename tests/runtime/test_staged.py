"""Staged runs give the numbers of the resident one: losses, gradients, statistics, predictions."""

from __future__ import annotations

import copy
import threading
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.nets import NETS
from tests.runtime.staging import OF_EDGES, Pair, least_host, random_graph
from tiergnn.errors import PlanError
from tiergnn.graph.table import Table
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.runtime.staged import Staged
from tiergnn.schedule.actions import Lane, Op
from tiergnn.schedule.check import peaks

# Dropout in all but two; BatchNorm in deep, gin and basic gcn; residuals in deep; jumping knowledge
# in jumping cat and basic gcn; a layer that we do not have in own layer.
MODELS = ("gcn", "sage", "gin", "deep", "gat", "gatv2", "own layer", "jumping cat", "basic gcn")
WAYS = {
    "grinnder": ("grinnder", {}),
    "buckets": ("grinnder", {"gradients": "buckets"}),
    "edges in host": ("grinnder", {"topology": "host"}),
    "hongtu": ("hongtu", {}),
    "disk": ("grinnder", {"tier": "disk"}),
    "disk buckets": ("grinnder", {"tier": "disk", "gradients": "buckets"}),
    "hot rows": ("grinnder", {"hot_frac": 0.3}),
}
# Every other pair, as on a chess board: models of one kind, which stand side by side (plain sums,
# BatchNorm, attention, layers that are joined), go every way between them.
PAIRS = [pair for turn, pair in enumerate(product(MODELS, WAYS)) if turn % 2 == 0]


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


@pytest.mark.parametrize(("model", "way"), PAIRS)
def test_exact(model, way, tmp_path):
    """The parts go round."""
    run(model, way, (2, 3, 5, 1)[PAIRS.index((model, way)) % 4], tmp_path, epochs=2)


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
    run(model, "buckets", 5, tmp_path, dtype=torch.float32, epochs=2)


@given(
    model=st.sampled_from(["gcn", "gat", "gin"]),
    way=st.sampled_from(["grinnder", "buckets", "hongtu"]),
    num_parts=st.integers(1, 9),
    size=st.tuples(st.integers(2, 25), st.integers(0, 60)),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=10, deadline=None)
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


@pytest.mark.parametrize("storage", ["bfloat16", "float16"])
@pytest.mark.parametrize("way", ["grinnder", "buckets", "disk", "hongtu"])
def test_narrow_storage(way, storage, tmp_path):
    """Half the bytes off the device, sums in float32; the drift is that of the rounding."""
    strategy, knobs = WAYS[way]
    graph = random_graph(60, 300, 3, dtype=np.float32)
    moved = {}
    for chosen in (None, storage):
        pair = Pair.make(
            "gcn", graph, strategy, Knobs(parts=4, storage=chosen, **knobs), dtype=torch.float32,
            scratch=tmp_path,
        )  # fmt: skip
        pair.compare(1e-5 if chosen is None else 0.03, epochs=2)
        timeline = pair.staged.timeline
        assert timeline is not None
        spans = {span.index: span.moved_bytes for span in timeline.spans}
        copies = [a for a in pair.staged.schedule.actions if a.op is Op.COPY]
        assert all(spans[a.index] == a.moved_bytes for a in copies)
        moved[chosen] = sum(a.moved_bytes for a in copies if a.lane is Lane.D2H)
        pair.staged.close()
    assert moved[storage] * 2 == moved[None]


@pytest.mark.parametrize("kind", ["float16", "int8", "float64"])
@pytest.mark.parametrize("way", ["grinnder", "disk"])
def test_features_travel_as_stored(kind, way, tmp_path):
    graph = random_graph(60, 300, 3, dtype=np.float32)
    assert graph.x is not None
    values = graph.x.data
    table = Table.from_array(values.astype(kind) if kind != "int8" else values * 40 // 1)
    if kind == "int8":
        table = Table(data=table.data.astype(np.int8), dtype="int8", scale=np.full(6, 0.1, "f4"))
    graph = replace(graph, x=table)
    strategy, knobs = WAYS[way]
    pair = Pair.make(
        "gcn", graph, strategy, Knobs(parts=4, **knobs), dtype=torch.float32, scratch=tmp_path
    )
    pair.compare(1e-5, epochs=2)
    buffers = pair.staged.schedule.buffers
    given = sum(b.num_bytes for b in buffers if b.kind == "features" and b.given)
    assert given == 60 * 6 * min(4, np.dtype(kind).itemsize)
    pair.staged.close()


def test_what_is_not_carried_out_is_refused():
    graph = random_graph(60, 300, 3)
    with pytest.raises(PlanError, match="uva is not carried out in stages"):
        Pair.make("gcn", graph, "uva", Knobs(parts=1))


def test_without_an_evaluation_steps_are_the_same_and_no_output_is_given():
    graph = random_graph(40, 150, 0)
    pair = Pair.make("gcn", graph, "grinnder", Knobs(parts=3))
    staged = pair.staged
    alone = Staged(
        copy.deepcopy(staged.model), graph, staged.plan, labelled=graph.splits["train"],
        dtype=torch.float64, parts=pair.parts, evaluates=False,
    )  # fmt: skip
    assert alone.train_step(pair.share, 0) == staged.train_step(pair.share, 0)
    with pytest.raises(PlanError, match="no evaluation"):
        alone.infer()
    for run_ in (alone, staged):
        run_.close()
