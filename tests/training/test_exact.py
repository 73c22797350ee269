"""One seed, one set of bits; odd graphs and every stored width train (A06, A07, A15, A22, A23)."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, GINConv, SAGEConv, models

import tiergnn as tg
from tests.planner.strategies.cases import machine
from tests.training.models import Net, community, net, same_bits, weights
from tiergnn.errors import ConfigError, PlanError
from tiergnn.graph.csr import from_edges
from tiergnn.graph.odd import ODD
from tiergnn.graph.table import Table
from tiergnn.kernels.memory import keep_small
from tiergnn.runtime.executor import Resident
from tiergnn.runtime.memory import PeakMeter
from tiergnn.training.threads import on_threads

QUIET = {"progress": False}


def gin(width, hidden):
    return GINConv(torch.nn.Linear(width, hidden))


LAYERS = {"gcn": GCNConv, "sage": SAGEConv, "gat": GATConv, "gatv2": GATv2Conv, "gin": gin}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ["gat", "gcn", "sage"])
def test_the_same_seed_gives_the_same_bits(kind, threads):
    """A15, smaller: twice with one seed and one number of threads."""
    graph = community(2_000, degree=20.0)
    options = {"heads": 2} if kind == "gat" else {}
    got = []
    with on_threads(threads):
        for _ in range(2):
            model = net(graph, kind, hidden=16, dropout=0.5, **options)
            run = tg.train(graph, model, epochs=6, clip=1.0, seed=5, **QUIET)
            got.append((run.losses, weights(model), run.metrics))
    assert got[0][0] == got[1][0]
    assert same_bits(got[0][1], got[1][1])
    assert got[0][2] == got[1][2]


def trainable(graph):
    return graph.num_nodes > 0 and (graph.y[graph.splits["train"]] >= 0).any()


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", ODD)
def test_odd_graphs_train(name, layer):
    """A06 and A07: isolated nodes, no edges, hubs, loops, duplicates."""
    graph = ODD[name]()
    torch.manual_seed(0)
    model = Net(LAYERS[layer], graph.x.width, graph.num_classes)
    if not trainable(graph):
        with pytest.raises(ConfigError, match="has a label"):
            tg.train(graph, model, **QUIET)
        return
    run = tg.train(graph, model, epochs=3, **QUIET)
    assert np.isfinite(run.losses).all()
    out = run.predict()
    assert out.shape == (graph.num_nodes, graph.num_classes)
    assert np.isfinite(out).all()
    for p in model.parameters():
        assert p.grad is None or bool(p.grad.isfinite().all())


def test_an_isolated_test_node_is_predicted_by_itself():
    """A06: node 9 is alone, has the highest id, and is the only test node."""
    graph = ODD["isolated"]()
    assert graph.splits["test"].tolist() == [9]
    x = torch.from_numpy(graph.x.decode()[9])

    class One(torch.nn.Module):
        def __init__(self, conv):
            super().__init__()
            self.conv = conv

        def forward(self, x, edge_index):
            return self.conv(x, edge_index)

    gcn, sage = GCNConv(5, 3), SAGEConv(5, 3)
    gat = GATConv(5, 3, add_self_loops=False)
    for conv, want in (
        (gcn, lambda: gcn.lin.weight @ x + gcn.bias),
        (sage, lambda: sage.lin_r.weight @ x + sage.lin_l.bias),
        (gat, lambda: gat.bias),
    ):
        run = tg.train(graph, One(conv), epochs=3, **QUIET)
        assert run.history[0]["test"]["accuracy"] in (0.0, 1.0)
        np.testing.assert_allclose(run.predict()[9], want().detach().numpy(), rtol=1e-5, atol=1e-6)


def stored(values, dtype):
    """``values`` (multiples of 1/8 below 8) in a stored width that holds them exactly."""
    if dtype == "bfloat16":
        bits = torch.from_numpy(values).bfloat16().view(torch.int16).numpy().view(np.uint16)
        return Table(data=bits, dtype="bfloat16")
    if dtype in ("int8", "uint8"):
        return Table.from_array((values * 8).astype(dtype), scale=0.125)
    return Table.from_array(values.astype(dtype))


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int8", "uint8", "bool"])
def test_features_of_any_stored_width(dtype, tmp_path):
    """A22: the same losses and predictions, from disk, in the width they were given in."""
    graph = community(100)
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2 if dtype == "bool" else 16, (100, 6)).astype(np.float32)
    values = values if dtype == "bool" else values / 8
    want = tg.train(replace(graph, x=Table.from_array(values)), net6(graph), epochs=3, **QUIET)
    table = stored(values, dtype)
    saved = replace(graph, x=table).save(tmp_path / "g")
    assert saved.x.data.nbytes == table.data.nbytes
    got = tg.train(saved, net6(graph), epochs=3, **QUIET)
    np.testing.assert_allclose(got.losses, want.losses, rtol=1e-6)
    np.testing.assert_allclose(got.predict(), want.predict(), rtol=1e-5, atol=1e-6)


def net6(graph):
    return net(replace(graph, x=Table.from_array(np.zeros((graph.num_nodes, 6), np.float32))))


@pytest.mark.parametrize("kind", ["int32", "int64", "float32 column"])
def test_labels_of_any_width(kind):
    graph = community(100)
    data = graph.to_pyg()
    y = graph.y
    data.y = {
        "int32": torch.from_numpy(y).int(),
        "int64": torch.from_numpy(y)[:, None],
        "float32 column": torch.from_numpy(y).float()[:, None],
    }[kind]
    data.task = "class"
    want = tg.train(graph, net(graph), epochs=2, **QUIET)
    got = tg.train(tg.Graph.from_pyg(data, task="class"), net(graph), epochs=2, **QUIET)
    np.testing.assert_allclose(got.losses, want.losses, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_any_computing_dtype(dtype):
    graph = community(200)
    model = net(graph, hidden=16)
    run = tg.train(graph, model, epochs=20, dtype=dtype, **QUIET)
    assert {str(p.dtype) for p in model.parameters()} == {f"torch.{dtype}"}
    want = tg.train(graph, net(graph, hidden=16), epochs=20, **QUIET)
    assert run.losses[0] == pytest.approx(want.losses[0], rel=1e-2)
    assert run.losses[-1] < 0.8 * run.losses[0]
    assert run.predict().dtype == (np.float64 if dtype == "float64" else np.float32)


def test_the_device_keeps_the_narrower_of_stored_and_computed():
    graph = community(50)
    narrow = replace(graph, x=Table.from_array((graph.x.data * 10).astype(np.int8), scale=0.1))
    held = {
        name: Resident(net(graph), g, dtype=dtype).held_bytes["features"]
        for name, g, dtype in (
            ("int8", narrow, torch.float32),
            ("float32", graph, torch.float32),
            ("wide", graph, torch.bfloat16),
        )
    }
    width = graph.x.width
    assert held == {"int8": 50 * width, "float32": 50 * width * 4, "wide": 50 * width * 2}


def test_evaluation_keeps_nothing_for_a_backward():
    graph = community(100)
    held = Resident(net(graph, dropout=0.5), graph)
    out = held.infer()
    assert not out.requires_grad
    assert torch.equal(out, held.infer())
    assert held.forward(True, 1).requires_grad
    assert torch.equal(held.forward(True, 1), held.forward(True, 1))
    assert not torch.equal(held.forward(True, 1), held.forward(True, 2))


def test_an_impossible_request_is_refused_with_the_least_that_is_needed():
    """A23 on one device: refused before anything is loaded, with bytes and a way out."""
    graph = community(3_000)
    with pytest.raises(PlanError) as error:
        tg.train(graph, net(graph), device_memory="10KiB", **QUIET)
    text = str(error.value)
    assert "needs at least" in text
    assert "has 10.0 KiB (device_memory)" in text
    assert "largest: topology" in text
    assert "try:" in text


def test_a_budget_that_training_outgrows_is_told():
    graph = community(60_000, degree=4.0)
    with pytest.raises(PlanError, match=r"training took .* MiB, device_memory allows 8\.0 MiB"):
        tg.train(graph, net(graph, hidden=128), device_memory="8MiB", epochs=3, **QUIET)


def test_running_out_of_memory_is_one_clear_error():
    graph = community(50)
    huge = torch.zeros(1).expand(2**50)

    def criterion(out, y):
        return out.sum() * huge.clone().sum()

    with pytest.raises(PlanError, match=r"ran out of memory while training: wanted [0-9]+"):
        tg.train(graph, net(graph), criterion=criterion, **QUIET)


def test_one_hot_features_that_cannot_fit_are_refused():
    ids = np.arange(3_000_000)
    graph = from_edges(ids[:0], ids[:0], ids.size, y=ids % 2, splits={"train": ids[:9]})
    with pytest.raises(PlanError, match=r"at least 8\.2 TiB"):
        tg.train(graph, {"name": "gcn", "hidden_channels": 2}, features="onehot", **QUIET)


def test_the_peak_is_what_was_taken_for_a_moment():
    meter = PeakMeter(torch.device("cpu"))
    torch.ones(30_000_000).sum()
    assert meter.read()["host"] > 100_000_000


def test_the_peak_is_not_hidden_by_what_was_kept_of_earlier_runs():
    keep_small()
    for _ in range(2):
        meter = PeakMeter(torch.device("cpu"))
        small = [torch.ones(5_000_000) for _ in range(5)]  # which the allocator keeps
        assert meter.read()["host"] > 90_000_000
        del small


_IN_A_THREAD = """
import threading, torch
from tiergnn.kernels.memory import keep_small
from tiergnn.runtime.memory import PeakMeter
found = []
def measure():
    for _ in range(20):
        meter = PeakMeter(torch.device("cpu"))
        small = [torch.ones(5_000_000) for _ in range(5)]
        found.append(meter.read()["host"])
        del small
