"""The graph folder: `.npy` files and one JSON manifest. The format is docs/graph-folder.md.

Legend: V nodes, E edges.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from tiergnn.errors import ConfigError, GraphError, StoreError
from tiergnn.graph.arrays import ArrayStream, FilledArray, crc32_of, open_array
from tiergnn.graph.csr import Graph, check_topology
from tiergnn.graph.ids import NodeIds
from tiergnn.graph.manifest import (
    FORMAT,
    MANIFEST,
    VERSION,
    check_name,
    manifest_crc32,
    read_manifest,
)
from tiergnn.graph.staging import StagedFolder, fsync_path, store_errors
from tiergnn.graph.table import Table
from tiergnn.version import __version__

VERIFY_BYTES = 4 * 1024**3  # folders up to this size have their checksums verified on opening


class FolderWriter:
    """Writes a graph folder beside its place, and moves it there in ``commit``.

    Names of arrays: rowptr, col, edge_weight, edge_attr, edge_attr_scale, x, x_scale, y, node_ids,
    node_ids_offsets, node_ids_text and splits/NAME (NAME: letters, digits, ``._-``).
    Leaving the ``with`` without commit removes what was written; what existed stays untouched.
    Raises StoreError on every trouble with files, ConfigError on a name that is none of these.
    """

    def __init__(self, path: str | Path, *, overwrite: bool = False):
        self._staged = StagedFolder(path, marker=MANIFEST, overwrite=overwrite)
        self._arrays: dict[str, ArrayStream | FilledArray] = {}

    def __enter__(self) -> FolderWriter:
        self._staged.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        for array in self._arrays.values():
            array.close()
        self._staged.__exit__(kind, error, tb)

    def array(self, name: str, array: np.ndarray, dtype: str | None = None) -> None:
        """Write an array that is at hand. ``dtype``: its logical one where NumPy has none
        (uint16 bits of "bfloat16")."""
        stream = self.stream(name, array.dtype, array.shape, dtype)
        array = np.atleast_1d(array)
        rows = max(
            1, 2**23 // max(1, array[:1].nbytes)
        )  # so that strided arrays need no whole copy
        for start in range(0, len(array), rows):
            stream.append(array[start : start + rows])

    def stream(
        self,
        name: str,
        dtype: np.dtype | type,
        shape: tuple[int, ...],
        logical: str | None = None,
    ) -> ArrayStream:
        """An array whose rows come in order: ``append(rows)`` until it has ``shape``."""
        with store_errors("write", self._file(name)):
            stream = ArrayStream(self._file(name), np.dtype(dtype), shape, logical)
        self._arrays[name] = stream
        return stream

    def create(
        self,
        name: str,
        dtype: np.dtype | type,
        shape: tuple[int, ...],
        logical: str | None = None,
    ) -> np.ndarray:
        """A writable memory-mapped array of zeros, to be filled in any order before ``commit``.

        Its disk space is reserved at once, so that a full disk is an error here and not a crash.
        """
        with store_errors("reserve space for", self._file(name)):
            filled = FilledArray(self._file(name), np.dtype(dtype), shape, logical)
        self._arrays[name] = filled
        return filled.data

    def commit(
        self,
        *,
        num_nodes: int,
        num_edges: int,
        task: str | None = None,
        num_classes: int | None = None,
        source: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write the manifest, sync everything and move the folder to its place. Blocks.

        source: where the graph came from; any JSON. Returns the path of the folder.
        """
        arrays = {}
        for name, array in self._arrays.items():
            with store_errors("finish", self._file(name)):
                arrays[name] = {"file": f"{name}.npy", **array.finish()}
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "num_nodes": int(num_nodes),
            "num_edges": int(num_edges),
            "task": task,
            "num_classes": num_classes,
            "arrays": arrays,
            "source": {"tiergnn": __version__, **(source or {})},
        }
        manifest["crc32"] = manifest_crc32(manifest)
        path = self._staged.folder / MANIFEST
        with store_errors("write", path):
            path.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
            fsync_path(path)
        self._staged.publish()
        return self._staged.path

    def _file(self, name: str) -> Path:
        check_name(name)
        file = self._staged.folder / f"{name}.npy"
        with store_errors("make", file.parent):
            file.parent.mkdir(exist_ok=True)
        return file


