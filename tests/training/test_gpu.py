"""Training on CUDA: the numbers of the CPU, the same bits twice, and memory that is told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import tiergnn as tg
from tests.training.models import community, same_bits, weights
from tiergnn.errors import PlanError
from tiergnn.graph.table import Table
from tiergnn.models import zoo
from tiergnn.runtime.capture import MEASURED
from tiergnn.runtime.executor import Resident
from tiergnn.training import scoring

pytestmark = pytest.mark.gpu
QUIET = {"progress": False}
SPECS = {
    "gcn": {"name": "gcn", "hidden_channels": 16},
    "sage": {"name": "sage", "hidden_channels": 16},
    "gat": {"name": "gat", "hidden_channels": 8, "heads": 2},
    "gatv2": {"name": "gatv2", "hidden_channels": 8, "heads": 2},
    "gin": {"name": "gin", "hidden_channels": 16},
}


@pytest.fixture(scope="module")
def graph():
    return community(2_000)


@pytest.mark.parametrize("name", SPECS)
def test_the_numbers_of_the_cpu(graph, name):
    """With dropout: its masks are the same on either device."""
    options = {"epochs": 10, "seed": 3, "dtype": "float64", **QUIET}
    cpu = tg.train(graph, SPECS[name], device="cpu", **options)
    gpu = tg.train(graph, SPECS[name], device="cuda", **options)
    np.testing.assert_allclose(gpu.losses, cpu.losses, rtol=1e-8)
    np.testing.assert_allclose(gpu.predict(), cpu.predict(), rtol=1e-6, atol=1e-8)
    assert gpu.metrics["test"]["accuracy"] == cpu.metrics["test"]["accuracy"]


@pytest.mark.parametrize("name", SPECS)
def test_the_same_seed_gives_the_same_bits(graph, name):
    runs = [tg.train(graph, SPECS[name], device="cuda", epochs=20, seed=1, **QUIET) for _ in "ab"]
    assert runs[0].losses == runs[1].losses
    assert same_bits(weights(runs[0].model), weights(runs[1].model))
    assert runs[0].metrics == runs[1].metrics


def test_a_resumed_run_is_the_unbroken_one(graph, tmp_path):
    def crash(record):
        if record["epoch"] == 7:
            raise RuntimeError("crash")

    options = {"epochs": 10, "scheduler": "cosine", "device": "cuda", "checkpoint_every": 5}
    straight = tg.train(graph, SPECS["gat"], out=tmp_path / "a", **options, **QUIET)
    with pytest.raises(RuntimeError, match="crash"):
        tg.train(graph, SPECS["gat"], out=tmp_path / "b", progress=crash, **options)
    resumed = tg.resume(tmp_path / "b", graph=graph, **QUIET)
    assert resumed.losses == straight.losses
    assert same_bits(weights(resumed.model), weights(straight.model))
    # A run from one device is evaluated on another.
    on_cpu = tg.predict(tmp_path / "b", graph=graph, device="cpu")
    np.testing.assert_allclose(on_cpu, straight.predict(), rtol=1e-4, atol=1e-4)


def test_auto_is_cuda_and_the_peak_is_told(graph):
    run = tg.train(graph, SPECS["gcn"], epochs=2, **QUIET)
    assert {p.device.type for p in run.model.parameters()} == {"cuda"}
    assert run.peak_bytes["device"] > graph.topology_bytes
    assert run.peak_bytes["host"] >= 0


@pytest.mark.parametrize("dtype", ["float16", "int8", "uint8", "bool"])
def test_features_travel_and_stay_in_their_stored_width(graph, dtype):
    values = (np.abs(graph.x.data) * 4).astype(np.uint8).clip(0, 1 if dtype == "bool" else 15)
    scale = 0.25 if dtype.endswith("int8") else None
    narrow = replace(graph, x=Table.from_array(values.astype(dtype), scale=scale))
    wide = replace(graph, x=Table.from_array(narrow.x.decode()))
    model = zoo.build("gcn", graph.x.width, 5)
    _ = torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")  # takes room of its own
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    held = Resident(model, narrow, device="cuda")
    assert held.held_bytes["features"] == narrow.x.data.nbytes
    taken = torch.cuda.memory_allocated() - before
    assert taken < graph.topology_bytes * 4 + narrow.x.data.nbytes + 200_000
    want = Resident(model, wide, device="cuda").infer()
    torch.testing.assert_close(held.infer(), want, rtol=1e-5, atol=1e-6)


def test_what_does_not_fit_is_one_plan_error_and_the_device_stays_usable():
    graph = community(200_000, degree=4.0)
    spec = {"name": "gcn", "hidden_channels": 256, "num_layers": 4}
    with pytest.raises(PlanError, match="needs at least"):
        tg.train(graph, spec, device="cuda", device_memory="1MiB", epochs=1, **QUIET)
    with pytest.raises(PlanError, match="ran out of memory while"):
        tg.train(graph, spec, device="cuda", device_memory="300MiB", epochs=1, **QUIET)
    run = tg.train(graph, spec, device="cuda", epochs=1, **QUIET)
    assert run.peak_bytes["device"] > 300 * 1024**2


def test_a_budget_that_suffices_holds():
    graph = community(100_000, degree=4.0)
    # What the process holds besides is not the run's.
    others = torch.ones(1024, 1024, 200, device="cuda")
    run = tg.train(graph, SPECS["gcn"], device="cuda", device_memory="400MiB", epochs=2, **QUIET)
    assert 1024**2 < run.peak_bytes["device"] <= 400 * 1024**2 < others.nbytes


def test_learned_rows_and_lbfgs(graph):
    bare = replace(graph, x=None)
    options = {"features": "embedding:8", "epochs": 10, "device": "cuda", "lr": 0.05}
    run = tg.train(bare, SPECS["gcn"], **options, **QUIET)
    assert run.losses[-1] < run.losses[0]
    run = tg.train(graph, {**SPECS["gcn"], "dropout": 0.0}, optimizer="lbfgs", epochs=2,
                   device="cuda", **QUIET)  # fmt: skip
    assert run.losses[-1] < run.losses[0]


@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("name", SPECS)
def test_a_recorded_step_has_the_same_bits(graph, name, norm):
    """Dropout differs from step to step, evaluations and a measured step lie between."""
    spec = {**SPECS[name], "norm": norm, "dropout": 0.4}
    options = {"device": "cuda", "epochs": 20, "seed": 1, "eval_every": 3, "clip": 0.5}
    runs = [tg.train(graph, spec, capture=capture, **options, **QUIET) for capture in (True, False)]
    assert runs[0].losses == runs[1].losses
    assert len(set(runs[0].losses)) == 20
    assert same_bits(weights(runs[0].model), weights(runs[1].model))
    assert runs[0].metrics == runs[1].metrics


def steps_of(graph, capture, change=lambda step, resident: None, **options):
    """Losses and gradients of eight steps of a Resident that go without an optimizer."""
    model = zoo.build("gcn", graph.x.width, 4, num_layers=2, norm="batch", dropout=0.5)
    torch.manual_seed(0)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    resident = Resident(model, graph, device="cuda", capture=capture, **options)
    found = []

    def loss_of(out):
        return out.square().mean()

    for step in range(8):
        for p in resident.model.parameters():
            p.grad = None
        change(step, resident)
        loss = resident.train_step(loss_of, step)
        grads = [None if p.grad is None else p.grad.clone() for p in resident.model.parameters()]
        found.append((loss, grads))
    return resident, found


def assert_same_steps(got, want):
    for (loss, grads), (want_loss, want_grads) in zip(got, want, strict=True):
        assert loss == want_loss
        for grad, want_grad in zip(grads, want_grads, strict=True):
            assert (grad is None) == (want_grad is None)
            assert grad is None or torch.equal(grad, want_grad)


def test_steps_are_recorded_and_replayed(graph):
    resident, got = steps_of(graph, True)
    assert resident._capture.recorded
    assert_same_steps(got, steps_of(graph, False)[1])


def test_gradients_are_added_to_where_there_are_some(graph):
    def keep(step, resident):
        if step in (4, 5):
            for p in resident.model.parameters():
                p.grad = torch.ones_like(p)

    resident, got = steps_of(graph, True, keep)
    assert resident._capture.recorded
    assert_same_steps(got, steps_of(graph, False, keep)[1])


def test_a_step_is_recorded_anew_where_parameters_moved(graph):
    def move(step, resident):
        first = next(iter(resident.model.parameters()))
        if step == 5:
            first.data = first.data * 2
        if step == 6:
            first.requires_grad_(False)

    assert_same_steps(steps_of(graph, True, move)[1], steps_of(graph, False, move)[1])


def test_a_replayed_step_is_measured_as_it_runs(graph):
    """What is recorded beside the step itself: the same numbers, and a timeline of each replay."""
    model = zoo.build("gcn", graph.x.width, 4, num_layers=2, norm="batch", dropout=0.5)
    resident = Resident(model, graph, device="cuda", capture=True)
    optimizer = torch.optim.Adam(resident.model.parameters(), lr=0.0)

    def loss_of(out):
        return out.square().mean()

    def step(number, **options):
        optimizer.zero_grad(set_to_none=True)
        loss = resident.train_step(loss_of, number, **options)
        grads = [p.grad.clone() for p in resident.model.parameters()]
        resident.update(optimizer.step)
        return loss, grads

    for number in range(4):
        step(number)
    assert resident._capture.recorded
    assert resident.timeline is None
    before = torch.cuda.memory_allocated()
    seen = []
    for number in (7, 8, 9):
        want, got = step(number), step(number, measure=True)
        assert_same_steps([got], [want])
        torch.cuda.synchronize()
        seen.append(resident.timeline)
    assert MEASURED in resident._capture._records
    optimizer.zero_grad(set_to_none=True)
    grads = sum(p.numel() for p in resident.model.parameters()) * 4
    assert torch.cuda.memory_allocated() - before <= 2 * grads + 2**18
    assert seen[0].spans[-1].label.startswith("STEP")
    assert len({tuple(t.spans) for t in seen}) == 3
    for timeline in seen:
        assert [s.index for s in timeline.spans] == [s.index for s in seen[0].spans]
        assert 0 < timeline.seconds < 1
    step(10)
    assert tuple(resident.timeline.spans) == tuple(seen[-1].spans)


def test_what_cannot_be_recorded_is_run_as_it_is(graph):
    class Waits(torch.nn.Module):
        """A convolution, and a product that the host decides."""

        def __init__(self):
            super().__init__()
            self.conv = zoo.build("gcn", graph.x.width, 4, num_layers=1, dropout=0.0)
            self.seen = torch.nn.Parameter(torch.ones(1))

        def forward(self, x, edge_index):
            return self.conv(x, edge_index) * self.seen

    def run(capture):
        torch.manual_seed(0)
        resident = Resident(Waits(), graph, device="cuda", capture=capture)

        def loss_of(out):
            return out.square().mean() * (2.0 if float(out.sum()) > 0 else 3.0)

        losses = []
        for step in range(5):
            resident.model.zero_grad()
            losses.append(resident.train_step(loss_of, step))
        return resident, losses

    resident, losses = run(True)
    assert "captur" in resident._capture.refused
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert losses == run(False)[1]


def test_nothing_is_recorded_where_there_is_no_room(graph):
    resident, got = steps_of(graph, True, budget_bytes=10_000_000)
    assert "no room" in resident._capture.refused
    assert not resident._capture.recorded
    assert_same_steps(got, steps_of(graph, False)[1])


def test_a_criterion_of_ones_own_decides_anew_at_every_step(graph):
    calls = []

    def criterion(out, y):
        calls.append(len(calls))
        return torch.nn.functional.cross_entropy(out, y) * len(calls)

    tg.train(graph, SPECS["gcn"], device="cuda", epochs=6, criterion=criterion, **QUIET)
    assert len(calls) >= 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_of_a_split_are_taken_as_torch_takes_them(dtype):
    out = torch.randn(5_000, 47, device="cuda").to(dtype).requires_grad_()
    ids = torch.randperm(5_000, device="cuda")[:1_234].sort().values
    wide = torch.promote_types(dtype, torch.float32)
    taken = [scoring._select(out, ids), out.index_select(0, ids).to(wide)]
    assert torch.equal(*taken)
    grads = [torch.autograd.grad(rows.square().sum(), out)[0] for rows in taken]
    assert torch.equal(*grads)
