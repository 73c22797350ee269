"""Whole epochs on one GPU: forward, backward and Adam, the same PyG model run by us and by PyG.

Both take the mean cross entropy, ours as ``tiergnn.train`` does; what the graph and its features
alone decide, ours makes once, before what is timed, and it replays a step that it recorded. PyG
runs in the named form: its layers over a torch CSR matrix, or over an edge list under
torch.compile. Peak memory counts everything that the process holds on the device.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._inductor.config
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import nn as pyg

from gpu_graphs import RMAT, rmat
from provenance import RESULTS, provenance
from tiergnn.graph.csr import Graph
from tiergnn.graph.table import Table
from tiergnn.kernels.block import Block
from tiergnn.runtime.executor import Resident
from tiergnn.training.criteria import make_criterion

_FIRST = 3  # epochs in which code is compiled and steps are recorded
# model, graph, PyG's best form; none where each runs out of memory
CASES: dict[str, tuple[tuple[str, str | None], ...]] = {
    "gcn 2x16": (("reddit", "csr"), ("products", "coo compiled")),
    "gcn 3x256": (("products", "csr"),),
    "sage 3x256": (("reddit", "csr"), ("products", "csr")),
    "gin 5x64": (("reddit", "csr"), ("products", "csr")),
    "gat 2x8x8": (("reddit", "coo compiled"), ("products", "coo compiled")),
    "gat 2x8x32": (("products/8", "coo compiled"), ("reddit", None), ("products", None)),
}


class Net(nn.Module):
    """Convolutions with relu and dropout between them."""

    def __init__(self, convs: list[nn.Module]) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convs)

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        for conv in self.convs[:-1]:
            x = F.dropout(F.relu(conv(x, edge_index)), p=0.5, training=self.training)
        return self.convs[-1](x, edge_index)


def build(model: str, features: int, classes: int) -> Net:
    kind, _, sizes = model.partition(" ")
    layers, *rest = (int(size) for size in sizes.split("x"))
    if kind == "gat":
        heads, width = rest
        return Net([pyg.GATConv(features, width, heads), pyg.GATConv(heads * width, classes, 1)])
    widths = [features, *[rest[0]] * (layers - 1), classes]
    pairs = list(pairwise(widths))
    if kind == "gcn":
        return Net([pyg.GCNConv(a, b, cached=True) for a, b in pairs])
    if kind == "sage":
        return Net([pyg.SAGEConv(a, b) for a, b in pairs])
    hidden = [(a, rest[0], b) for a, b in pairs]
    return Net([pyg.GINConv(pyg.MLP([*w], norm="batch_norm")) for w in hidden])


def run(step: Callable[[int], float], epochs: int) -> dict[str, Any]:
    """Seconds an epoch (the median, after others), the last loss, and peak memory."""
    seconds = []
    torch.cuda.reset_peak_memory_stats()
    for epoch in range(epochs + _FIRST):
        torch.cuda.synchronize()
        start = time.perf_counter()
        loss = step(epoch)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return {
        "ms": 1000 * sorted(seconds[_FIRST:])[epochs // 2],
        "first_s": seconds[0],
        "loss": loss,
        "peak_GiB": torch.cuda.max_memory_allocated() / 2**30,
        "reserved_GiB": torch.cuda.memory_reserved() / 2**30,
    }


def ours(
    model: Net,
    graph: Graph,
    y: Tensor,
    epochs: int,
    dtype: torch.dtype = torch.float32,
    *,
    capture: bool = True,
) -> dict[str, Any]:
    resident = Resident(model, graph, device="cuda", dtype=dtype, prepare=True, capture=capture)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    criterion = make_criterion("class", None, None, y, int(y.max()) + 1)

    def loss_of(out: Tensor) -> Tensor:
        return criterion(out.float(), y)

    def step(epoch: int) -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = resident.train_step(loss_of, epoch)
        optimizer.step()
        return loss

    return run(step, epochs)


def theirs(
    model: Net, block: Block, x: Tensor, y: Tensor, form: str, epochs: int
) -> dict[str, Any]:
    if form == "csr":
        ones = torch.ones(block.num_edges, device="cuda")
        shape = block.num_dst, block.num_src
        edges = torch.sparse_csr_tensor(block.rowptr, block.col.long(), ones, shape)
    else:
        edges = torch.stack([block.col.long(), block.edge_dst])
    model = model.cuda().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    call = model
    if "layers" in form:
        for conv in model.convs:
            conv.compile(dynamic=False)
    elif "compiled" in form:
        call = torch.compile(model, dynamic="dynamic" in form)

    def step(epoch: int) -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(call(x, edges), y)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return run(step, epochs)


def settings(form: str) -> dict[str, Any]:
    """What the words of a form ask of inductor: how it cuts elementwise code into tiles."""
    return {
        **({"triton.max_tiles": 1} if "flat" in form else {}),
        **({"triton.coalesce_tiling_analysis": False} if "plain-tiles" in form else {}),
    }


def peer(call: Callable[[str], dict[str, Any]], forms: list[str]) -> dict[str, Any]:
    """The first of PyG's forms that runs, and what became of those before it."""
    failed: dict[str, Any] = {}
    found: dict[str, Any] = {}
    for form in forms:
        with torch._inductor.config.patch(settings(form)):
            found = attempt(lambda form=form: call(form))
        if "ms" in found:
            return {**found, "form": form, **({"before": failed} if failed else {})}
        failed[form] = found
        print(f"PyG {form}: {found}", flush=True)
    return {**found, **({"before": failed} if failed else {})}


