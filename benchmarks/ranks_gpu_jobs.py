"""What each rank of `ranks_gpu.py` does: proofs, rates between GPUs, epochs. Rank 0 writes rows.

A row is a line of JSON that is added to a file as soon as it is known.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tiergnn.graph.csr import Graph, from_edges
from tiergnn.graph.partition import Partition, partition
from tiergnn.graph.shape import GraphShape, expected_layout, shape_of
from tiergnn.hardware.machine import Machine
from tiergnn.kernels.aggregate import aggregate
from tiergnn.kernels.block import Block
from tiergnn.models.zoo import build
from tiergnn.planner.cost import Costs
from tiergnn.planner.plan import Plan
from tiergnn.planner.simulate import simulate
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.runtime.executor import Resident
from tiergnn.runtime.ranked import Ranked
from tiergnn.schedule.actions import Op
from tiergnn.training.metering import evaluation_of, workload_of
from tiergnn.training.optimizers import make_optimizer
from tiergnn.training.options import Options
from tiergnn.transport.transport import Transport

MODELS: dict[str, dict[str, Any]] = {
    "gcn": {"hidden_channels": 16, "num_layers": 2},
    "gin": {"hidden_channels": 64, "num_layers": 5, "norm": "batch"},
    "sage": {"hidden_channels": 16, "num_layers": 2},
    "gat": {"hidden_channels": 16, "num_layers": 2, "heads": 1},
}
PROOF_NODES, PROOF_EDGES, PROOF_WIDTH = 3_000, 40_000, 19
_DEGREE = 16
_COUNTED = (Op.EXCHANGE, Op.COPY, Op.AGGREGATE, Op.BACKWARD, Op.ACCUMULATE)


class Job(NamedTuple):
    """What all jobs are told. ``until_s``: of time.monotonic(), when no further row is begun."""

    rows: str  # the file of rows
    kind: str  # of the device
    machine: Machine
    until_s: float
    epochs: int
    graph: str = ""  # a folder

    def device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device()) if self.kind == "cuda" else CPU

    def write(self, t: Transport, row: dict[str, Any]) -> None:
        if t.rank == 0:
            with Path(self.rows).open("a") as file:
                file.write(json.dumps(row) + "\n")


CPU = torch.device("cpu")


def knobs_of(way: str, num_ranks: int) -> tuple[str, Knobs]:
    """A strategy and its caches: "halo", or "leo 0.25 0.15" (of the device, of the host)."""
    strategy, *caches = way.split()
    names = ("device_cache_frac", "host_cache_frac")
    given: dict[str, Any] = {name: float(share) for name, share in zip(names, caches, strict=False)}
    if strategy == "leo":
        given["exchange"] = "outputs"  # which is what ranks carry out
    return strategy, Knobs(ranks=num_ranks, **given)


class Trial(NamedTuple):
    """A model on a graph, over ranks and on one device alike."""

    graph: Graph
    shape: GraphShape
    parts: Partition
    model: str
    dtype: torch.dtype
    device: torch.device

    def built(self) -> nn.Module:
        torch.manual_seed(0)
        assert self.graph.x is not None
        assert self.graph.num_classes is not None
        return build(self.model, self.graph.x.width, self.graph.num_classes, **MODELS[self.model])

    def plan(self, way: str, machine: Machine) -> tuple[Plan, Any]:
        options = Options(device=str(self.device), dtype=str(self.dtype).removeprefix("torch."))
        strategy, knobs = knobs_of(way, self.parts.num_parts)
        plan = Plan(
            strategy=strategy,
            knobs=knobs,
            workload=workload_of(self.graph, self.built(), options),
            shape=self.shape,
            layout=expected_layout(self.shape, self.parts.num_parts),
            machine=machine,
        )
        return plan, evaluation_of(self.graph, self.built(), options)

    def labels(self, gid: Tensor) -> tuple[Tensor, Tensor]:
        """Which of these rows make the loss, and their classes."""
        ids = torch.from_numpy(np.array(self.graph.splits["train"]))
        mine = torch.nonzero(torch.isin(gid, ids)).flatten()
        assert self.graph.y is not None
        y = torch.from_numpy(np.asarray(self.graph.y)[gid[mine].numpy()])
        return mine.to(self.device), y.to(self.device)

    @property
    def num_labelled(self) -> int:
        return len(self.graph.splits["train"])


class Steps(NamedTuple):
    losses: list[float]
    seconds: list[float]
    grads: list[Tensor]


def stepped(
    model: nn.Module,
    step: Callable[[int], float],
    update: Callable[[Any], None],
    count: int,
    meet: Callable[[], None],
    device: torch.device,
) -> Steps:
    """So many epochs, each timed from all ranks' start."""
    optimizer = make_optimizer("adam", model, [], 0.01, 0.0)
    losses, seconds = [], []
    for epoch in range(1, count + 1):
        optimizer.zero_grad(set_to_none=True)
        settle(device)
        meet()
        start = time.perf_counter()
        losses.append(float(step(epoch)))
        update(optimizer.step)
        settle(device)
        seconds.append(time.perf_counter() - start)
    return Steps(
        losses, seconds, [p.grad.clone() for p in model.parameters() if p.grad is not None]
    )


def settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def alone(trial: Trial, count: int) -> Steps:
    """The resident run, with the steps recorded where that can be."""
    model = trial.built()
    whole = Resident(model, trial.graph, dtype=trial.dtype, device=trial.device, capture=True)
    mine, y = trial.labels(torch.arange(trial.graph.num_nodes))

    def loss(out: Tensor) -> Tensor:
        return F.cross_entropy(out[mine], y, reduction="sum") / trial.num_labelled

    return stepped(
        model, lambda epoch: whole.train_step(loss, epoch), whole.update, count, lambda: None,
        trial.device,
    )  # fmt: skip


def together(
    t: Transport, trial: Trial, plan: Plan, evaluated: Any, count: int
) -> tuple[Steps, Ranked]:
    model = trial.built()
    ranked = Ranked(
        model, trial.graph, plan, t, labelled=np.asarray(trial.graph.splits["train"]),
        device=trial.device, dtype=trial.dtype, parts=trial.parts, evaluated=evaluated,
    )  # fmt: skip
    mine, y = trial.labels(ranked.rows)

    def share(out: Tensor, part: int) -> Tensor:
        return F.cross_entropy(out[mine], y, reduction="sum") / trial.num_labelled

    steps = stepped(
        model, lambda epoch: ranked.train_step(share, epoch), ranked.update, count,
        lambda: t.barrier(tag="epoch"), trial.device,
    )  # fmt: skip
    return steps, ranked


