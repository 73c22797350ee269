"""Runs by slices of columns give the numbers of the resident one, and move what was planned."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planner.strategies.cases import machine
from tests.runtime.staging import OF_EDGES, Pair, random_graph
from tiergnn.errors import ConfigError, PlanError
from tiergnn.graph.table import Table
from tiergnn.hardware.machine import Tier
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.runtime.rows import Rows
from tiergnn.runtime.staged_walk import Stopped
from tiergnn.schedule.actions import Lane, Op
from tiergnn.schedule.check import peaks

# Dropout in all but two; BatchNorm in deep and gin; residuals in deep and gat no loops; maxima in
# stacked; weights and features of edges, and weights that are learned, in weighted.
MODELS = (
    "gcn", "sage", "gin", "deep", "gat", "gatv2", "gat no loops", "weighted", "stacked",
)  # fmt: skip
# Sums that read edges alone, in one direction at a time.
ONE_WAY = ("gcn", "sage", "gin", "deep", "basic gcn", "shared")
ALL = 64  # more slices than any tensor has columns
# Where slices lie, and where the edges.
PLACES = {
    "device": {},
    "host": {},
    "disk": {"tier": "disk"},
    "edges in host": {"topology": "host"},
    "edges in turns": {"topology": "turns"},
    "sums again": {},
}
# Every other pair, as on a chess board: models of one kind, which stand side by side (plain sums,
# BatchNorm, attention), are in every place between them.
PAIRS = [
    (model, place)
    for (i, model), (j, place) in product(enumerate(MODELS), enumerate(PLACES))
    if (i + j) % 2 == 0
]


def lean(name, graph, knobs, *, tiers, seed=0, dtype=torch.float64, scratch=None, prepared=False):
    """On a machine with the least memory in ``tiers`` that a plan needs, and a little more."""
    there = machine(1)
    for tier in tiers:
        there = _with(there, tier, 1)
    for _ in range(20):
        try:
            return Pair.make(
                name, graph, "sliced", knobs, seed=seed, dtype=dtype, there=there, scratch=scratch,
                prepared=prepared,
            )  # fmt: skip
        except PlanError as error:
            if error.short is None or error.short[0] not in tiers:
                raise
            there = _with(there, error.short[0], error.short[1])
    raise AssertionError("the least was not enough")


def _with(there, tier, num_bytes):
    if tier == "host":
        return replace(there, host=Tier(num_bytes))
    return replace(there, device=replace(there.device, memory=Tier(num_bytes)))


def make(model, place, slices, num_parts, scratch, *, seed=0, size=(40, 150), dtype=torch.float64):
    graph = random_graph(*size, seed, edges=model in OF_EDGES, dtype=_numpy(dtype))
    knobs = Knobs(parts=num_parts, slices=slices, **PLACES[place])
    if place == "sums again":
        knobs = replace(knobs, recompute=(1, 2))
    tiers = {"device": (), "disk": ("device", "host")}.get(place, ("device",))
    return lean(model, graph, knobs, tiers=tiers, seed=seed, dtype=dtype, scratch=scratch)


def _numpy(dtype):
    return {torch.float64: np.float64, torch.float32: np.float32}[dtype]


def run(model, place, *args, epochs=2, rel=1e-10, **options):
    """None where a model's edges cannot come in turns, which is refused."""
    if place == "edges in turns" and model not in ONE_WAY:
        with pytest.raises(PlanError, match="topology=host"):
            make(model, place, *args, **options)
        return None
    pair = make(model, place, *args, **options)
    try:
        pair.compare(rel, epochs)
    finally:
        pair.staged.close()
    return pair


