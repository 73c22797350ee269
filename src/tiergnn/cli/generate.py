"""``generate``: seeded graphs, the same on every machine, as graph folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tiergnn.cli.output import JSON, Output, register
from tiergnn.errors import shell_word

if TYPE_CHECKING:
    from tiergnn.graph.csr import Graph

OUT = Annotated[Path, typer.Option("--out", "-o", help="The graph folder to write.")]
SEED = Annotated[int, typer.Option(help="The same seed gives the same graph.", min=0)]
OVERWRITE = Annotated[bool, typer.Option("--overwrite", help="Replace a graph that is there.")]
NODES = Annotated[int, typer.Option("--nodes", "--num-nodes", help="Number of nodes.", min=0)]
BOTH_WAYS = Annotated[bool, typer.Option("--undirected", help="Add the reverse of every edge.")]

app = typer.Typer(
    name="generate",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="A seeded graph, the same on every machine, as a graph folder.\n\n"
    "Example: tiergnn generate sbm --nodes 10000 --classes 5 --out data/sbm",
)


def rmat(
    out: OUT,
    nodes: NODES = 2**16,
    edges: Annotated[
        int, typer.Option("--edges", "--num-edges", help="Edges drawn; repeats stay.", min=0)
    ] = 2**20,
    a: Annotated[float, typer.Option(help="Chance of the (low, low) quarter.")] = 0.57,
    b: Annotated[float, typer.Option(help="Chance of the (low, high) quarter.")] = 0.19,
    c: Annotated[float, typer.Option(help="Chance of the (high, low) quarter.")] = 0.19,
    undirected: BOTH_WAYS = False,
    seed: SEED = 0,
    overwrite: OVERWRITE = False,
    json: JSON = False,
) -> None:
    """A power-law graph without labels: R-MAT, Graph500's chances by default.

    Example: tiergnn generate rmat --nodes 1000000 --edges 20000000 --out data/rmat
    """
    from tiergnn.graph import generate

    _write(
        lambda: generate.rmat(nodes, edges, seed=seed, a=a, b=b, c=c, undirected=undirected),
        out,
        overwrite,
        json,
        {"generator": "rmat", "seed": seed, "a": a, "b": b, "c": c},
    )


def sbm(
    out: OUT,
    nodes: NODES = 2_000,
    classes: Annotated[
        int, typer.Option("--classes", "--num-classes", help="Classes, one block each.", min=1)
    ] = 5,
    degree: Annotated[float, typer.Option(help="Mean number of neighbours.", min=0)] = 10.0,
    homophily: Annotated[
        float, typer.Option(help="Fraction of edges inside classes.", min=0, max=1)
    ] = 0.8,
    features: Annotated[
        int, typer.Option("--features", "--num-features", help="Columns of x.", min=0)
    ] = 32,
    signal: Annotated[
        float, typer.Option(help="Distance of class means, in standard deviations.", min=0)
    ] = 1.0,
    seed: SEED = 0,
    overwrite: OVERWRITE = False,
    json: JSON = False,
) -> None:
    """A stochastic block model with labels, features that tell of them, and splits.

    Example: tiergnn generate sbm --nodes 10000 --classes 5 --out data/sbm
    """
    from tiergnn.graph import generate

    _write(
        lambda: generate.sbm(
            nodes,
            classes,
            degree=degree,
            homophily=homophily,
            num_features=features,
            signal=signal,
            seed=seed,
        ),
        out,
        overwrite,
        json,
        {"generator": "sbm", "seed": seed, "homophily": homophily, "signal": signal},
    )


def grid(
    out: OUT,
    height: Annotated[int, typer.Option(help="Rows of nodes.", min=0)] = 100,
    width: Annotated[int, typer.Option(help="Nodes in a row.", min=0)] = 100,
    overwrite: OVERWRITE = False,
    json: JSON = False,
) -> None:
    """Nodes in rows and columns, each joined with its four neighbours.

    Example: tiergnn generate grid --height 300 --width 200 --out data/grid
    """
    from tiergnn.graph import generate

    _write(lambda: generate.grid(height, width), out, overwrite, json, {"generator": "grid"})


def star(
    out: OUT,
    leaves: Annotated[int, typer.Option(help="Nodes round node 0.", min=0)] = 1_000,
    direction: Annotated[
        str, typer.Option(help="in (leaves point to node 0), out or both.")
    ] = "in",
    overwrite: OVERWRITE = False,
    json: JSON = False,
) -> None:
    """Node 0 and its leaves.

    Example: tiergnn generate star --leaves 7000 --direction both --out data/star
    """
    from tiergnn.graph import generate

    _write(
        lambda: generate.star(leaves, direction=direction),
        out,
        overwrite,
        json,
        {"generator": "star"},
    )


def path(
    out: OUT,
    nodes: NODES = 1_000,
    undirected: BOTH_WAYS = False,
    overwrite: OVERWRITE = False,
    json: JSON = False,
) -> None:
    """0 -> 1 -> 2 -> ...

    Example: tiergnn generate path --nodes 1000 --out data/path
    """
    from tiergnn.graph import generate

    _write(
        lambda: generate.path(nodes, directed=not undirected),
        out,
        overwrite,
        json,
        {"generator": "path"},
    )


def _write(
    make: Callable[[], Graph], out: Path, overwrite: bool, json: bool, source: dict[str, Any]
) -> None:
    from tiergnn.graph.folder import save_folder

    graph = save_folder(make(), out, overwrite=overwrite, source=source)
    Output(json=json).result(
        {"graph": out, "num_nodes": graph.num_nodes, "num_edges": graph.num_edges},
        f"{graph!r}\nwritten to {out}\n  next: tiergnn info {shell_word(out)}",
    )


register(app, rmat, sbm, grid, star, path)
