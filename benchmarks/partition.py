"""Block, METIS and switching on every real graph: edges cut, rows read, balance, time and memory.

Each partition is made after a warm-up, halo counts included; of generated graphs (--rmat, --sbm)
in a process of its own, of real ones three times, of which the middle time counts. CPU seconds are
of all threads, so that what else the machine does shows little; METIS has one thread, switching
all. Memory is what the process held at its peak above what it held before (Linux's VmHWM, reset
before each), so what small graphs take from memory already held shows as 0.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from provenance import DATA, RESULTS, provenance, sentence
from tiergnn.graph.csr import Graph, from_edges
from tiergnn.graph.generate import rmat, sbm
from tiergnn.graph.partition import METHODS, Partition, partition

BALANCES = {"nodes": ("nodes",), "nodes, edges, train": ("nodes", "edges", "train")}


def real_graph(folder: Path, seed: int = 0) -> Graph:
    """One real graph, with a tenth of its nodes, chosen at random, as the split train."""
    src, dst = np.load(folder / "edge_index.npz")["edge_index"]
    num_nodes = json.loads((folder / "meta.json").read_text())["nodes"]
    train = np.random.default_rng(seed).permutation(num_nodes)[: max(1, num_nodes // 10)]
    return from_edges(src, dst, num_nodes, splits={"train": np.sort(train)})


def measure(
    graph: Graph, num_parts: int, method: str, balance: tuple[str, ...], times: int = 1
) -> dict[str, Any]:
    """One row of the table: the middle of so many times, the largest peak."""
    runs = [_run(graph, num_parts, method, balance) for _ in range(times)]
    parts, num_halo = runs[0][:2]
    return {
        "method": method,
        "num_parts": num_parts,
        "balance": list(balance),
        "edge_cut_frac": parts.edge_cut_frac,
        "expansion_ratio": parts.expansion_ratio,
        "num_halo": num_halo,
        "imbalance": {name: parts.imbalance(name) for name in ("nodes", "edges", "train")},
        "missed": [found.name for found in parts.balances() if found.holds is False],
        "cpu_s": sorted(run[2] for run in runs)[times // 2],
        "wall_s": sorted(run[3] for run in runs)[times // 2],
        "peak_bytes": max(run[4] for run in runs),
        "graph_bytes": graph.topology_bytes,
    }


def _run(
    graph: Graph, num_parts: int, method: str, balance: tuple[str, ...]
) -> tuple[Partition, int, float, float, int]:
    """A partition, its halo rows, CPU seconds, seconds, and bytes at its peak beside the rest."""
    gc.collect()
    before = _reset_peak()
    start, wall = time.process_time(), time.perf_counter()
    parts = partition(graph, num_parts, method, balance=balance)
    num_halo = int(parts.num_halo.sum())
    cpu_s, wall_s = time.process_time() - start, time.perf_counter() - wall
    return parts, num_halo, cpu_s, wall_s, max(0, _status("VmHWM") - before)


def warm_up(methods: list[str]) -> None:
    """Compile everything before it is timed."""
    for undirected in (False, True):
        small = power_law(2000, 20_000, undirected=undirected)
        for method, balance in product(methods, BALANCES.values()):
            measure(small, 4, method, balance)
        if "switching" in methods:  # which hands pieces to threads from a million edges on
            large = power_law(20_000, 1_200_000, undirected=undirected)
            measure(large, 4, "switching", BALANCES["nodes"])


def measure_alone(
    folder: Path, num_parts: int, method: str, balance: tuple[str, ...]
) -> dict[str, Any]:
    """``measure`` in a process of its own, which holds the graph of a folder and nothing else."""
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); import partition as b\n"
        "b.warm_up([sys.argv[4]])\n"
        "graph = b.load(b.Path(sys.argv[2]))\n"
        "print(json.dumps(b.measure(graph, int(sys.argv[3]), sys.argv[4], tuple(sys.argv[5:]))))"
    )
    given = [str(Path(__file__).parent), str(folder), str(num_parts), method, *balance]
    done = subprocess.run(
        [sys.executable, "-c", code, *given], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def keep(folder: Path, graph: Graph) -> None:
    for name in ("rowptr", "col"):
        np.save(folder / f"{name}.npy", getattr(graph, name))
    np.save(folder / "train.npy", graph.splits["train"])


def load(folder: Path) -> Graph:
    """A graph that ``keep`` wrote, in memory."""
    arrays = [np.load(folder / f"{name}.npy") for name in ("rowptr", "col", "train")]
    return Graph(rowptr=arrays[0], col=arrays[1], splits={"train": arrays[2]})


def _reset_peak() -> int:
    """Bytes held now; the peak counts from here."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


