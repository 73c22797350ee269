"""How GAT's kernels fare with other tiles and tasks: forward and backward on a large graph.

A line for every variant: medians of milliseconds, the gathered GB/s of the rows alone, and the
largest difference of its results from those of the first variant of its shape, relative to the
largest number of each. The first variant is held to <grad_h, h> = <grad, out> besides. "sum" is a
plain aggregation of as many columns: what a gather without attention takes. Variants that fail are
told and passed over; none begins after ``--seconds``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attention_gpu import inputs
from gpu_graphs import GRAPHS
from tiergnn.kernels import backend
from tiergnn.kernels.aggregate import aggregate
from tiergnn.kernels.attention import gat_attention, gpu_launch
from tiergnn.kernels.block import Block
from tiergnn.kernels.tasks import MOST, cut_rows


class Variant(NamedTuple):
    """``loads`` of rows that a thread has on their way; ``widest`` columns; edges of a task."""

    loads: int = gpu_launch.LOADS
    widest: int = gpu_launch.WIDEST
    most: int = MOST

    def __str__(self) -> str:
        return f"loads {self.loads:2} widest {self.widest:3} most {self.most:4}"


FIRST = Variant()
VARIANTS: dict[tuple[int, int], tuple[Variant, ...]] = {
    (8, 8): (
        FIRST,
        FIRST._replace(loads=4),
        FIRST._replace(loads=1),
        FIRST._replace(most=512),
        FIRST._replace(most=128),
    ),
    (1, 47): (
        FIRST,
        FIRST._replace(loads=4),
        FIRST._replace(loads=1),
    ),
    (8, 32): (
        FIRST,
        FIRST._replace(loads=4),
        FIRST._replace(loads=1),
        FIRST._replace(widest=128),
    ),
}


@contextmanager
def tuned(block: Block, variant: Variant) -> Iterator[None]:
    """Inside, kernels on ``block`` run as the variant says."""
    before = gpu_launch.LOADS, gpu_launch.WIDEST
    plans = dict(block._plans)
    rows = 0, block.num_src
    try:
        gpu_launch.LOADS, gpu_launch.WIDEST = variant.loads, variant.widest
        if variant.most != MOST:
            for transposed in (False, True):
                rowptr = block.transposed.rowptr_t if transposed else block.rowptr
                cut = cut_rows(rowptr, most=variant.most)
                block._plans["aggregate", "gpu", transposed, rows] = cut
        yield
    finally:
        gpu_launch.LOADS, gpu_launch.WIDEST = before
        block._plans.clear()
        block._plans.update(plans)


def milliseconds(call: Callable[[], Any], repeats: int = 5) -> float:
    """The median of ``repeats`` calls after one."""
    call()
    found = []
    for _ in range(repeats):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        stop.record()
        stop.synchronize()
        found.append(start.elapsed_time(stop))
    return sorted(found)[repeats // 2]


def measure(block: Block, given: dict[str, Tensor]) -> tuple[float, float, list[Tensor]]:
    """Milliseconds forward and backward, and [out, gradients]."""
    op: Callable[..., Tensor] = gat_attention
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in given.items()}
    out = op(block, **leaves)
    weight, asked = out.detach().sign() / 2 + 1, list(leaves.values())

    def backward() -> tuple[Tensor, ...]:
        return torch.autograd.grad(out, asked, weight, retain_graph=True)

    forward_ms = milliseconds(lambda: op(block, **leaves))
    backward_ms = milliseconds(backward)
    return forward_ms, backward_ms, [out.detach(), *backward()]


def difference(got: list[Tensor], want: list[Tensor]) -> float:
    return max(
        float((a - b).abs().max() / b.abs().max().clamp(min=1e-30))
        for a, b in zip(got, want, strict=True)
    )


def linearity(found: list[Tensor], given: dict[str, Tensor]) -> float:
    """How far <grad_h, h> is from <grad, out>, relative to it."""
    out, grad_h = found[0].double(), found[1].double()
    value = (out * (out.sign() / 2 + 1)).sum()
    return float(((grad_h * given["h_SKF"]).sum() - value).abs() / value.abs())


def run(graph: str, block: Block, until: float) -> None:
    for (heads, width), variants in VARIANTS.items():
        name = f"{graph} {heads}x{width:<2}"
        given = inputs("gat", block, heads, width)
        if time.monotonic() < until:
            rows = given["h_SKF"].flatten(1)
            sum_ms = milliseconds(lambda rows=rows: aggregate(block, rows))
            print(f"{name} sum {sum_ms:.2f} ms", flush=True)
        first: list[Tensor] | None = None
        for variant in variants:
            if time.monotonic() > until:
                print(f"{name} {variant}: no time left", flush=True)
                continue
            try:
                with tuned(block, variant):
                    forward_ms, backward_ms, found = measure(block, given)
            except Exception as error:  # a variant that does not compile says so: go on
                print(f"{name} {variant}: {type(error).__name__}: {str(error)[-200:]}", flush=True)
                continue
            gathered = block.num_edges * heads * width * 4 / 1e6
            line = (
                f"{name} {variant}  forward {forward_ms:6.2f} ms {gathered / forward_ms:5.0f} GB/s"
            )
            line += f"  backward {backward_ms:6.2f} ms {gathered / backward_ms:5.0f} GB/s"
            if first is None:
                first = found
                print(f"{line}  linear {linearity(found, given):.1e}", flush=True)
            else:
                print(f"{line}  differs {difference(found, first):.1e}", flush=True)
            del found
        del first, given
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", default="products", choices=GRAPHS)
    parser.add_argument("--shrink", type=int, default=1, help="a graph this many times smaller")
    parser.add_argument("--seconds", type=float, default=55, help="after which no variant begins")
    args = parser.parse_args()
    start = time.monotonic()
    block = GRAPHS[args.graph]("cuda", shrink=args.shrink)
    with backend.use("gpu"):
        run(args.graph, block, start + args.seconds)
    print(f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
