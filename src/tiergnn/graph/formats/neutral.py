"""Folders of NumPy arrays: edge_index, and beside it x, y, masks, edge_type and meta.json.

The nodes may have names, one a line, in entities.txt.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tiergnn.errors import GraphError
from tiergnn.files import from_json
from tiergnn.graph.formats.arrays import open_arrays
from tiergnn.graph.formats.bundle import open_bundle
from tiergnn.graph.formats.lines import LineFile
from tiergnn.graph.formats.options import Options
from tiergnn.graph.formats.rowfiles import SPARSE, Array, open_file_rows
from tiergnn.graph.formats.source import Source
from tiergnn.graph.ids import NodeIds
from tiergnn.graph.staging import store_errors

_ROWS = ("edge_index", "edge_weight", "edge_attr", "edge_type", "x_scale", "y")
_READ = (*_ROWS, "x", "masks")
# What meta.json calls the kind of its labels, and the task here.
_TASKS = {"multiclass": "class", "binary": "class", "multilabel": "multilabel", "real": "real"}


def sniff(path: Path) -> bool:
    return path.is_dir() and any((path / f"edge_index{end}").exists() for end in (".npz", ".npy"))


def open_neutral(path: Path, options: Options, scratch: Path) -> Source:
    """edge_index.npz or .npy, ids [2, E] with sources first, and what lies beside it."""
    meta = _meta(path / "meta.json")
    arrays: dict[str, Array] = {}
    for stem in _ROWS:
        found = open_arrays(path, stem, scratch)
        if found:
            arrays[stem] = found[stem] if stem in found else next(iter(found.values()))
    masks = open_arrays(path, "masks", scratch)
    num_nodes = meta.get("nodes")
    features = open_arrays(path, "x", scratch)
    if features and not all(key in features for key in SPARSE):
        arrays["x"] = next(iter(features.values()))
    source = open_bundle(
        "neutral",
        str(path),
        {**arrays, **{_split_name(key, array): array for key, array in masks.items()}},
        options,
        num_nodes=num_nodes,
        counted_by="meta.json",
    )
    if features and "x" not in arrays:
        source.x = open_file_rows(path / "x.npz", features, options, "features", np.float32)
    labels = meta.get("y") or {}
    source.task = _TASKS.get(str(labels.get("type")))
    if source.task == "class":
        source.num_classes = meta.get("classes")
    if (path / "entities.txt").exists():
        source.node_ids = _names(path / "entities.txt")
    if (path / "relations.txt").exists():
        source.notes.append("relations.txt: not read: it names the values of the edge feature")
    for file in sorted(path.iterdir()):
        if file.suffix in (".npz", ".npy") and file.stem not in _READ:
            source.notes.append(f"{file.name}: not read")
    return source


def _split_name(key: str, array: Array) -> str:
    if key.endswith(("_mask", "_idx", "_edges")):
        return key
    return key + ("_mask" if array.dtype.kind == "b" else "_idx")


def _meta(path: Path) -> dict:
    if not path.exists():
        return {}
    with store_errors("read", path):
        text = path.read_bytes()
    try:
        meta = from_json(text)
    except ValueError as error:
        raise GraphError(f"not JSON: {error}", culprit=str(path)) from None
    nodes = meta.get("nodes") if isinstance(meta, dict) else None
    if not isinstance(meta, dict) or not (nodes is None or isinstance(nodes, int)):
        raise GraphError("wanted an object whose nodes is a whole number", culprit=str(path))
    return meta


def _names(path: Path) -> NodeIds:
    """Names of nodes, one a line."""
    data = b"".join(block.data.tobytes() for block in LineFile(path).blocks(2**20))
    try:
        names = data.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise GraphError(f"names must be UTF-8: {error.reason}", culprit=str(path)) from None
    return NodeIds.from_names([name.removesuffix("\r") for name in names])
