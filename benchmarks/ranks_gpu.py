"""Ranks on the GPUs of one host: proofs, rates between GPUs, and epochs beside one device's.

First every transport proves losses and gradients of every strategy against one device in float64.
Then the rates of exchanges, of copies and of rows read in place between GPUs go, with those of this
host, into a machine file. Then each strategy's epoch on the Reddit and products shapes is measured
beside the resident one on one GPU and beside the model. Each row is written as soon as it is known;
nothing is begun after ``--limit-s``. NVLink multicast stays off.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

# Before anything loads NCCL: what writes to all GPUs at once may take the host's GPUs away.
os.environ |= {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}

import torch

from provenance import RESULTS, provenance
from ranks_gpu_jobs import MODELS, Job, epochs, prove, rates
from staged_gpu import Shapes
from tiergnn.errors import TiergnnError
from tiergnn.hardware.machine import Curve, Link, Machine
from tiergnn.hardware.measure import measure
from tiergnn.hardware.presets import resolve
from tiergnn.hardware.sharing import shared
from tiergnn.planner.strategies.known import RANKED
from tiergnn.training.planning import IN_PLACE
from tiergnn.transport.launch import launch
from tiergnn.transport.pick import pick, probe
from tiergnn.units import format_bytes

WAYS = ("halo", "nfp", "mgg", "uva", "leo 0.25", "leo 1")
CELLS = tuple(f"{shape} {model}" for shape in ("reddit", "products") for model in MODELS)
TRANSPORTS = {"cuda": ("ipc", "symmetric", "nccl"), "cpu": ("shared", "gloo")}
TIMEOUT_S = 240.0  # a rank may compile, or run alone, while the others wait
PROOFS_S = 150.0
NAME = "ranks_gpu.json"


class Rows:
    """Rows as ranks write them: printed, and kept in the results file."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args, self.file = args, folder / "rows.jsonl"
        self.file.touch()
        self._read = 0
        self.begun = ""  # the cell that a job is at
        self.record: dict[str, Any] = {**provenance(), "kind": args.device, "ranks": args.ranks}
        if args.device == "cuda":
            self.record["gpu"] = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
        self.record["rows"] = []

    def look(self) -> None:
        with self.file.open() as file:
            file.seek(self._read)
            text = file.read()
        whole, newline, _ = text.rpartition("\n")
        self._read += len((whole + newline).encode())
        for line in whole.splitlines():
            row = json.loads(line)
            if "begun" in row:
                self.begun = row["begun"]
            else:
                self.add(row)

    def add(self, row: dict[str, Any]) -> None:
        self.record["rows"].append(row)
        self.save()
        print(line_of(row), flush=True)

    def save(self) -> None:
        self.args.out.mkdir(parents=True, exist_ok=True)
        (self.args.out / NAME).write_text(json.dumps(self.record, indent=1) + "\n")

    def having(self, key: str) -> list[dict[str, Any]]:
        return [row for row in self.record["rows"] if key in row]


