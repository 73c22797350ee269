"""``ingest``: any known file to a graph folder.

Everything that it offers is handed to ``graph.ingest`` under its own name; what was not given is
left to it, so that defaults live in one place.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tiergnn.cli.output import JSON, Output
from tiergnn.cli.progress import Phases
from tiergnn.errors import shell_word

_EDGES = "Edges"
_NODES = "Nodes"
_FILES = "Files and memory"


def _option(*names: str, help: str, panel: str, default: str | bool = False) -> Any:
    """A typer option; ``default`` is what the library does when it is not given."""
    return typer.Option(*names, help=help, rich_help_panel=panel, show_default=default)


def ingest(
    src: Annotated[Path, typer.Argument(help="A file of edges, or a folder that holds a graph.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The graph folder to write.")],
    format: Annotated[
        str | None,
        _option("--format", help="What SRC is.", panel=_FILES, default="found by looking"),
    ] = None,
    memory: Annotated[
        str | None,
        _option(
            "--memory",
            help="The most that the process takes: 512MiB, 4GiB; without a unit it is bytes. The "
            "rest goes through the disk.",
            panel=_FILES,
            default="1GiB",
        ),
    ] = None,
    overwrite: Annotated[
        bool, _option("--overwrite", help="Replace a graph that is there.", panel=_FILES)
    ] = False,
    resume: Annotated[
        bool,
        _option(
            "--resume/--fresh",
            help="Go on with an ingest of the same files that was killed, or begin anew.",
            panel=_FILES,
            default="resume",
        ),
    ] = True,
    quiet: Annotated[bool, _option("--quiet", "-q", help="Only the result.", panel=_FILES)] = False,
    ids: Annotated[
        str | None,
        _option(
            "--ids",
            help="dense (0..V-1 as they are), relabel (any numbers or names, the map is kept), "
            "names (numbers are names, too) or auto.",
            panel=_EDGES,
            default="auto",
        ),
    ] = None,
    num_nodes: Annotated[
        int | None,
        _option(
            "--num-nodes",
            help="Nodes of dense ids; some may have no edge.",
            panel=_EDGES,
            default="the largest id + 1",
        ),
    ] = None,
    one_based: Annotated[
        bool, _option("--one-based", help="Dense ids count from 1.", panel=_EDGES)
    ] = False,
    undirected: Annotated[
        bool, _option("--undirected", help="Add the reverse of every edge.", panel=_EDGES)
    ] = False,
    self_loops: Annotated[
        str | None,
        _option("--self-loops", help="keep, remove or add.", panel=_EDGES, default="keep"),
    ] = None,
    duplicates: Annotated[
        str | None,
        _option(
            "--duplicates",
            help="keep; sum (weights and edge features); or refuse.",
            panel=_EDGES,
            default="keep",
        ),
    ] = None,
    delimiter: Annotated[
        str | None,
        _option("--delimiter", help="One character.", panel=_EDGES, default="found by looking"),
    ] = None,
    header: Annotated[
        bool | None,
        _option(
            "--header/--no-header",
            help="Whether the first line names columns.",
            panel=_EDGES,
            default="found by looking",
        ),
    ] = None,
    source: Annotated[
        str | None,
        _option("--source", help="Column, by name or position from 0.", panel=_EDGES, default="0"),
    ] = None,
    target: Annotated[
        str | None,
        _option("--target", help="Column, by name or position from 0.", panel=_EDGES, default="1"),
    ] = None,
    weight: Annotated[
        str | None,
        _option(
            "--weight",
            help="Column of edge weights; none leaves them out.",
            panel=_EDGES,
            default="a column called weight",
        ),
    ] = None,
    weight_dtype: Annotated[
        str | None,
        _option(
            "--weight-dtype",
            help="float32 or float64.",
            panel=_EDGES,
            default="the narrower one if exact",
        ),
    ] = None,
    edge_features: Annotated[
        str | None, _option("--edge-features", help="Columns of edges: a,b,c.", panel=_EDGES)
    ] = None,
    edge_feature_dtype: Annotated[
        str | None,
        _option("--edge-feature-dtype", help="What to store them as.", panel=_EDGES),
    ] = None,
    nodes: Annotated[
        Path | None,
        _option("--nodes", help="A CSV or Parquet table of one row a node.", panel=_NODES),
    ] = None,
    node_id: Annotated[
        str | None, _option("--node-id", help="Its column of ids.", panel=_NODES)
    ] = None,
    node_label: Annotated[
        str | None, _option("--node-label", help="Its column of labels.", panel=_NODES)
    ] = None,
    node_split: Annotated[
        str | None,
        _option("--node-split", help="Its column of train, val, test.", panel=_NODES),
    ] = None,
    node_features: Annotated[
        str | None,
        _option(
            "--node-features",
            help="Its columns of features: a,b,c.",
            panel=_NODES,
            default="all others",
        ),
    ] = None,
    features: Annotated[
        Path | None,
        _option("--features", help=".npy, .npz or text; row i is node i.", panel=_NODES),
    ] = None,
    feature_dtype: Annotated[
        str | None,
        _option(
            "--feature-dtype",
            help="float64, float32, float16, bfloat16, int8, uint8 or bool.",
            panel=_NODES,
            default="as given",
        ),
    ] = None,
    feature_scale: Annotated[
        str | None,
        _option(
            "--feature-scale",
            help="What a step of int8 or uint8 features is worth: a number or a .npy file.",
            panel=_NODES,
        ),
    ] = None,
    labels: Annotated[
        Path | None, _option("--labels", help="A file; row i is node i.", panel=_NODES)
    ] = None,
    splits: Annotated[
        Path | None,
        _option(
            "--splits",
            help="A .npz of masks or ids by name, or a folder of one file a split.",
            panel=_NODES,
        ),
    ] = None,
    task: Annotated[
        str | None,
        _option("--task", help="class, multilabel or real.", panel=_NODES, default="by the labels"),
    ] = None,
    num_classes: Annotated[
        int | None,
        _option("--num-classes", help="Classes.", panel=_NODES, default="the largest label + 1"),
    ] = None,
    json: JSON = False,
) -> None:
    """Turn a graph in any known format into a graph folder, under a memory cap.

    Reads text edge lists (SNAP's, .gz too), CSV and TSV, Parquet, .npy and .npz, Matrix Market,
    METIS .graph, PyG's tensors in a .pt, OGB's extracted folders, and folders of NumPy arrays.

    Bad input is refused, with file, line or position, before anything is at OUT. An ingest that
    was killed goes on where it was when it is run again.

    Example: tiergnn ingest edges.csv.gz --ids relabel --undirected --memory 2GiB --out data/mine
    """
    from tiergnn.graph.ingest import ingest as read

    choices = {
        "format": format,
        "memory": memory,
        "ids": ids,
        "num_nodes": num_nodes,
        "self_loops": self_loops,
        "duplicates": duplicates,
        "delimiter": delimiter,
        "header": header,
        "source": source,
        "target": target,
        "weight": weight,
        "weight_dtype": weight_dtype,
        "edge_features": edge_features,
        "edge_feature_dtype": edge_feature_dtype,
        "nodes": nodes,
        "node_id": node_id,
        "node_label": node_label,
        "node_split": node_split,
        "node_features": node_features,
        "features": features,
        "feature_dtype": feature_dtype,
        "feature_scale": None if feature_scale is None else _number_or_path(feature_scale),
        "labels": labels,
        "splits": splits,
        "task": task,
        "num_classes": num_classes,
    }
    with Phases(quiet=quiet) as progress:
        graph = read(
            src,
            out,
            undirected=undirected,
            one_based=one_based,
            overwrite=overwrite,
            resume=resume,
            progress=progress,
            **{name: value for name, value in choices.items() if value is not None},
        )
    facts = {
        "graph": out,
        "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges,
        "task": graph.task,
        "num_classes": graph.num_classes,
        "splits": {name: chosen.size for name, chosen in graph.splits.items()},
    }
    Output(json=json).result(
        facts, f"{graph!r}\nwritten to {out}\n  next: tiergnn info {shell_word(out)}"
    )


def _number_or_path(text: str) -> float | Path:
    try:
        return float(text)
    except ValueError:
        return Path(text)
