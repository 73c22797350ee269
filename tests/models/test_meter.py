"""What the meter says a run takes is what it takes: never less, and hardly more."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.models import nets
from tests.models.held import measured, predicted, workloads
from tiergnn.graph.generate import rmat
from tiergnn.graph.table import Table
from tiergnn.models import zoo
from tiergnn.models.allocations import one_thread, recording
from tiergnn.models.linearity import Law, peak_of
from tiergnn.models.meter import meter
from tiergnn.training.options import Options
from tiergnn.workload import TASKS, Extent, Peak, Size, Tasks, Workload

OPTIONS = Options(device="cpu", epochs=2)
MODELS = ("gcn", "sage", "gat", "gin")
SIZES = ((1_000, 7_000), (3_000, 20_000), (9_000, 90_000))
QUICK = (SIZES[0], pytest.param(SIZES[1], marks=pytest.mark.slow), SIZES[2])


def graph_of(num_nodes, num_edges, width=32, classes=7, seed=0, edges=False, dtype=np.float32):
    """A power-law graph with features, labels and splits; with weights and features of edges."""
    random = np.random.default_rng(seed)
    order = random.permutation(num_nodes)
    half = num_nodes // 2
    made = replace(
        rmat(num_nodes, num_edges, seed=seed),
        x=Table.from_array(random.standard_normal((num_nodes, width)).astype(dtype)),
        y=random.integers(0, classes, num_nodes).astype(np.int64),
        task="class",
        num_classes=classes,
        splits={"train": np.sort(order[:half]), "val": np.sort(order[half:])},
    )
    if not edges:
        return made
    attr = random.standard_normal((made.num_edges, nets.EDGE_WIDTH)).astype(np.float32)
    weight = random.random(made.num_edges, np.float32) + 0.1
    return replace(made, edge_weight=weight, edge_attr=Table.from_array(attr))


def model_of(name, layers):
    hidden = 8 if name == "gat" else 32
    return zoo.build(
        name, 32, 7, num_layers=layers, hidden_channels=hidden, norm="batch", dropout=0.5
    )


@cache
def workloads_of(name, layers):
    return workloads(graph_of(*SIZES[0]), model_of(name, layers), OPTIONS)


@pytest.mark.parametrize("size", QUICK, ids=lambda size: str(size[0]))
@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_peak_of_a_resident_run(name, layers, size):
    """Dropout and BatchNorm on; within 10% and never below, of steps and of evaluations."""
    graph = graph_of(*size)
    step, evaluation = predicted(graph, *workloads_of(name, layers))
    got_step, got_evaluation = measured(graph, model_of(name, layers), OPTIONS)
    assert got_step <= step.num_bytes <= got_step / 0.9
    assert got_evaluation <= evaluation.num_bytes <= got_evaluation / 0.9


def _net(name):
    if name.startswith("zoo "):
        kind = name.removeprefix("zoo ")
        options = {} if kind == "sgc" else {"hidden_channels": 8}
        return zoo.build(kind, nets.WIDTH, nets.CLASSES, **options)
    return nets.NETS[name]()


RUNS = {
    "name": st.sampled_from([*nets.NETS, *(f"zoo {name}" for name in zoo.MODELS)]),
    "num_nodes": st.integers(20, 3_000),
    "degree": st.integers(1, 12),
    "optimizer": st.sampled_from(["adam", "adamw", "sgd", "rmsprop"]),
    "features": st.sampled_from([np.float32, np.float16]),
}


def not_less(name, num_nodes, degree, optimizer, features):
    graph = graph_of(num_nodes, num_nodes * degree, nets.WIDTH, nets.CLASSES, 1, True, features)
    options = Options(device="cpu", epochs=2, optimizer=optimizer, dtype="float32")
    torch.manual_seed(0)
    step, evaluation = predicted(graph, *workloads(graph, _net(name), options))
    got_step, got_evaluation = measured(graph, _net(name), options)
    assert got_step <= step.num_bytes
    assert got_evaluation <= evaluation.num_bytes


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(**RUNS)
@example("zoo gcn", 1101, 1, "adam", np.float32)  # what is kept with weights lasts
def test_never_less_than_measured(name, num_nodes, degree, optimizer, features):
    not_less(name, num_nodes, degree, optimizer, features)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(**RUNS)
def test_never_less_than_measured_in_any_run(name, num_nodes, degree, optimizer, features):
    not_less(name, num_nodes, degree, optimizer, features)


def test_learned_features_have_gradients_and_state():
    graph = replace(graph_of(500, 3_000), x=None)
    options = Options(device="cpu", epochs=2, features="embedding:16", optimizer="adam")
    step, evaluation = workloads(graph, zoo.build("sage", 16, 7, hidden_channels=8), options)
    assert step.row_kind("x").grad
    assert step.learned.optimizer_bytes == 2 * 16 * 4
    big = predicted(graph, step, evaluation)[0]
    got, _ = measured(graph, zoo.build("sage", 16, 7, hidden_channels=8), options)
    assert got <= big.num_bytes <= got / 0.8


def test_what_a_stage_keeps_and_names():
    """A Linear before a sum keeps its dropped-out input; the sum keeps nothing."""
    model = zoo.build("gcn", 32, 7, hidden_channels=16, dropout=0.5)
    work = meter(model, {"x": torch.randn(4, 32)})
    first, middle, last = work.stages
    assert first.kept == Size(per_row=128)
    assert first.parameter_bytes == 32 * 16 * 4
    assert middle.kept == Size(per_row=16 * 4)  # what the next Linear read tells relu and dropout
    assert last.kept == Size()
    assert all(stage.columnwise for stage in (middle, last))
    gathers = [t for t in middle.forward if t.kind == "gather"]
    assert [(t.amount, t.grain, t.table) for t in gathers] == [
        (Size(per_edge=64), 64, Size(per_source=64))
    ]
    (product,) = [t for t in first.forward if t.kind == "matmul"]
    assert product.amount == Size(per_row=2 * 32 * 16)
    assert first.again is not None
    assert first.again.unread == first.writes
    left = [t for t in first.forward if t.kind not in ("matmul", "fresh", "rowwise")]
    assert [t for t in first.again.works if t.kind not in ("fresh", "rowwise")] == left
    block = Extent(1_000, 1_000, 20_000)
    kept = first.kept.at(block)
    assert kept <= first.again.held.at(block) <= kept + 64  # no product beside it
    assert last.again is None
    assert not any(p.grad is not None for p in model.parameters())


def test_max_saves_its_rows_by_name():
    work = meter(zoo.build("sage", 16, 7, hidden_channels=8, aggr="max"), {"x": torch.ones(4, 16)})
    stage = next(s for s in work.stages if s.op.startswith("max"))
    assert set(stage.gathers) <= set(stage.saves)


def test_evaluation_keeps_nothing():
    work = meter(zoo.build("gat", 16, 7), {"x": torch.ones(4, 16)}, training=False)
    assert all(stage.kept == Size() and stage.backward == () for stage in work.stages)
    assert not any(stage.saves for stage in work.stages)


def test_loops_decide_what_stays_with_the_block():
    model, inputs = zoo.build("gcn", 16, 7), {"x": torch.ones(4, 16)}
    extent = Extent(1_000, 1_000, 20_000)
    held = [meter(model, inputs, loops=loops).topology.forward.at(extent) for loops in (0, 1)]
    assert held[0] < 8 * 1_001 * 2 < 4 * 20_000 <= held[1]


def test_workload_through_json(tmp_path):
    work = workloads_of("gat", 2)[0]
    work.save(tmp_path / "work.json")
    assert Workload.load(tmp_path / "work.json") == work


EXTENTS = [Extent(p, s, e) for p, s, e in
           ((3, 5, 40), (10, 13, 22), (40, 41, 30_000), (8, 90, 17_000), (15, 26, 23_000),
            (60, 61, 9_000), (12, 19, 52_000))]  # fmt: skip


@settings(deadline=None)
@given(st.tuples(*[st.integers(-9, 99).map(float)] * 5), st.sampled_from(sorted(TASKS)))
def test_law_finds_what_is_linear(numbers, kind):
    size = Size(*numbers[:4], tasks=(Tasks(kind, numbers[4]),) if numbers[4] else ())
    law = Law(EXTENTS, [0] * len(EXTENTS))
    found = law.size([size.at(e) for e in EXTENTS])
    assert [found.at(e) for e in EXTENTS] == [size.at(e) for e in EXTENTS]


def test_law_bounds_what_is_not():
    law = Law(EXTENTS, [0] * len(EXTENTS))
    values = [4096 * -(-(4 * e.rows + e.edges) // 4096) for e in EXTENTS]
    found = law.size(values)
    for extent, value in zip(EXTENTS, values, strict=True):
        assert value <= found.at(extent) <= value + 3 * 4096


def test_law_of_blocks_that_did_not_do_alike():
    law = Law(EXTENTS, [0] * len(EXTENTS))
    events = [[8.0 * e.edges, -8.0 * e.edges] + [4.0] * (e.rows > 20) for e in EXTENTS]
    totals = law.totals(events)
    assert len(totals) == 2
    for extent in EXTENTS:
        assert Peak(tuple(totals)).at(extent) >= 8 * extent.edges


def test_peak_drops_what_another_covers():
    small, large = Size(8, 4, 4, 0), Size(8, 0, 8, 1)
    assert peak_of([small, large, Size(-8)]) == Peak((large,))
    assert peak_of([Size(9), Size(per_row=1)]).at(Extent(5, 5, 0)) == 9
    assert Peak((Size(-5),)).at(Extent(1, 1, 1)) == 0


def test_recording_sees_what_an_operation_takes_inside():
    x = torch.randn(100, 50).t()
    with one_thread(), recording(x.device) as allocations:
        allocations.mark("sum")
        out = torch.logsumexp(x, 1)
        allocations.mark("free")
        del out
        allocations.mark("")
    events = allocations.by_mark["sum"]
    assert sum(events) == 50 * 4
    assert max(np.cumsum(events)) > 50 * 100 * 4  # the exponentials
    assert allocations.by_mark["free"] == [-50 * 4]
