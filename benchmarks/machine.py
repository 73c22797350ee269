"""Measure this machine, and hold what it predicts of aggregation to what is measured.

R-MAT and uniform graphs of three sizes, three widths of float32 rows. The prediction knows the
graph by its counts and by how evenly its rows are read, the machine by `measure` alone. Machine and
sums are measured in turns, size by size: a machine that others use is not the same a minute later.
With --processor-time both are seconds of the processor, over the threads: they show least of what
else the machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from provenance import RESULTS, provenance
from tiergnn import frozen
from tiergnn.graph.csr import Graph
from tiergnn.graph.generate import rmat
from tiergnn.graph.shape import Histogram
from tiergnn.hardware.clock import Call, Clock
from tiergnn.hardware.effort import CPU
from tiergnn.hardware.machine import AROUND
from tiergnn.hardware.measure import measure
from tiergnn.kernels.aggregate import aggregate
from tiergnn.kernels.block import Block
from tiergnn.planner.cost import Costs
from tiergnn.schedule.actions import Action, Lane, Op, Work

SIZES = ((20_000, 300_000), (200_000, 3_000_000), (1_000_000, 15_000_000))
WIDTHS = (16, 64, 256)
_MOST_BYTES = 2**30  # of a sum's tables
KINDS = {
    "R-MAT, a = 0.57": (0.57, 0.19),
    "R-MAT, a = 0.45": (0.45, 0.22),
    "uniform": (0.25, 0.25),
}


def evenness(graph: Graph) -> float:
    times = np.bincount(graph.col, minlength=graph.num_nodes)
    degrees, counts = np.unique(times, return_counts=True)
    return Histogram(tuple(degrees.tolist()), tuple(counts.astype(float).tolist())).evenness


def sum_works(graph: Graph, width: int, even: float) -> tuple[Work, Work]:
    """What a sum over in-edges takes: rows gathered; ids and ends of rows read, sums written."""
    row_bytes = 4 * width
    gathered = Work(
        kind="gather",
        amount=graph.num_edges * row_bytes,
        grain=row_bytes,
        span=graph.num_nodes * row_bytes,
        evenness=even,
    )
    in_order = graph.num_edges * graph.col.itemsize + graph.num_nodes * (8 + row_bytes)
    return gathered, Work(kind="stream", amount=in_order, launches=0)


def predicted_s(costs: Costs, works: tuple[Work, ...]) -> float:
    action = Action(index=0, rank=0, lane=Lane.COMPUTE, op=Op.FORWARD, work=works)
    return costs.seconds(action)


def measured_s(
    graphs: dict[str, Graph], budget_s: float, processor_time: bool
) -> dict[tuple[str, int], float]:
    cpu = torch.device("cpu")
    clock = Clock(device=cpu, budget_s=budget_s, processor_time=processor_time)
    blocks = {kind: Block.from_graph(graph) for kind, graph in graphs.items()}

    def case(kind: str, width: int) -> Call:
        x_SD = torch.ones(blocks[kind].num_src, width)
        # In turns, as in a step what is read was written some operations ago.
        count = max(1, min(AROUND, _MOST_BYTES // x_SD.nbytes))
        tables = cycle([x_SD.clone() for _ in range(count)])
        return lambda: aggregate(blocks[kind], next(tables))

    with torch.no_grad():
        return clock.times(
            {(kind, width): partial(case, kind, width) for kind in blocks for width in WIDTHS}
        )


def compare(
    budget_s: float, most_nodes: int, folder: Path, processor_time: bool
) -> list[dict[str, Any]]:
    rows = []
    effort = replace(CPU, processor_time=processor_time)
    for num_nodes, num_edges in SIZES:
        if num_nodes > most_nodes:
            continue
        graphs = {
            kind: rmat(num_nodes, num_edges, a=a, b=b, c=b, seed=1)
            for kind, (a, b) in KINDS.items()
        }
        taken = measured_s(graphs, budget_s, processor_time)
        costs = Costs.of(measure(folder, refresh=True, device="cpu", effort=effort))
        for kind, graph in graphs.items():
            even = evenness(graph)
            for width in WIDTHS:
                wanted, found = (
                    predicted_s(costs, sum_works(graph, width, even)),
                    taken[kind, width],
                )
                rows.append(
                    {
                        "graph": kind,
                        "nodes": num_nodes,
                        "edges": num_edges,
                        "evenness": even,
                        "width": width,
                        "predicted_s": wanted,
                        "measured_s": found,
                        "error": wanted / found - 1,
                    }
                )
                print(
                    f"{kind:16} {num_nodes:>9,} x {width:<4} predicted {wanted * 1e3:8.2f} ms, "
                    f"measured {found * 1e3:8.2f} ms: {wanted / found - 1:+.0%}",
                    flush=True,
                )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("."), help="whose disk is timed")
    parser.add_argument("--budget", type=float, default=0.6, help="seconds of a sum")
    parser.add_argument("--most-nodes", type=int, default=SIZES[-1][0])
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS / "machine-cpu.json")
    args = parser.parse_args()
    start_s = time.perf_counter()
    machine = measure(args.folder, refresh=True, device="cpu")
    measure_s = time.perf_counter() - start_s
    rows = compare(args.budget, args.most_nodes, args.folder, args.processor_time)
    errors = sorted(abs(row["error"]) for row in rows)
    record = provenance() | {
        "threads": torch.get_num_threads(),
        "seconds": "of the processor, over the threads" if args.processor_time else "of the wall",
        "load": os.getloadavg(),
        "measure_s": measure_s,
        "machine_measured": frozen.encode(machine),
        "mean_error": sum(errors) / len(errors),
        "median_error": errors[len(errors) // 2],
        "worst_error": errors[-1],
        "sums": rows,
    }
    print(f"relative error: mean {record['mean_error']:.0%}, worst {record['worst_error']:.0%}")
    args.out.parent.mkdir(exist_ok=True)
    args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
