"""What each rank of `ranks.py` does: epochs of several plans of one model and graph, in turns.

All plans take an epoch before any takes its next one, so what else runs meanwhile slows all alike.
One device's epochs are rank 0's on its one thread, while the others wait.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch
from numba.core.registry import cpu_target
from torch import Tensor, nn
from torch.nn import functional as F

from tiergnn.graph.csr import Graph
from tiergnn.graph.partition import partition
from tiergnn.graph.partition_folder import open_partition
from tiergnn.models.zoo import build
from tiergnn.planner.plan import Plan
from tiergnn.runtime.executor import Resident
from tiergnn.runtime.ranked import Ranked
from tiergnn.schedule.timeline import Timeline
from tiergnn.training.metering import evaluation_of
from tiergnn.training.options import Options
from tiergnn.transport.transport import Transport
from tiergnn.transport.virtual import Virtual, World
from tiergnn.workload import Workload

WARM = 1  # rounds in which kernels are compiled and pages taken
RESIDENT, PREPARED, ONE_RANK = "resident", "resident, prepared", "one rank"  # rank 0 alone


class Race(NamedTuple):
    """``plans`` are the names of what takes turns; a plan's file is NAME.json in ``folder``."""

    graph: str  # a folder
    parts: str  # a folder
    folder: str
    model: dict[str, Any]
    plans: list[str]
    rounds: int
    results: str  # a file


class Runner(NamedTuple):
    """One way to train; None in its place: this rank looks on."""

    step: Callable[[int], float]
    update: Callable[[Any], None]
    optimizer: torch.optim.Optimizer
    executor: Resident | Ranked


def races(t: Transport, jobs: list[Race], until_s: float) -> None:
    """One after the other; none is begun after ``until_s`` of time.monotonic()."""
    # Numba fills its tables when it compiles first; two lanes that did so at once left gaps.
    context: Any = cpu_target.target_context
    context.refresh()
    for job in jobs:
        if not t.gather(time.monotonic() < until_s, tag="time")[0]:
            return
        race(t, job)


def race(t: Transport, job: Race) -> None:
    """Times rounds over all plans; rank 0 writes the results."""
    begun = time.monotonic()
    graph = Graph.open(job.graph, verify=False)
    evaluated = evaluation_of(graph, built(graph, job.model), Options(device="cpu"))
    runners: dict[str, Runner | None] = {}
    for name in job.plans:
        if name not in (RESIDENT, PREPARED, ONE_RANK):
            runners[name] = _together(graph, job, name, t, evaluated)
        else:
            runners[name] = _alone(graph, job, name, evaluated) if t.rank == 0 else None
    ready_s = time.monotonic() - begun
    taken: dict[str, list[float]] = {name: [] for name in runners}
    worked: dict[str, list[float]] = {name: [] for name in runners}
    losses: dict[str, float] = {}
    spans: dict[str, list[dict[str, float]]] = {name: [] for name in runners}
    start = others_s = 0.0
    for number in range(WARM + job.rounds):
        if number == WARM:
            start, others_s = time.perf_counter(), _others_s(t)
        for name, runner in runners.items():
            seconds, processor_s, loss = _epoch(t, runner, number + 1)
            losses.setdefault(name, loss)
            if number >= WARM:
                taken[name].append(seconds)
                worked[name].append(processor_s)
                if runner is not None and runner.executor.timeline is not None:
                    spans[name].append(by_label(runner.executor.timeline))
    others = (_others_s(t) - others_s) / (time.perf_counter() - start)
    for runner in runners.values():
        if runner is not None and isinstance(runner.executor, Ranked):
            runner.executor.close()
    own: dict[str, Any] = {"taken": taken, "worked": worked}
    own["spans"] = {name: _medians(steps) for name, steps in spans.items()}
    said = t.gather(own, tag="measured")
    if t.rank:
        return
    rows = {}
    for name in runners:
        each, of_one = (
            [max(of) for of in zip(*(one[what][name] for one in said), strict=True)]
            for what in ("taken", "worked")
        )
        rows[name] = {
            "epoch_s": statistics.median(each),
            "epochs_s": each,
            "processor_s": statistics.median(of_one),
            "first_loss": losses[name],
            "actions_s": said[0]["spans"][name],
        }
    found = {"rows": rows, "processors_of_others": max(0.0, others)}
    Path(job.results).write_text(json.dumps(found))
    told = ", ".join(
        f"{name} {1e3 * row['epoch_s']:.1f} ({1e3 * row['processor_s']:.1f})"
        for name, row in rows.items()
    )
    took_s = time.monotonic() - begun
    print(
        f"{Path(job.results).stem}: {told} ms; others {others:.2f}; ready after {ready_s:.0f} s, "
        f"{took_s:.0f} s in all",
        flush=True,
    )


