"""How near plans come: bytes and seconds of resident runs, predicted and measured, in one table.

Bytes are those of torch's allocator (tests/models/held.py), large outputs among them. Seconds are
medians of steps, predicted by the rates of this machine alone and again with the constants that
were fitted to the other models' steps of the same table (leave one model out), so that no step is
predicted from itself.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from provenance import RESULTS, ROOT, provenance

sys.path.append(str(ROOT))
from tests.models.held import measured, predicted, trainer_of, workloads
from tests.models.test_meter import graph_of

from tiergnn.graph.csr import Graph
from tiergnn.graph.shape import shape_of
from tiergnn.hardware.measure import measure
from tiergnn.kernels import memory
from tiergnn.models import zoo
from tiergnn.planner.cost import Costs
from tiergnn.planner.fit import fit
from tiergnn.planner.simulate import simulate
from tiergnn.planner.strategies import resident
from tiergnn.schedule.schedule import Schedule
from tiergnn.schedule.timeline import Timeline
from tiergnn.training.options import Options

SIZES = ((100_000, 1_000_000), (300_000, 4_000_000), (1_000_000, 10_000_000))
MODELS = ("gcn", "sage", "gat", "gin")
WIDTH, CLASSES = 64, 16


@dataclass(frozen=True)
class Sample:
    """One model's measured step: what was planned, when its actions ran, seconds of whole steps."""

    model: str
    row: dict[str, Any]
    schedule: Schedule
    timeline: Timeline


def build(name: str, layers: int) -> torch.nn.Module:
    hidden = 8 if name == "gat" else 64
    return zoo.build(name, WIDTH, CLASSES, num_layers=layers, hidden_channels=hidden,
                     norm="batch", dropout=0.5)  # fmt: skip


def bytes_of(graph: Graph, name: str, layers: int, works: list[Any]) -> dict[str, Any]:
    """Predicted and measured bytes; all of them by one allocator, whose peak is one number."""
    options = Options(device="cpu", epochs=1)
    step, evaluation = predicted(graph, *works)
    large, memory.LARGE_BYTES = memory.LARGE_BYTES, 2**62
    try:
        got_step, got_evaluation = measured(graph, build(name, layers), options)
    finally:
        memory.LARGE_BYTES = large
    return {
        "predicted step bytes": step.num_bytes,
        "measured step bytes": got_step,
        "step bytes over measured": step.num_bytes / got_step,
        "kinds": step.kinds,
        "predicted evaluation bytes": evaluation.num_bytes,
        "measured evaluation bytes": got_evaluation,
        "evaluation bytes over measured": evaluation.num_bytes / got_evaluation,
    }


def seconds_of(
    graph: Graph, name: str, layers: int, works: list[Any], steps: int
) -> tuple[Schedule, Timeline, float]:
    """The schedule, the timeline of the median step, and the median seconds of steps."""
    schedule = resident.training(works[0], shape_of(graph))
    trainer = trainer_of(graph, build(name, layers), Options(device="cpu", epochs=1))
    trainer.resident._step = trainer.resident._walk(True, schedule)
    runs = []
    for step in range(1, steps + 2):
        start = time.perf_counter()
        trainer._step(step)
        runs.append((time.perf_counter() - start, trainer.resident.timeline))
    taken, timeline = sorted(runs[1:], key=lambda run: run[0])[steps // 2]
    assert timeline is not None
    return schedule, timeline, taken


def add_seconds(samples: list[Sample], costs: Costs) -> None:
    """Predicted seconds, by rates alone and by what the other models taught."""
    for sample in samples:
        others = [(s.schedule, s.timeline) for s in samples if s.model != sample.model]
        by_rates = simulate(sample.schedule, costs.machine, costs).seconds
        measured_s = sample.row["measured seconds"]
        sample.row["predicted seconds"] = by_rates
        sample.row["error, probe alone"] = by_rates / measured_s - 1
        if others:
            learned = fit(costs, others).costs
            after = simulate(sample.schedule, costs.machine, learned).seconds
            sample.row["fitted seconds"] = after
            sample.row["error, fitted"] = after / measured_s - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[0, 1, 2], help="of SIZES")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--no-seconds", action="store_true", help="bytes alone: a busy machine")
    parser.add_argument("--out", type=Path, default=RESULTS / "plan-accuracy-cpu.json")
    args = parser.parse_args()
    record = provenance() | {"threads": torch.get_num_threads(), "results": []}
    samples: list[Sample] = []
    for name in args.models:
        for layers in args.layers:
            works: list[Any] = []
            for size in args.sizes:
                nodes, edges = SIZES[size]
                graph = graph_of(nodes, edges, WIDTH, CLASSES)
                works = works or workloads(graph, build(name, layers), Options(device="cpu"))
                row = {"model": name, "layers": layers, "nodes": nodes, "edges": graph.num_edges}
                row |= bytes_of(graph, name, layers, works)
                if not args.no_seconds:
                    schedule, timeline, taken = seconds_of(graph, name, layers, works, args.steps)
                    row["measured seconds"] = taken
                    samples.append(Sample(name, row, schedule, timeline))
                record["results"].append(row)
                print({k: v for k, v in row.items() if k != "kinds"}, flush=True)
    if samples:
        machine = measure(device="cpu")
        add_seconds(samples, Costs.of(machine))
        record["machine measured"] = machine.date
    print(table_of(record["results"]))
    record |= {"summary": summary(record["results"])}
    print(json.dumps(record["summary"], indent=1))
    args.out.write_text(json.dumps(record, indent=1) + "\n")


def table_of(rows: list[dict[str, Any]]) -> str:
    """A line a cell: bytes over measured; seconds measured, and how far predictions are off."""
    lines = [
        f"{'model':6}{'layers':>7}{'nodes':>11}{'edges':>12}{'step bytes':>12}{'eval bytes':>12}"
        f"{'measured':>11}{'probe alone':>13}{'fitted':>9}"
    ]
    for row in rows:
        bytes_ = (f"{row[f'{what} bytes over measured']:12.4f}" for what in ("step", "evaluation"))
        taken = row.get("measured seconds")
        errors = (row.get(f"error, {which}") for which in ("probe alone", "fitted"))
        told = [
            "-" if taken is None else f"{taken * 1e3:.1f} ms",
            *("-" if error is None else f"{error:+.1%}" for error in errors),
        ]
        lines.append(
            f"{row['model']:6}{row['layers']:>7}{row['nodes']:>11,}{row['edges']:>12,}"
            f"{''.join(bytes_)}{told[0]:>11}{told[1]:>13}{told[2]:>9}"
        )
    return "\n".join(lines)


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The worst of each comparison, and the medians of those of seconds."""
    found = {}
    for what in ("step", "evaluation"):
        over = [row[f"{what} bytes over measured"] for row in rows]
        found |= {f"least {what} bytes over measured": min(over)}
        found |= {f"most {what} bytes over measured": max(over)}
    for which in ("predicted", "fitted"):
        errors = [
            abs(row[f"{which} seconds"] / row["measured seconds"] - 1)
            for row in rows
            if f"{which} seconds" in row
        ]
        if errors:
            found[f"{which} seconds: median error"] = statistics.median(errors)
            found[f"{which} seconds: worst error"] = float(np.max(errors))
    return found


if __name__ == "__main__":
    main()