def as_text(record: dict[str, Any]) -> str:
    lines = ["# Partitions: block, METIS, switching", ""]
    for title, balance in BALANCES.items():
        rows = [row for row in record["rows"] if row["balance"] == list(balance)]
        if not rows:
            continue
        lines += [
            f"## Asked to level {title}",
            "",
            "cut: edges between parts over all edges; rows: rows read over rows owned; then the "
            "largest part over the mean; memory: the graph and the peak beside it over the graph. "
            "NOT MET names what stays above what was asked.",
            "",
            "| graph | nodes | edges | parts | method | cut | rows | nodes | edges | train | "
            "CPU seconds | seconds | peak MiB | memory | |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
        ]
        for row in rows:
            uneven = " | ".join(f"{found:.2f}" for found in row["imbalance"].values())
            missed = f"NOT MET: {', '.join(row['missed'])}" if row["missed"] else ""
            lines.append(
                f"| {row['graph']} | {row['num_nodes']} | {row['num_edges']} "
                f"| {row['num_parts']} | {row['method']} | {row['edge_cut_frac']:.1%} "
                f"| {row['expansion_ratio']:.2f} | {uneven} | {row['cpu_s']:.3f} "
                f"| {row['wall_s']:.3f} | {row['peak_bytes'] / 2**20:.1f} "
                f"| {1 + row['peak_bytes'] / row['graph_bytes']:.2f} | {missed} |"
            )
        lines.append("")
    return "\n".join([*lines, sentence(record), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", nargs="*", help="folders of the data; all by default")
    parser.add_argument("--parts", type=int, nargs="*", default=[4, 8, 16])
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--balances", nargs="*", default=list(BALANCES), choices=list(BALANCES))
    parser.add_argument("--rmat", type=int, nargs=2, metavar=("NODES", "EDGES"), default=None)
    parser.add_argument("--sbm", type=int, nargs=2, metavar=("NODES", "EDGES"), default=None)
    parser.add_argument("--out", default="partition", help="name of the results files")
    args = parser.parse_args()
    warm_up(args.methods)
    record = {**provenance(), "rows": []}
    generated = args.rmat is not None or args.sbm is not None
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name, graph in graphs(args):
            sizes = {"num_nodes": graph.num_nodes, "num_edges": graph.num_edges}
            if generated:
                keep(folder, graph)
                graph = Graph(rowptr=graph.rowptr[:1], col=graph.col[:0])  # each loads its own
            for balance, num_parts, method in product(args.balances, args.parts, args.methods):
                if generated:
                    found = measure_alone(folder, num_parts, method, BALANCES[balance])
                else:
                    found = measure(graph, num_parts, method, BALANCES[balance], times=3)
                record["rows"].append({"graph": name, **sizes, **found})
                print(name, num_parts, method, f"{found['expansion_ratio']:.3f}", flush=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{args.out}.json").write_text(json.dumps(record, indent=1) + "\n")
    (RESULTS / f"{args.out}.md").write_text(as_text(record))


def power_law(num_nodes: int, num_edges: int, *, undirected: bool = False) -> Graph:
    """R-MAT with every tenth node in the split train."""
    graph = rmat(num_nodes, num_edges, undirected=undirected)
    train = np.arange(0, num_nodes, 10)
    return Graph(rowptr=graph.rowptr, col=graph.col, splits={"train": train})


def communities(num_nodes: int, num_edges: int) -> Graph:
    """64 communities that keep four fifths of their edges to themselves."""
    graph = sbm(num_nodes, 64, degree=num_edges / num_nodes, homophily=0.8, num_features=1)
    return Graph(rowptr=graph.rowptr, col=graph.col, splits={"train": graph.splits["train"]})


def graphs(args: argparse.Namespace) -> Iterator[tuple[str, Graph]]:
    """(name, graph) of what was asked for, one after the other."""
    if args.rmat is not None:
        yield "R-MAT", power_law(*args.rmat)
    if args.sbm is not None:
        yield "64 communities", communities(*args.sbm)
    if args.rmat is not None or args.sbm is not None:
        return
    names = args.sets or sorted(file.parent.name for file in DATA.glob("*/edge_index.npz"))
    for name in names:
        yield name, real_graph(DATA / name)


if __name__ == "__main__":
    main()
