"""What `rank_alone_gpu.py` measures: a graph made ready once, and epochs.

Legend: V nodes, E edges, H rows of others that the rank reads.
"""

from __future__ import annotations

import gc
import statistics
import time
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rank_alone_link import RANKS, settle
from ranks_gpu_jobs import MODELS
from staged_gpu import Shapes
from tiergnn.graph.csr import Graph
from tiergnn.graph.partition import Partition, partition
from tiergnn.graph.shape import Layout, layout_of, shape_of
from tiergnn.hardware.machine import Machine
from tiergnn.kernels.block import Block
from tiergnn.models.zoo import build
from tiergnn.planner.cost import Costs
from tiergnn.planner.plan import Plan
from tiergnn.planner.simulate import simulate
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.planner.strategies.known import STRATEGIES
from tiergnn.runtime.absent import AbsentRanks
from tiergnn.runtime.capture import EAGER
from tiergnn.runtime.executor import indexed
from tiergnn.runtime.rank_graph import RankGraph
from tiergnn.runtime.ranked import Ranked
from tiergnn.runtime.source_classes import reach_of
from tiergnn.schedule.actions import Action, Op
from tiergnn.schedule.contents import What
from tiergnn.schedule.schedule import Schedule
from tiergnn.schedule.timeline import Timeline
from tiergnn.training.metering import evaluation_of, workload_of
from tiergnn.training.optimizers import make_optimizer
from tiergnn.training.options import Options
from tiergnn.transport.alone import Alone, Shelf
from tiergnn.workload import Workload

RANK = 0
_REPLICAS = (What.REPLICAS, What.GRAD_REPLICAS, What.SUM_REPLICAS)
_COUNTED = (Op.EXCHANGE, Op.COPY, Op.AGGREGATE, Op.BACKWARD, Op.ACCUMULATE)
SWITCHES = {"serial": {"pipeline": False}, "sync": {"asynchronous": False}}


def knobs_of(way: str) -> tuple[str, Knobs]:
    """ "leo 0.25+0.15 sync": a strategy, its caches (device, host) and switches."""
    strategy, *words = way.split()
    given: dict[str, Any] = {"exchange": "outputs"} if strategy == "leo" else {}
    for word in words:
        if word in SWITCHES:
            given |= SWITCHES[word]
        else:
            names = ("device_cache_frac", "host_cache_frac")
            given |= dict(zip(names, map(float, word.split("+")), strict=False))
    return strategy, Knobs(ranks=RANKS, **given)


# A graph, ready for all cells


class Ready:
    """A shape's graph in blocks of nodes, what rank 0 has of it, and what the others would say."""

    def __init__(
        self,
        name: str,
        shapes: Shapes,
        device: torch.device,
        shelf: Shelf,
        *,
        waits: bool,
        capture: bool,
    ):
        self.device, self.shelf, self._waits, self.capture = device, shelf, waits, capture
        self.graph: Graph = shapes.graph(name)
        shapes.graph.cache_clear()
        self.parts: Partition = partition(self.graph, RANKS, "block")
        self.shape = shape_of(self.graph, name=name)
        turned = _turned(self.graph, device)
        there = Partition(graph=turned, part_of=self.parts.part_of, num_parts=RANKS)
        layout = layout_of(self.parts, self.graph)
        self.layout: Layout = replace(layout, leaving=layout_of(there, turned).parts)
        # Places of edges in the graph are those of the turned one: nothing here asks for them.
        self._leaving = reach_of(turned, there, RANK, out=False)
        self.absent = AbsentRanks(self.layout, self._leaving)
        self._works: dict[str, tuple[Workload, Workload]] = {}

    @cached_property
    def held(self) -> RankGraph:
        t = self.transport()
        held = RankGraph(
            self.graph, self.parts, t, device=self.device, dtype=torch.float32, edge_ids=False,
            leaving=self._leaving,
        )  # fmt: skip
        t.close()
        return held

    def transport(self) -> Alone:
        return Alone(RANK, RANKS, self.absent, shelf=self.shelf, waits=self._waits)

    def built(self, model: str) -> nn.Module:
        torch.manual_seed(0)
        graph = self.graph
        assert graph.x is not None
        assert graph.num_classes is not None
        return build(model, graph.x.width, graph.num_classes, **MODELS[model])

    def works(self, model: str) -> tuple[Workload, Workload]:
        """Of a training step and of an evaluation."""
        if model not in self._works:
            options = Options(device=self.device.type)
            self._works[model] = (
                workload_of(self.graph, self.built(model), options),
                evaluation_of(self.graph, self.built(model), options),
            )
        return self._works[model]

    @cached_property
    def labels(self) -> tuple[Tensor, Tensor]:
        """Which of the rank's rows make the loss, and their classes."""
        gid = self.held.part.gid
        mine = torch.nonzero(torch.isin(gid, torch.from_numpy(self.graph.splits["train"])))
        assert self.graph.y is not None
        y = torch.from_numpy(np.asarray(self.graph.y)[gid[mine.flatten()].numpy()])
        return mine.flatten().to(self.device), y.to(self.device)

    def share(self, out: Tensor, part: int) -> Tensor:
        mine, y = self.labels
        loss = F.cross_entropy(out[mine], y, reduction="sum")
        return loss / len(self.graph.splits["train"])


