"""``evaluate``, ``predict`` and ``report``: what a run has learnt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tiergnn.cli.output import JSON, Output, made_for

RUN = Annotated[Path, typer.Argument(help="A run folder, made by `tiergnn train`.")]
GRAPH = Annotated[
    Path | None,
    typer.Option(
        help="Another graph folder with the same features, or where the run's own is now.",
        show_default="the run's",
    ),
]
RANKS = Annotated[
    int | None,
    typer.Option(help="That compute; 1 is one device.", show_default="the run's", min=1),
]
DEVICE = Annotated[
    str | None, typer.Option(help="auto, cpu, cuda or cuda:N.", show_default="the run's")
]


def evaluate(
    run: RUN,
    split: Annotated[
        str | None,
        typer.Option(help="One split, or all for every labelled node.", show_default="the run's"),
    ] = None,
    graph: GRAPH = None,
    device: DEVICE = None,
    ranks: RANKS = None,
    json: JSON = False,
) -> None:
    """Metrics of a run's best weights, exact over whole splits, without dropout.

    Example: tiergnn evaluate runs/a --split test --json
    """
    from tiergnn import api
    from tiergnn.report.text import metric_table
    from tiergnn.training.joined import ranks_here

    metrics = api.evaluate(run, split, graph=graph, device=device, ranks=ranks_here(ranks))
    Output(json=json).result({"run": run, "metrics": metrics}, metric_table(metrics))


def predict(
    run: RUN,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="The file to write: .npy holds the rows in node order, .csv and .npz also the "
            "names that the graph's source gave to its nodes.",
        ),
    ],
    kind: Annotated[
        str,
        typer.Option(help="logits or probabilities (a column a class), or labels."),
    ] = "logits",
    graph: GRAPH = None,
    device: DEVICE = None,
    ranks: RANKS = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a file that is there.")
    ] = False,
    json: JSON = False,
) -> None:
    """What a run's best weights say of every node; row i is the graph's node i.

    Example: tiergnn predict runs/a --kind labels --out preds.csv
    """
    from tiergnn.cli.predictions import check_target, write_predictions
    from tiergnn.training.joined import ranks_here
    from tiergnn.training.run import reopen

    check_target(out, overwrite=overwrite)
    opened = reopen(run, graph, None, device=device, ranks=ranks_here(ranks))
    rows = opened.predict(kind)
    write_predictions(out, rows, opened.graph)
    Output(json=json).result(
        {"run": run, "out": out, "kind": kind, "shape": rows.shape, "dtype": str(rows.dtype)},
        f"{kind} of {len(rows):,} nodes, {rows.dtype} {list(rows.shape)}, written to {out}",
    )


def report(
    run: RUN,
    html: Annotated[
        Path | None,
        typer.Option(help="Write one page with curves, settings and costs; nothing is fetched."),
    ] = None,
    json: JSON = False,
) -> None:
    """What a run was, reached and took, while it trains or afterwards.

    Example: tiergnn report runs/a --html report.html
    """
    from tiergnn.report.page import run_page
    from tiergnn.report.record import RunRecord
    from tiergnn.report.text import run_text

    record = RunRecord.read(run)
    if html is not None:
        write_page(html, run_page(record))
    facts = {
        "run": run,
        "status": record.status,
        "epochs": record.epochs,
        "best_epoch": record.best_epoch,
        "metrics": record.metrics,
        "seconds_per_epoch": record.seconds_per_epoch,
        "peak_bytes": record.peak_bytes,
        "peak_of": record.peak_of,
        "predicted": None
        if record.plan is None
        else {"seconds_per_epoch": record.plan.seconds, "peak_bytes": record.plan.peak_bytes},
        "measured_over_predicted": record.measured_over_predicted,
        "losses": [one["loss"] for one in record.history],
        "html": html,
    }
    told = run_text(record)
    Output(json=json).result(facts, told if html is None else f"{told}\n\npage written to {html}")


def write_page(path: Path, page: str) -> None:
    """Write a page, whole; only a page is replaced. Raises StoreError."""
    from tiergnn.errors import StoreError
    from tiergnn.files import write_whole
    from tiergnn.graph.staging import store_errors

    with store_errors("write", path):
        if path.is_file() and not path.read_bytes().startswith(b"<!doctype html>"):
            raise StoreError(
                "the file that is there is no page", culprit=str(path), hint="another name"
            )
    # A path that is not UTF-8 stands in the page as the bytes that it is.
    write_whole(made_for(path), page.encode(errors="surrogateescape"))
