"""``partition``: parts, cut, halos and balance of a graph."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tiergnn.cli.output import JSON, Output
from tiergnn.cli.progress import Phases
from tiergnn.errors import ConfigError


def partition(
    graph: Annotated[Path, typer.Argument(help="A graph folder, made by `tiergnn ingest`.")],
    parts: Annotated[
        int, typer.Option("--parts", "--num-parts", "-k", help="Number of parts.", min=1)
    ],
    method: Annotated[
        str,
        typer.Option(
            help="block (ranges of node ids), metis (few edges cut; needs pymetis), switching (few "
            "rows read from other parts, for graphs of any size) or auto (one of them, and why)."
        ),
    ] = "block",
    balance: Annotated[
        str,
        typer.Option(
            help="What each part gets an equal share of: nodes, edges or names of splits, each "
            "with the largest accepted load over mean load if you like: nodes=1.05,train"
        ),
    ] = "nodes",
    seed: Annotated[int, typer.Option(help="Of metis and switching.", min=0)] = 0,
    save: Annotated[
        bool, typer.Option("--save", help="Keep it in the graph folder, as METHOD-PARTS.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Keep it in this folder.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a partition that is there.")
    ] = False,
    memory: Annotated[
        str | None,
        typer.Option(help="What auto may take, as 8GiB (bytes without a unit); else what is free."),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(help="Of switching; the parts are the same for any number.", min=1),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    json: JSON = False,
) -> None:
    """Share the nodes out over parts and say what it costs; the graph itself is not changed.

    cut: in-edges from other parts; halo: rows that a part reads from others; expansion ratio: rows
    read over rows owned. metis and switching leave about as few; switching holds a quarter of the
    graph's memory beside it, metis many times the graph. `tiergnn info` lists the partitions kept
    in a graph folder.

    Example: tiergnn partition data/cora --parts 8 --method metis --balance nodes,train --save
    """
    from tiergnn.graph.csr import Graph
    from tiergnn.graph.partition import partition as make
    from tiergnn.hardware.capacities import free_host_bytes

    with Phases(quiet=quiet) as progress:
        made = make(
            Graph.open(graph),
            parts,
            method,
            seed=seed,
            balance=_balance(balance),
            memory=free_host_bytes() if memory is None else memory,
            num_threads=threads,
            progress=progress,
        )
    kept = made.save(out, overwrite=overwrite) if save or out is not None else None
    told = str(made) if kept is None else f"{made}\nkept in {kept}"
    Output(json=json).result({"graph": graph, "out": kept, **made.to_json()}, told)


def _balance(text: str) -> dict[str, float | None]:
    """``nodes=1.05,train`` -> {"nodes": 1.05, "train": None}."""
    asked: dict[str, float | None] = {}
    for part in text.split(","):
        name, equals, bound = part.strip().partition("=")
        try:
            asked[name] = float(bound) if equals else None
        except ValueError:
            raise ConfigError(
                f"--balance {part.strip()!r}: {bound!r} is not a number", hint="nodes=1.05,train"
            ) from None
    return asked
