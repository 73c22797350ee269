"""Aggregation on the CPU against torch's CSR, embedding_bag, PyG and SciPy, taking turns.

Each contestant is held to float64 on a part of the rows before it is timed. Every call makes its
output, as a model's would. GB/s are of gathered rows. Ratios are of medians; processor seconds are
those of all threads, and show least of what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import scipy.sparse
import torch
import torch_geometric
from torch import Tensor
from torch.nn import functional as F
from torch_geometric import EdgeIndex
from torch_geometric.utils import spmm

from provenance import RESULTS, provenance
from tiergnn.graph.generate import rmat
from tiergnn.kernels.aggregate import aggregate
from tiergnn.kernels.block import Block

CHECKED = 1000  # rows held to float64


def forwards(block: Block, x: Tensor) -> dict[str, Callable[[], Tensor]]:
    """Name -> a sum over in-edges."""
    rowptr, col, num_nodes = block.rowptr, block.col, block.num_src
    ones = torch.ones(block.num_edges)
    shape = num_nodes, num_nodes
    csr = torch.sparse_csr_tensor(rowptr, col.long(), ones, shape, check_invariants=False)
    edge_index = torch.stack([col.long(), block.edge_dst])
    edges = EdgeIndex(edge_index, sparse_size=shape, sort_order="col").fill_cache_()
    matrix = scipy.sparse.csr_matrix((ones.numpy(), col.numpy(), rowptr.numpy()), shape)
    starts = rowptr[:-1].to(col.dtype)
    return {
        "tiergnn": lambda: aggregate(block, x),
        "embedding_bag": lambda: F.embedding_bag(col, x, starts, mode="sum"),
        "torch csr": lambda: csr @ x,
        "pyg spmm": lambda: spmm(csr, x),
        "pyg edge_index": lambda: edges.matmul(x, transpose=True),
        "scipy": lambda: torch.from_numpy(matrix @ x.numpy()),
    }


def backwards(block: Block, x: Tensor) -> dict[str, Callable[[], Tensor]]:
    """Name -> the gradient of that sum in x: what is left of the peers when transposing is free."""
    rowptr_t, dst_t, _ = block.transposed
    ones = torch.ones(block.num_edges)
    shape = block.num_src, block.num_dst
    csr = torch.sparse_csr_tensor(rowptr_t, dst_t.long(), ones, shape, check_invariants=False)
    leaf = x.detach().requires_grad_()
    out = aggregate(block, leaf)
    starts = rowptr_t[:-1].to(dst_t.dtype)
    return {
        "tiergnn": lambda: torch.autograd.grad(out, leaf, x, retain_graph=True)[0],
        "embedding_bag": lambda: F.embedding_bag(dst_t, x, starts, mode="sum"),
        "torch csr": lambda: csr @ x,
    }


def check(rowptr: Tensor, col: Tensor, x: Tensor, calls: dict[str, Callable[[], Tensor]]) -> None:
    """Hold every contestant to float64 on the first rows, relative to the sums of magnitudes."""
    starts = rowptr[: CHECKED + 1]
    edges = x[col[: int(starts[-1])].long()].double()
    dst = torch.repeat_interleave(torch.arange(CHECKED), starts.diff())
    zeros = torch.zeros(CHECKED, x.shape[1], dtype=torch.float64)
    want, size = (zeros.index_add(0, dst, rows) for rows in (edges, edges.abs()))
    for name, call in calls.items():
        error = (call()[:CHECKED].double() - want).abs()
        assert bool((error <= 1e-5 * size).all()), f"{name} is wrong: not timed"


def race(calls: dict[str, Callable[[], Tensor]], rounds: int, gathered: int) -> dict[str, Any]:
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            wall, cpu = time.perf_counter(), time.process_time()
            call()
            times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    result: dict[str, Any] = {}
    for name, pairs in times.items():
        walls, cpus = zip(*pairs, strict=True)
        result[name] = {
            "median_s": statistics.median(walls),
            "least_s": min(walls),
            "median_cpu_s": statistics.median(cpus),
            "GBps": gathered / statistics.median(walls) / 1e9,
        }
    for name in calls:
        if name != "tiergnn":
            result[f"ratio to {name}"] = {
                measure: result[name][measure] / result["tiergnn"][measure]
                for measure in ("median_s", "least_s", "median_cpu_s")
            }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2_000_000)
    parser.add_argument("--edges", type=int, default=40_000_000)
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without", nargs="*", default=[], help="contestants to leave out")
    parser.add_argument("--out", type=Path, default=RESULTS / "kernels-cpu.json")
    args = parser.parse_args()
    block = Block.from_graph(rmat(args.nodes, args.edges, seed=0))
    record = provenance() | {
        "torch_geometric": torch_geometric.__version__,
        "scipy": scipy.__version__,
        "threads": torch.get_num_threads(),
        "huge pages for torch": os.environ.get("THP_MEM_ALLOC_ENABLE") == "1",
        "graph": f"R-MAT, {args.nodes:,} nodes, {args.edges:,} edges",
        "results": [],
    }
    for width in args.widths:
        x = torch.randn(args.nodes, width, generator=torch.Generator().manual_seed(0))
        sides = {
            "forward": (forwards, block.rowptr, block.col),
            "backward": (backwards, block.transposed.rowptr_t, block.transposed.dst_t),
        }
        for side, (make, rowptr, col) in sides.items():
            calls = {k: v for k, v in make(block, x).items() if k not in args.without}
            check(rowptr, col, x, calls)
            result = race(calls, args.rounds, 4 * width * args.edges)
            record["results"].append({"width": width, "side": side} | result)
            for name, value in result.items():
                shown = {key: round(number, 3) for key, number in value.items()}
                print(f"{width:4} {side:8} {name:24} {shown}", flush=True)
    args.out.parent.mkdir(exist_ok=True)
    args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
