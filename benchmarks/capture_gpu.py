"""What recording a step as a CUDA graph gains: epochs of small and large graphs on one GPU.

The same model, forward, backward and Adam: recorded and replayed, every launch by itself, and by
PyG over an edge list. Losses of the first two are equal to the last bit.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from epochs_gpu import attempt, build, ours, theirs
from gpu_graphs import RMAT, rmat
from provenance import RESULTS, provenance
from tiergnn.graph.csr import Graph
from tiergnn.graph.table import Table

MODELS = ("gcn 2x64", "sage 2x64", "gat 2x8x8", "gin 5x64")
SHRINKS = (1024, 64, 8, 1)  # of the products shape: 2 thousand nodes and up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shrinks", nargs="+", type=int, default=list(SHRINKS))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", type=Path, default=RESULTS / "capture_gpu.json")
    args = parser.parse_args()
    record: dict[str, Any] = {**provenance(), "gpu": torch.cuda.get_device_name(), "rows": []}
    _, _, _, features, classes = RMAT["products"]
    for shrink in args.shrinks:
        block = rmat("products", "cuda", shrink=shrink)
        x = np.random.default_rng(0).standard_normal((block.num_dst, features), np.float32)
        y = torch.randint(classes, (block.num_dst,), device="cuda")
        graph = Graph(
            rowptr=block.rowptr.cpu().numpy(),
            col=block.col.cpu().numpy(),
            x=Table(data=x, dtype="float32"),
        )
        for name in MODELS:
            row: dict[str, Any] = {"model": name, "nodes": block.num_dst, "edges": block.num_edges}
            for way, capture in (("recorded", True), ("as it is", False)):
                torch.manual_seed(0)
                model = build(name, features, classes)
                row[way] = attempt(
                    lambda m=model, c=capture, g=graph, y=y: ours(m, g, y, args.epochs, capture=c)
                )
            if shrink >= 8:  # where it does not run out of memory
                torch.manual_seed(0)
                model = build(name, features, classes)
                given = torch.from_numpy(x).cuda()
                row["pyg"] = attempt(
                    lambda m=model, b=block, x=given, y=y: theirs(m, b, x, y, "coo", args.epochs)
                )
            record["rows"].append(row)
            told = {
                way: found.get("ms", found) for way, found in row.items() if type(found) is dict
            }
            assert row["recorded"]["loss"] == row["as it is"]["loss"]
            print(name, block.num_dst, block.num_edges, told, flush=True)
            args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
