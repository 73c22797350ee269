"""What walking a schedule costs: a training step by the executor against one graph of the whole.

Both are the same model, block, loss and optimizer in one process and take turns, a step each, so
that what else the machine does meets both alike; ratios are of medians and of the least. The
losses of the two agree to the last bit.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from provenance import RESULTS, provenance
from tiergnn.graph.csr import Graph
from tiergnn.graph.generate import rmat
from tiergnn.graph.table import Table
from tiergnn.models.zoo import build
from tiergnn.runtime.executor import Resident

MODELS = ("gcn", "sage", "gat", "gin")
# Nodes, edges, features: as Cora is, and larger.
GRAPHS = {
    "cora": (2_708, 10_556, 1_433),
    "1e5": (100_000, 1_000_000, 64),
    "1e6": (1_000_000, 10_000_000, 64),
}


def measure(name: str, graph: str, rounds: int) -> dict[str, Any]:
    num_nodes, num_edges, num_features = GRAPHS[graph]
    made = rmat(num_nodes, num_edges, seed=0)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num_nodes, num_features, generator=generator)
    y = torch.randint(0, 7, (num_nodes,), generator=generator)
    made = Graph(
        rowptr=made.rowptr, col=made.col, x=Table.from_array(x.numpy()), y=y.numpy(),
        task="class", num_classes=7,
    )  # fmt: skip
    torch.manual_seed(0)
    options = {"heads": 2} if name == "gat" else {}
    model = build(name, num_features, 7, hidden_channels=16, **options)
    held = Resident(model, made)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def loss_of(out: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(out, y)

    def whole(step: int) -> float:
        optimizer.zero_grad()
        loss = loss_of(held.forward(True, step))
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    def walked(step: int) -> float:
        optimizer.zero_grad()
        loss = held.train_step(loss_of, step)
        held.update(optimizer.step)
        return loss

    def measured(step: int) -> float:
        optimizer.zero_grad()
        loss = held.train_step(loss_of, step, measure=True)
        held.update(optimizer.step)
        return loss

    forms = {"whole": whole, "executor": walked, "executor, measured": measured}
    times: dict[str, list[tuple[float, float]]] = {form: [] for form in forms}
    for step in range(rounds + 2):
        losses = set()
        for form in (*forms, *forms)[step % 3 : step % 3 + 3]:  # each is first as often
            wall, cpu = time.perf_counter(), time.process_time()
            losses.add(forms[form](step))
            spent = time.perf_counter() - wall, time.process_time() - cpu
            if step >= 2:  # by then kernels and caches are made
                times[form].append(spent)
        assert len(losses) == 1, losses
    result: dict[str, Any] = {"model": name, "graph": graph}
    for form, pairs in times.items():
        walls, cpus = zip(*pairs, strict=True)
        result[form] = {
            "median_s": statistics.median(walls),
            "least_s": min(walls),
            "median_cpu_s": statistics.median(cpus),
            "least_cpu_s": min(cpus),
        }
    for form in tuple(times)[1:]:
        result[f"ratio of {form}"] = {
            kind: round(result[form][kind] / result["whole"][kind], 4) for kind in result["whole"]
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--graphs", nargs="+", choices=GRAPHS, default=list(GRAPHS))
    parser.add_argument("--rounds", type=int, nargs="+", default=[300, 20, 6], help="by graph")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=RESULTS / "executor-cpu.json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    record = provenance() | {"threads": torch.get_num_threads(), "results": []}
    for graph, rounds in zip(args.graphs, args.rounds, strict=False):
        for name in args.models:
            result = measure(name, graph, rounds)
            record["results"].append(result)
            for form in ("executor", "executor, measured"):
                ratio = result[f"ratio of {form}"]
                print(
                    f"{graph:5} {name:5} {form:20}"
                    f" whole {result['whole']['median_s'] * 1e3:9.2f} ms"
                    f"  ratio {ratio['median_s']:.3f} (least {ratio['least_s']:.3f},"
                    f" CPU {ratio['median_cpu_s']:.3f})",
                    flush=True,
                )
            gc.collect()
    args.out.parent.mkdir(exist_ok=True)
    args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
