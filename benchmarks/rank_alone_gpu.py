"""Rank 0 of an 8-way block partition, alone on one GPU, the other ranks' rows behind its host link.

Whole training epochs, forward and backward, by the executor of ranks. What others hold lies in
pinned host memory and is read in place or copied over the link, as rows of a peer would be; what
they do takes no time, so an epoch is that of a rank whose peers are never late, and what they would
read of this rank does not go the other way. A way is "strategy caches switches": ``leo 0.25+0.15``
keeps a quarter of all rows on the device and 15% in host memory, ``serial`` is without a pipeline
and ``sync`` refreshes caches before anything is summed.

Each row has the measured epoch (the median of some, the first dropped), the simulator's for the
same schedule on a machine whose peers are behind this link, by the machine's rates and by what the
measured actions of all rows taught of them, the bytes read of others, the bound
"unique rows of others x bytes / measured link rate" and the share of the epoch that it is, and the
share in which the busiest lane was busy. Rows are written as soon as they are known; nothing is
begun that could end after ``--limit-s``.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")  # as the command line

import torch

from provenance import RESULTS, provenance
from rank_alone_cells import (
    RANK,
    UNTIMED,
    Ready,
    Sample,
    device_of,
    emptied,
    measured,
)
from rank_alone_fit import keep, learn
from rank_alone_link import RANKS, READS, machine_of, rates_of
from rank_alone_table import page
from staged_gpu import Shapes
from tiergnn.hardware.machine import Machine
from tiergnn.transport.alone import Shelf
from tiergnn.units import format_bytes

WAYS = ("halo", "leo 0.25", "leo 0.25+0.15", "leo 1", "mgg", "uva", "nfp")
ABLATION = ("mgg serial", "leo 0.25 serial", "leo 0.25 sync", "leo 1 sync")
SHAPES = ("reddit", "products", "orkut")
CELLS = tuple(f"{shape} {model}" for shape in SHAPES for model in ("gcn", "gin"))


def line_of(row: dict[str, Any]) -> str:
    head = f"{row['cell']:13} {row['way']:16}"
    if "failed" in row:
        return f"{head} FAILED {row['failed']}"
    busy = ", ".join(f"{lane} {1e3 * s:.2f}" for lane, s in row["busy_s"].items())
    read = format_bytes(row["moved_bytes"]["read"])
    return (
        f"{head} {1e3 * row['epoch_s']:9.2f} ms, predicted {1e3 * row['predicted_s']:.2f}; read "
        f"{read}{'' if row['as_planned'] else ' NOT AS PLANNED'}; "
        f"bound {1e3 * row['bound_s']:.2f} ms: {row['share_of_bound']:.0%}, link "
        f"{row['share_of_link']:.0%}; busiest lane {row['busiest_frac']:.0%} ({busy}); "
        f"set up {row['set_up_s']:.1f}, cell {row['cell_s']:.1f} s"
    )


def row_of(ready: Ready, cell: str, way: str, run: Run) -> tuple[dict[str, Any], Sample | None]:
    row: dict[str, Any] = {"cell": cell, "way": way}
    model, count = cell.split()[1], run.epochs + UNTIMED
    try:
        found, sample = measured(ready, model, way, run.machine, count, run.cell_s)
        row |= found
    except Exception as error:  # told in its row; the next one is begun
        told = traceback.format_exception(error, limit=-8)
        return row | {"failed": "".join(told)[-4000:]}, None
    finally:
        emptied(ready.device)
    moved, link_Bps = row["moved_bytes"], run.link_Bps
    row["bound_s"] = row["bound_bytes"] / link_Bps
    row["share_of_bound"] = row["bound_s"] / row["epoch_s"]
    row["share_of_link"] = (moved["read"] + moved["came"]) / link_Bps / row["epoch_s"]
    return row, sample


class Run(NamedTuple):
    machine: Machine
    link_Bps: float
    epochs: int
    cell_s: float


def measure_all(args: argparse.Namespace) -> None:
    begun = time.monotonic()
    device, shelf = device_of(args.device), Shelf()
    record: dict[str, Any] = {**provenance(), "ranks": RANKS, "rank": RANK, "shrink": args.shrink}
    record |= {"waits": args.waits, "capture": args.capture}
    if device.type == "cuda":
        record["gpu"] = torch.cuda.get_device_name()
    rates = rates_of(device, shelf, 2**29 if device.type == "cuda" else 2**22)
    record |= {"rates_Bps": rates, "ready_s": {}, "rows": []}
    print(rates_text(rates), flush=True)
    run = Run(machine_of(args.machine, rates), rates["h2d"], args.epochs, args.cell_s)
    shapes, longest = Shapes(args.device, args.shrink), 0.0
    samples: list[tuple[dict[str, Any], Sample]] = []
    for name in dict.fromkeys(cell.split()[0] for cell in args.cells):
        start = time.monotonic()
        ready = Ready(name, shapes, device, shelf, waits=args.waits, capture=args.capture)
        emptied(device)
        record["ready_s"][name] = time.monotonic() - start
        print(f"{name} ready after {record['ready_s'][name]:.0f} s", flush=True)
        for cell in (each for each in args.cells if each.split()[0] == name):
            for way in args.ways:
                start = time.monotonic()
                if start - begun + longest > args.limit_s:
                    print(f"no time is left for {cell} {way}", flush=True)
                    continue
                row, sample = row_of(ready, cell, way, run)
                samples += [] if sample is None else [(row, sample)]
                longest = max(longest, time.monotonic() - start)
                record["rows"].append(row)
                (args.out / f"{args.name}.json").write_text(json.dumps(record, indent=1) + "\n")
                print(line_of(row), flush=True)
        del ready
        emptied(device)
    if samples:
        learned = learn(samples, run.machine)
        if args.actions is not None:
            keep(args.actions, samples, run.machine)
        record["factors"] = dict(learned.costs.factors)
        print(learned)
    record["took_s"] = time.monotonic() - begun
    (args.out / f"{args.name}.json").write_text(json.dumps(record, indent=1) + "\n")
    text = page(record)
    (args.out / f"{args.name}.md").write_text(text)
    print(text)


def rates_text(rates: dict[str, Any]) -> str:
    lines = [
        ", ".join(f"{way} {rates[way] / 1e9:.1f}" for way in ("h2d", "bulk", "d2h", "both"))
        + " GB/s"
    ]
    for what in READS:
        each = ", ".join(f"{width}: {rate / 1e9:.1f}" for width, rate in rates[what].items())
        lines.append(f"rows {what} by their bytes, GB/s: {each}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", nargs="+", default=list(CELLS), help="'reddit gcn' ...")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), help="'leo 0.25+0.15 sync' ...")
    parser.add_argument("--ablation", action="store_true", help="also LEO's switches, one by one")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--machine", default="h200", help="a preset or a file")
    parser.add_argument("--waits", action="store_true", help="the host waits in every meeting")
    parser.add_argument("--epochs", type=int, default=5, help="timed, after those that are not")
    parser.add_argument("--no-capture", dest="capture", action="store_false")
    parser.add_argument("--cell-s", type=float, default=4.0, help="of epochs, but two are timed")
    parser.add_argument("--shrink", type=int, default=1, help="graphs this many times smaller")
    parser.add_argument("--limit-s", type=float, default=540.0)
    parser.add_argument("--name", default="rank_alone_gpu", help="of the results' files")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--actions", type=Path, help="a file (.json.gz) of all actions as they ran")
    args = parser.parse_args()
    args.ways = list(dict.fromkeys([*args.ways, *(ABLATION if args.ablation else ())]))
    args.out.mkdir(parents=True, exist_ok=True)
    measure_all(args)


if __name__ == "__main__":
    main()