def _turned(graph: Graph, device: torch.device) -> Graph:
    """The graph with its edges turned round."""
    there = Block.from_graph(graph, device).transposed
    return Graph(
        rowptr=there.rowptr_t.cpu().numpy(),
        col=there.dst_t.cpu().numpy(),
        y=graph.y,
        task=graph.task,
        num_classes=graph.num_classes,
        splits=graph.splits,
    )


# A cell


UNTIMED = EAGER + 1  # epochs: kernels are compiled, and a step is recorded
Sample = tuple[Schedule, Timeline]  # what was run, and when


class Epochs(NamedTuple):
    seconds: list[float]
    losses: list[float]
    taken: list[int]  # bytes that exchanges brought


def measured(
    ready: Ready, model: str, way: str, machine: Machine, epochs: int, limit_s: float
) -> tuple[dict[str, Any], Sample]:
    """The row of one way to train a model on a graph, and what it ran. Epochs end after
    ``limit_s``, if at least two were timed."""
    begun = time.perf_counter()
    works, labelled = ready.works(model), np.asarray(ready.graph.splits["train"])
    strategy, knobs = knobs_of(way)
    plan = Plan(
        strategy=strategy, knobs=knobs, workload=works[0], shape=ready.shape,
        layout=ready.layout, machine=machine,
    )  # fmt: skip
    with (
        closing(ready.transport()) as t,
        closing(
            Ranked(
                ready.built(model),
                ready.graph,
                plan,
                t,
                labelled=labelled,
                device=ready.device,
                evaluated=works[1],
                held=ready.held,
                capture=ready.capture,
            )
        ) as ranked,
    ):
        set_up_s = time.perf_counter() - begun
        found = _epochs(ready, ranked, t, epochs, limit_s)
        row, sample = _row(ranked, found, machine, plan.layout)
    bound_bytes = unique_bytes(works[0], ready, machine)
    row |= {"bound_bytes": bound_bytes, "set_up_s": set_up_s}
    return row | {"cell_s": time.perf_counter() - begun}, sample


