"""Aggregation on one GPU against cuSPARSE (torch's CSR @ dense, float32), side by side.

Every case is held to float64 before it is timed, and runs twice to the same bits; a wrong one is
reported and not timed. The *ceiling* is the same kernel over the same columns in rows of 512 edges:
what the memory system gives to these gathers when rows are even.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import torch
from torch import Tensor

from gpu_graphs import GRAPHS
from provenance import RESULTS, provenance
from tiergnn.kernels.aggregate import aggregate
from tiergnn.kernels.block import Block

TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 5e-3}  # of the sum of magnitudes
_EVEN = 512
_QUEUED = 5  # calls that are timed as one


def timed(call: Callable[[], Any], repeats: int) -> float:
    """Milliseconds a call, the median of ``repeats``; calls are queued, as they are in training."""
    call()
    found = []
    for _ in range(repeats):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(_QUEUED):
            call()
        stop.record()
        stop.synchronize()
        found.append(start.elapsed_time(stop) / _QUEUED)
    return sorted(found)[repeats // 2]


def copy_rate() -> float:
    """GB/s of a copy of 4 GiB on the device, bytes read plus bytes written."""
    rows = torch.empty(2**30, dtype=torch.float32, device="cuda").normal_()
    return 2 * rows.numel() * rows.element_size() / timed(rows.clone, 5) / 1e6


def csr(rowptr: Tensor, col: Tensor, num_src: int, dtype: torch.dtype) -> Tensor:
    ones = torch.ones(col.numel(), dtype=dtype, device=col.device)
    shape = rowptr.numel() - 1, num_src
    return torch.sparse_csr_tensor(rowptr.int(), col, ones, shape, check_invariants=False)


def errors(got: Tensor, matrix: Tensor, x: Tensor) -> float:
    """The largest difference from float64, in parts of the sum of magnitudes."""
    want = matrix @ x.double()
    size = (matrix @ x.double().abs()).clamp(min=1e-30)
    return float(((got.double() - want).abs() / size).nan_to_num(nan=1.0).max())


def measure(name: str, block: Block, width: int, repeats: int) -> list[dict[str, Any]]:
    device = block.device
    flipped = block.transposed
    sides = {
        "forward": csr(block.rowptr, block.col, block.num_src, torch.float32),
        "backward": csr(flipped.rowptr_t, flipped.dst_t, block.num_dst, torch.float32),
    }
    even = torch.arange(0, block.num_edges + _EVEN - 1, _EVEN, device=device)
    even = Block(
        rowptr=even.clamp(max=block.num_edges),
        col=block.col,
        num_src=max(block.num_src, even.numel()),
    )
    generator = torch.Generator(device=device).manual_seed(3)
    wide = torch.randn(block.num_src, width, generator=generator, device=device)
    peers = {side: timed(lambda m=matrix: m @ wide, 3) for side, matrix in sides.items()}
    rows = []
    for dtype, tolerance in TOLERANCE.items():
        x = wide.to(dtype).requires_grad_()
        out = aggregate(block, x)

        def backward(out: Tensor = out, x: Tensor = x) -> Tensor:
            return torch.autograd.grad(out, x, x.detach(), retain_graph=True)[0]

        calls = {"forward": lambda x=x: aggregate(block, x.detach()), "backward": backward}
        padded = torch.nn.functional.pad(x.detach(), (0, 0, 0, even.num_src - block.num_src))
        ceiling_ms = timed(lambda p=padded: aggregate(even, p), repeats)
        gathered = block.num_edges * (width * x.element_size() + block.col.element_size())
        written = block.num_dst * width * x.element_size()
        for side, call in calls.items():
            first, second = call(), call()
            error = errors(first, sides[side].double(), x.detach())
            row = {
                "graph": name,
                "op": f"sum {side}",
                "width": width,
                "dtype": str(dtype).removeprefix("torch."),
                "error": error,
            }
            if not error <= tolerance or not torch.equal(first, second):
                rows.append(row | {"wrong": True})
                continue
            del first, second
            ms = timed(call, repeats)
            rows.append(
                row
                | {
                    "ms": ms,
                    "cusparse_ms": peers[side],
                    "ratio": peers[side] / ms,
                    "gathered_GBps": (gathered + written) / ms / 1e6,
                    "share_of_ceiling": ceiling_ms / ms,
                }
            )
    return rows


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        if "ratio" in row:
            key = row["graph"], row["op"], row["dtype"]
            groups.setdefault(key, []).append(row["ratio"])
    return [
        {"graph": g, "op": o, "dtype": d, "geomean": geometric_mean(r), "least": min(r)}
        for (g, o, d), r in groups.items()
    ]


HEAD = f"{'graph':10} {'op':12} {'dtype':8} width      ms  cusparse  ratio    GB/s  ceiling"


def line(row: dict[str, Any]) -> str:
    start = f"{row['graph']:10} {row['op']:12} {row['dtype']:8} {row['width']:5}"
    if "wrong" in row:
        return f"{start} WRONG: error {row['error']:.2g}, or two runs differ"
    return (
        f"{start} {row['ms']:7.3f} {row['cusparse_ms']:9.2f} {row['ratio']:6.2f} "
        f"{row['gathered_GBps']:7.0f} {row['share_of_ceiling']:8.0%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", nargs="+", default=["reddit", "products"], choices=GRAPHS)
    parser.add_argument("--widths", nargs="+", type=int, default=[16, 32, 64, 128, 256])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--shrink", type=int, default=1, help="graphs this many times smaller")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    record: dict[str, Any] = {
        **provenance(),
        "gpu": torch.cuda.get_device_name(),
        "copy_GBps": copy_rate(),
        "rows": [],
    }
    args.out.mkdir(parents=True, exist_ok=True)
    print(HEAD)
    for name in args.graphs:
        block = GRAPHS[name]("cuda", shrink=args.shrink)
        for width in args.widths:
            rows = measure(name, block, width, args.repeats)
            torch.cuda.empty_cache()
            record["rows"] += rows
            record["summary"] = summary(record["rows"])
            (args.out / "kernels_gpu.json").write_text(json.dumps(record, indent=1) + "\n")
            print(*map(line, rows), sep="\n", flush=True)
    print("geometric means over widths")
    for row in record["summary"]:
        print(
            f"{row['graph']:10} {row['op']:12} {row['dtype']:8} {row['geomean']:.2f}x, "
            f"least {row['least']:.2f}x"
        )


if __name__ == "__main__":
    main()
