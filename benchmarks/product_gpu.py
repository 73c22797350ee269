"""Products of float32 rows on one GPU, by tiles of several shapes, against torch's (SGEMM).

Each pass of each shape: the product, and the gradient of its rows. Errors are
the largest difference from float64 over the largest result, with weights (or gradients) of both
signs and, where rounding adds up, of one sign: the larger of the two. A candidate that does not
compile, or does not fit the GPU, is told and skipped; so is what is left when the time is up. Times
are medians of 5 runs by CUDA events. Compiling is done by other processes, which launch nothing.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor
from triton.runtime.jit import JITFunction

from provenance import RESULTS, provenance
from tiergnn.kernels.aggregate.shapes import power_of_two
from tiergnn.kernels.product import gpu, reference
from tiergnn.kernels.product.shapes import Tile

PRODUCTS = 2_449_029, ((100, 256), (256, 256), (256, 47), (100, 64), (64, 64), (64, 47), (100, 16))
REDDIT = 232_965, ((602, 256), (602, 64), (256, 41))
PASSES = ("forward", "rows")
WORST = 1e-5  # error that is still told as right
RUNS = 5
SAMPLE = 4096  # rows that are held to float64
TILES = (
    Tile(64, 128, 32, 4, 2),
    Tile(64, 128, 32, 4, 3),
    Tile(64, 128, 32, 8, 3),
    Tile(128, 128, 32, 8, 3),
    Tile(128, 64, 32, 4, 3),
    Tile(128, 64, 32, 8, 3),
)
NARROW = (  # of up to 64 columns
    Tile(128, 64, 32, 4, 2),
    Tile(128, 64, 32, 8, 3),
    Tile(64, 64, 32, 4, 3),
)


class Case(NamedTuple):
    num_rows: int
    inner: int  # D
    outer: int  # F
    which: str  # of PASSES

    def tiles(self) -> tuple[Tile, ...]:
        """Candidates, none wider than what there is."""
        width = max(16, power_of_two(self.outer if self.which == "forward" else self.inner))
        tiles = NARROW if width <= 64 else TILES
        clipped = (tile._replace(columns=min(tile.columns, width)) for tile in tiles)
        return tuple(dict.fromkeys(clipped))

    def text(self) -> str:
        return f"{self.num_rows:8} x {self.inner:3} -> {self.outer:3} {self.which:7}"


def run(case: Case, x_PD: Tensor, grad_PF: Tensor, weight_FD: Tensor, tile: Tile) -> Tensor:
    if case.which == "forward":
        return gpu.product(x_PD, weight_FD, None, tile)
    return gpu.product_grad_rows(grad_PF, weight_FD, tile)


def run_torch(case: Case, x_PD: Tensor, grad_PF: Tensor, weight_FD: Tensor) -> Tensor:
    if case.which == "forward":
        return reference.product(x_PD, weight_FD, None)
    return reference.product_grad_rows(grad_PF, weight_FD)


def compile_one(given: tuple[Case, Tile]) -> None:
    """Leave the compiled kernels of one candidate in Triton's cache, and launch nothing."""
    case, tile = given
    original = JITFunction.run

    def warm(self: Any, *args: Any, **options: Any) -> Any:
        return original(self, *args, **{**options, "warmup": True})

    x = torch.empty(64, case.inner, device="cuda")
    grad = torch.empty(64, case.outer, device="cuda")
    weight = torch.empty(case.outer, case.inner, device="cuda")
    try:
        with mock.patch.object(JITFunction, "run", warm):
            run(case, x, grad, weight, tile)
    except Exception:  # told when it is measured
        return


def timed(call: Callable[[], Any]) -> float:
    """Milliseconds, the median of RUNS."""
    call()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(RUNS + 1)]
    marks[0].record()
    for mark in marks[1:]:
        call()
        mark.record()
    marks[-1].synchronize()
    return median(a.elapsed_time(b) for a, b in pairwise(marks))


