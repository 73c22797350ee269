"""Full-graph epochs of the papers100M shape on one GPU under a budget, measured beside planned.

An R-MAT graph of 111 million nodes and 1.6 billion edges (``--shrink`` N: 1/N of both) is made on
the device in blocks; features are bfloat16 in host memory, rows off the device as well. The planner
chooses; where nothing fits, the row has what would do. Each epoch is written as it is known.
``--modelled`` writes the plan of the whole shape alone, from its counts, on the preset machine.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")  # as the command line

import numpy as np
import torch
from torch import Tensor

from provenance import RESULTS, provenance
from staged_gpu import as_measured, least_s, link_rates, planned_bytes
from tiergnn.errors import PlanError
from tiergnn.graph.csr import Graph
from tiergnn.graph.published import published_shape
from tiergnn.graph.shape import GraphShape, shape_of
from tiergnn.graph.table import Table
from tiergnn.hardware.capacities import ASIDE_BYTES
from tiergnn.hardware.machine import Machine
from tiergnn.hardware.presets import resolve
from tiergnn.models.zoo import build
from tiergnn.planner.choose import Choosing, best
from tiergnn.runtime.memory import PeakMeter
from tiergnn.runtime.staged import Staged
from tiergnn.schedule.actions import Op
from tiergnn.schedule.schedule import Schedule
from tiergnn.schedule.timeline import Timeline
from tiergnn.training.metering import workload_of
from tiergnn.training.optimizers import make_optimizer
from tiergnn.training.options import Options
from tiergnn.training.scoring import Scoring
from tiergnn.units import format_bytes, parse_bytes

NODES, EDGES, FEATURES, CLASSES = 111_059_956, 1_615_685_872, 128, 172
LABELLED = 0.0109  # of the nodes: 1,207,179 train
QUARTERS = (0.57, 0.19, 0.19)
_DRAWN = 2**26  # edges at once


def edges_of(num_nodes: int, num_edges: int, device: str) -> tuple[Tensor, Tensor]:
    """rowptr int64 [V+1] and col int32 [E] of an R-MAT graph without self-loops, in host memory."""
    generator = torch.Generator(device=device).manual_seed(1)
    name_of = torch.randperm(num_nodes, generator=generator, device=device, dtype=torch.int32)
    key = torch.empty(num_edges, dtype=torch.int64, device=device)
    done = 0
    while done < num_edges:
        src, dst = _draw(num_nodes, min(_DRAWN, 2 * (num_edges - done) + 64), generator)
        kept = torch.nonzero((src < num_nodes) & (dst < num_nodes) & (src != dst)).flatten()
        kept = kept[: num_edges - done]
        src, dst = name_of[src[kept]], name_of[dst[kept]]
        key[done : done + kept.numel()] = dst.long() * num_nodes + src
        done += kept.numel()
    del name_of, src, dst, kept
    key = key.sort().values
    starts = torch.arange(num_nodes + 1, device=device) * num_nodes
    rowptr = torch.searchsorted(key, starts).cpu()
    col = torch.empty(num_edges, dtype=torch.int32)
    for first in range(0, num_edges, _DRAWN):
        col[first : first + _DRAWN] = (key[first : first + _DRAWN] % num_nodes).int().cpu()
    return rowptr, col


def _draw(num_nodes: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    a, b, c = QUARTERS
    src = torch.zeros(count, dtype=torch.int64, device=generator.device)
    dst = torch.zeros_like(src)
    for _ in range((num_nodes - 1).bit_length()):
        chance = torch.rand(count, generator=generator, device=generator.device)
        low = chance >= a + b
        right = ((chance >= a) & ~low) | (chance >= a + b + c)
        src, dst = src * 2 + low, dst * 2 + right
    return src, dst


class Features:
    """bfloat16 [V, D] whose memory can be given back once a run has its own copy."""

    def __init__(self, num_nodes: int, width: int, device: str):
        # Private: of shared memory MADV_DONTNEED gives nothing back.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._memory = mmap.mmap(-1, 2 * num_nodes * width, flags=flags)
        bits = np.frombuffer(self._memory, np.int16).reshape(num_nodes, width)
        step = max(1, 2**28 // width)
        for first in range(0, num_nodes, step):
            rows = torch.randn(min(step, num_nodes - first), width, device=device)
            stored = rows.bfloat16().view(torch.int16)
            torch.from_numpy(bits[first : first + step]).copy_(stored)
        self.table = Table(data=bits.view(np.uint16), dtype="bfloat16")

    def forget(self) -> None:
        self._memory.madvise(mmap.MADV_DONTNEED)


def graph_of(args: argparse.Namespace) -> tuple[Graph, Features]:
    num_nodes, num_edges = NODES // args.shrink, EDGES // args.shrink
    rowptr, col = edges_of(num_nodes, num_edges, args.device)
    features = Features(num_nodes, FEATURES, args.device)
    draw = np.random.default_rng(0)
    labelled = np.unique(draw.integers(0, num_nodes, int(LABELLED * num_nodes)))
    y = np.full(num_nodes, -1, np.int64)
    y[labelled] = draw.integers(0, CLASSES, labelled.size)
    graph = Graph(
        rowptr=rowptr.numpy(), col=col.numpy(), x=features.table, y=y, task="class",
        num_classes=CLASSES, splits={"train": labelled},
    )  # fmt: skip
    return graph, features


def asked_of(graph: Graph, shape: GraphShape, machine: Machine, args: argparse.Namespace):
    """The model, and all that its plan is chosen from."""
    torch.manual_seed(0)
    model = build(
        "gcn", FEATURES, CLASSES, hidden_channels=args.hidden, num_layers=args.layers,
        input_dropout=0.0,
    )  # fmt: skip
    options = Options(device=args.device)
    workload, prepared = (workload_of(graph, model, options, prepared=p) for p in (False, True))
    budget = machine.with_budgets(device_bytes=parse_bytes(args.budget) - ASIDE_BYTES)
    return model, Choosing(
        workload=workload, prepared=prepared, shape=shape, storage=("bfloat16",), machine=budget
    )


def by_kind(schedule: Schedule, timeline: Timeline) -> dict[str, list[float]]:
    """Lane, operation, and of how many buffers a copy is -> seconds, bytes moved and how many."""
    found: dict[str, list[float]] = {}
    actions = {action.index: action for action in schedule.actions}
    for span in timeline.spans:
        action = actions[span.index]
        kind = f"{span.lane} {action.op}"
        if action.op is Op.COPY:
            many = max(len(action.reads), len(action.writes)) > 1
            kind += " slices of a block" if many else " one"
        sums = found.setdefault(kind, [0.0, 0, 0])
        for i, more in enumerate((span.end_s - span.start_s, span.moved_bytes, 1)):
            sums[i] += more
    return found


def write_modelled(args: argparse.Namespace) -> None:
    """Plans of 128 columns in 24 GiB and of 256 on the whole card."""
    args.shrink, args.device, record = 10_000, "cpu", {**provenance(), "modelled": []}
    graph, _ = graph_of(args)
    shape = replace(published_shape("papers100M"), feature_dtype="bfloat16")
    for args.hidden, args.budget in ((128, "24GiB"), (256, "138GiB")):
        _, asked = asked_of(graph, shape, resolve(args.machine), args)
        plan = best(asked.trials(args.strategies))
        moved = {str(lane): n for lane, n in plan.timeline.moved_bytes().items() if n}
        record["modelled"].append(
            {"hidden": args.hidden, "device budget": args.budget, "plan": str(plan).splitlines(),
             "seconds": plan.seconds, "peak_bytes": plan.peak_bytes, "moved_bytes": moved}
        )  # fmt: skip
        print(plan)
    (args.out / "papers-modelled.json").write_text(json.dumps(record, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--machine", default="h200")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--budget", default="24GiB", help="of the device")
    parser.add_argument("--strategies", nargs="*", default=[])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--shrink", type=int, default=1, help="graphs this many times smaller")
    parser.add_argument("--limit-s", type=float, default=540.0)
    parser.add_argument("--modelled", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.modelled:
        write_modelled(args)
        return
    begun = clock = time.monotonic()
    record: dict[str, Any] = {**provenance(), "took_s": {}, "epochs_s": [], "losses": []}
    args.out.mkdir(parents=True, exist_ok=True)

    def lap(what: str) -> None:
        nonlocal clock
        record["took_s"][what] = time.monotonic() - clock
        print(f"{what}: {record['took_s'][what]:.1f} s", flush=True)
        (args.out / "papers_gpu.json").write_text(json.dumps(record, indent=1) + "\n")
        clock = time.monotonic()

    device = torch.device(args.device)
    rates = record["rates_Bps"] = link_rates(device)
    graph, features = graph_of(args)
    if device.type == "cuda":
        record["gpu"] = torch.cuda.get_device_name()
        torch.cuda.empty_cache()
    lap("graph")
    machine = as_measured(resolve(args.machine), rates)
    model, asked = asked_of(graph, shape_of(graph), machine, args)
    lap("metering")
    try:
        plan = best(asked.trials(args.strategies))
    except PlanError as error:
        record["refused"] = str(error)
        lap("planning")
        print(error)
        return
    record |= {"plan": str(plan), "predicted_s": plan.seconds, "planned_peak": plan.peak_bytes}
    print(plan, flush=True)
    lap("planning")
    meter = PeakMeter(device)
    staged = Staged(
        model, graph, plan, labelled=graph.splits["train"], device=device, evaluates=False
    )
    features.forget()  # the run's own copy is pinned
    lap("setting up")
    share = Scoring(graph, dict(graph.splits), device).by_parts(staged.parts.gids, device)
    optimizer = make_optimizer("adam", staged.model, [], 0.01, 0.0)
    record["planned_bytes"] = planned_bytes(staged)
    for epoch in range(1, args.epochs + 1):
        if time.monotonic() - begun > args.limit_s:
            break
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        record["losses"].append(staged.train_step(share, epoch))
        staged.update(optimizer.step)
        if device.type == "cuda":
            torch.cuda.synchronize()
        record["epochs_s"].append(time.perf_counter() - start)
        timeline = staged.timeline
        assert timeline is not None
        moved = {lane: n for lane, n in timeline.moved_bytes().items() if n}
        record |= {
            "moved_bytes": moved,
            "link_limit_s": least_s(moved, rates),
            "busy_s": {lane: s for (_, lane), s in timeline.busy_s().items()},
            "by_kind": by_kind(staged.schedule, timeline),
            "peak_bytes": staged.peak_bytes | {"resident set": meter.read()["host"]},
        }
        print(
            f"epoch {epoch}: {record['epochs_s'][-1]:.2f} s (predicted {plan.seconds:.2f}, link "
            f"{record['link_limit_s']:.2f}), loss {record['losses'][-1]:.4f}, "
            + ", ".join(f"{lane} {format_bytes(n)}" for lane, n in moved.items()),
            flush=True,
        )
        lap(f"epoch {epoch}")
    print({tier: format_bytes(n) for tier, n in record["peak_bytes"].items()}, flush=True)


if __name__ == "__main__":
    main()
