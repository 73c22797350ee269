"""One cell of plan_accuracy's table: a resident run's bytes and seconds, as they are measured.

Cells are written to a file as they are measured, so that the table can be made in pieces, and again
from the same measurements.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

# As the command line has it: threads sleep while they wait, large tensors are on huge pages.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import numpy as np
import psutil
import torch

from gpu_graphs import rmat as rmat_on_gpu
from provenance import ROOT

sys.path.append(str(ROOT))
from tests.models.held import measured, predicted, trainer_of, workloads

from tiergnn import frozen
from tiergnn.graph.csr import Graph
from tiergnn.graph.generate import rmat
from tiergnn.graph.shape import GraphShape
from tiergnn.graph.table import Table
from tiergnn.hardware.machine import Machine
from tiergnn.hardware.measure import measure
from tiergnn.kernels import memory
from tiergnn.models import zoo
from tiergnn.planner.strategies import resident
from tiergnn.schedule.schedule import Schedule
from tiergnn.schedule.timeline import Span, Timeline
from tiergnn.training.loop import Trainer
from tiergnn.training.options import Options
from tiergnn.workload import Workload

Key = tuple[str, int]  # model, layers

# Nodes and edges; on CUDA the shape of ogbn-products and the 3rd and 8th part of it.
SIZES = {
    "cpu": ((100_000, 1_000_000), (300_000, 4_000_000), (1_000_000, 10_000_000)),
    "cuda": (8, 3, 1),
}
MODELS = ("gcn", "sage", "gat", "gin")
WIDTH, CLASSES = 64, 16
# Steps before those that count: kernels are compiled, on CUDA steps recorded. A CPU's go on until
# two spend little in the system, which hands out pages in the first ones for up to twice as long as
# a later step takes.
_WARM = {"cpu": 2, "cuda": 6}
_MOST_WARM = 12
_PLAIN, _BEFORE = 101, 3  # the number of a step that is not measured, and how many come before
_SYSTEM_FRAC = 0.1  # of a step's seconds
_LEAST_STEPS = 5
_COMPANY = 0.1  # of one processor: what others may use of it during a step that counts
_TICK_S = 0.02  # so roughly the system counts
_PROBES = 3  # at most, to find a time without company
_MOST_TIMES = 5  # as many seconds are given to find such steps
_SPREAD_FRAC = 0.1  # see ``_quiet``
_ACTIONS_EVERY = 16  # the loop notes when actions run in steps of such a number


@dataclass(kw_only=True)
class Cell:
    """``spans`` are the median seconds of each action by its index and label (to STEP counts what
    the host does before the first one), ``graph`` is its shape; ``bytes`` and ``seconds`` are what
    the table says, empty until they are measured."""

    model: str
    layers: int
    size: int
    graph: GraphShape
    bytes: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    spans: list[tuple[int, str, float]] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, int, int]:
        return self.model, self.layers, self.size

    def timeline(self) -> Timeline:
        """The actions' median seconds, end to end."""
        spans, at_s = [], 0.0
        for index, label, seconds in self.spans:
            spans.append(
                Span(index=index, rank=0, lane="compute", label=label, start_s=at_s,
                     end_s=at_s + seconds)
            )  # fmt: skip
            at_s += seconds
        return Timeline(source="measured", spans=tuple(spans))


