"""From any known file to a graph folder, streamed: a graph may be larger than memory."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tiergnn.errors import ConfigError, GraphError, StoreError
from tiergnn.graph.csr import Graph
from tiergnn.graph.folder import FolderWriter, open_folder
from tiergnn.graph.formats.options import Column, Options, as_column, as_columns
from tiergnn.graph.pipeline import Pipeline
from tiergnn.graph.staging import store_errors
from tiergnn.graph.workspace import Workspace
from tiergnn.units import format_bytes, parse_bytes

INTERPRETER_BYTES = 192 * 2**20  # what Python, NumPy and Numba take themselves
LEAST_BYTES = 2**20
log = logging.getLogger("tiergnn")


def ingest(
    src: str | Path,
    out: str | Path,
    *,
    format: str | None = None,
    memory: str | int = "1GiB",
    undirected: bool = False,
    self_loops: str = "keep",
    duplicates: str = "keep",
    ids: str = "auto",
    num_nodes: int | None = None,
    one_based: bool = False,
    delimiter: str | None = None,
    header: bool | None = None,
    source: Column | None = None,
    target: Column | None = None,
    weight: Column = "auto",
    weight_dtype: str | None = None,
    edge_features: Column | Iterable[Column] | None = None,
    edge_feature_dtype: str | None = None,
    nodes: str | Path | None = None,
    node_id: Column | None = None,
    node_label: Column | None = None,
    node_split: Column | None = None,
    node_features: Column | Iterable[Column] | None = None,
    features: str | Path | None = None,
    feature_dtype: str | None = None,
    feature_scale: float | str | Path | None = None,
    labels: str | Path | None = None,
    splits: str | Path | None = None,
    task: str | None = None,
    num_classes: int | None = None,
    overwrite: bool = False,
    resume: bool = True,
    progress: Callable[[str, int, int], None] | None = None,
) -> Graph:
    """Read the graph at ``src``, write it as a graph folder ``out`` and open that.

    An edge u v is u -> v. Everything that can be wrong with the input is refused, with the place,
    before there is anything at ``out``. An ingest that was killed goes on where it was when called
    again with the same files and options; its work is in ``OUT.ingest-work`` until it is done.

    format: a name in ``graph.formats.known``; None looks at the file.
    memory: the most that the process should take, of which Python and its libraries need about
        200 MiB; what does not fit goes through the disk beside ``out``, about 30 bytes an edge.

    Edges. undirected, self_loops ("keep", "remove", "add") and duplicates ("keep", "sum",
    "refuse") are those of ``from_edges``.
    ids: "dense" ones are 0..num_nodes-1 and stay (num_nodes: one more than the largest, unless
        given); "relabel" takes any whole numbers or names and makes them 0..V-1 in ascending
        order, keeping their map as ``graph.node_ids``; "names" likewise, taking numbers for
        names, too; "auto" is "dense", but "relabel" for names and for numbers far apart.
    one_based: dense ids count from 1.
    delimiter, header: of text; found out when None. source, target, weight, edge_features: columns
        by name or by position from 0. weight "auto" is a column of that name, or the third of
        a text without header; "none" leaves weights out.
    weight_dtype: float32 or float64; by default the width given, for text and whole numbers the
        narrower one if exact. edge_feature_dtype: by default the width given, float32 for text.

    Nodes. nodes: a table (CSV or Parquet) of one row a node, in any order, with columns node_id,
        node_label, node_split (values such as train, val, test) and node_features (by default all
        others that are named in no other option); it may name nodes without edges.
    features, labels, splits: files whose row i is node i (with ``nodes``: its row i): .npy, .npz
        (a SciPy CSR matrix becomes dense), text. splits is a .npz of masks or ids by name, or a
        folder with one file a split.
    feature_dtype: what to store x as; rounds floats to narrower floats. feature_scale: of int8 or
        uint8 features.
    task: "class", "multilabel" or "real"; by default floats are real, one column of whole numbers
        class, several of 0 and 1 multilabel.

    progress: called with (phase, done, total) now and then.
    Raises GraphError for bad input, ConfigError for bad options, StoreError for files.
    """
    src, out = Path(src), Path(out)
    options = Options(
        undirected=undirected,
        self_loops=self_loops,
        duplicates=duplicates,
        ids=ids,
        num_nodes=num_nodes,
        one_based=one_based,
        delimiter=delimiter,
        header=header,
        source=source if source is None else as_column(source),
        target=target if target is None else as_column(target),
        weight=as_column(weight),
        weight_dtype=weight_dtype,
        edge_features=as_columns(edge_features),
        edge_feature_dtype=edge_feature_dtype,
        nodes=nodes if nodes is None else Path(nodes),
        node_id=node_id if node_id is None else as_column(node_id),
        node_label=node_label if node_label is None else as_column(node_label),
        node_split=node_split if node_split is None else as_column(node_split),
        node_features=node_features if node_features is None else as_columns(node_features),
        features=features if features is None else Path(features),
        feature_dtype=feature_dtype,
        feature_scale=Path(feature_scale) if isinstance(feature_scale, str) else feature_scale,
        labels=labels if labels is None else Path(labels),
        splits=splits if splits is None else Path(splits),
        task=task,
        num_classes=num_classes,
    )
    memory_bytes = _working_bytes(parse_bytes(memory))
    key = {
        "format": format,
        "memory_bytes": memory_bytes,
        "options": options.as_json(),
        "files": _identity(src, out, options),
    }

    def check_files() -> None:
        before = {file: rest for file, *rest in key["files"]}
        now = {file: rest for file, *rest in _identity(src, out, options)}
        if changed := [f for f in sorted({*before, *now}) if before.get(f) != now.get(f)]:
            raise StoreError(
                "the file has changed while it was read", culprit=changed[0], hint="ingest again"
            )

    with FolderWriter(out, overwrite=overwrite) as writer:
        workspace = Workspace(out, key, resume=resume)
        try:
            pipeline = Pipeline(
                src, format, options, workspace, memory_bytes, progress, check_files
            )
            pipeline.run(writer)
        except (GraphError, ConfigError):
            workspace.remove()  # bad input stays bad: there is nothing to take up again
            raise
        except BaseException:
            workspace.close()
            log.warning("what is done so far is in %s: ingest again to go on", workspace.path)
            raise
        workspace.remove()
    return open_folder(out, verify=False)


def _working_bytes(memory_bytes: int) -> int:
    """What our own arrays may take of ``memory_bytes`` for the whole process."""
    if memory_bytes < LEAST_BYTES:
        raise ConfigError(
            f"memory={format_bytes(memory_bytes)} is too little to work in",
            hint=f"memory={format_bytes(LEAST_BYTES)} or more; 256 MiB and more is respected",
        )
    return max(memory_bytes - INTERPRETER_BYTES, memory_bytes // 4)


def _identity(src: Path, out: Path, options: Options) -> list[list[Any]]:
    """Path, size and time of change of every file that is read."""
    found, ours = [], os.path.realpath(out)
    for path in (src, options.nodes, options.features, options.labels, options.splits):
        if path is None:
            continue
        with store_errors("read", path):
            files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
            for file in files:
                if os.path.realpath(file).startswith(ours):
                    continue  # what an earlier ingest left, where OUT is inside of SRC
                stat = file.stat()
                found.append([os.path.abspath(file), stat.st_size, stat.st_mtime_ns])
    return found
