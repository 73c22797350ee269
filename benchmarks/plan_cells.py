"""One cell of plan_accuracy's table: a resident run's bytes and seconds, as they are measured.

Cells are written to a file as they are measured, so that the table can be made in pieces, and again
from the same measurements.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# As the command line has it: threads that spin while they wait slow each other down.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
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
from tiergnn.kernels import memory
from tiergnn.models import zoo
from tiergnn.planner.strategies import resident
from tiergnn.schedule.schedule import Schedule
from tiergnn.schedule.timeline import Span, Timeline
from tiergnn.training.loop import Trainer
from tiergnn.training.options import Options

# Nodes and edges; on CUDA the shape of ogbn-products and the 3rd and 8th part of it.
SIZES = {
    "cpu": ((100_000, 1_000_000), (300_000, 4_000_000), (1_000_000, 10_000_000)),
    "cuda": (8, 3, 1),
}
MODELS = ("gcn", "sage", "gat", "gin")
WIDTH, CLASSES = 64, 16
_WARM = 6  # steps before those that count: kernels are compiled, steps recorded, pages taken
_ACTIONS_EVERY = 16  # the loop notes when actions run in steps of such a number


@dataclass(kw_only=True)
class Cell:
    """``spans`` are the median seconds of each action by its index and label, ``graph`` its shape;
    ``bytes`` and ``seconds`` are what the table says, empty until they are measured."""

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
    """All cells of one machine, in a file: what is there is not measured again."""

    def __init__(self, path: Path):
        self._path = path
        self.machine: Machine | None = None
        self._cells: dict[tuple[str, int, int], Cell] = {}
        if path.exists():
            data = json.loads(path.read_text())
            self.machine = data["machine"] and frozen.decode(Machine, data["machine"])
            for found in data["cells"]:
                cell = Cell(**found | {"graph": frozen.decode(GraphShape, found["graph"])})
                self._cells[cell.key] = cell

    def get(self, model: str, layers: int, size: int) -> Cell | None:
        return self._cells.get((model, layers, size))

    def add(self, cell: Cell) -> None:
        self._cells[cell.key] = cell
        self.save()

    def save(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        cells = [frozen.encode(cell) for _, cell in sorted(self._cells.items())]
        machine = frozen.encode(self.machine)
        self._path.write_text(json.dumps({"machine": machine, "cells": cells}) + "\n")


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


def works_of(keys: set[tuple[str, int]], device: str) -> dict[tuple[str, int], list[Any]]:
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
    return {key: workloads(graph, build(*key), Options(device=device)) for key in sorted(keys)}


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
    _empty("cuda")
    before = torch.cuda.memory_allocated()
    trainer = trainer_of(graph, model, options)
    torch.cuda.reset_peak_memory_stats()
    for number in (1, 2):
        trainer._step(number)
    step = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    trainer.scoring.scores(trainer.resident.infer())
    evaluation = torch.cuda.max_memory_allocated()
    del trainer
    _empty("cuda")
    return step - before, evaluation - before


def _empty(device: str) -> None:
    """Give back what is not held any more."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def time_steps(
    graph: Graph, cell: Cell, works: list[Any], device: str, least_s: float
) -> dict[str, float]:
    """Seconds of steps as runs have them, which on CUDA are replayed; the cell gets its spans.

    Of both the median, of at least five steps and for at least ``least_s``.
    """
    schedule = schedule_of(cell, works)
    trainer = trainer_of(graph, build(cell.model, cell.layers), Options(device=device, epochs=1))
    trainer.resident._step = trainer.resident._walk(True, schedule)
    for number in range(1, _WARM + 1):
        _step_s(trainer, number)
    replayed = [_step_s(trainer, 101)] if device == "cuda" else []
    while replayed and (len(replayed) < 5 or sum(replayed) < least_s):
        replayed.append(_step_s(trainer, 101))
    taken: list[float] = []
    spans: dict[int, list[float]] = {}
    while len(taken) < 5 or sum(taken) < least_s:
        taken.append(_step_s(trainer, _ACTIONS_EVERY * (len(taken) + 1)))
        timeline = trainer.resident.timeline
        for span in timeline.spans if timeline is not None else ():
            spans.setdefault(span.index, []).append(span.end_s - span.start_s)
    label_of = {action.index: action.label for action in schedule.actions}
    cell.spans = [(i, label_of[i], statistics.median(each)) for i, each in sorted(spans.items())]
    found = {"measured seconds": statistics.median(replayed or taken), "steps": float(len(taken))}
    if replayed:
        found["measured seconds, not replayed"] = statistics.median(taken)
    found["least seconds"], found["most seconds"] = min(replayed or taken), max(replayed or taken)
    del trainer
    _empty(device)
    return found


def _step_s(trainer: Trainer, number: int) -> float:
    device = trainer.resident.device
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    trainer._step(number)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def schedule_of(cell: Cell, works: list[Any]) -> Schedule:
    return resident.training(works[0], cell.graph)
