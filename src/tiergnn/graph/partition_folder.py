"""A partition on disk: `partition.json` and `.npy` files, bound to the graph it was made of.

Legend: V nodes, K parts. The folder holds part_of [V], halo (the halo rows of all parts, one part
after the other) and halo_ptr [K+1].
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tiergnn.errors import ConfigError, StoreError, TiergnnError, unknown
from tiergnn.files import from_json
from tiergnn.graph.arrays import ArrayStream, crc32_of, crc32_of_array, open_array
from tiergnn.graph.csr import Graph
from tiergnn.graph.folder import VERIFY_BYTES
from tiergnn.graph.manifest import manifest_crc32, read_manifest
from tiergnn.graph.partition import Partition
from tiergnn.graph.staging import StagedFolder, fsync_path, store_errors

FORMAT = "tiergnn-partition"
VERSION = 1
FILE = "partition.json"
PLACE = "partitions"  # within a graph folder
_ARRAYS = ("part_of", "halo", "halo_ptr")


def save_partition(
    partition: Partition, where: str | Path | None = None, *, overwrite: bool = False
) -> Path:
    """Write a partition beside its graph and return the folder. Blocks until on the disk.

    where: a path, or a bare name for a place in the graph's folder; by default METHOD-PARTS, as in
    ``partitions/metis-8``. The folder is written aside and moved to its place whole.
    Raises StoreError, and ConfigError when the graph has no folder and where is no path.
    """
    path = _place(partition.graph, where or f"{partition.method}-{partition.num_parts}")
    halo, halo_ptr = partition.halos
    arrays = dict(zip(_ARRAYS, (partition.part_of, halo, halo_ptr), strict=True))
    with StagedFolder(path, marker=FILE, overwrite=overwrite) as staged:
        entries: dict[str, Any] = {}
        for name, array in arrays.items():
            file = staged.folder / f"{name}.npy"
            with store_errors("write", file):
                stream = ArrayStream(file, array.dtype, array.shape, None)
                stream.append(array)
                entries[name] = {"file": file.name, **stream.finish()}
        content = {
            "format": FORMAT,
            "version": VERSION,
            "num_parts": partition.num_parts,
            "method": partition.method,
            "seed": partition.seed,
            "balance": dict(partition.balance),
            "graph": _identity(partition.graph),
            "arrays": entries,
        }
        content["crc32"] = manifest_crc32(content)
        file = staged.folder / FILE
        with store_errors("write", file):
            file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
            fsync_path(file)
        staged.publish()
    return path


def open_partition(graph: Graph, where: str | Path) -> Partition:
    """Memory-map a saved partition of ``graph``, by name in its folder or by path.

    Checksums are compared for folders of up to 4 GiB. Raises StoreError when it is damaged or was
    made of another graph: other nodes or edges, or the same in another order.
    """
    path = _place(graph, where)
    content = _read(path)
    if content["graph"] != (identity := _identity(graph)):
        different = [key for key, value in identity.items() if content["graph"].get(key) != value]
        raise StoreError(
            "the partition was made of another graph: "
            + ", ".join(
                f"{key} {content['graph'].get(key)} is now {identity[key]}" for key in different
            ),
            culprit=str(path),
            hint="make it again with `tiergnn partition`",
        )
    entries = content["arrays"]
    arrays = {name: open_array(path, name, entries[name]) for name in _ARRAYS}
    if sum(entry["bytes"] for entry in entries.values()) <= VERIFY_BYTES:
        for entry in entries.values():
            if crc32_of(path / entry["file"]) != entry["crc32"]:
                raise _damaged(path / entry["file"], "does not match its checksum")
    try:
        return Partition(
            graph=graph,
            part_of=arrays["part_of"],
            num_parts=content["num_parts"],
            method=content["method"],
            seed=content["seed"],
            balance=tuple(content["balance"].items()),
            saved_halos=(arrays["halo"], arrays["halo_ptr"]),
        )
    except TiergnnError as error:
        raise _damaged(path, f"does not fit its graph: {error.problem}") from error


def list_partitions(graph: Graph) -> list[str]:
    """Names of the partitions saved in the graph's folder, sorted; none for a graph in memory."""
    if graph.path is None:
        return []
    return sorted(file.parent.name for file in (graph.path / PLACE).glob(f"*/{FILE}"))


def _place(graph: Graph, where: str | Path) -> Path:
    if isinstance(where, Path) or os.sep in where:
        return Path(where)
    if graph.path is None:
        raise ConfigError(
            f"the graph is in memory only and has no place for a partition {where!r}",
            hint=f"a path such as './{where}', or save the graph first",
        )
    return graph.path / PLACE / where


def _read(path: Path) -> dict[str, Any]:
    file = path / FILE
    if not file.exists():
        known = sorted(found.parent.name for found in path.parent.glob(f"*/{FILE}"))
        error = unknown("partition", path.name, known)
        raise StoreError(
            f"there is no partition {path.name!r}",
            culprit=str(path),
            hint=error.hint if known else "`tiergnn partition` makes one",
        )
    with store_errors("read", file):
        text = file.read_bytes()
    try:
        content = from_json(text)
    except ValueError as error:
        raise _damaged(file, f"is not JSON ({error})") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise _damaged(file, f"is not of format {FORMAT!r}")
    if content.get("version") != VERSION:
        raise StoreError(
            f"the partition is of version {content.get('version')!r}, "
            f"this tiergnn reads version {VERSION}",
            culprit=str(file),
            hint="make it again with `tiergnn partition`",
        )
    if content.pop("crc32", None) != manifest_crc32(content):
        raise _damaged(file, "does not match its own checksum")
    return content


def _identity(graph: Graph) -> dict[str, int]:
    """What makes two graphs the same to a partition: their CSR. Read from the manifest, or, for a
    graph in memory, from its arrays."""
    if graph.path is not None:
        entries = read_manifest(graph.path)["arrays"]
        crc32 = {name: entries[name]["crc32"] for name in ("rowptr", "col")}
    else:
        crc32 = {"rowptr": crc32_of_array(graph.rowptr), "col": crc32_of_array(graph.col)}
    return {
        "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges,
        **{f"crc32 of {name}": value for name, value in crc32.items()},
    }


def _damaged(file: Path, what: str) -> StoreError:
    return StoreError(
        f"{file.name} {what}",
        culprit=str(file),
        hint="make the partition again with `tiergnn partition`",
    )
