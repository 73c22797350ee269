"""How near plans come: bytes and seconds of resident runs, predicted and measured, in one table.

Bytes are those of torch's allocator (on the CPU by its profiler, tests/models/held.py, large
outputs among them). Seconds are medians of steps, predicted by the rates of this machine alone,
probed in the same run, and with constants that were fitted to the steps of the same table: to all
of them, and to all but the one that is predicted (leave one out).

Every cell is kept in a file as it is measured (--cells): what is there is not measured again, so
the table can be made in pieces; --only-table makes it again from what there is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from plan_cells import (
    MODELS,
    Cell,
    Cells,
    Key,
    bytes_of,
    empty,
    graph_of,
    schedule_of,
    time_steps,
)
from provenance import RESULTS, ROOT, provenance
from tiergnn import frozen
from tiergnn.graph.shape import shape_of
from tiergnn.planner.cost import Costs
from tiergnn.planner.fit import fit
from tiergnn.planner.simulate import simulate
from tiergnn.schedule.schedule import Schedule
from tiergnn.schedule.timeline import Timeline

PROBED, FITTED, LEFT_OUT = "probe alone", "fitted", "fitted to others"


def measure_cells(args: argparse.Namespace, cells: Cells, works: dict[Key, list[Any]]) -> None:
    """What is not there yet, size by size, so that one graph is held at a time."""
    start = time.monotonic()
    for size in args.sizes:
        graph, shape = None, None
        for name, layers in works:
            cell = cells.get(name, layers, size)
            wanted = [what for what in args.what if cell is None or not getattr(cell, what)]
            if not wanted or time.monotonic() - start > args.limit_s:
                continue
            graph = graph or graph_of(args.device, size)
            shape = shape or shape_of(graph)
            cell = cell or Cell(model=name, layers=layers, size=size, graph=shape)
            of = works[name, layers]
            if "seconds" in wanted:
                cell.seconds = time_steps(graph, cell, of, args.device, args.least_s)
                empty(args.device)
            if "bytes" in wanted:
                cell.bytes = bytes_of(graph, cell, of, args.device)
            cells.add(cell)
            empty(args.device)
            told = {what: round(value, 4) for what, value in cell.seconds.items()}
            print(f"{time.monotonic() - start:5.0f} s: {name} {layers} {size}: {told}", flush=True)


def table(cells: list[Cell], works: dict[Key, list[Any]], costs: Costs | None) -> list[Any]:
    """Rows; with ``costs`` also seconds as predicted by rates, and by what cells taught."""
    samples: dict[int, tuple[Schedule, Timeline]] = {}
    for i, cell in enumerate(cells):
        if cell.seconds:
            schedule = schedule_of(cell, works[cell.model, cell.layers])
            samples[i] = schedule, cell.timeline()
    taught = costs if costs is None or not samples else fit(costs, samples.values()).costs
    rows = []
    for i, cell in enumerate(cells):
        shape = cell.graph
        row = {"model": cell.model, "layers": cell.layers, "nodes": shape.num_nodes}
        row |= {"edges": shape.num_edges, **cell.bytes, **cell.seconds}
        if costs is not None and taught is not None and cell.seconds:
            row |= _predictions(costs, taught, samples, i, cell.seconds["measured seconds"])
        rows.append(row)
    return rows


def _predictions(
    costs: Costs,
    taught: Costs,
    samples: dict[int, tuple[Schedule, Timeline]],
    i: int,
    measured_s: float,
) -> dict[str, float]:
    others = [sample for other, sample in samples.items() if other != i]
    ways = {"predicted": (costs, PROBED), "fitted": (taught, FITTED)}
    if others:
        ways["fitted to others"] = fit(costs, others).costs, LEFT_OUT
    found = {}
    for name, (known, told) in ways.items():
        seconds = simulate(samples[i][0], costs.machine, known).seconds
        found |= {f"{name} seconds": seconds, f"error, {told}": seconds / measured_s - 1}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--sizes", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--what", nargs="+", default=["seconds", "bytes"])
    parser.add_argument("--least-s", type=float, help="seconds of a cell's steps (cpu 3, cuda 1)")
    parser.add_argument("--limit-s", type=float, default=180, help="after it no cell is begun")
    parser.add_argument("--cells", type=Path, help="a file of measured cells")
    parser.add_argument("--only-table", action="store_true", help="of the cells that there are")
    parser.add_argument("--note", help="what else is to be known of the measurements")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    short = {"cpu": "cpu", "cuda": "gpu"}[args.device]
    # A CPU of a virtual machine is now faster, now slower, for a second or so.
    args.least_s = args.least_s or {"cpu": 3.0, "cuda": 1.0}[args.device]
    args.cells = args.cells or ROOT / "build" / f"plan-cells-{short}.json"
    record = provenance() | {"threads": torch.get_num_threads()}
    if args.note:
        record["note"] = args.note
    if args.device == "cuda":
        record["gpu"] = torch.cuda.get_device_name()
    cells = Cells(args.cells)
    if "seconds" in args.what and not args.only_table:
        cells.probe(args.device)
    works = cells.meter({(m, layers) for m in args.models for layers in args.layers}, args.device)
    if not args.only_table:
        measure_cells(args, cells, works)
    keys = [(*key, size) for key in works for size in args.sizes]
    found = [cell for key in keys if (cell := cells.get(*key)) is not None]
    costs = None if cells.machine is None else Costs.of(cells.machine)
    record["results"] = table(found, works, costs)
    if costs is not None:
        record["machine measured"] = frozen.encode(costs.machine)
        record["processors of others while it was"] = cells.others
        timed = [(schedule_of(c, works[c.model, c.layers]), c.timeline()) for c in found if c.spans]
        learned = fit(costs, timed)
        record["factors of all models"] = dict(learned.costs.factors)
        record["residuals of actions"] = frozen.encode(learned.residuals)
        print(learned)
    print(table_of(record["results"]))
    record |= {"summary": summary(record["results"])}
    print(json.dumps(record["summary"], indent=1))
    out = args.out or RESULTS / f"plan-accuracy-{short}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=1) + "\n")


def table_of(rows: list[dict[str, Any]]) -> str:
    """A line a cell: bytes over measured; seconds measured, and how far predictions are off."""
    lines = [
        f"{'model':6}{'layers':>7}{'nodes':>11}{'edges':>13}{'step bytes':>12}{'eval bytes':>12}"
        f"{'measured':>11}{PROBED:>13}{FITTED:>9}{LEFT_OUT:>18}"
    ]
    for row in rows:
        over = (row.get(f"{what} bytes over measured") for what in ("step", "evaluation"))
        bytes_ = (f"{'-' if ratio is None else f'{ratio:.4f}':>12}" for ratio in over)
        taken = row.get("measured seconds")
        errors = (row.get(f"error, {which}") for which in (PROBED, FITTED, LEFT_OUT))
        told = [
            "-" if taken is None else f"{taken * 1e3:.1f} ms",
            *("-" if error is None else f"{error:+.1%}" for error in errors),
        ]
        lines.append(
            f"{row['model']:6}{row['layers']:>7}{row['nodes']:>11,}{row['edges']:>13,}"
            f"{''.join(bytes_)}{told[0]:>11}{told[1]:>13}{told[2]:>9}{told[3]:>18}"
        )
    return "\n".join(lines)


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The worst of each comparison, and the medians of those of seconds."""
    found = {}
    for what in ("step", "evaluation"):
        ratios = [row.get(f"{what} bytes over measured") for row in rows]
        over = [ratio for ratio in ratios if ratio is not None]
        if over:
            found |= {f"least {what} bytes over measured": min(over)}
            found |= {f"most {what} bytes over measured": max(over)}
    for which, wanted in ((PROBED, 0.25), (FITTED, 0.1), (LEFT_OUT, 0.1)):
        errors = [abs(row[f"error, {which}"]) for row in rows if f"error, {which}" in row]
        if errors:
            found[f"seconds, {which}: median error"] = statistics.median(errors)
            found[f"seconds, {which}: worst error"] = max(errors)
            within = sum(error <= wanted for error in errors)
            found[f"seconds, {which}: cells within {wanted:.0%}"] = within
    return found


if __name__ == "__main__":
    main()