class Inputs:
    """What one shape is measured on: rows as after a ReLU; the rest of both signs, and of one."""

    def __init__(self, num_rows: int, inner: int, outer: int):
        torch.manual_seed(7)
        self.x = torch.randn(num_rows, inner, device="cuda").relu_()
        self.weight = torch.randn(outer, inner, device="cuda") / inner**0.5
        self.grad = torch.randn(num_rows, outer, device="cuda")
        self.one_sign = self.grad.abs(), self.weight.abs()
        self.sample = torch.linspace(0, num_rows - 1, SAMPLE, device="cuda").long()

    def pairs(self) -> tuple[tuple[Tensor, Tensor], ...]:
        """Gradients and weights."""
        return (self.grad, self.weight), self.one_sign

    def wanted(self, case: Case) -> list[Tensor]:
        """In float64, of the sample of rows, a pair each."""
        x = self.x[self.sample].double()
        return [
            run_torch(case, x, grad[self.sample].double(), weight.double())
            for grad, weight in self.pairs()
        ]

    def error(self, case: Case, call: Callable[..., Tensor], wanted: list[Tensor]) -> float:
        worst = 0.0
        for (grad, weight), want in zip(self.pairs(), wanted, strict=True):
            got = call(case, self.x, grad, weight)[self.sample]
            error = (got.double() - want).abs().max() / want.abs().max()
            worst = max(worst, float(error.nan_to_num(nan=float("inf"))))
        return worst


def measure(case: Case, inputs: Inputs, until: float) -> dict[str, Any]:
    wanted = inputs.wanted(case)
    given = inputs.x, inputs.grad, inputs.weight
    row: dict[str, Any] = {
        **case._asdict(),
        "torch_ms": timed(lambda: run_torch(case, *given)),
        "torch_error": inputs.error(case, run_torch, wanted),
        "tiles": [],
    }
    for tile in case.tiles():
        found: dict[str, Any] = {"tile": tile._asdict()}
        try:
            if time.monotonic() > until:
                raise TimeoutError
            found["error"] = inputs.error(case, partial(run, tile=tile), wanted)
            found["ms"] = timed(lambda tile=tile: run(case, *given, tile))
        except Exception as error:  # of the compiler, the driver or the allocator
            found["failed"] = f"{type(error).__name__}: {str(error)[:200]}"
        row["tiles"].append(found)
    return row


def text(row: dict[str, Any]) -> str:
    case = Case(*(row[name] for name in Case._fields))
    right = [tile for tile in row["tiles"] if tile.get("error", 1.0) <= WORST]
    start = f"{case.text()} torch {row['torch_ms']:7.3f} ms {row['torch_error']:.1e}"
    failed = sum("failed" in tile for tile in row["tiles"])
    end = f" ({failed} failed, {len(row['tiles']) - failed - len(right)} wrong)"
    if not right:
        return f"{start}  none right{end}"
    best = min(right, key=lambda tile: tile["ms"])
    return f"{start}  best {_told(best)}{end if len(right) < len(row['tiles']) else ''}"


def _told(found: dict[str, Any]) -> str:
    tile = "/".join(str(int(number)) for number in found["tile"].values())
    return f"{tile} {found['ms']:7.3f} ms {found['error']:.1e}"


def _wait(compiled: Any, until: float) -> None:
    """For the next candidate to be compiled; not beyond the time, after which none is measured."""
    try:
        compiled.next(timeout=max(0.01, until - time.monotonic()))
    except multiprocessing.TimeoutError:
        return


def cases(num_rows: int, shapes: tuple[tuple[int, int], ...]) -> Iterator[Case]:
    for inner, outer in shapes:
        for which in PASSES:
            yield Case(num_rows, inner, outer, which)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=80, help="after which no tile is begun")
    parser.add_argument("--shrink", type=int, default=1, help="this many times fewer rows")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--verbose", action="store_true", help="a line for every tile")
    parser.add_argument("--out", type=Path, default=RESULTS / "product_gpu.json")
    args = parser.parse_args()
    until = time.monotonic() + args.seconds
    torch.set_float32_matmul_precision("highest")
    every = [c for n, shapes in (PRODUCTS, REDDIT) for c in cases(n // args.shrink, shapes)]
    work = [(case, tile) for case in every for tile in case.tiles()]
    record: dict[str, Any] = {**provenance(), "gpu": torch.cuda.get_device_name(), "rows": []}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with multiprocessing.get_context("spawn").Pool(min(args.workers, 14)) as pool:
        compiled = pool.imap(compile_one, work)
        shape, inputs = None, None
        for case in every:
            for _ in case.tiles():
                _wait(compiled, until)
            if shape != case[:3]:
                shape, inputs = case[:3], None
                torch.cuda.empty_cache()
                inputs = Inputs(*case[:3])
            assert inputs is not None
            row = measure(case, inputs, until)
            record["rows"].append(row)
            print(text(row), flush=True)
            for found in row["tiles"]:
                late = found.get("failed", "").startswith(TimeoutError.__name__)
                if args.verbose or ("failed" in found and not late):
                    told = found.get("failed") or _told(found)
                    print(f"    {list(found['tile'].values())} {told}", flush=True)
            args.out.write_text(json.dumps(record, indent=1) + "\n")
        pool.terminate()


if __name__ == "__main__":
    main()