@pytest.mark.parametrize(("model", "place"), PAIRS)
def test_exact(model, place, tmp_path):
    """Slices and parts go round."""
    turn = PAIRS.index((model, place))
    run(model, place, (3, ALL, 1)[turn % 3], (3, 1, 5)[turn // 3 % 3], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize("slices", [1, 3, ALL])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("model", [*MODELS, "gatv2 shared", "data", "basic gcn", "shared"])
def test_exact_in_all_cuts(model, place, slices, num_parts, tmp_path):
    run(model, place, slices, num_parts, tmp_path, seed=slices)


@given(
    model=st.sampled_from(["gcn", "gat", "gin"]),
    place=st.sampled_from(["device", "host", "edges in host", "edges in turns"]),
    slices=st.integers(1, 9),
    num_parts=st.integers(1, 9),
    size=st.tuples(st.integers(2, 25), st.integers(0, 60)),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=10, deadline=None)
def test_any_graph_in_any_cut(model, place, slices, num_parts, size, seed):
    """Empty blocks of rows, blocks without labels or edges, more blocks than nodes."""
    run(model, place, slices, num_parts, None, size=size, seed=seed, epochs=1)


def test_parts_in_the_order_of_the_nodes_draw_the_graphs_numbers():
    """Edges stand as in the graph, but those of a chunk do not begin with its first."""
    graph = random_graph(40, 150, 1)
    knobs = Knobs(parts=4, slices=3, topology="host")
    owners = np.repeat(np.arange(4, dtype=np.int32), 10)
    pair = Pair.make("gat", graph, "sliced", knobs, owners=owners)
    pair.compare(1e-10, epochs=2)
    pair.staged.close()


def test_float32(tmp_path):
    run("gatv2", "disk", 2, 3, tmp_path, dtype=torch.float32, rel=1e-5)


def test_the_same_bits_twice():
    found = []
    for _ in range(2):
        pair = make("gat", "host", 3, 3, None, seed=1)
        losses = []
        for epoch in range(2):
            losses.append(pair.step(epoch)[0])
            pair.move()
        found.append((losses, [p.detach().clone() for p in pair.staged.model.parameters()]))
        pair.staged.close()
    assert found[0][0] == found[1][0]
    assert all(torch.equal(a, b) for a, b in zip(found[0][1], found[1][1], strict=True))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_what_is_moved_and_held_is_the_plans(model, place, tmp_path):
    """Bytes of every copy, and of every tier at its fullest; no lane is left behind."""
    before = threading.active_count()
    pair = run(model, place, 3, 4, tmp_path, epochs=1)
    if pair is None:  # refused
        return
    staged = pair.staged
    schedule = staged.schedule
    actions = {action.index: action for action in schedule.actions}
    moved = dict.fromkeys(Lane, 0)
    for span in staged.timeline.spans:
        if actions[span.index].op is Op.COPY:
            assert span.moved_bytes == actions[span.index].moved_bytes, actions[span.index]
            moved[span.lane] += span.moved_bytes
    assert (moved[Lane.H2D] > 0) == (place not in ("device",))
    assert (moved[Lane.D2H] > 0) == (place not in ("device",))
    assert (moved[Lane.DISK_READ] > 0) == (place == "disk")
    assert (moved[Lane.DISK_WRITE] > 0) == (place == "disk")
    planned, evaluated = peaks(schedule), peaks(staged.evaluation)
    for here, (num_bytes, _) in planned.items():
        most = max(num_bytes, evaluated.get(here, (0, {}))[0])
        assert 0 < staged.peak_bytes[here[1]] <= most
    assert threading.active_count() <= before + 1  # the disk engine's may end a little later
    assert list(tmp_path.iterdir()) == []


def test_slices_stay_on_the_device_as_far_as_it_goes():
    """The more memory, the fewer bytes cross; the numbers stay."""
    graph, knobs = random_graph(40, 150, 0), Knobs(parts=4, slices=4)
    least = lean("gcn", graph, knobs, tiers=("device",))
    (num_bytes, _) = peaks(least.staged.schedule)[0, "device"]
    least.staged.close()
    all_there = Pair.make("gcn", graph, "sliced", knobs, there=machine(1))
    (most_bytes, _) = peaks(all_there.staged.schedule)[0, "device"]
    all_there.staged.close()
    moved = []
    for room in (num_bytes, (num_bytes + most_bytes) // 2, 2 * most_bytes):
        there = _with(machine(1), "device", room)
        pair = Pair.make("gcn", graph, "sliced", knobs, there=there)
        pair.compare(1e-10, epochs=1)
        pair.staged.close()
        actions = pair.staged.schedule.actions
        moved.append(sum(a.moved_bytes for a in actions if a.lane is Lane.H2D))
    assert moved[0] > moved[1] > moved[2] == 0


@pytest.mark.parametrize("place", ["host", "disk"])
def test_narrow_storage(place, tmp_path):
    """Half the bytes off the device, sums in float32; the drift is that of the rounding."""
    graph = random_graph(60, 300, 3, dtype=np.float32)
    moved = {}
    for storage in (None, "bfloat16"):
        knobs = Knobs(parts=4, slices=3, storage=storage, **PLACES[place])
        pair = lean("gcn", graph, knobs, tiers=("device",), dtype=torch.float32, scratch=tmp_path)
        pair.compare(1e-5 if storage is None else 0.03, epochs=2)
        pair.staged.close()
        copies = [a for a in pair.staged.schedule.actions if a.op is Op.COPY]
        moved[storage] = sum(a.moved_bytes for a in copies if a.lane is Lane.D2H)
    assert moved["bfloat16"] < 0.75 * moved[None]


@pytest.mark.parametrize("model", ["gcn", "sage"])
@pytest.mark.parametrize("place", ["host", "disk"])
def test_features_travel_as_stored(model, place, tmp_path):
    """In whole rows (gcn), and in slices of columns with their scales (sage gathers them)."""
    graph = random_graph(60, 300, 3, dtype=np.float32)
    assert graph.x is not None
    scale = np.linspace(0.05, 0.2, 6, dtype="f4")
    table = Table(data=(graph.x.data * 40 // 1).astype(np.int8), dtype="int8", scale=scale)
    graph = replace(graph, x=table)
    knobs = Knobs(parts=4, slices=3, **PLACES[place])
    pair = lean(model, graph, knobs, tiers=("device",), dtype=torch.float32, scratch=tmp_path)
    pair.compare(1e-5, epochs=2)
    pair.staged.close()


def test_columns_of_normalised_rows_are_refused():
    graph = random_graph(60, 300, 3, dtype=np.float32)
    assert graph.x is not None
    rows = Rows(
        Table.from_array(graph.x.data.astype(np.float16)), torch.device("cpu"), torch.float32,
        normalize=True,
    )  # fmt: skip
    whole = rows.decode(rows.stored)
    torch.testing.assert_close(whole.abs().sum(1), torch.ones(60))
    with pytest.raises(ConfigError, match="normalised whole"):
        rows.decode(rows.stored[:, :2], slice(0, 2))


def test_stopped_within_a_step():
    """A step that is given up leaves the model's buffers as they were, and can be done again."""
    pair = make("gin", "host", 3, 3, None)
    staged = pair.staged
    before = [b.clone() for b in staged.model.buffers()]
    calls = iter(range(10**6))
    staged.stop_when(lambda: next(calls) == 200)
    with pytest.raises(Stopped):
        staged.train_step(pair.share, 0)
    assert all(torch.equal(a, b) for a, b in zip(staged.model.buffers(), before, strict=True))
    staged.stop_when(lambda: False)
    pair.compare(1e-10, epochs=1)
    staged.close()


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("own layer", "does not work on every column by itself"),
        ("appnp", "reads rows of edges that another stage makes"),  # weights that are dropped out
    ],
)
def test_what_cannot_be_sliced_is_refused(model, why):
    """What the refusal names carries the model out, with the same knobs but for the slices."""
    graph = random_graph(60, 300, 3)
    with pytest.raises(PlanError, match=why) as refused:
        Pair.make(model, graph, "sliced", Knobs(parts=4, slices=2))
    assert refused.value.hint == "the strategy grinnder"
    pair = Pair.make(model, graph, "grinnder", Knobs(parts=4))
    pair.compare(1e-10, epochs=1)
    pair.staged.close()
