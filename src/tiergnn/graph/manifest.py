"""The manifest of a graph folder: what files there are, and what must be in them."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tiergnn.errors import ConfigError, StoreError
from tiergnn.files import from_json
from tiergnn.graph.staging import replaced_folders, store_errors

FORMAT = "tiergnn-graph"
VERSION = 1
MANIFEST = "manifest.json"

_ARRAYS = (
    "rowptr",
    "col",
    "edge_weight",
    "edge_attr",
    "edge_attr_scale",
    "x",
    "x_scale",
    "y",
    "node_ids",
    "node_ids_offsets",
    "node_ids_text",
)
_SPLIT = re.compile(r"splits/[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_name(name: str) -> None:
    """Raise ConfigError unless a graph folder may have an array of this name."""
    if name not in _ARRAYS and not _SPLIT.fullmatch(name):
        raise ConfigError(
            f"a graph folder has no array {name!r}",
            hint="splits/NAME with letters, digits, '.', '_' and '-' in NAME, or one of "
            + ", ".join(_ARRAYS),
        )


def read_manifest(path: str | Path) -> dict[str, Any]:
    """The manifest of a graph folder, checked against its own checksum. Raises StoreError."""
    path = Path(path)
    file = path / MANIFEST
    with store_errors("open the graph folder", path):
        if not path.exists():
            aside = replaced_folders(path)
            raise StoreError(
                "there is no such graph folder",
                culprit=str(path),
                hint=f"a replacement was interrupted: mv {aside[-1]} {path}"
                if aside
                else "check the path; `tiergnn ingest SRC --out DIR` makes a graph folder",
            )
        if not file.exists():
            raise _not_a_graph(path, f"not a graph folder: it has no {MANIFEST}")
        text = file.read_bytes()
    try:
        manifest = from_json(text)
    except ValueError as error:
        raise _damaged(file, f"is not JSON ({error})") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise _not_a_graph(file, f"the manifest is not of format {FORMAT!r}")
    version = manifest.get("version")
    if version != VERSION:
        newer = isinstance(version, int) and version > VERSION
        raise StoreError(
            f"the graph folder is of version {version!r}, this tiergnn reads version {VERSION}",
            culprit=str(file),
            hint="a newer tiergnn (pip install -U tiergnn)" if newer else "ingest it again",
        )
    if manifest.pop("crc32", None) != manifest_crc32(manifest):
        raise _damaged(file, "does not match its own checksum")
    try:
        for name, entry in manifest["arrays"].items():
            if name not in _ARRAYS and not _SPLIT.fullmatch(name):
                raise _damaged(file, f"lists an unknown array {name!r}")
            if entry["file"] != f"{name}.npy":
                raise _damaged(file, f"puts array {name!r} into {entry['file']!r}")
            sides = entry["shape"]
            if not all(isinstance(side, int) for side in (*sides, entry["bytes"], entry["crc32"])):
                raise _damaged(file, f"gives sizes of array {name!r} that are no whole numbers")
            if not isinstance(entry["dtype"], str):
                raise _damaged(file, f"gives no dtype of array {name!r}")
        for name in ("num_nodes", "num_edges", "task", "num_classes"):
            manifest[name]
    except (KeyError, TypeError, AttributeError) as error:
        raise _damaged(file, f"lacks something ({error})") from error
    return manifest


def manifest_crc32(manifest: Mapping[str, Any]) -> int:
    """Of the manifest without its own crc32, as compact JSON with sorted keys."""
    return zlib.crc32(json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode())


def _not_a_graph(path: Path, problem: str) -> StoreError:
    hint = "`tiergnn ingest SRC --out DIR` makes a graph folder from files of other kinds"
    return StoreError(problem, culprit=str(path), hint=hint)


def _damaged(file: Path, what: str) -> StoreError:
    return StoreError(
        f"the manifest {what}",
        culprit=str(file),
        hint="restore the file, or ingest the graph again",
    )
