"""Staged epochs on a CPU: under a share of what the resident run holds, against the resident epoch.

"The device" is a capped arena. Both runs are the same model and graph in one process and take
turns, a step each; their losses agree to float32. Bytes are predicted and measured. Processor
seconds are of all threads: where others use the machine, they say more than the clock does.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tiergnn as tg
from provenance import RESULTS, provenance
from tiergnn.graph.csr import Graph
from tiergnn.graph.generate import rmat
from tiergnn.graph.table import Table
from tiergnn.models.zoo import build
from tiergnn.runtime.executor import Resident
from tiergnn.runtime.staged import Staged
from tiergnn.schedule.actions import Op
from tiergnn.training.scoring import Scoring

CLASSES = 16


def example(num_nodes: int, num_edges: int, num_features: int) -> Graph:
    made = rmat(num_nodes, num_edges, seed=0)
    draw = np.random.default_rng(0)
    return Graph(
        rowptr=made.rowptr,
        col=made.col,
        x=Table.from_array(draw.standard_normal((num_nodes, num_features), np.float32)),
        y=draw.integers(0, CLASSES, num_nodes),
        task="class",
        num_classes=CLASSES,
        splits={"train": np.arange(0, num_nodes, 2)},
    )


def measure(name: str, graph: Graph, args: argparse.Namespace) -> list[dict[str, Any]]:
    assert graph.x is not None
    torch.manual_seed(0)
    model = build(name, graph.x.width, CLASSES, hidden_channels=args.hidden, num_layers=args.layers)
    resident_plan = tg.plan(graph, model, strategies=["resident"], device="cpu")
    held_bytes = resident_plan.peak_bytes["device"]
    scoring = Scoring(graph, dict(graph.splits), torch.device("cpu"))
    resident = Resident(copy.deepcopy(model), graph)
    results = []
    for strategy in args.strategies:
        plan = tg.plan(
            graph, model, strategies=[strategy], device="cpu",
            device_memory=int(args.share * held_bytes),
        )  # fmt: skip
        staged = Staged(copy.deepcopy(model), graph, plan, labelled=graph.splits["train"])
        share = scoring.by_parts(staged.parts.gids, staged.device)
        times: dict[str, list[float]] = {"resident": [], "staged": []}
        spent: dict[str, list[float]] = {"resident": [], "staged": []}  # of processors
        for step in range(args.rounds + 2):
            losses = {}
            for form in (("resident", "staged"), ("staged", "resident"))[step % 2]:
                run, loss_of = (resident, scoring.loss) if form == "resident" else (staged, share)
                run.model.zero_grad()
                start, before = time.perf_counter(), time.process_time()
                losses[form] = run.train_step(loss_of, step)
                if step >= 2:  # by then kernels and caches are made
                    times[form].append(time.perf_counter() - start)
                    spent[form].append(time.process_time() - before)
            assert abs(losses["staged"] / losses["resident"] - 1) < 1e-5, losses
        medians = {form: statistics.median(found) for form, found in times.items()}
        timeline = staged.timeline
        assert timeline is not None
        copies = [action for action in staged.schedule.actions if action.op is Op.COPY]
        planned = sum(action.moved_bytes for action in copies)
        results.append(
            {
                "model": name,
                "strategy": strategy,
                "knobs": str(plan.knobs),
                "resident_bytes": held_bytes,
                "device_budget_bytes": int(args.share * held_bytes),
                "peak_bytes": staged.peak_bytes,
                "resident_s": medians["resident"],
                "staged_s": medians["staged"],
                "least_s": {form: min(found) for form, found in times.items()},
                "processor_s": {form: statistics.median(found) for form, found in spent.items()},
                "ratio": medians["staged"] / medians["resident"],
                "planned_moved_bytes": planned,
                "measured_moved_bytes": sum(timeline.moved_bytes().values()),
                "busy_s": {lane: seconds for (_, lane), seconds in timeline.busy_s().items()},
            }
        )
        staged.close()
        del staged
        gc.collect()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["gcn", "sage"])
    parser.add_argument("--strategies", nargs="+", default=["grinnder", "hongtu", "sliced"])
    parser.add_argument("--nodes", type=int, default=250_000)
    parser.add_argument("--edges", type=int, default=5_000_000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--share", type=float, default=0.25, help="of the resident run's bytes")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=RESULTS / "staged-cpu.json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    graph = example(args.nodes, args.edges, args.features)
    options = {k: v for k, v in vars(args).items() if k != "out"}
    record = provenance() | {"load": os.getloadavg(), "options": options, "results": []}
    for name in args.models:
        for result in measure(name, graph, args):
            record["results"].append(result)
            print(
                f"{name:5} {result['strategy']:9} {result['knobs']:30} resident "
                f"{result['resident_s']:.3f} s  staged {result['staged_s']:.3f} s  "
                f"ratio {result['ratio']:.2f}",
                flush=True,
            )
    args.out.parent.mkdir(exist_ok=True)
    args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
