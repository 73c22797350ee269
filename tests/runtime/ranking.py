"""Ranked and resident runs of one model over one graph, side by side; ranks are threads."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from tests.models.nets import NETS
from tests.planner.strategies.cases import machine
from tests.runtime.staging import close, plan_of, random_graph, workload
from tests.transport.processes import FORKSERVER, FRESH
from tiergnn.graph.csr import Graph
from tiergnn.graph.partition import Partition
from tiergnn.planner.plan import Plan
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.runtime.executor import Resident
from tiergnn.runtime.ranked import Ranked
from tiergnn.transport.launch import launch
from tiergnn.transport.transport import Transport
from tiergnn.workload import Workload


@dataclass
class Seen:
    """What one rank saw: losses of all epochs, gradients of the last, and outputs."""

    losses: list[float] = field(default_factory=list)
    grads: list[Any] = field(default_factory=list)
    buffers: list[torch.Tensor] = field(default_factory=list)
    out: torch.Tensor | None = None
    moved: list[tuple[Any, int]] = field(default_factory=list)  # (action, bytes)
    peaks: dict[str, int] = field(default_factory=dict)
    schedules: tuple[Any, ...] = ()


def train(
    t: Transport, graph: Graph, plan: Plan, parts: Partition, evaluated: Workload, models, seen,
    device: str = "cpu",
) -> None:  # fmt: skip
    """Some epochs of one rank, into ``seen`` by its number."""
    model, dtype, ids = models[t.rank], *facts(graph, plan)
    ranked = Ranked(
        model, graph, plan, t, labelled=ids, dtype=dtype, parts=parts, evaluated=evaluated,
        device=device,
    )  # fmt: skip
    rows = ranked.rows.cpu()
    mine = torch.isin(rows, torch.from_numpy(ids))
    y = torch.from_numpy(graph.y)[rows][mine].to(device)

    def share(out, part):
        assert part == t.rank
        return F.cross_entropy(out[mine.to(device)], y, reduction="sum") / len(ids)

    found = Seen()
    for epoch in range(3):
        model.zero_grad()
        found.losses.append(ranked.train_step(share, epoch))
        ranked.update(lambda: move(model))
    found.grads = [p.grad for p in model.parameters()]
    found.buffers = list(model.buffers())
    found.out = ranked.whole(ranked.infer())
    assert ranked.timeline is not None
    actions = {a.index: a for a in ranked.schedule.actions}
    found.moved = [(actions[s.index], s.moved_bytes) for s in ranked.timeline.spans]
    found.peaks = ranked.peak_bytes
    found.schedules = ranked.schedule, ranked.evaluation
    seen[t.rank] = found
    ranked.close()


def facts(graph: Graph, plan: Plan):
    return getattr(torch, plan.workload.dtype), graph.splits["train"]


def make(name: str, plan: Plan) -> torch.nn.Module:
    torch.manual_seed(0)
    return NETS[name]().to(getattr(torch, plan.workload.dtype))


def move(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None:
                p -= 0.05 * p.grad


def resident(graph: Graph, plan: Plan, name: str, device: str = "cpu") -> Seen:
    """The same on one device."""
    model, dtype, ids = make(name, plan), *facts(graph, plan)
    whole = Resident(model, graph, dtype=dtype, device=device)
    ids = torch.from_numpy(ids).to(device)
    y = torch.from_numpy(graph.y).to(device)[ids]
    found = Seen()
    for epoch in range(3):
        model.zero_grad()
        found.losses.append(whole.train_step(lambda out: F.cross_entropy(out[ids], y), epoch))
        whole.update(lambda: move(model))
    found.grads = [p.grad for p in model.parameters()]
    found.buffers = list(model.buffers())
    found.out = whole.infer()
    return found


def dealt(graph: Graph, num_ranks: int, seed: int) -> Partition:
    owners = np.random.default_rng(seed).integers(0, num_ranks, graph.num_nodes)
    return Partition(graph=graph, part_of=owners.astype(np.int32), num_parts=num_ranks)


def knobs_of(way: str, num_ranks: int) -> tuple[str, Knobs]:
    """A strategy, what of the rows it caches on device and host, and what refreshes those: "halo",
    "leo 0.1 0.2 inputs"."""
    strategy, *shares = way.split()
    if not shares:
        return strategy, Knobs(ranks=num_ranks)
    device, host, *exchange = shares
    return strategy, Knobs(
        ranks=num_ranks,
        device_cache_frac=float(device),
        host_cache_frac=float(host),
        exchange=exchange[0] if exchange else "outputs",
    )


def ranked(
    name, graph, way, num_ranks, *, dtype=torch.float64, seed=0, started=None, device="cpu",
    **knobs,
) -> tuple[list[Seen], Plan]:  # fmt: skip
    """What all ranks saw, and the plan. ``started``: so many ranks instead."""
    parts = dealt(graph, num_ranks, seed)
    strategy, chosen = knobs_of(way, num_ranks)
    chosen = replace(chosen, **knobs)
    there = machine(max(8, num_ranks))
    plan = plan_of(name, strategy, chosen, graph, parts, dtype, there)
    evaluated = workload(name, dtype, False)
    seen: dict[int, Seen] = {}
    models = [make(name, plan) for _ in range(num_ranks)]  # threads share one random state
    arguments = graph, plan, parts, evaluated, models, seen, device
    launch(train, started or num_ranks, arguments, transport="virtual")
    return [seen[rank] for rank in range(num_ranks)], plan


Case = tuple[str, str]  # (strategy and caches, model)


def in_process(
    t: Transport, cases: list[Case], size: tuple[int, int, int], folder: str, kind: str
) -> None:
    """A rank that is a process of its own, held to one device there."""
    device = kind if kind == "cpu" else f"{kind}:{torch.cuda.current_device()}"
    graph, there = random_graph(*size), dealt(random_graph(*size), t.size, 0)
    alone: dict[str, Seen] = {}
    for way, name in cases:
        plan = Plan.load(Path(folder, f"{way}-{name}.json"))
        evaluated = Workload.load(Path(folder, f"{name}.json"))
        seen: dict[int, Seen] = {}
        train(t, graph, plan, there, evaluated, {t.rank: make(name, plan)}, seen, device)
        if name not in alone:
            alone[name] = resident(graph, plan, name, device)
        try:
            same(t.rank, seen[t.rank], alone[name])
        except AssertionError as error:
            raise AssertionError(f"{way} {name}: {error}") from error
        t.barrier(tag=f"{way} {name}")


def same(rank: int, ours: Seen, theirs: Seen) -> None:
    for mine, other in zip(ours.losses, theirs.losses, strict=True):
        assert abs(mine - other) <= 1e-10 * max(1.0, abs(other)), (mine, other)
    for mine, other in zip(
        [*ours.grads, *ours.buffers], [*theirs.grads, *theirs.buffers], strict=True
    ):
        close(mine, other, 1e-10)
    if rank == 0:
        assert ours.out is not None
        assert theirs.out is not None
        close(ours.out.cpu(), theirs.out.cpu(), 1e-9)


def start_processes(
    cases: list[Case], size: tuple[int, int, int], num_ranks: int, transport: str, folder,
    kind: str = "cpu", **options,
) -> None:  # fmt: skip
    """All cases in the same processes. ``options`` are those of ``launch``."""
    graph = random_graph(*size)
    parts = dealt(graph, num_ranks, 0)
    for way, name in cases:
        strategy, knobs = knobs_of(way, num_ranks)
        plan = plan_of(name, strategy, knobs, graph, parts, torch.float64, machine(8))
        plan.save(folder / f"{way}-{name}.json")
        workload(name, torch.float64, False).save(folder / f"{name}.json")
    launch(
        in_process,
        num_ranks,
        (cases, size, str(folder), kind),
        transport=transport,
        context=FORKSERVER if kind == "cpu" else FRESH,
        **options,
    )


def compare(name, graph, way, num_ranks, *, dtype=torch.float64, seed=0, device="cpu", **knobs):
    """Losses, gradients, statistics and predictions are the resident run's, alike on all ranks."""
    knobs.update(dtype=dtype, seed=seed, device=device)
    ours, plan = ranked(name, graph, way, num_ranks, **knobs)
    theirs, rel = resident(graph, plan, name, device), 1e-10 if dtype == torch.float64 else 1e-5
    for got in ours:
        assert got.losses == ours[0].losses
        for mine, first in zip(got.grads, ours[0].grads, strict=True):
            assert mine is first is None or torch.equal(mine, first)
    for mine, other in zip(ours[0].losses, theirs.losses, strict=True):
        assert abs(mine - other) <= rel * max(1.0, abs(other))
    for mine, other in zip(ours[0].grads, theirs.grads, strict=True):
        close(mine, other, rel)
    for mine, other in zip(ours[0].buffers, theirs.buffers, strict=True):
        close(mine, other, rel)
    close(ours[0].out, theirs.out, 10 * rel)
    return ours
