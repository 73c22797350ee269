"""Steps of staged runs make no tasks on the device: their edges bring them along, and plans count
them. Interpreted in a process of its own by ``test_brought``."""

from __future__ import annotations

from threading import Lock

import numpy as np
import pytest
import torch

from tests.kernels.device import DEVICE, INTERPRETED, SUITE, on_gpu
from tests.runtime.staging import Pair, close, random_graph
from tiergnn.graph.csr import from_edges
from tiergnn.graph.partition import partition
from tiergnn.graph.shape import layout_of, shape_of
from tiergnn.hardware.capacities import ASIDE_BYTES
from tiergnn.hardware.presets import resolve
from tiergnn.kernels import backend
from tiergnn.models.zoo import build
from tiergnn.planner.plan import Plan
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.runtime.pending import Pending
from tiergnn.runtime.staged import Staged
from tiergnn.schedule.actions import Op
from tiergnn.schedule.check import peaks
from tiergnn.training.metering import evaluation_of, workload_of
from tiergnn.training.options import Options
from tiergnn.training.scoring import Scoring

pytestmark = SUITE
WAYS = {
    "edges in host": ("grinnder", {"topology": "host"}),
    "edges on the device": ("grinnder", {"topology": "device"}),
    "hongtu": ("hongtu", {"topology": "host"}),
    "slices": ("sliced", {"slices": 2, "topology": "device"}),
    "slices, edges in host": ("sliced", {"slices": 2, "topology": "host"}),
    "edges in turns": ("sliced", {"slices": 2, "topology": "turns"}),
}


@pytest.fixture(autouse=True)
def one_grid_at_a_time(monkeypatch):
    """Lanes launch kernels in threads of their own, and the interpreter knows one grid alone."""
    if not INTERPRETED:
        return
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    run, lock = interpreter.GridExecutor.__call__, Lock()

    def alone(*args, **options):
        with lock:
            return run(*args, **options)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", alone)


@pytest.mark.parametrize(
    ("model", "way"),
    [
        ("gcn", "edges in turns"),
        ("gat", "edges in host"),
        pytest.param("sage", "slices, edges in host", marks=pytest.mark.slow),
        pytest.param("gatv2", "slices", marks=pytest.mark.slow),
        pytest.param("gin", "hongtu", marks=pytest.mark.slow),
        pytest.param("gcn", "edges on the device", marks=pytest.mark.slow),
    ],
)
def test_steps_make_no_tasks(model, way, monkeypatch):
    strategy, knobs = WAYS[way]
    graph = random_graph(10, 30, 0)
    pair = Pair.make(model, graph, strategy, Knobs(parts=2, **knobs), device=DEVICE)
    want, said = pair.resident.train_step(pair.whole, 0), pair.resident.infer()

    def refuse(*args, **options):
        raise AssertionError("tasks were made in a step")

    for place in ("aggregate.gpu.plan", "tasks.cut_rows"):
        monkeypatch.setattr(f"tiergnn.kernels.{place}", refuse)
    with backend.use("gpu"):
        got = pair.staged.train_step(pair.share, 0)
        for mine, other in zip(*(m.parameters() for m in pair.models()), strict=True):
            close(mine.grad, other.grad, 1e-10)
        close(pair.staged.infer(), said, 1e-9)
    assert abs(got - want) <= 1e-10 * max(1.0, abs(want))
    pair.staged.close()


def hubs(num_nodes: int, num_edges: int):
    """Of skewed degrees, with features, labels and a split."""
    draw = np.random.default_rng(0)
    src, dst = (num_nodes * draw.random((2, num_edges)) ** 2).astype(np.int64)
    return from_edges(
        src, dst, num_nodes=num_nodes, x=draw.standard_normal((num_nodes, 64)).astype(np.float32),
        y=draw.integers(0, 5, num_nodes), splits={"train": np.arange(0, num_nodes, 2)},
    )  # fmt: skip


@on_gpu
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_what_is_held_and_moved_is_the_plans(model, way):
    if (model, way) == ("gat", "edges in turns"):
        pytest.skip("refused: takes edges both ways at once")
    strategy, knobs = WAYS[way]
    graph, options = hubs(100_000, 2_000_000), Options(device=DEVICE)
    net = build(model, 64, 5, hidden_channels=64, num_layers=3)
    parts = partition(graph, 4, "block")
    work, evaluated = (of(graph, net, options) for of in (workload_of, evaluation_of))
    plan = Plan(
        strategy=strategy, knobs=Knobs(parts=4, **knobs), workload=work, shape=shape_of(graph),
        layout=layout_of(parts, graph), machine=resolve("h200"),
    )  # fmt: skip
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    staged = Staged(
        net, graph, plan, labelled=graph.splits["train"], device=DEVICE, parts=parts,
        evaluated=evaluated,
    )  # fmt: skip
    share = Scoring(graph, dict(graph.splits), staged.device).by_parts(
        staged.parts.gids, staged.device
    )
    for step in range(2):
        staged.train_step(share, step)
    assert staged.timeline is not None
    moved = {span.index: span.moved_bytes for span in staged.timeline.spans}
    for action in staged.schedule.actions:
        if action.op is Op.COPY:
            assert moved[action.index] == action.moved_bytes, action
    planned = peaks(staged.schedule)[0, "device"][0]
    others = graph.num_nodes * (8 + 8) + ASIDE_BYTES  # labels of the loss; what no plan counts
    assert staged.peak_bytes["device"] - before <= planned + others
    staged.close()


@on_gpu
def test_a_stream_waits_for_a_place_where_the_host_need_not():
    pending, busy, other = Pending(), torch.cuda.Stream(), torch.cuda.Stream()
    room = torch.zeros(1, device=DEVICE)
    room += room * 2  # kernels are loaded once, and the host waits for that
    torch.cuda.synchronize()
    with torch.cuda.stream(busy):
        torch.cuda._sleep(2**30)
        room += 1
        pending.vacate("place", busy.record_event())
    with torch.cuda.stream(other):
        pending.await_vacant(["place"], by_host=False)
        assert not busy.query()  # nobody waited here
        found = room * 2
        done = torch.cuda.Event()
        done.record()
    assert not done.query()
    pending.await_vacant(["place"], by_host=True)
    assert busy.query()
    other.synchronize()
    assert found.item() == 2
