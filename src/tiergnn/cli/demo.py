"""``demo``: the whole path on a generated graph, in under a minute."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

from tiergnn.cli.output import JSON, Output
from tiergnn.errors import shell_word
from tiergnn.units import format_bytes, format_seconds

NODES, CLASSES, FEATURES, DEGREE, HIDDEN = 10_000, 5, 32, 10, 32


def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The folder to write; a demo there is replaced.")
    ] = Path("tiergnn-demo"),
    epochs: Annotated[int, typer.Option(help="Passes over the graph.", min=1)] = 60,
    json: JSON = False,
) -> None:
    """Make a graph, train a two-layer GCN on it, and print its accuracy: the same on every run.

    Takes under a minute on two cores, the first compilation of the kernels included.

    Example: tiergnn demo --out /tmp/demo
    """
    from tiergnn import api
    from tiergnn.graph import generate
    from tiergnn.graph.summary import Summary

    output = Output(json=json)
    graph_dir, run_dir = out / "graph", out / "run"
    start = perf_counter()

    output.say(
        f"1. Make a stochastic block model: {NODES:,} nodes in {CLASSES} classes, about {DEGREE} "
        "neighbours each,\n   4 of 5 in the same class, and features that say little by themselves."
    )
    graph = generate.sbm(NODES, CLASSES, degree=DEGREE, num_features=FEATURES, seed=0)
    graph = graph.save(graph_dir, overwrite=True)
    summary = Summary.of(graph)
    splits = ", ".join(f"{size:,} {name}" for name, size in summary.splits.items())
    output.say(
        f"   {summary.num_edges:,} edges; {splits};\n"
        f"   {format_bytes(summary.num_bytes)} in {graph_dir}"
    )

    weights = 4 * (FEATURES * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES)
    rows = 4 * NODES * (HIDDEN + CLASSES)
    output.say(
        f"2. Train a GCN of widths {FEATURES} -> {HIDDEN} -> {CLASSES} for {epochs} epochs, all of "
        f"the graph at every step:\n   {format_bytes(weights)} of weights, "
        f"{format_bytes(rows)} of rows for each pass, and the graph's own bytes."
    )
    run = api.train(
        graph,
        {"name": "gcn", "hidden_channels": HIDDEN, "num_layers": 2, "dropout": 0.5},
        out=run_dir,
        epochs=epochs,
        lr=0.01,
        weight_decay=5e-4,
        overwrite=True,
        device="cpu",
    )
    accuracy = {split: values["accuracy"] for split, values in run.metrics.items()}
    peak = ", ".join(f"{tier} {format_bytes(n)}" for tier, n in run.peak_bytes.items())
    output.say(
        f"   {format_seconds(run.seconds_per_epoch or 0)} an epoch; peak bytes: {peak}; "
        f"{format_seconds(perf_counter() - start)} in all, compiling included"
    )
    places = (graph_dir, run_dir, out / "sage", out / "preds.npy", out / "report.html")
    at, ran, sage, predictions, page = map(shell_word, places)
    output.result(
        {"graph": graph_dir, "run": run_dir, "accuracy": accuracy},
        f"3. Test accuracy {accuracy['test']:.4f} at the epoch of the best validation accuracy "
        f"({accuracy['val']:.4f}); guessing gives {1 / CLASSES:.4f}.\n\n"
        "What to try next:\n"
        f"  tiergnn info {at}\n"
        f"  tiergnn resume {ran} --epochs {2 * epochs}\n"
        f"  tiergnn train {at} --model sage --hidden 64 --dropout 0.5 --out {sage}\n"
        f"  tiergnn predict {ran} --out {predictions}\n"
        f"  tiergnn report {ran} --html {page}\n"
        "  tiergnn ingest YOUR_EDGES.csv --out YOUR_GRAPH",
    )