def emptied(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def is_time(t: Transport, job: Job) -> bool:
    return t.gather(time.monotonic() < job.until_s, tag="time")[0]


# Proofs


def proof_graph() -> Graph:
    draw = np.random.default_rng(0)
    src, dst = draw.integers(0, PROOF_NODES, (2, PROOF_EDGES))
    return from_edges(
        src, dst, num_nodes=PROOF_NODES, x=draw.standard_normal((PROOF_NODES, PROOF_WIDTH)),
        y=draw.integers(0, 7, PROOF_NODES), splits={"train": np.arange(0, PROOF_NODES, 2)},
    )  # fmt: skip


def prove(t: Transport, job: Job, ways: list[str]) -> None:
    """Losses and gradients of two epochs in float64, with dropout and BatchNorm, against one
    device. A way that reads rows in place is left out where the transport cannot."""
    graph = proof_graph()
    shape, parts, device = shape_of(graph), partition(graph, t.size, "block"), job.device()
    for name in MODELS:
        trial = Trial(graph, shape, parts, name, torch.float64, device)
        theirs = alone(trial, 2)
        for way in ways:
            if not is_time(t, job):
                return
            plan, evaluated = trial.plan(way, job.machine)
            steps, ranked = together(t, trial, plan, evaluated, 2)
            ranked.close()
            scale = max(
                float(grad.abs().max()) for grad in theirs.grads
            )  # some are 0 but for noise
            worst = max(
                *(abs(a - b) / abs(b) for a, b in zip(steps.losses, theirs.losses, strict=True)),
                *(
                    float((a - b).abs().max()) / scale
                    for a, b in zip(steps.grads, theirs.grads, strict=True)
                ),
            )
            errors = t.gather(worst, tag="errors")
            row = {"proof": f"{t.name} {name} {way}", "ranks": t.size, "error": max(errors)}
            job.write(t, row | {"equal": max(errors) <= 1e-10})


# Rates between devices


def rates(t: Transport, job: Job, num_bytes: int, widths: list[int], sizes: list[int]) -> None:
    """Bytes a second: copies of a peer's rows and rows read in place by our sums, one rank alone
    and all at once; and exchanges of all with all."""
    device = job.device()
    row: dict[str, Any] = {"rates": t.name, "ranks": t.size, "alone": {}, "copy": {}, "rows": {}}
    if t.reads_in_place and t.size > 1:
        held = t.allocate("rates", (num_bytes,), torch.uint8, str(device))
        peer = held.peers[(t.rank + 1) % t.size]
        room = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        for size in sizes:
            copy = partial(_copied, room[:size], peer[:size])
            row["copy"][size] = size / timed(t, copy, device)
            row["alone"][size] = size / timed(t, copy if t.rank == 0 else None, device)
        for width in widths:
            read_bytes, call = _sums(peer, width, device)
            row["rows"][width] = read_bytes / timed(t, call, device)
            only = read_bytes / timed(t, call if t.rank == 0 else None, device)
            row["alone"][f"rows of {width}"] = only
        del room
    row["exchange"] = {}
    for size in sizes:
        each = size // max(1, t.size - 1)
        give = [0 if r == t.rank else each for r in range(t.size)]
        sent = torch.zeros(sum(give), dtype=torch.uint8, device=device)
        swap = partial(t.exchange, sent, give, give)
        row["exchange"][sum(give)] = sum(give) / timed(t, swap, device)
    job.write(t, row)


def _copied(into: Tensor, rows: Tensor) -> None:
    into.copy_(rows, non_blocking=True)


def _sums(peer: Tensor, row_bytes: int, device: torch.device) -> tuple[int, Callable[[], None]]:
    """Sums over 16 random rows each of a peer's memory, half of it read on average."""
    rows = peer.view(torch.float32).view(-1, row_bytes // 4)
    num_edges = max(_DEGREE, len(rows) // 2 // _DEGREE * _DEGREE)
    generator = torch.Generator(device=device).manual_seed(0)
    shape = (num_edges,)
    col = torch.randint(len(rows), shape, generator=generator, device=device, dtype=torch.int32)
    ends = torch.arange(0, num_edges + 1, _DEGREE, device=device)
    block = Block(rowptr=ends, col=col, num_src=len(rows))

    def call() -> None:
        with torch.no_grad():
            aggregate(block, rows)

    return num_edges * row_bytes, call


def timed(t: Transport, call: Callable[[], Any] | None, device: torch.device) -> float:
    """Seconds of the slowest rank, the least of five; None: this rank looks on."""
    taken = []
    for turn in range(6):
        settle(device)
        t.barrier(tag="rates")
        start = time.perf_counter()
        if call is not None:
            call()
            settle(device)
        seconds = t.gather(time.perf_counter() - start if call else 0.0, tag="rates")
        if turn:  # the first compiles and maps
            taken.append(max(seconds))
    return min(taken)


# Epochs


def epochs(t: Transport, job: Job, cells: list[list[str]]) -> None:
    """Cells are [shape, model, way ...] of one graph; the first way is one device."""
    graph = Graph.open(job.graph, verify=False)
    shape, parts, device = shape_of(graph), partition(graph, t.size, "block"), job.device()
    for name, model, *ways in cells:
        trial = Trial(graph, shape, parts, model, torch.float32, device)
        if not is_time(t, job):
            return
        job.write(t, {"begun": f"{name} {model} alone"})
        single = None
        if t.rank == 0:
            steps = alone(trial, job.epochs + 3)
            single = [min(steps.seconds[3:]), steps.losses]
            emptied(device)
        (seconds, losses), *_ = t.gather(single, tag="one device")
        job.write(
            t, {"cell": f"{name} {model} alone", "ranks": 1, "epoch_s": seconds, "losses": losses}
        )
        for way in ways:
            if not is_time(t, job):
                return
            job.write(t, {"begun": f"{name} {model} {way}"})
            row = cell(t, job, trial, way)
            row["speedup"] = seconds / row["epoch_s"]
            row["loss_error"] = abs(row["losses"][0] - losses[0]) / abs(losses[0])
            job.write(t, {"cell": f"{name} {model} {way}", **row})


def cell(t: Transport, job: Job, trial: Trial, way: str) -> dict[str, Any]:
    begun = time.monotonic()
    plan, evaluated = trial.plan(way, job.machine)
    steps, ranked = together(t, trial, plan, evaluated, job.epochs + 1)
    timeline = ranked.timeline
    assert timeline is not None
    counted = {a.index: a for a in ranked.schedule.actions if a.rank == t.rank and a.op in _COUNTED}
    own = {
        "seconds": steps.seconds,
        "peaks": ranked.peak_bytes,
        "busy_s": {lane: s for (_, lane), s in timeline.busy_s().items()},
        "moved": sum(s.moved_bytes for s in timeline.spans if s.index in counted),
        "planned": sum(action.moved_bytes for action in counted.values()),
    }
    said = t.gather(own, tag="measured")
    row: dict[str, Any] = {"ranks": t.size, "transport": str(t)}
    if t.rank == 0:
        found = simulate(ranked.schedule, job.machine, Costs.of(job.machine))
        row |= {
            "modelled_s": found.seconds,
            "modelled_busy_s": {lane: s for (r, lane), s in found.busy_s().items() if r == 0},
        }
    each = [max(of) for of in zip(*(one["seconds"] for one in said), strict=True)]
    row |= {
        "first_s": each[0],
        "epoch_s": min(each[1:]),
        "losses": steps.losses,
        "busy_s": said[0]["busy_s"],
        "moved_bytes": [one["moved"] for one in said],
        "planned_moved_bytes": [one["planned"] for one in said],
        "peak_bytes": [one["peaks"] for one in said],
    }
    ranked.close()
    del ranked
    emptied(trial.device)
    row["cell_s"] = time.monotonic() - begun
    return row
