"""Ingest of graphs larger than its memory: peak memory, edges a second, equality with from_edges.

Every ingest runs in a process of its own, whose peak (getrusage) and time from call to return are
taken there: reading, sorting, writing and syncing the folder. Files are made beforehand, block by
block, from counter-based random numbers, and deleted afterwards.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numba
import numpy as np

BLOCK = 2**21
QUARTERS = {"a": 0.25, "b": 0.25, "c": 0.25}  # R-MAT with these is uniform
KINDS = {"uniform": QUARTERS, "rmat": {}}


@numba.njit(cache=True)
def _write_lines(src, dst, out):
    """Lines ``src TAB dst`` into ``out``; the bytes used."""
    digits = np.empty(20, np.uint8)
    at = 0
    for i in range(src.size):
        for end in range(2):
            value = src[i] if end == 0 else dst[i]
            count = 0
            while True:
                digits[count] = 48 + value % 10
                value //= 10
                count += 1
                if value == 0:
                    break
            for k in range(count):
                out[at + k] = digits[count - 1 - k]
            out[at + count] = 9 if end == 0 else 10
            at += count + 1
    return at


def make(path: Path, kind: str, num_nodes: int, num_edges: int) -> None:
    """A `.npy` of int32 pairs [E, 2], or text as SNAP has it, by the suffix of ``path``."""
    from tiergnn.graph.generate import rmat_edges

    with open(path, "wb") as file:
        if path.suffix == ".npy":
            header = {"descr": "<i4", "fortran_order": False, "shape": (num_edges, 2)}
            np.lib.format.write_array_header_1_0(file, header)
        else:
            file.write(b"# Directed graph\n# FromNodeId\tToNodeId\n")
        for start in range(0, num_edges, BLOCK):
            stop = min(start + BLOCK, num_edges)
            src, dst = rmat_edges(num_nodes, num_edges, start=start, stop=stop, **KINDS[kind])
            if path.suffix == ".npy":
                np.stack([src, dst], axis=1).astype(np.int32).tofile(file)
            else:
                text = np.empty(24 * src.size, np.uint8)
                text[: _write_lines(src, dst, text)].tofile(file)


def ingest_once(path: Path, out: Path, memory: str, num_nodes: int) -> dict[str, Any]:
    """In the child: one ingest, warm from a tiny one that loads the compiled code."""
    from provenance import peak_bytes
    from tiergnn.graph.ingest import ingest

    tiny = path.with_name("tiny.npy" if path.suffix == ".npy" else "tiny.txt")
    make(tiny, "uniform", 100, 1000)
    ingest(tiny, path.with_name("tiny"), overwrite=True)
    start, cpu = time.perf_counter(), time.process_time()
    graph = ingest(path, out, memory=memory, num_nodes=num_nodes)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    assert "torch" not in sys.modules
    return {
        "num_edges": graph.num_edges,
        "max_in_degree": int(graph.in_degree.max()),
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "edges_per_second": graph.num_edges / seconds,
        "peak_bytes": peak_bytes(),
    }


def is_equal(path: Path, out: Path, num_nodes: int) -> bool:
    """Whether the folder holds the bytes that from_edges makes of the whole list in memory."""
    from tiergnn.graph.csr import Graph, from_edges

    pairs = np.load(path)
    whole = from_edges(pairs[:, 0], pairs[:, 1], num_nodes)
    graph = Graph.open(out)
    return np.array_equal(whole.rowptr, graph.rowptr) and np.array_equal(whole.col, graph.col)


def child(*args: object) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", json.dumps([str(arg) for arg in args])]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def run_child(task: str, path: str, out: str, *rest: str) -> dict[str, Any]:
    if task == "make":
        make(Path(path), rest[0], int(rest[1]), int(rest[2]))
        return {}
    if task == "equal":
        return {"equal": is_equal(Path(path), Path(out), int(rest[0]))}
    return ingest_once(Path(path), Path(out), rest[0], int(rest[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5_000_000)
    parser.add_argument("--edges", type=int, default=100_000_000)
    parser.add_argument("--text-edges", type=int, default=30_000_000)
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--repeats", type=int, default=2, help="the fastest of these counts")
    parser.add_argument("--no-check", action="store_true", help="leave out from_edges (3 GB)")
    parser.add_argument("--folder", type=Path, help="where to work (about 4 GB)")
    parser.add_argument("--out", default="ingest", help="name of the results file")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(run_child(*json.loads(options.child))))
        return
    from provenance import RESULTS, provenance

    record: dict[str, Any] = {**provenance(), "memory": options.memory, "rows": []}
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    cases = [
        ("uniform", "npy", options.edges),
        ("rmat", "npy", options.edges),
        ("uniform", "txt", options.text_edges),
    ]
    try:
        for kind, suffix, num_edges in cases:
            path, out = folder / f"edges.{suffix}", folder / "graph"
            child("make", path, out, kind, options.nodes, num_edges)
            rows = []
            for _ in range(options.repeats):
                shutil.rmtree(out, ignore_errors=True)
                rows.append(child("ingest", path, out, options.memory, options.nodes))
            row = min(rows, key=lambda row: row["seconds"])
            row["peak_bytes"] = max(row["peak_bytes"] for row in rows)
            row = {"graph": kind, "file": suffix, "file_bytes": path.stat().st_size, **row}
            if suffix == "npy" and not options.no_check:
                row |= child("equal", path, out, options.nodes)
            print(
                f"{kind:8} {suffix}  {row['num_edges']:>12,} edges  {row['seconds']:6.1f} s "
                f"({row['cpu_seconds']:.1f} s of processor)  "
                f"{row['edges_per_second'] / 1e6:5.2f} M edges/s  "
                f"peak {row['peak_bytes'] / 1e9:.3f} GB  "
                f"same as from_edges: {row.get('equal', 'not checked')}",
                flush=True,
            )
            record["rows"].append(row)
            path.unlink()
    finally:
        shutil.rmtree(folder)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{options.out}.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
