"""Every labelled set of TIERGNN_DATA through the same four lines: ingest, train, measure, predict.

Nothing here depends on which set it is. A set that has splits is trained on its (first) split, one
that has none on a random 60/20/20; one that has no features learns 64 columns. More than two
classes are judged by accuracy, two and several labels a node by ROC-AUC. One set is also written
anew with names for ids and read back from that.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import tiergnn as tg
from provenance import DATA, RESULTS, provenance, sentence
from tiergnn.graph.summary import Summary

MODEL = {"name": "sage", "hidden_channels": 64, "num_layers": 2, "dropout": 0.5}
NAMED = "polblogs"  # directed, with nodes that have no edge


def labelled_sets() -> list[str]:
    """Names of the sets that have labels, smallest first."""
    found = []
    for path in sorted(DATA.iterdir()):
        if (path / "y.npy").exists() and (path / "edge_index.npz").exists():
            found.append((json.loads((path / "meta.json").read_text())["stored_edges"], path.name))
    return [name for _, name in sorted(found)]


def train(graph: tg.Graph, epochs: int) -> tg.Run:
    several = graph.task == "class" and graph.num_classes != 2
    return tg.train(
        graph,
        MODEL,
        epochs=epochs,
        lr=0.01,
        weight_decay=5e-4 if graph.x is not None else 0.0,  # it would wear learned rows away
        split=None if graph.splits else "random:0.6/0.2/0.2",
        features="stored" if graph.x is not None else "embedding:64",
        metric="accuracy" if several else "roc_auc",
        device="cpu",
        progress=False,
    )


def measure(name: str, graph: tg.Graph, epochs: int) -> dict[str, Any]:
    start = time.perf_counter()
    run = train(graph, epochs)
    seconds = time.perf_counter() - start
    logits = run.predict()
    assert logits.shape[0] == graph.num_nodes
    assert np.isfinite(logits).all()
    return {
        "set": name,
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "directed": not Summary.of(graph).symmetric,
        "task": f"{graph.task}, {graph.num_classes}",
        "features": 0 if graph.x is None else graph.x.width,
        "split": "random" if not graph.splits else "stored",
        "test": run.metrics["test"],
        "seconds": round(seconds, 1),
        "seconds_per_epoch": run.seconds_per_epoch,
    }


def with_names(name: str, folder: Path) -> tg.Graph:
    """The set written as CSV tables whose ids are names, and ingested from those."""
    source = DATA / name
    edges = np.load(source / "edge_index.npz")["edge_index"]
    labels = np.load(source / "y.npy")
    with open(folder / "edges.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["from", "to"])
        writer.writerows((f"blog {u}", f"blog {v}") for u, v in edges.T)
    with open(folder / "nodes.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["name", "leaning"])
        writer.writerows((f"blog {v}", int(label)) for v, label in enumerate(labels))
    return tg.ingest(
        folder / "edges.csv",
        folder / "named",
        ids="relabel",
        nodes=folder / "nodes.csv",
        node_id="name",
        node_label="leaning",
    )


def page(record: dict[str, Any]) -> str:
    lines = [
        "# Every labelled set, one short training each",
        "",
        f"A {MODEL['num_layers']}-layer {MODEL['name']} of {MODEL['hidden_channels']} columns, "
        f"{record['epochs']} epochs, one seed, the same lines for every set: the text at the top "
        "of `benchmarks/real_graphs.py`. Test metrics at the best-validation epoch.",
        "",
        "| set | nodes | edges | directed | task, classes | features | split | accuracy | micro F1 "
        "| ROC-AUC | ms an epoch |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        scores = (row["test"].get(metric) for metric in ("accuracy", "f1_micro", "roc_auc"))
        told = " | ".join("n/a" if score is None else f"{100 * score:.1f}" for score in scores)
        lines.append(
            f"| {row['set']} | {row['nodes']:,} | {row['edges']:,} | "
            f"{'yes' if row['directed'] else 'no'} | {row['task']} | {row['features'] or '-'} | "
            f"{row['split']} | {told} | {1000 * row['seconds_per_epoch']:.0f} |"
        )
    return "\n".join([*lines, "", sentence(record), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--sets", nargs="+", default=None, help="default: all that have labels")
    parser.add_argument("--out", type=Path, default=RESULTS / "real_graphs.json")
    args = parser.parse_args()
    record: dict[str, Any] = {**provenance(), "epochs": args.epochs, "rows": []}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in args.sets or labelled_sets():
            row = measure(name, tg.ingest(DATA / name, folder / name), args.epochs)
            record["rows"].append(row)
            print(json.dumps(row), flush=True)
        named = with_names(NAMED, folder)
        row = measure(f"{NAMED}, ids as names", named, args.epochs)
        record["rows"].append(row)
        print(json.dumps(row), flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(record, indent=1) + "\n")
    args.out.with_suffix(".md").write_text(page(record))


if __name__ == "__main__":
    main()