keep_small()
thread = threading.Thread(target=measure)
thread.start()
thread.join()
print(len(found), min(found))
"""


def test_nor_by_what_a_thread_keeps():
    """glibc gives back a thread's memory by other ways than the main one's. In a process of its
    own: a thread may be given the memory of threads that have ended, of which it cannot."""
    done = subprocess.run(
        [sys.executable, "-c", _IN_A_THREAD], capture_output=True, text=True, check=True
    )
    count, least = map(int, done.stdout.split()[-2:])
    assert count == 20
    assert least > 90_000_000


@pytest.mark.slow
def test_a15_as_it_was_reported():
    """20,000 nodes, 400,000 edges, three GAT layers, 30 epochs, twice."""
    graph = community(20_000, degree=20.0)
    assert graph.num_edges == 400_000
    spec = {"name": "gat", "num_layers": 3, "hidden_channels": 8, "heads": 4, "dropout": 0.5}
    got = []
    for _ in range(2):
        run = tg.train(graph, spec, epochs=30, **QUIET)
        got.append((run.losses, weights(run.model), run.metrics))
    assert got[0][0] == got[1][0]
    assert same_bits(got[0][1], got[1][1])
    assert got[0][2] == got[1][2]


class Weighted(torch.nn.Module):
    def __init__(self, width, classes, edge_width):
        super().__init__()
        self.first = GCNConv(width, 8)
        self.last = GATv2Conv(8, classes, edge_dim=edge_width)

    def forward(self, x, edge_index, edge_weight=None, edge_attr=None):
        h = self.first(x, edge_index, edge_weight).relu()
        return self.last(h, edge_index, edge_attr)


def test_edge_weights_and_narrow_edge_features_reach_the_model(caplog):
    """Against the model itself on a PyG Data, in float64; int8 edge features with a scale."""
    graph = community(60)
    rng = np.random.default_rng(1)
    attr = Table.from_array(rng.integers(-9, 9, (graph.num_edges, 3)).astype(np.int8), scale=0.25)
    weight = rng.random(graph.num_edges).astype(np.float32)
    graph = replace(graph, edge_weight=weight, edge_attr=attr)
    torch.manual_seed(0)
    model = Weighted(graph.x.width, 5, 3)
    run = tg.train(graph, model, epochs=2, dtype="float64", **QUIET)
    assert caplog.text == ""
    data = graph.to_pyg()
    with torch.no_grad():
        want = model.eval()(
            data.x.double(),
            data.edge_index,
            data.edge_weight.double(),
            torch.from_numpy(attr.decode()).double(),
        )
    np.testing.assert_allclose(run.predict(), want.numpy(), rtol=1e-10, atol=1e-12)
    tg.train(graph, net(graph), epochs=1, **QUIET)
    for name in ("edge_weight", "edge_attr"):
        assert f"does not read the graph's {name}" in caplog.text


def wide(graph):
    """Features that are read by the first aggregation alone."""
    torch.manual_seed(0)
    return models.GCN(graph.x.width, 16, 2, graph.num_classes, 0.5)


def test_rows_that_are_prepared_change_no_number_but_for_rounding(tmp_path):
    graph = community(80)
    options = {"epochs": 4, "dtype": "float64", **QUIET}
    run = tg.train(graph, wide(graph), out=tmp_path / "run", **options)
    want = tg.train(graph, wide(graph), prepare=False, **options)
    np.testing.assert_allclose(run.losses, want.losses, rtol=1e-10)
    np.testing.assert_allclose(run.predict(), want.predict(), rtol=1e-9, atol=1e-10)
    resumed = tg.resume(tmp_path / "run", graph, wide(graph), epochs=6, progress=False)
    unbroken = tg.train(graph, wide(graph), **options | {"epochs": 6})
    assert resumed.losses == unbroken.losses
    assert np.array_equal(resumed.predict(), unbroken.predict())


def test_a_plan_says_what_is_prepared_and_is_carried_out_so():
    graph, there = community(300), machine(1)
    kept = {"machine": there, "device": "cpu", "strategies": ["resident"]}
    plan = tg.plan(graph, wide(graph), **kept)
    bare = tg.plan(graph, wide(graph), prepare=False, **kept)
    assert "prepared once" in plan.explain()
    assert "prepared" not in bare.explain()
    assert plan.workload.prepared
    assert plan.seconds < bare.seconds
    run = tg.train(graph, wide(graph), plan, epochs=3, **QUIET)
    want = tg.train(graph, wide(graph), epochs=3, **QUIET)
    assert run.losses == want.losses
    without = tg.train(graph, wide(graph), bare, epochs=3, **QUIET)
    assert without.losses == tg.train(graph, wide(graph), epochs=3, prepare=False, **QUIET).losses
    # What is made only where there is room: without it less memory does.
    least = tg.plan(graph, wide(graph), device_memory=bare.peak_bytes["device"], **kept)
    assert least.peak_bytes["device"] <= bare.peak_bytes["device"]


def test_a_run_is_predicted_with_by_itself(tmp_path):
    graph = community(60)
    kept = tg.train(graph, wide(graph), epochs=1, out=tmp_path / "run", **QUIET)
    assert np.array_equal(tg.predict(kept, graph=graph, model=wide(graph)), kept.predict())
    lost = tg.train(graph, wide(graph), epochs=1, **QUIET)
    with pytest.raises(ConfigError, match="kept in no folder"):
        tg.evaluate(lost, graph=graph, model=wide(graph))
