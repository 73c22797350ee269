"""Predictions as files: `.npy` (rows in node order), or `.csv` and `.npz` under the user's names.

Legend: V nodes, C columns.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np

from tiergnn.errors import StoreError, unknown
from tiergnn.files import is_replaceable, partial_of
from tiergnn.graph.csr import Graph
from tiergnn.graph.staging import store_errors

SUFFIXES = (".npy", ".npz", ".csv")
_CHUNK = 2**16  # rows made into text at a time


def check_target(path: Path, *, overwrite: bool) -> None:
    """Raise before any work is done: ConfigError on a suffix, StoreError when a file is there,
    or what is none."""
    if path.suffix not in SUFFIXES:
        raise unknown("kind of file", path.suffix, SUFFIXES)
    if not is_replaceable(path):
        raise StoreError("what is there is no file", culprit=str(path), hint="another name")
    if path.exists() and not overwrite:
        raise StoreError(
            "there is a file already", culprit=str(path), hint="another name, or --overwrite"
        )


def write_predictions(path: Path, rows: np.ndarray, graph: Graph) -> None:
    """Write ``rows`` [V] or [V, C] to ``path``, whole or not at all. Raises StoreError."""
    writers: dict[str, Callable[[BinaryIO], None]] = {
        ".npy": lambda file: np.save(file, rows, allow_pickle=False),
        ".npz": lambda file: np.savez(file, node=_fixed(_names(graph)), prediction=rows),
        ".csv": lambda file: _write_csv(file, rows, graph),
    }
    partial = partial_of(path)
    with store_errors("write", path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(partial, "wb") as file:
                writers[path.suffix](file)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)


def _names(graph: Graph, rows: slice = slice(None)) -> np.ndarray:
    if graph.node_ids is None:
        return np.arange(graph.num_nodes)[rows]
    return graph.node_ids.names(rows)


def _fixed(names: np.ndarray) -> np.ndarray:
    """Strings at a fixed width: an archive of Python objects would need pickle to be read."""
    return names.astype(np.str_) if names.dtype == object else names


def _write_csv(file: BinaryIO, rows: np.ndarray, graph: Graph) -> None:
    """A header, then the node's name and its values; floats with the digits that give them back."""
    columns = rows.reshape(len(rows), -1) if rows.size else rows.reshape(len(rows), 0)
    heads = ["label"] if rows.ndim == 1 else [f"column{c}" for c in range(columns.shape[1])]
    file.write((",".join(["node", *heads]) + "\n").encode())
    form = {"f": f"%.{17 if rows.dtype == np.float64 else 9}g"}.get(rows.dtype.kind, "%d")
    for start in range(0, len(rows), _CHUNK):
        piece = slice(start, min(start + _CHUNK, len(rows)))
        names = _names(graph, piece)
        if names.dtype == object:
            quoted = np.char.replace(names.astype(np.str_), '"', '""')
            names = np.char.add(np.char.add('"', quoted), '"')
        cells = [names.astype(np.str_)]
        cells += [np.char.mod(form, columns[piece, c]) for c in range(columns.shape[1])]
        np.savetxt(file, np.stack(cells, axis=1), fmt="%s", delimiter=",", encoding="utf-8")