def attempt(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return call()
    except torch.OutOfMemoryError as error:
        return {"out_of_memory": str(error).splitlines()[0]}
    except (RuntimeError, AssertionError) as error:  # of a peer's compiled code, say
        return {"failed": str(error).splitlines()[0]}
    finally:
        gc.collect()
        torch._dynamo.reset()
        torch.cuda.empty_cache()


def line(row: dict[str, Any]) -> str:
    def told(found: dict[str, Any] | None) -> str:
        if found is None:
            return "-"
        if "ms" not in found:
            return found.get("failed", "out of memory")
        return f"{found['ms']:8.2f} ms {found['peak_GiB']:6.2f} GiB loss {found['loss']:.3f}"

    theirs_ms, ours_ms = (row.get(who, {}).get("ms") for who in ("pyg", "tiergnn"))
    ratio = f"{theirs_ms / ours_ms:5.2f}x" if theirs_ms and ours_ms else "     -"
    bf16 = row.get("tiergnn_bf16")
    return (
        f"{row['model']:11} {row['graph']:10} {told(row.get('tiergnn'))} | "
        f"bf16 {told(bf16)} | {row['form'] or 'no form fits'}: {told(row.get('pyg'))} {ratio}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--graphs", nargs="+", default=list(RMAT), choices=RMAT)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument(
        "--form",
        nargs="+",
        default=[],
        help="PyG's, in the place of its best, the first that runs: 'coo compiled dynamic', "
        "'coo compiled layers', 'coo compiled flat', 'coo compiled plain-tiles'",
    )
    parser.add_argument("--bf16", action="store_true", help="beside float32")
    parser.add_argument("--shrink", type=int, default=1, help="graphs this many times smaller")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    record: dict[str, Any] = {**provenance(), "gpu": torch.cuda.get_device_name(), "rows": []}
    args.out.mkdir(parents=True, exist_ok=True)
    for graph_name in args.graphs:
        if not any(graph_name in dict(CASES[model]) for model in args.models):
            continue
        _, _, _, features, classes = RMAT[graph_name]
        block = rmat(graph_name, "cuda", shrink=args.shrink)
        x = np.random.default_rng(0).standard_normal((block.num_dst, features), np.float32)
        y = torch.randint(classes, (block.num_dst,), device="cuda")
        graph = Graph(
            rowptr=block.rowptr.cpu().numpy(),
            col=block.col.cpu().numpy(),
            x=Table(data=x, dtype="float32"),
        )
        for model, places in CASES.items():
            if model not in args.models or graph_name not in dict(places):
                continue
            form = dict(places)[graph_name]
            forms = args.form or [form or ""]
            row: dict[str, Any] = {"model": model, "graph": graph_name, "form": form}

            def made(model: str = model, sizes: tuple[int, int] = (features, classes)) -> Net:
                torch.manual_seed(0)
                return build(model, *sizes)

            calls = {
                "tiergnn": lambda g=graph, y=y: ours(made(), g, y, args.epochs, torch.float32),
                "tiergnn_bf16": lambda g=graph, y=y: ours(
                    made(), g, y, args.epochs, torch.bfloat16
                ),
                "pyg": lambda b=block, x=x, y=y, forms=forms: peer(
                    lambda f: theirs(made(), b, torch.from_numpy(x).cuda(), y, f, args.epochs),
                    forms,
                ),
            }
            asked = {"tiergnn": True, "tiergnn_bf16": args.bf16, "pyg": form and not args.no_peers}
            record["rows"].append(row)
            for name, call in calls.items():
                if asked[name]:
                    row[name] = attempt(call)
                    if name == "pyg":
                        row["form"] = row[name].get("form", form)
                    (args.out / "epochs_gpu.json").write_text(json.dumps(record, indent=1) + "\n")
            print(line(row), flush=True)


if __name__ == "__main__":
    main()
