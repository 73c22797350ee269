"""Whole epochs on the CPU, forward, backward and Adam: ours against every adjacency form of PyG.

The contestants take turns, one epoch each, in one process, so that what else the machine does meets
all of them alike; ratios are of medians. Before that, all are checked to learn the same: without
dropout, the losses of three epochs from one initialisation agree to 1e-4.

A form of PyG's that makes one row an edge is left out, and said to be, when its messages would not
fit in the memory that is free.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
import torch_geometric
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import EdgeIndex
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

from provenance import RESULTS, provenance
from tiergnn.graph.csr import Graph
from tiergnn.graph.generate import rmat
from tiergnn.graph.table import Table
from tiergnn.models.zoo import build
from tiergnn.runtime.executor import Resident

MODELS = ("gcn", "sage", "gat")
HEADS = 8
MESSAGES = 3  # rows an edge that PyG holds at once, of the widest layer


class Peer(nn.Module):
    """The two-layer models as PyG users write them."""

    def __init__(self, name: str, num_features: int, hidden: int, classes: int, dropout: float):
        super().__init__()
        self.dropout, self.act = dropout, F.elu if name == "gat" else F.relu
        if name == "gcn":
            self.convs = nn.ModuleList(
                [
                    GCNConv(num_features, hidden, cached=True),
                    GCNConv(hidden, classes, cached=True),
                ]
            )
        elif name == "sage":
            self.convs = nn.ModuleList([SAGEConv(num_features, hidden), SAGEConv(hidden, classes)])
        else:
            self.convs = nn.ModuleList(
                [
                    GATConv(num_features, hidden // HEADS, heads=HEADS, dropout=dropout),
                    GATConv(hidden, classes, heads=1, concat=False, dropout=dropout),
                ]
            )

    def forward(self, x: Tensor, edges: Any) -> Tensor:
        x = self.act(self.convs[0](x, edges))
        x = F.dropout(x, p=self.dropout, training=self.training)
        return self.convs[1](x, edges)


def adjacency(graph: Graph, form: str) -> Any:
    """The graph as PyG takes it."""
    col = torch.from_numpy(graph.col.astype("int64"))
    rowptr = torch.from_numpy(graph.rowptr)
    if form == "csr":  # adj_t
        ones = torch.ones(graph.num_edges)
        shape = (graph.num_nodes, graph.num_nodes)
        return torch.sparse_csr_tensor(rowptr, col, ones, size=shape)
    dst = torch.repeat_interleave(torch.arange(graph.num_nodes), rowptr.diff())
    edge_index = torch.stack([col, dst])
    if form == "scatter":
        return edge_index
    shape = (graph.num_nodes, graph.num_nodes)
    return EdgeIndex(edge_index, sparse_size=shape, sort_order="col").fill_cache_()


def contestants(args: argparse.Namespace, name: str, graph: Graph, dropout: float) -> dict:
    """Name -> (one epoch that returns its loss, the model), or why it does not run."""
    classes, hidden = args.classes, args.hidden
    assert graph.x is not None
    x = torch.from_numpy(graph.x.data)
    y = torch.from_numpy(graph.y)
    out: dict[str, Any] = {}

    options = {"heads": HEADS} if name == "gat" else {}
    width = hidden // HEADS if name == "gat" else hidden
    torch.manual_seed(0)
    ours = build(
        name, args.features, classes, hidden_channels=width, dropout=dropout, input_dropout=0.0,
        **options,
    )  # fmt: skip
    resident = Resident(ours, graph, prepare=True)
    optimizer = torch.optim.Adam(ours.parameters(), lr=0.01)
    steps = iter(range(10**9))

    def our_epoch() -> float:
        optimizer.zero_grad()
        loss = resident.train_step(lambda out: F.cross_entropy(out, y), next(steps))
        optimizer.step()
        return loss

    out["tiergnn"] = our_epoch, ours
    for form in args.forms:
        needed = MESSAGES * graph.num_edges * max(args.features, hidden) * 4
        free = psutil.virtual_memory().available
        if (form != "csr" or name == "gat") and needed > free:
            out[f"pyg {form}"] = (
                f"left out: messages may take {needed / 2**30:.0f} GiB of {free / 2**30:.0f} free"
            )
            continue
        out[f"pyg {form}"] = _peer(args, name, form, graph, x, y, dropout)
    return out


def _peer(args, name, form, graph, x, y, dropout) -> tuple[Callable[[], float], nn.Module]:
    torch.manual_seed(0)
    model = Peer(name, args.features, args.hidden, args.classes, dropout)
    edges = adjacency(graph, form)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def epoch() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, edges), y)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return epoch, model


def check_same(args: argparse.Namespace, name: str) -> None:
    """All learn the same from the same parameters, on a small graph without dropout.

    Edges are single: PyG's GAT adds up equal ones in its CSR form, and only there.
    """
    graph = make_graph(args, 2000, 20_000, duplicates="sum")
    runs = contestants(args, name, graph, dropout=0.0)
    state = [p.detach().clone() for p in runs["tiergnn"][1].parameters()]
    losses = {}
    for key, (epoch, model) in runs.items():
        for parameter, value in zip(model.parameters(), state, strict=True):
            parameter.data.copy_(value)
        losses[key] = [epoch() for _ in range(3)]
    for key, values in losses.items():
        torch.testing.assert_close(values, losses["tiergnn"], rtol=1e-4, atol=1e-4, msg=key)


def make_graph(
    args: argparse.Namespace, num_nodes: int, num_edges: int, duplicates: str = "keep"
) -> Graph:
    graph = rmat(num_nodes, num_edges, seed=0, duplicates=duplicates)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num_nodes, args.features, generator=generator)
    y = torch.randint(0, args.classes, (num_nodes,), generator=generator)
    return Graph(
        rowptr=graph.rowptr, col=graph.col, x=Table.from_array(x.numpy()), y=y.numpy(),
        task="class", num_classes=args.classes,
    )  # fmt: skip


def measure(args: argparse.Namespace, name: str, graph: Graph) -> dict[str, Any]:
    runs = contestants(args, name, graph, dropout=0.5)
    skipped = {key: run for key, run in runs.items() if isinstance(run, str)}
    epochs = {key: run[0] for key, run in runs.items() if not isinstance(run, str)}
    for key, epoch in list(epochs.items()):  # compile, make caches; drop what cannot run
        try:
            epoch()
        except (RuntimeError, NotImplementedError, ValueError) as error:
            skipped[key] = f"does not run: {str(error).splitlines()[0]}"
            del epochs[key]
    times: dict[str, list[tuple[float, float]]] = {key: [] for key in epochs}
    for _ in range(args.rounds):
        for key, epoch in epochs.items():
            gc.collect()
            wall, cpu = time.perf_counter(), time.process_time()
            epoch()
            times[key].append((time.perf_counter() - wall, time.process_time() - cpu))
    result: dict[str, Any] = {"model": name, "hidden": args.hidden, "skipped": skipped}
    for key, pairs in times.items():
        walls, cpus = zip(*pairs, strict=True)
        result[key] = {
            "median_s": statistics.median(walls),
            "least_s": min(walls),
            "median_cpu_s": statistics.median(cpus),
            "all_s": walls,
        }
    peers = [key for key in times if key != "tiergnn"]
    fastest = min(peers, key=lambda key: result[key]["median_s"])
    result["fastest peer"] = fastest
    for measure_name in ("median_s", "least_s", "median_cpu_s"):
        ratio = result[fastest][measure_name] / result["tiergnn"][measure_name]
        result[f"ratio of {measure_name}"] = ratio
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["gcn", "sage"])
    parser.add_argument("--forms", nargs="+", default=["csr", "edge_index", "scatter"],
                        choices=["csr", "edge_index", "scatter"])  # fmt: skip
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=20_000_000)
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--classes", type=int, default=47)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "epoch-cpu.json")
    args = parser.parse_args()
    record = provenance() | {
        "torch_geometric": torch_geometric.__version__,
        "threads": torch.get_num_threads(),
        "huge pages for torch": os.environ.get("THP_MEM_ALLOC_ENABLE") == "1",
        "graph": f"R-MAT, {args.nodes:,} nodes, {args.edges:,} edges, {args.features} features, "
        f"{args.classes} classes",
        "results": [],
    }
    for name in args.models:
        check_same(args, name)
        result = measure(args, name, make_graph(args, args.nodes, args.edges))
        record["results"].append(result)
        for key, value in result.items():
            shown = (
                f"{value['median_s']:.3f} s"
                if isinstance(value, dict) and "median_s" in value
                else value
            )
            print(f"{name:5} {key:24} {shown}", flush=True)
        gc.collect()
    args.out.parent.mkdir(exist_ok=True)
    args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