def line_of(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"{row['of']}: FAILED {row['failed']}"
    if "proof" in row:
        verdict = "equal" if row["equal"] else "NOT EQUAL"
        return f"{row['proof']:32} {row['ranks']} ranks: {verdict}, {row['error']:.1e}"
    if "rates" in row:
        kinds = ("exchange", "copy", "rows", "alone")
        words = [f"{kind} {_rates_text(row[kind])}" for kind in kinds if row.get(kind)]
        return f"{row['rates']}, {row['ranks']} ranks: " + "\n    ".join(words)
    if "speedup" not in row:
        return f"{row['cell']:28} {row['epoch_s'] * 1e3:8.1f} ms on one device"
    moved, planned = sum(row["moved_bytes"]), sum(row["planned_moved_bytes"])
    busy = ", ".join(f"{lane} {1e3 * s:.1f}" for lane, s in row["busy_s"].items())
    return (
        f"{row['cell']:28} {row['epoch_s'] * 1e3:8.1f} ms, modelled "
        f"{row['modelled_s'] * 1e3:.1f}; {row['speedup']:.2f}x one device; moved "
        f"{format_bytes(moved)} ({'as' if moved == planned else 'NOT AS'} planned); "
        f"first loss off by {row['loss_error']:.0e}\n"
        f"    busy ms: {busy}; first epoch {row['first_s']:.1f} s, cell {row['cell_s']:.0f} s"
    )


def _rates_text(found: dict[str, float]) -> str:
    return ", ".join(f"{size}: {rate / 1e9:.1f}" for size, rate in found.items()) + " GB/s"


def machine_of(base: Machine, rows: list[dict[str, Any]], num_ranks: int) -> Machine:
    """This host with the links between its devices as they were measured, all busy at once."""
    links = dict(base.links)
    swaps = [row["exchange"] for row in rows if row["exchange"]]
    if swaps:
        found = max(swaps, key=lambda rates: rates[max(rates, key=int)])
        taken = {int(size): int(size) / rate for size, rate in found.items()}
        small, large = min(taken), max(taken)
        latency_s = min(taken[small], taken[large] / 2)
        rate = large / (taken[large] - latency_s)
        links["peer_copy"] = Link(Bps=Curve.flat(rate), latency_s=latency_s)
    read = [row["rows"] for row in rows if row["rows"]]
    if read:
        points = sorted((float(width), rate) for width, rate in read[0].items())
        links["peer"] = Link(Bps=Curve(tuple(points)))
    there = max(base.num_devices, torch.cuda.device_count())
    return shared(replace(base, links=links, num_devices=there), num_ranks)[0]


def attempt(rows: Rows, what: str, job: Callable[[], Any]) -> bool:
    """Run a job of ranks; what goes wrong is a row."""
    try:
        job()
    except TiergnnError as error:
        rows.look()
        rows.add({"of": rows.begun or what, "failed": str(error)[-3000:]})
        return False
    finally:
        rows.look()
    return True


def able(args: argparse.Namespace) -> list[str]:
    """The transports that work here; what does not is said."""
    setting, found = probe(args.ranks, on_gpu=args.device == "cuda"), []
    for name in args.transports or TRANSPORTS[args.device]:
        try:
            pick(setting, name)
            found.append(name)
        except TiergnnError as error:
            print(f"{name} is left out: {error}", flush=True)
    return found


def carried_out(ways: list[str], transport: str) -> list[str]:
    in_place = transport not in ("gloo", "nccl")
    names = [way for way in ways if way.split()[0] in RANKED]
    return [way for way in names if in_place or way.split()[0] not in IN_PLACE]


def measure_all(args: argparse.Namespace, folder: Path) -> None:
    begun = time.monotonic()
    until_s, rows, on_gpu = begun + args.limit_s, Rows(args, folder), args.device == "cuda"
    transports = able(args)
    base = resolve(args.machine) if args.machine else measure(folder, device=args.device)
    job = Job(str(rows.file), args.device, shared(base, args.ranks)[0], until_s, args.epochs)

    def start(target: Any, transport: str, *more: Any, num_ranks: int = args.ranks) -> None:
        options: dict[str, Any] = {"timeout_s": TIMEOUT_S, "look": rows.look}
        launch(target, num_ranks, more, transport=transport, on_gpu=on_gpu, **options)

    for name in transports if args.proofs else ():
        share_s = PROOFS_S / len(transports)
        limited = job._replace(until_s=min(until_s, time.monotonic() + share_s))
        ways = carried_out(args.ways, name)
        attempt(rows, f"proof of {name}", lambda n=name, j=limited, w=ways: start(prove, n, j, w))
    size = 2**30 if on_gpu else 2**22
    widths, sizes = [32, 64, 128, 256, 512, 1024], [2**16, 2**20, size // 16, size]
    for name in transports:
        attempt(rows, f"rates of {name}", lambda n=name: start(rates, n, job, size, widths, sizes))
    machine = machine_of(base, rows.having("rates"), args.ranks)
    machine.save(args.out / "ranks_gpu_machine.json")
    if not transports:
        return
    chosen = next((n for n in ("symmetric", "ipc") if n in transports), transports[0])
    chosen = args.transport or chosen
    shapes = Shapes(args.device, args.shrink)
    for name in dict.fromkeys(cell.split()[0] for cell in args.cells):
        if time.monotonic() > until_s:
            print(f"no time is left for {name}", flush=True)
            continue
        graph = folder / name
        shapes.graph(name).save(graph)
        shapes.graph.cache_clear()
        if on_gpu:
            torch.cuda.empty_cache()
        left = [cell.split() for cell in args.cells if cell.split()[0] == name]
        cells = [[*cell, *carried_out(args.ways, chosen)] for cell in left]
        told = job._replace(machine=machine, graph=str(graph))
        while cells and not attempt(
            rows, f"epochs on {name}", lambda c=cells, j=told: start(epochs, chosen, j, c)
        ):
            cells = after(cells, rows.begun)
            if time.monotonic() > until_s:
                break
        shutil.rmtree(graph)
    rows.record["took_s"] = time.monotonic() - begun
    rows.save()


def after(cells: list[list[str]], failed: str) -> list[list[str]]:
    """What is left to do behind a cell and a way that failed."""
    for place, (name, model, *ways) in enumerate(cells):
        head = f"{name} {model} "
        if failed.startswith(head):
            way = failed.removeprefix(head)
            left = ways[ways.index(way) + 1 :] if way in ways else []
            return [[name, model, *left]] * bool(left) + cells[place + 1 :]
    return []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=max(2, torch.cuda.device_count()))
    parser.add_argument("--cells", nargs="+", default=list(CELLS), help="'reddit gcn' ...")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), help="halo, 'leo 0.25' ...")
    parser.add_argument("--transports", nargs="+", help="to prove and to time")
    parser.add_argument("--transport", help="of the epochs")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--machine", help="a preset or a file (default: this host, measured)")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--no-proofs", dest="proofs", action="store_false")
    parser.add_argument("--shrink", type=int, default=1, help="graphs this many times smaller")
    parser.add_argument("--limit-s", type=float, default=450.0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="tiergnn-ranks-"))
    try:
        measure_all(args, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
