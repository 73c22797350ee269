"""Attention on one GPU: forward and backward, checked and then timed, for tiles of several depths.

Checks, on the graph that is timed: 64 rows and the largest one against plain torch in float64; the
gradient of h by linearity (<grad_h, h> is <grad, out>); the gradients of the two score tensors by
their equal sums; two runs to the same bits. A wrong case is reported and not timed. GB/s counts the
rows gathered by each pass, of 4 * K * F bytes an edge. Times are medians of CUDA events.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpu_graphs import GRAPHS
from kernels_gpu import timed
from provenance import RESULTS, provenance
from tiergnn.kernels import backend
from tiergnn.kernels.attention import gat_attention, gatv2_attention, gpu_launch
from tiergnn.kernels.block import Block

SHAPES = ((8, 8), (8, 32), (1, 47))
TOLERANCE = 2e-5
PASSES = {"gat": (1, 1), "gatv2": (1, 3)}  # gathers of rows, forward and backward


def inputs(kind: str, block: Block, heads: int, width: int) -> dict[str, Tensor]:
    generator = torch.Generator(device=block.device).manual_seed(5)

    def rand(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=block.device)

    if kind == "gat":
        return {
            "h_SKF": rand(block.num_src, heads, width),
            "score_src_SK": rand(block.num_src, heads),
            "score_dst_PK": rand(block.num_dst, heads),
        }
    return {
        "x_src_SKF": rand(block.num_src, heads, width),
        "x_dst_PKF": rand(block.num_dst, heads, width),
        "att_KF": rand(heads, width) / width**0.5,
    }


def some_rows(block: Block) -> Tensor:
    generator = torch.Generator(device=block.device).manual_seed(6)
    some = torch.randint(block.num_dst, (64,), generator=generator, device=block.device)
    return torch.cat([some, block.in_degree.argmax()[None]])


def row_error(op: Callable[..., Tensor], block: Block, given: dict[str, Tensor]) -> float:
    """The largest difference of some rows from plain torch in float64."""
    rows = some_rows(block)
    edges = torch.cat(
        [
            torch.arange(a, b, device=block.device)
            for a, b in zip(
                block.rowptr[rows].tolist(), block.rowptr[rows + 1].tolist(), strict=True
            )
        ]
    )
    rowptr = torch.zeros(rows.numel() + 1, dtype=torch.int64, device=block.device)
    rowptr[1:] = block.in_degree[rows].cumsum(0)
    part = Block(rowptr=rowptr, col=block.col[edges], num_src=block.num_src)
    chosen = {
        name: (tensor[rows] if "_P" in name else tensor).double() for name, tensor in given.items()
    }
    with torch.no_grad(), backend.use("reference"):
        want = op(part, **chosen, self_loop=False)
    with torch.no_grad():
        got = op(block, **given, self_loop=False)[rows]
    return float((got.double() - want).abs().max() / want.abs().max())


def errors(
    kind: str, op: Callable[..., Tensor], block: Block, given: dict[str, Tensor]
) -> dict[str, float]:
    found = {"rows": row_error(op, block, given)}
    runs = []
    for _ in range(2):
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in given.items()}
        out = op(block, **leaves)
        weight = torch.ones_like(out) + out.detach().sign() / 2
        grads = torch.autograd.grad(out, list(leaves.values()), weight)
        runs.append([out.detach(), *grads])
    found["bits"] = float(not all(torch.equal(a, b) for a, b in zip(*runs, strict=True)))
    if kind == "gat":
        out, grad_h, grad_src, grad_dst = (t.double() for t in runs[0])
        value = (out * weight).sum()
        found["linear"] = float(((grad_h * given["h_SKF"]).sum() - value).abs() / value.abs())
        size = grad_src.abs().sum(0) + grad_dst.abs().sum(0)
        found["scores"] = float(((grad_src.sum(0) - grad_dst.sum(0)).abs() / size).max())
    return found


def measure(graph: str, block: Block, loads: list[int], repeats: int) -> Iterator[dict[str, Any]]:
    """A row for every cell, as soon as it is measured."""
    for kind, op in (("gat", gat_attention), ("gatv2", gatv2_attention)):
        for heads, width in SHAPES:
            given = inputs(kind, block, heads, width)
            for depth in loads:
                gpu_launch.LOADS = depth
                row: dict[str, Any] = {
                    "graph": graph,
                    "op": kind,
                    "heads": heads,
                    "width": width,
                    "loads": depth,
                }
                row["errors"] = errors(kind, op, block, given)
                if not max(row["errors"].values()) <= TOLERANCE:
                    yield row | {"wrong": True}
                    continue
                leaves = {name: tensor.clone().requires_grad_() for name, tensor in given.items()}
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                out = op(block, **leaves)
                weight, asked = torch.ones_like(out), list(leaves.values())
                row["forward_ms"] = timed(lambda o=op, v=leaves: o(block, **v), repeats)
                row["backward_ms"] = timed(
                    lambda o=out, v=asked, w=weight: torch.autograd.grad(
                        o, v, w, retain_graph=True
                    ),
                    repeats,
                )
                row["peak_GiB"] = (torch.cuda.max_memory_allocated() - before) / 2**30
                gathered = block.num_edges * heads * width * 4 / 1e6
                for side, passes in zip(("forward", "backward"), PASSES[kind], strict=True):
                    row[f"{side}_GBps"] = gathered * passes / row[f"{side}_ms"]
                del out, weight, asked, leaves
                print(text(row), flush=True)
                yield row
            del given
            torch.cuda.empty_cache()


def text(row: dict[str, Any]) -> str:
    start = f"{row['graph']:10} {row['op']:6} {row['heads']}x{row['width']:<3} loads {row['loads']}"
    if "wrong" in row:
        return f"{start} WRONG: {row['errors']}"
    return (
        f"{start}  forward {row['forward_ms']:7.2f} ms {row['forward_GBps']:6.0f} GB/s  "
        f"backward {row['backward_ms']:7.2f} ms {row['backward_GBps']:6.0f} GB/s  "
        f"peak {row['peak_GiB']:.2f} GiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", nargs="+", default=["reddit", "products"], choices=GRAPHS)
    parser.add_argument("--loads", nargs="+", type=int, default=[gpu_launch.LOADS])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--shrink", type=int, default=1, help="graphs this many times smaller")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    record: dict[str, Any] = {**provenance(), "gpu": torch.cuda.get_device_name(), "rows": []}
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.graphs:
        block = GRAPHS[name]("cuda", shrink=args.shrink)
        for row in measure(name, block, args.loads, args.repeats):
            record["rows"].append(row)
            (args.out / "attention_gpu.json").write_text(json.dumps(record, indent=1) + "\n")
    wrong = [text(row) for row in record["rows"] if "wrong" in row]
    print("\n".join(wrong) if wrong else "every case was right")


if __name__ == "__main__":
    main()