def _epoch(t: Transport, runner: Runner | None, number: int) -> tuple[float, float, float]:
    """Seconds, those of this rank's processor, and the loss."""
    t.barrier(tag="epoch")
    start, worked_s, loss = time.perf_counter(), time.process_time(), 0.0
    if runner is not None:
        runner.optimizer.zero_grad(set_to_none=True)
        loss = float(runner.step(number))
        runner.update(runner.optimizer.step)
    seconds, worked_s = time.perf_counter() - start, time.process_time() - worked_s
    t.barrier(tag="epoch is over")
    return seconds, worked_s, loss


def _together(graph: Graph, job: Race, name: str, t: Transport, evaluated: Workload) -> Runner:
    model, plan = built(graph, job.model), Plan.load(Path(job.folder) / f"{name}.json")
    parts = partition(graph, 1) if t.size == 1 else open_partition(graph, Path(job.parts))
    labelled = np.asarray(graph.splits["train"])
    ranked = Ranked(model, graph, plan, t, labelled=labelled, parts=parts, evaluated=evaluated)
    loss = _loss(graph, ranked.rows)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(epoch: int) -> float:
        return ranked.train_step(lambda out, part: loss(out), epoch)

    return Runner(step, ranked.update, optimizer, ranked)


def _alone(graph: Graph, job: Race, name: str, evaluated: Workload) -> Runner:
    """The resident run, or the executor of ranks with a single one."""
    if name == ONE_RANK:
        return _together(graph, job, name, Virtual(World(1), 0), evaluated)
    model = built(graph, job.model)
    whole = Resident(model, graph, prepare=name == PREPARED)
    loss = _loss(graph, torch.arange(graph.num_nodes))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return Runner(
        lambda epoch: whole.train_step(loss, epoch, measure=True), whole.update, optimizer, whole
    )


def built(graph: Graph, model: dict[str, Any]) -> nn.Module:
    torch.manual_seed(0)
    assert graph.x is not None
    assert graph.num_classes is not None
    options = {key: value for key, value in model.items() if key != "name"}
    return build(model["name"], graph.x.width, graph.num_classes, **options)


def _loss(graph: Graph, gid: Tensor) -> Callable[[Tensor], Tensor]:
    """The share of the whole graph's loss of these rows' output."""
    ids = torch.from_numpy(np.array(graph.splits["train"]))
    mine = torch.nonzero(torch.isin(gid, ids)).flatten()
    assert graph.y is not None
    y = torch.from_numpy(np.asarray(graph.y)[gid[mine].numpy()]).long()
    return lambda out: F.cross_entropy(out[mine], y, reduction="sum") / len(ids)


def by_label(timeline: Timeline) -> dict[str, float]:
    """Seconds of rank 0's actions of an epoch, by lane and label."""
    found: dict[str, float] = {}
    for span in timeline.spans:
        if span.rank == 0:
            key = f"{span.lane} {span.label}"
            found[key] = found.get(key, 0.0) + span.end_s - span.start_s
    return found


def _medians(steps: list[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for step in steps for name in step)
    return {name: statistics.median(step.get(name, 0.0) for step in steps) for name in names}


def _others_s(t: Transport) -> float:
    """Seconds of processors that other processes than the ranks have used so far."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0) + getattr(times, "guest", 0.0)
    return sum(times) - idle - sum(t.gather(time.process_time(), tag="processors"))
