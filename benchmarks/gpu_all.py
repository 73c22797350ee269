"""The GPU's benchmarks in pieces, each in a process of its own under a time limit.

A piece that fails or takes too long is told and the next one begins; results are written after
every cell, so that a limit leaves what came before it. After `make gpu`, in two calls of at most
ten minutes each: `python benchmarks/gpu_all.py --half 1 --out DIR`, and `--half 2`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from provenance import RESULTS

HERE = Path(__file__).parent
HALF_S = 570  # of all pieces of a half


class Piece(NamedTuple):
    """A benchmark and its arguments; its results go to a folder of its name."""

    name: str
    limit_s: int
    arguments: tuple[str, ...]


def _epochs(model: str, limit_s: int, *more: str) -> Piece:
    arguments = "epochs_gpu.py", "--epochs", "3", "--models", model, *more
    return Piece(model.replace(" ", "-"), limit_s, arguments)


def _kernels(graph: str) -> Piece:
    arguments = "kernels_gpu.py", "--repeats", "5", "--graphs", graph
    return Piece(f"kernels-{graph}", 130, arguments)


# Whole epochs that were short of their targets come first.
HALVES: dict[int, tuple[Piece, ...]] = {
    1: (
        _epochs("gcn 3x256", 110, "--bf16"),
        _epochs("sage 3x256", 160, "--bf16"),
        _epochs("gin 5x64", 160, "--bf16"),
        _epochs("gcn 2x16", 140, "--bf16"),
    ),
    2: (
        _kernels("products"),
        _kernels("reddit"),
        _epochs("gat 2x8x8", 160),
        _epochs("gat 2x8x32", 60),
        Piece("attention", 90, ("attention_gpu.py", "--graphs", "products/8")),
    ),
}


def run(piece: Piece, out: Path, limit_s: float, shrink: int) -> dict[str, Any]:
    """What came of a piece: seconds, and its exit code, or none where it was cut off."""
    script, *arguments = piece.arguments
    command = [sys.executable, str(HERE / script), *arguments]
    command += ["--shrink", str(shrink), "--out", str(out / piece.name)]
    start = time.monotonic()
    try:
        code = subprocess.run(command, timeout=limit_s, check=False).returncode
    except subprocess.TimeoutExpired:
        code = None
    return {"piece": piece.name, "exit_code": code, "seconds": time.monotonic() - start}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", type=int, nargs="+", choices=HALVES, default=list(HALVES))
    parser.add_argument("--only", nargs="+", help="names of pieces")
    parser.add_argument("--shrink", type=int, default=1, help="graphs this many times smaller")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu")
    args = parser.parse_args()
    pieces = [piece for half in args.half for piece in HALVES[half]]
    known = [piece.name for piece in pieces]
    if unknown := set(args.only or ()) - set(known):
        parser.error(f"no piece {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    args.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + HALF_S * len(args.half)
    done: list[dict[str, Any]] = []
    for piece in pieces:
        limit_s = min(piece.limit_s, end - time.monotonic())
        if (args.only and piece.name not in args.only) or limit_s <= 0:
            continue
        print(f"== {piece.name}, at most {limit_s:.0f} s", flush=True)
        done.append(run(piece, args.out, limit_s, args.shrink))
        print(json.dumps(done[-1]), flush=True)
        name = "-".join(["done", *map(str, args.half)])
        (args.out / f"{name}.json").write_text(json.dumps(done, indent=1) + "\n")
    left = [piece["piece"] for piece in done if piece["exit_code"] != 0]
    sys.exit(f"not whole: {', '.join(left)}" if left else 0)


if __name__ == "__main__":
    main()