def _row(
    ranked: Ranked, found: Epochs, machine: Machine, layout: Layout
) -> tuple[dict[str, Any], Sample]:
    timeline = ranked.timeline
    assert timeline is not None
    by_index = {span.index: span.moved_bytes for span in timeline.spans}
    moved = _moved(ranked.schedule, by_index)
    moved["read"] += max(found.taken)  # a step that is replayed calls no transport
    counted = [a for a in ranked.schedule.actions if a.rank == RANK and a.op in _COUNTED]
    predicted = simulate(ranked.schedule, machine, Costs.of(machine))
    busy = {lane: s for (_, lane), s in timeline.busy_s().items() if s}
    row = {
        "epoch_s": statistics.median(found.seconds[UNTIMED:]),
        "epochs_s": found.seconds,
        "predicted_s": predicted.seconds,
        "predicted_busy_s": {lane: s for (r, lane), s in predicted.busy_s().items() if r == RANK},
        "busy_s": busy,
        "busiest_frac": max(busy.values()) / found.seconds[-1],
        "around_s": found.seconds[-1] - timeline.seconds,
        "moved_bytes": moved,
        "as_planned": all(by_index[a.index] == a.moved_bytes for a in counted),
        "halo_rows": [layout.part(RANK, leaving=back).halo for back in (False, True)],
        "losses": found.losses,
        "peak_bytes": ranked.peak_bytes,
        "unrecorded": ranked.unrecorded,
    }
    return row, (ranked.schedule, timeline)


def _epochs(ready: Ready, ranked: Ranked, t: Alone, count: int, limit_s: float) -> Epochs:
    """Each from an idle device to an idle device; the first UNTIMED warm up, or are recorded."""
    optimizer = make_optimizer("adam", ranked.model, [], 0.01, 0.0)
    found, begun = Epochs([], [], []), time.perf_counter()
    for epoch in range(1, count + 1):
        if epoch > 4 and time.perf_counter() - begun > limit_s:
            break
        optimizer.zero_grad(set_to_none=True)
        before, clock = t.taken_bytes, Clock(ready.device)
        found.losses.append(float(ranked.train_step(ready.share, epoch)))
        ranked.update(optimizer.step)
        found.seconds.append(clock.seconds())
        found.taken.append(t.taken_bytes - before)
    return found


class Clock:
    """From an idle device on: of a GPU by its events."""

    def __init__(self, device: torch.device):
        self._device = device
        settle(device)
        self._start: Any = time.perf_counter() if device.type != "cuda" else _event()

    def seconds(self) -> float:
        if self._device.type != "cuda":
            return time.perf_counter() - self._start
        end = _event()
        end.synchronize()
        return self._start.elapsed_time(end) / 1e3


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _moved(schedule: Schedule, moved: dict[int, int]) -> dict[str, int]:
    """Bytes of an epoch of the rank: ``read`` of others (but in exchanges), those that ``came``
    back from its own replicas in host memory, those ``written`` to host memory."""
    found = {"read": 0, "came": 0, "written": 0}
    for action in schedule.actions:
        if action.rank != RANK or not moved.get(action.index):
            continue
        for kind, num_bytes in _kinds(schedule, action, moved[action.index]).items():
            found[kind] += num_bytes
    return found


def _kinds(schedule: Schedule, action: Action, num_bytes: int) -> dict[str, int]:
    if action.op in (Op.AGGREGATE, Op.BACKWARD, Op.RECOMPUTE, Op.ACCUMULATE):
        return {"read": num_bytes}
    if action.op is not Op.COPY:
        return {}  # what an exchange takes, the transport counts
    source, target = (schedule.buffer_of[names[0]] for names in (action.reads, action.writes))
    if source.holds is not None and source.holds.what in _REPLICAS:
        return {"came" if source.tier == "host" else "written": num_bytes}
    if target.tier == "host":
        replicas = target.holds is not None and target.holds.what in _REPLICAS
        half = num_bytes // 2  # into the device, and out of it
        return {"read": half, "written": half} if replicas else {"written": num_bytes}
    return {"read": num_bytes}


def unique_bytes(workload: Workload, ready: Ready, machine: Machine) -> int:
    """Of an epoch: every row of others once a pass that reads rows made in it. Rows of inputs,
    which never change, are not among them."""
    knobs = Knobs(ranks=RANKS, device_cache_frac=1.0, exchange="outputs")
    schedule = STRATEGIES["leo"](workload, ready.shape, ready.layout, machine, knobs)
    pulls = [a for a in schedule.actions if a.rank == RANK and a.op is Op.COPY]
    return sum(action.moved_bytes for action in pulls)


def emptied(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def device_of(kind: str) -> torch.device:
    return indexed(torch.device(kind))