def save_folder(
    graph: Graph,
    path: str | Path,
    *,
    overwrite: bool = False,
    source: Mapping[str, Any] | None = None,
) -> Graph:
    """Write ``graph`` to a folder and return the graph opened from it. Blocks until on the disk."""
    with FolderWriter(path, overwrite=overwrite) as writer:
        writer.array("rowptr", graph.rowptr)
        writer.array("col", graph.col)
        for name, array in (("edge_weight", graph.edge_weight), ("y", graph.y)):
            if array is not None:
                writer.array(name, array)
        for name, table in (("edge_attr", graph.edge_attr), ("x", graph.x)):
            if table is not None:
                writer.array(name, table.data, table.dtype)
                if table.scale is not None:
                    writer.array(f"{name}_scale", table.scale)
        for name, ids in graph.splits.items():
            writer.array(f"splits/{name}", ids)
        if graph.node_ids is not None:
            for name, array in graph.node_ids.arrays().items():
                writer.array(name, array)
        written = writer.commit(
            num_nodes=graph.num_nodes,
            num_edges=graph.num_edges,
            task=graph.task,
            num_classes=graph.num_classes,
            source=source,
        )
    return open_folder(written, verify=False)


def open_folder(path: str | Path, verify: bool | None = None) -> Graph:
    """Memory-map the graph in folder ``path``; nothing but headers is read unless verifying.

    Sizes, shapes and dtypes are always checked. verify=True also reads everything once to check
    the checksums and the CSR; by default that is done for folders of up to VERIFY_BYTES.
    Raises StoreError naming the file, what was wanted and what was found.
    """
    path = Path(path).absolute()  # the graph is the same after a change of folder
    manifest = read_manifest(path)
    entries = manifest["arrays"]
    arrays = {name: open_array(path, name, entry) for name, entry in entries.items()}
    if verify is None:
        verify = sum(entry["bytes"] for entry in entries.values()) <= VERIFY_BYTES
    if verify:
        _verify(path, entries)
    for name in ("rowptr", "col"):
        if name not in arrays:
            raise StoreError(f"the graph folder has no array {name!r}", culprit=str(path))
    try:
        graph = Graph(
            rowptr=arrays["rowptr"],
            col=arrays["col"],
            edge_weight=arrays.get("edge_weight"),
            edge_attr=_table("edge_attr", arrays, entries),
            x=_table("x", arrays, entries),
            y=arrays.get("y"),
            task=manifest["task"],
            num_classes=manifest["num_classes"],
            splits={
                name.removeprefix("splits/"): ids
                for name, ids in arrays.items()
                if name.startswith("splits/")
            },
            node_ids=NodeIds.from_arrays(arrays),
            path=path,
        )
        for name, count in (("num_nodes", graph.num_nodes), ("num_edges", graph.num_edges)):
            if manifest[name] != count:
                raise GraphError(f"{MANIFEST} says {name}={manifest[name]}, the arrays {count}")
        if verify:
            check_topology(graph.rowptr, graph.col)
    except (GraphError, ConfigError) as error:
        raise StoreError(
            f"the graph folder contradicts itself: {error.problem}",
            culprit=str(path),
            hint="ingest it again",
        ) from error
    return graph


def _verify(path: Path, entries: Mapping[str, Mapping[str, Any]]) -> None:
    with ThreadPoolExecutor(2) as pool:  # crc32 runs without the interpreter's lock
        found = list(pool.map(lambda entry: crc32_of(path / entry["file"]), entries.values()))
    for entry, crc32 in zip(entries.values(), found, strict=True):
        if crc32 != entry["crc32"]:
            raise StoreError(
                f"the checksum is {crc32:08x}, the manifest says {entry['crc32']:08x}: "
                "the file has changed since it was written",
                culprit=str(path / entry["file"]),
                hint="restore the file, or ingest the graph again",
            )


def _table(
    name: str, arrays: Mapping[str, np.ndarray], entries: Mapping[str, Mapping[str, Any]]
) -> Table | None:
    if name not in arrays:
        return None
    return Table(data=arrays[name], dtype=entries[name]["dtype"], scale=arrays.get(f"{name}_scale"))
