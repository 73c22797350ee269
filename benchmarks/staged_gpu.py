"""Staged epochs on one GPU under a budget, against what the measured link allows for their bytes.

The budget is what lies on the device in any case (edges, parameters) and a tenth of what a
resident step keeps for its backward, or the least with which a strategy can run. A cell is "shape
model layers strategy", as "products gcn 3 sliced". Its row has the measured epoch beside the
predicted one, bytes by lane beside the planned, what the link's measured rates allow for these
bytes (what goes both ways at once at the rate of both, the rest alone), peaks beside budgets, and
how long each lane was busy or stood still. Each row is written as soon as it is known;
``--limit-s`` begins no further cell when it could be late.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
import traceback
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")  # as the command line

import numpy as np
import torch

from gpu_graphs import RMAT, rmat
from provenance import RESULTS, provenance
from tiergnn.errors import PlanError
from tiergnn.graph.csr import Graph
from tiergnn.graph.partition import partition
from tiergnn.graph.shape import Layout, layout_of, shape_of
from tiergnn.graph.table import Table
from tiergnn.hardware.capacities import ASIDE_BYTES
from tiergnn.hardware.machine import Curve, Machine
from tiergnn.hardware.presets import resolve
from tiergnn.memory.pinning import process_pinning
from tiergnn.models.zoo import build
from tiergnn.planner.choose import Choosing, best
from tiergnn.planner.plan import Plan
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.runtime.memory import PeakMeter, device_budget
from tiergnn.runtime.staged import Staged
from tiergnn.schedule.actions import Op
from tiergnn.training.metering import evaluation_of, workload_of
from tiergnn.training.optimizers import make_optimizer
from tiergnn.training.options import Options
from tiergnn.training.scoring import Scoring
from tiergnn.units import format_bytes
from tiergnn.workload import Workload

CELLS = (
    *(f"products gcn 3 {strategy}" for strategy in ("sliced", "grinnder", "hongtu")),
    *(f"orkut gcn 3 {strategy}" for strategy in ("sliced", "grinnder")),
    *(f"products {model} 3 {s}" for model in ("sage", "gat") for s in ("sliced", "grinnder")),
    *(f"products gcn 5 {strategy}" for strategy in ("sliced", "grinnder")),
    *(f"orkut {model} 3 {s}" for model in ("sage", "gat") for s in ("sliced", "grinnder")),
    "orkut gcn 5 sliced",
)
HEADS = 4  # of attention; hidden channels are shared out over them
_COPY_BYTES = 2**28


class Shapes:
    """Graphs by name, made on the device, without self-loops as the published ones are."""

    def __init__(self, device: str, shrink: int):
        self._device, self._shrink = device, shrink
        self.graph = cache(self._make)

    def _make(self, name: str) -> Graph:
        _, _, _, features, classes = RMAT[name]
        block = rmat(name, self._device, shrink=self._shrink).without_loops
        draw = np.random.default_rng(0)
        x = torch.randn(block.num_dst, features, device=self._device).cpu().numpy()
        return Graph(
            rowptr=block.rowptr.cpu().numpy(),
            col=block.col.cpu().numpy(),
            x=Table(data=x, dtype="float32"),
            y=draw.integers(0, classes, block.num_dst),
            task="class",
            num_classes=classes,
            splits={"train": np.arange(0, block.num_dst, 2)},
        )


def link_rates(device: torch.device, num_bytes: int = _COPY_BYTES) -> dict[str, float]:
    """Bytes a second of pinned copies: each way alone, and each way while both are busy."""
    if device.type != "cuda":
        return {"h2d": 20e9, "d2h": 20e9, "both": 10e9}  # to try the script: no link, no meaning
    here = [torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True) for _ in "ab"]
    there = [torch.empty(num_bytes, dtype=torch.uint8, device=device) for _ in "ab"]
    streams = [torch.cuda.Stream(device) for _ in "ab"]

    def seconds(ways: tuple[int, ...]) -> float:
        taken = []
        for _ in range(5):
            torch.cuda.synchronize(device)
            start = time.perf_counter()
            for way in ways:
                with torch.cuda.stream(streams[way]):
                    pair = (there[0], here[0]) if way == 0 else (here[1], there[1])
                    for _ in range(4):
                        pair[0].copy_(pair[1], non_blocking=True)
            torch.cuda.synchronize(device)
            taken.append((time.perf_counter() - start) / 4)
        return min(taken)

    alone = {name: num_bytes / seconds((way,)) for way, name in enumerate(("h2d", "d2h"))}
    return alone | {"both": num_bytes / seconds((0, 1))}


def as_measured(machine: Machine, rates: dict[str, float]) -> Machine:
    """The machine with the link's rates as they are in this run."""
    links = dict(machine.links)
    for name in ("h2d", "d2h"):
        links[name] = replace(
            links[name],
            Bps=Curve.flat(rates[name]),
            duplex_frac=min(1.0, rates["both"] / rates[name]),
        )
    return replace(machine, links=links)


