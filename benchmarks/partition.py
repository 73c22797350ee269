"""Block against METIS on every real graph: edges cut, rows read, balance, time and memory.

Each partition is made in one process and thread after a warm-up, halo counts included. Seconds are
of that thread's processor, so that what else the machine does shows little. Memory is what the
process held at its peak above what it held before (Linux's VmHWM, reset before each), so what
small graphs take from memory already held shows as 0.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from provenance import DATA, RESULTS, provenance, sentence
from tiergnn.graph.csr import Graph, from_edges
from tiergnn.graph.generate import rmat
from tiergnn.graph.partition import METHODS, partition

BALANCES = {"nodes": ("nodes",), "nodes, edges, train": ("nodes", "edges", "train")}


def real_graph(folder: Path, seed: int = 0) -> Graph:
    """One real graph, with a tenth of its nodes, chosen at random, as the split train."""
    src, dst = np.load(folder / "edge_index.npz")["edge_index"]
    num_nodes = json.loads((folder / "meta.json").read_text())["nodes"]
    train = np.random.default_rng(seed).permutation(num_nodes)[: max(1, num_nodes // 10)]
    return from_edges(src, dst, num_nodes, splits={"train": np.sort(train)})


def measure(graph: Graph, num_parts: int, method: str, balance: tuple[str, ...]) -> dict[str, Any]:
    gc.collect()
    before = _reset_peak()
    start = time.process_time()
    parts = partition(graph, num_parts, method, balance=balance)
    num_halo = int(parts.num_halo.sum())
    cpu_s = time.process_time() - start
    return {
        "method": method,
        "num_parts": num_parts,
        "balance": list(balance),
        "edge_cut_frac": parts.edge_cut_frac,
        "expansion_ratio": parts.expansion_ratio,
        "num_halo": num_halo,
        "imbalance": {name: parts.imbalance(name) for name in ("nodes", "edges", "train")},
        "missed": [found.name for found in parts.balances() if found.holds is False],
        "cpu_s": cpu_s,
        "peak_bytes": max(0, _status("VmHWM") - before),
    }


def _reset_peak() -> int:
    """Bytes held now; the peak counts from here."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


def as_text(record: dict[str, Any]) -> str:
    lines = ["# Partitions: block and METIS", ""]
    for title, balance in BALANCES.items():
        lines += [
            f"## Asked to level {title}",
            "",
            "cut: edges between parts over all edges; rows: rows read over rows owned; then the "
            "largest part over the mean. NOT MET names what stays above what was asked.",
            "",
            "| graph | nodes | edges | parts | method | cut | rows | nodes | edges | train | "
            "CPU seconds | peak MiB | |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
        ]
        for row in record["rows"]:
            if row["balance"] == list(balance):
                uneven = " | ".join(f"{found:.2f}" for found in row["imbalance"].values())
                missed = f"NOT MET: {', '.join(row['missed'])}" if row["missed"] else ""
                lines.append(
                    f"| {row['graph']} | {row['num_nodes']} | {row['num_edges']} "
                    f"| {row['num_parts']} | {row['method']} | {row['edge_cut_frac']:.1%} "
                    f"| {row['expansion_ratio']:.2f} | {uneven} | {row['cpu_s']:.3f} "
                    f"| {row['peak_bytes'] / 2**20:.1f} | {missed} |"
                )
        lines.append("")
    return "\n".join([*lines, sentence(record), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", nargs="*", help="folders of the data; all by default")
    parser.add_argument("--parts", type=int, nargs="*", default=[4, 8])
    parser.add_argument("--rmat", type=int, nargs=2, metavar=("NODES", "EDGES"), default=None)
    parser.add_argument("--out", default="partition", help="name of the results files")
    args = parser.parse_args()
    for method in METHODS:  # compile before anything is timed
        for balance in BALANCES.values():
            measure(power_law(2000, 20_000), 4, method, balance)
    record = {**provenance(), "rows": []}
    for name, graph in graphs(args):
        for balance in BALANCES.values():
            for num_parts in args.parts:
                for method in METHODS:
                    found = measure(graph, num_parts, method, balance)
                    sizes = {"num_nodes": graph.num_nodes, "num_edges": graph.num_edges}
                    record["rows"].append({"graph": name, **sizes, **found})
                    print(name, num_parts, method, f"{found['edge_cut_frac']:.3f}", flush=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{args.out}.json").write_text(json.dumps(record, indent=1) + "\n")
    (RESULTS / f"{args.out}.md").write_text(as_text(record))


def power_law(num_nodes: int, num_edges: int) -> Graph:
    """R-MAT with every tenth node in the split train."""
    graph = rmat(num_nodes, num_edges)
    train = np.arange(0, num_nodes, 10)
    return Graph(rowptr=graph.rowptr, col=graph.col, splits={"train": train})


def graphs(args: argparse.Namespace) -> Iterator[tuple[str, Graph]]:
    """(name, graph) of what was asked for, one after the other."""
    if args.rmat is not None:
        yield "R-MAT", power_law(*args.rmat)
        return
    names = args.sets or sorted(file.parent.name for file in DATA.glob("*/edge_index.npz"))
    for name in names:
        yield name, real_graph(DATA / name)


if __name__ == "__main__":
    main()