class Cells:
    """All cells of one machine, in a file: what is there is not measured again.

    ``others`` are the processors that others used while the machine was probed; ``works`` the
    workloads of a step and of an evaluation by model and layers, as they were metered there.
    """

    def __init__(self, path: Path):
        self._path = path
        self.machine: Machine | None = None
        self.others = 0.0
        self.works: dict[Key, list[Workload]] = {}
        self._cells: dict[tuple[str, int, int], Cell] = {}
        if path.exists():
            data = json.loads(path.read_text())
            self.machine = data["machine"] and frozen.decode(Machine, data["machine"])
            self.others = data.get("others", 0.0)
            for model, layers, encoded in data.get("works", []):
                self.works[model, layers] = [frozen.decode(Workload, each) for each in encoded]
            for found in data["cells"]:
                cell = Cell(**found | {"graph": frozen.decode(GraphShape, found["graph"])})
                self._cells[cell.key] = cell

    def get(self, model: str, layers: int, size: int) -> Cell | None:
        return self._cells.get((model, layers, size))

    def probe(self, device: str) -> Machine:
        """The machine as it was probed; probed (again) where it was not, or had company."""
        for number in range(_PROBES):
            if self.machine is not None and self.others <= _COMPANY:
                break
            if number == 0:  # what is compiled the first time leaves no time for second rounds
                measure(device=device)
            company = Company()
            machine = measure(device=device, refresh=True)
            others = company.processors()
            print(f"probed; processors of others: {others:.2f}", flush=True)
            if self.machine is None or others < self.others:
                self.machine, self.others = machine, others
                self.save()
        assert self.machine is not None
        return self.machine

    def meter(self, keys: set[Key], device: str) -> dict[Key, list[Workload]]:
        """The workloads of all these models; those that are not there are metered."""
        self.works |= works_of(keys - self.works.keys(), device)
        self.save()
        return {key: self.works[key] for key in sorted(keys)}

    def add(self, cell: Cell) -> None:
        self._cells[cell.key] = cell
        self.save()

    def save(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        cells = [frozen.encode(cell) for _, cell in sorted(self._cells.items())]
        data = {"machine": frozen.encode(self.machine), "others": self.others, "cells": cells}
        data["works"] = [
            [*key, [frozen.encode(work) for work in works]]
            for key, works in sorted(self.works.items())
        ]
        self._path.write_text(json.dumps(data) + "\n")


def build(name: str, layers: int) -> torch.nn.Module:
    hidden = 8 if name == "gat" else 64
    return zoo.build(name, WIDTH, CLASSES, num_layers=layers, hidden_channels=hidden,
                     norm="batch", dropout=0.5)  # fmt: skip


def graph_of(device: str, size: int) -> Graph:
    """A power-law graph with features, labels, and half of its nodes to train on."""
    if device == "cuda":
        block = rmat_on_gpu("products", device, shrink=SIZES["cuda"][size])
        made = Graph(rowptr=block.rowptr.cpu().numpy(), col=block.col.cpu().numpy())
        del block
        torch.cuda.empty_cache()
    else:
        made = rmat(*SIZES["cpu"][size], seed=0)
    random, half = np.random.default_rng(0), made.num_nodes // 2
    order = random.permutation(made.num_nodes)
    return Graph(
        rowptr=made.rowptr,
        col=made.col,
        x=Table.from_array(random.standard_normal((made.num_nodes, WIDTH), np.float32)),
        y=random.integers(0, CLASSES, made.num_nodes).astype(np.int64),
        task="class",
        num_classes=CLASSES,
        splits={"train": np.sort(order[:half]), "val": np.sort(order[half:])},
    )


def works_of(keys: set[Key], device: str) -> dict[Key, list[Workload]]:
    """The workloads of a step and an evaluation, by model and layers, metered on a small graph."""
    small = rmat(1_000, 10_000, seed=0)
    graph = Graph(
        rowptr=small.rowptr,
        col=small.col,
        x=Table.from_array(np.ones((small.num_nodes, WIDTH), np.float32)),
        y=np.arange(small.num_nodes) % CLASSES,
        task="class",
        num_classes=CLASSES,
        splits={"train": np.arange(500), "val": np.arange(500, 1_000)},
    )
    options = Options(device=device)
    return {key: workloads(graph, build(*key), options) for key in sorted(keys)}


def bytes_of(graph: Graph, cell: Cell, works: list[Any], device: str) -> dict[str, Any]:
    """Predicted and measured bytes; all of them by one allocator, whose peak is one number."""
    step, evaluation = predicted(graph, *works)
    model = build(cell.model, cell.layers)
    # A recorded step keeps what it takes beside what an evaluation does, which no plan counts yet.
    options = Options(device=device, epochs=1, capture=False)
    if device == "cuda":
        got_step, got_evaluation = _measured_on_cuda(graph, model, options)
    else:
        large, memory.LARGE_BYTES = memory.LARGE_BYTES, 2**62
        try:
            got_step, got_evaluation = measured(graph, model, options)
        finally:
            memory.LARGE_BYTES = large
    return {
        "predicted step bytes": step.num_bytes,
        "measured step bytes": got_step,
        "step bytes over measured": step.num_bytes / got_step,
        "kinds": dict(step.kinds),
        "predicted evaluation bytes": evaluation.num_bytes,
        "measured evaluation bytes": got_evaluation,
        "evaluation bytes over measured": evaluation.num_bytes / got_evaluation,
    }


def _measured_on_cuda(graph: Graph, model: torch.nn.Module, options: Options) -> tuple[int, int]:
    """(bytes of a step, bytes of an evaluation) by torch's allocator, beyond what it held before:
    the most from loading the graph to the end of the second step, and in an evaluation then."""

    warm = torch.ones(64, 64, device="cuda")
    warm = warm @ warm  # the library's own memory, once a process
    del warm
    empty("cuda")
    before = torch.cuda.memory_allocated()
    trainer = trainer_of(graph, model, options)
    torch.cuda.reset_peak_memory_stats()
    for number in (1, 2):
        trainer._step(number)
    step = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    trainer.scoring.scores(trainer.resident.infer())
    evaluation = torch.cuda.max_memory_allocated()
    return step - before, evaluation - before


def empty(device: str) -> None:
    """Give back what is not held any more."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def time_steps(
    graph: Graph, cell: Cell, works: list[Any], device: str, least_s: float
) -> dict[str, float]:
    """Seconds of steps as runs have them, which on CUDA are replayed; the cell gets its spans.

    Of both the median, over ``least_s`` and three steps at least.
    """
    schedule = schedule_of(cell, works)
    trainer = trainer_of(graph, build(cell.model, cell.layers), Options(device=device, epochs=1))
    trainer.resident._step = trainer.resident._walk(True, schedule)
    warm = _warm(trainer, device)
    spans: dict[int, list[float]] = {}

    def measured_step(number: int) -> Step:
        step = _run(trainer, _ACTIONS_EVERY * (number + 1))
        timeline = trainer.resident.timeline
        assert timeline is not None
        return step._replace(timeline=timeline)

    noted = _quiet(measured_step, least_s)
    for step in noted:
        assert step.timeline is not None
        first_s = min(span.start_s for span in step.timeline.spans)
        for span in step.timeline.spans:
            seconds = span.end_s - span.start_s + (first_s if span.label == "STEP" else 0.0)
            spans.setdefault(span.index, []).append(seconds)
    label_of = {action.index: action.label for action in schedule.actions}
    cell.spans = [(i, label_of[i], statistics.median(each)) for i, each in sorted(spans.items())]
    found = {"measured seconds": statistics.median(step.seconds for step in noted)}
    found |= {"least seconds": min(s.seconds for s in noted)}
    found |= {"most seconds": max(s.seconds for s in noted), "steps": float(len(noted))}
    found |= {"steps before": float(warm)}
    found |= {"seconds of the system": statistics.median(s.system_s for s in noted)}
    found |= {"processors of others": statistics.median(step.others for step in noted)}
    return found


def _warm(trainer: Trainer, device: str) -> int:
    """Run steps until they are those of a long run, and say how many these were."""
    settled = 0
    for number in range(1, _MOST_WARM + 1):
        step = _run(trainer, number)
        settled = settled + 1 if step.system_s <= _SYSTEM_FRAC * step.seconds else 0
        if number >= _WARM[device] and (device == "cuda" or settled >= _WARM[device]):
            return number
    return _MOST_WARM


class Step(NamedTuple):
    """``others`` is the processors that other processes used meanwhile, ``system_s`` the seconds
    that the system worked for this one."""

    seconds: float
    others: float
    system_s: float
    timeline: Timeline | None = None


def _quiet(run: Callable[[int], Step], least_s: float) -> list[Step]:
    """Steps that had hardly any company; where there are too few, those that had the least.

    While they differ much, neighbours come and go that no process shows, and more are taken.
    """
    steps: list[Step] = []
    while True:
        steps.append(run(len(steps)))
        alone = [step for step in steps if step.others <= _COMPANY]
        spent_s = sum(step.seconds for step in steps)
        enough = len(alone) >= _LEAST_STEPS and sum(step.seconds for step in alone) >= least_s
        late = len(steps) >= 2 * _LEAST_STEPS and spent_s >= _MOST_TIMES * least_s
        if enough and (late or _spread_frac(alone) <= _SPREAD_FRAC):
            return alone
        if late:
            ranked = sorted(steps, key=lambda step: step.others)
            return ranked[: max(_LEAST_STEPS, len(alone))]


def _spread_frac(steps: list[Step]) -> float:
    """The range of the middle half of their seconds, of the median."""
    low, middle, high = statistics.quantiles((step.seconds for step in steps), n=4)
    return (high - low) / middle


def _run(trainer: Trainer, number: int) -> Step:
    """A step. On CUDA it comes after some that note nothing, and the mean of those is told: runs
    replay such ones. What tells of company takes as long as a small step, which then finds a device
    that has gone idle."""
    device = trainer.resident.device
    if device.type == "cpu":
        system_s, company, start = _system_s(), Company(), time.perf_counter()
        trainer._step(number)
        taken_s = time.perf_counter() - start
        return Step(taken_s, company.processors(), _system_s() - system_s)
    trainer._step(_PLAIN)
    torch.cuda.synchronize(device)
    system_s, company, start = _system_s(), Company(), time.perf_counter()
    for _ in range(_BEFORE):
        trainer._step(_PLAIN)
        torch.cuda.synchronize(device)
    taken_s = (time.perf_counter() - start) / _BEFORE
    told = Step(taken_s, company.processors(), _system_s() - system_s)
    trainer._step(number)
    torch.cuda.synchronize(device)
    return told


def _system_s() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_stime


class Company:
    """What other processes do from now on."""

    def __init__(self) -> None:
        self._start_s, self._others_s = time.perf_counter(), self._seconds()

    def processors(self) -> float:
        """How many they kept busy on average; those that were taken from this machine count."""
        others_s = self._seconds() - self._others_s - _TICK_S
        return max(0.0, others_s) / (time.perf_counter() - self._start_s)

    @staticmethod
    def _seconds() -> float:
        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0) + getattr(times, "guest", 0.0)
        return sum(times) - idle - time.process_time()


def schedule_of(cell: Cell, works: list[Any]) -> Schedule:
    return resident.training(works[0], cell.graph)