def least_s(moved: dict[str, int], rates: dict[str, float]) -> float:
    """What the link's rates allow: both ways at once as far as that goes, the rest alone."""
    ways = {name: moved.get(name, 0) for name in ("h2d", "d2h")}
    both = min(ways.values())
    longer = max(ways, key=lambda name: ways[name])
    return both / rates["both"] + (ways[longer] - both) / rates[longer]


def model_of(name: str, graph: Graph, layers: int, hidden: int) -> torch.nn.Module:
    torch.manual_seed(0)
    assert graph.x is not None
    assert graph.num_classes is not None
    sizes: dict[str, int] = {"hidden_channels": hidden, "num_layers": layers}
    if name == "gat":
        sizes |= {"hidden_channels": hidden // HEADS, "heads": HEADS}
    return build(name, graph.x.width, graph.num_classes, **sizes)


class Room(NamedTuple):
    """Bytes of the device: what lies there in any case, and what a resident step keeps."""

    there: int
    kept: int


def room_of(asked: Choosing) -> Room:
    memory = replace(asked.machine.device.memory, capacity_bytes=2**50)
    machine = replace(asked.machine, device=replace(asked.machine.device, memory=memory))
    resident = Plan(
        strategy="resident", knobs=Knobs(), workload=asked.workload, shape=asked.shape,
        layout=asked.layout(1), machine=machine,
    )  # fmt: skip
    kinds = resident.held["device"]
    kept = sum(kinds.get(kind, 0) for kind in ("activations", "saved"))
    there = sum(kinds.get(kind, 0) for kind in ("topology", "parameters", "optimizer"))
    return Room(there, kept)


def planned(asked: Choosing, strategy: str, budget_bytes: int) -> Plan:
    """Under the budget, or the least that would do: parts of a graph without communities read
    nearly all rows, however many there are."""
    machine = asked.machine.with_budgets(device_bytes=budget_bytes - ASIDE_BYTES)
    within = replace(asked, machine=machine)
    try:
        return best(within.trials([strategy]))
    except PlanError as error:
        short = error.short
        if short is None or short[0] != "device" or short[1] + ASIDE_BYTES <= budget_bytes:
            raise
        print(f"  {strategy} needs {format_bytes(short[1])} of the device", flush=True)
        return planned(asked, strategy, short[1] + ASIDE_BYTES + 2**20)


def planned_bytes(staged: Staged) -> dict[str, int]:
    """lane -> bytes of the copies that the schedule of the parts as they are asks for."""
    moved: dict[str, int] = {}
    for action in staged.schedule.actions:
        if action.op is Op.COPY and action.moved_bytes:
            moved[str(action.lane)] = moved.get(str(action.lane), 0) + action.moved_bytes
    return moved


def asking(graph: Graph, workload: Workload, machine: Machine) -> Choosing:
    """All strategies on blocks of consecutive nodes, counted as they are."""

    @cache
    def layout(num_parts: int, hot_frac: float) -> Layout:
        return layout_of(partition(graph, num_parts, "block"), graph, hot_frac=hot_frac)

    return Choosing(workload=workload, shape=shape_of(graph), machine=machine, layout_of=layout)


def run(
    cell: str, graph: Graph, args: argparse.Namespace, rates: dict[str, float]
) -> dict[str, Any]:
    """The row of a cell."""
    _, name, layers, strategy = cell.split()
    clock = time.perf_counter()
    took: dict[str, float] = {}

    def lap(what: str) -> None:
        nonlocal clock
        took[what], clock = time.perf_counter() - clock, time.perf_counter()

    model = model_of(name, graph, int(layers), args.hidden)
    options = Options(device=args.device)
    workload = workload_of(graph, model, options)
    evaluated = evaluation_of(graph, model, options)
    lap("metering")
    machine = as_measured(resolve(args.machine), rates)
    asked = asking(graph, workload, machine)
    room = room_of(asked)
    plan = planned(asked, strategy, room.there + int(args.share * room.kept))
    budget = plan.machine.tier("device").available_bytes
    lap("planning")
    device = torch.device(args.device)
    on_gpu = device.type == "cuda"
    row: dict[str, Any] = {
        "cell": cell,
        "knobs": str(plan.knobs),
        "activations_bytes": room.kept,
        "budget_share": (budget - room.there) / room.kept,  # of the activations
        "budget_bytes": {"device": budget, "host": machine.tier("host").available_bytes},
        "planned_peak_bytes": plan.peak_bytes,
        "predicted_s": plan.seconds,
        "predicted_busy_s": {lane: s for (_, lane), s in plan.timeline.busy_s().items()},
    }
    meter = PeakMeter(device)
    with (
        device_budget(device, budget if args.hold else None),
        closing(
            Staged(
                model,
                graph,
                plan,
                labelled=graph.splits["train"],
                device=device,
                evaluated=evaluated,
                capture=args.capture,
            )
        ) as staged,
    ):
        scoring = Scoring(graph, dict(graph.splits), device)
        share = scoring.by_parts(staged.parts.gids, staged.device)
        optimizer = make_optimizer("adam", staged.model, [], 0.01, 0.0)
        lap("setting up")
        row["planned_bytes"] = planned_bytes(staged)
        seconds, losses = [], []
        for epoch in range(1, args.epochs + 1):
            if on_gpu:
                torch.cuda.synchronize()
            start = time.perf_counter()
            optimizer.zero_grad(set_to_none=True)
            losses.append(staged.train_step(share, epoch, measure=args.time_actions))
            staged.update(optimizer.step)
            if on_gpu:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
            row |= {"epochs_s": seconds, "losses": losses}
        lap("epochs")
        timeline = staged.timeline
        assert timeline is not None
        moved = timeline.moved_bytes()
        limit_s = least_s(moved, rates)
        row |= {
            "epoch_s": min(seconds[1:] or seconds),
            "moved_bytes": {lane: n for lane, n in moved.items() if n},
            "link_limit_s": limit_s,
            "share_of_limit": limit_s / min(seconds[1:] or seconds),
            "busy_s": {lane: s for (_, lane), s in timeline.busy_s().items()},
            "stall_s": {lane: s for (_, lane), s in timeline.idle_s().items()},
            "peak_bytes": staged.peak_bytes | {"resident set": meter.read()["host"]},
            "pinned_bytes": process_pinning().pinned_bytes,
            "set_up_s": took,
        }
        if on_gpu:
            row["reserved_bytes"] = torch.cuda.max_memory_reserved()
    return row


def line(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"{row['cell']:24} FAILED {row['failed']}"
    moved = row["moved_bytes"]
    lanes = ", ".join(f"{lane} {s:.2f}" for lane, s in row["stall_s"].items())
    return (
        f"{row['cell']:24} {row['knobs']:24} {row['epoch_s']:7.3f} s "
        f"(first {row['epochs_s'][0]:.1f}), "
        f"predicted {row['predicted_s']:.3f}, link {row['link_limit_s']:.3f} s: "
        f"{100 * row['share_of_limit']:.0f}%\n"
        f"    in {format_bytes(moved.get('h2d', 0))}, out {format_bytes(moved.get('d2h', 0))} of "
        f"planned {row['planned_bytes']}; device {format_bytes(row['peak_bytes']['device'])} of "
        f"{format_bytes(row['budget_bytes']['device'])}, host "
        f"{format_bytes(row['peak_bytes'].get('host', 0))}; stall s: {lanes}; "
        f"loss {row['losses'][0]:.6f} to {row['losses'][-1]:.6f}; set up "
        + ", ".join(f"{what} {s:.0f}" for what, s in row["set_up_s"].items())
    )


def attempt(cell: str, graph: Graph, args: argparse.Namespace, rates: Any) -> dict[str, Any]:
    try:
        return run(cell, graph, args, rates)
    except Exception as error:  # told in its row; the next cell is begun
        told = traceback.format_exception(error, limit=-8)
        return {"cell": cell, "failed": "".join(told)[-4000:]}
    finally:
        gc.collect()
        if args.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", nargs="+", default=CELLS, help="'products gcn 3 sliced' ...")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--machine", default="h200", help="a preset or a file")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--share", type=float, default=0.1, help="of the activations")
    parser.add_argument("--hold", action="store_true", help="the allocator to the budget as well")
    parser.add_argument("--no-capture", dest="capture", action="store_false")
    parser.add_argument("--no-timing", dest="time_actions", action="store_false")
    parser.add_argument("--shrink", type=int, default=1, help="graphs this many times smaller")
    parser.add_argument("--limit-s", type=float, default=540.0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    begun, longest = time.monotonic(), 0.0
    rates = link_rates(torch.device(args.device))
    record: dict[str, Any] = {**provenance(), "rates_Bps": rates, "rows": []}
    if args.device == "cuda":
        record["gpu"] = torch.cuda.get_device_name()
    print(", ".join(f"{way} {rate / 1e9:.1f} GB/s" for way, rate in rates.items()), flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    shapes = Shapes(args.device, args.shrink)
    for cell in args.cells:
        start = time.monotonic()
        if start - begun + longest > args.limit_s:
            print(f"no time is left for {cell}", flush=True)
            continue
        graph = shapes.graph(cell.split()[0])
        row = attempt(cell, graph, args, rates)
        longest = max(longest, time.monotonic() - start)
        row["cell_s"] = time.monotonic() - start
        record["rows"].append(row)
        (args.out / "staged_gpu.json").write_text(json.dumps(record, indent=1) + "\n")
        print(line(row), flush=True)


if __name__ == "__main__":
    main()
