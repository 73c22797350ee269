"""The folders that OGB's node property data sets come as: CSV in ``raw``, or binary arrays there.

Splits are in ``split/KIND/{train,valid,test}.csv.gz``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tiergnn.errors import GraphError
from tiergnn.graph.formats.arrays import open_npz
from tiergnn.graph.formats.bundle import open_bundle
from tiergnn.graph.formats.cast import cast_rows
from tiergnn.graph.formats.delimited import DelimitedTable
from tiergnn.graph.formats.options import Options
from tiergnn.graph.formats.rowfiles import Array, TextRows
from tiergnn.graph.formats.source import Cursor, EdgeChunk, Source, Split
from tiergnn.graph.formats.table import TableEdges

# Of these OGB lists each edge once, and its loader adds the other direction.
_HALVED = ("products", "proteins")
_HETERO = ("triplet-type-list.csv.gz", "nodetype-has-feat.csv.gz", "relations")


def sniff(path: Path) -> bool:
    raw = path / "raw"
    return any(_file(raw, name) is not None for name in ("edge.csv", "data.npz"))


def open_ogb(path: Path, options: Options, scratch: Path) -> Source:
    """One graph of labelled nodes; heterogeneous graphs and sets of many graphs are refused."""
    options.refuse_columns("ogb")
    raw = path / "raw"
    if not sniff(path):
        raise GraphError(
            "an OGB folder has raw/edge.csv or raw/data.npz (.gz too), this has neither",
            culprit=str(path),
            hint="the folder that OGB extracted, such as dataset/ogbn_arxiv",
        )
    hetero = [name for name in _HETERO if (raw / name).exists()]
    if hetero:
        raise GraphError(
            "the graph has several kinds of nodes, which is not supported",
            culprit=str(raw / hetero[0]),
        )
    source = (
        _open_binary(path, options, scratch) if _file(raw, "data.npz") else _open_csv(path, options)
    )
    if source.y is not None and source.y.width == 1:
        source.task = "class"  # OGB's own tasks; NaN is unlabelled
    source.splits = _splits(path, source.notes)
    if not options.undirected and any(name in path.name for name in _HALVED):
        source.notes.append(
            f"{path}: OGB lists each edge of this set once; undirected=True adds the other "
            "direction, as OGB's own loader does"
        )
    return source


def _open_binary(path: Path, options: Options, scratch: Path) -> Source:
    arrays: dict[str, Array] = dict(open_npz(path / "raw" / "data.npz", scratch))
    arrays.pop("num_edges_list", None)
    labels = _file(path / "raw", "node-label.npz")
    if labels is not None:
        found = open_npz(labels, scratch)
        if len(found) != 1:
            raise GraphError(f"wanted one array, had {', '.join(found)}", culprit=str(labels))
        arrays["node_label"] = next(iter(found.values()))
    return open_bundle("ogb", str(path), arrays, options)


def _open_csv(path: Path, options: Options) -> Source:
    raw, notes = path / "raw", []
    edge, count = _file(raw, "edge.csv"), _file(raw, "num-node-list.csv")
    assert edge is not None
    num_nodes = None if count is None else _count(count)
    features, labels = _file(raw, "node-feat.csv"), _file(raw, "node-label.csv")
    attr = _file(raw, "edge-feat.csv")
    wide = np.float64 if options.feature_dtype == "float64" else np.float32
    for file in sorted(raw.glob("node_*")):
        notes.append(f"{file.name}: not read")
    plain = Options(header=False, delimiter=",", ids=options.ids, weight=options.weight)
    edges = TableEdges(DelimitedTable(edge, plain, comments="", blanks=False), plain, notes)
    return Source(
        format="ogb",
        edges=edges
        if attr is None
        else _WithFeatures(edges, TextRows(attr, plain, np.float64), options),
        num_nodes=num_nodes,
        counted_by="num-node-list",
        x=None if features is None else TextRows(features, plain, wide),
        y=None if labels is None else TextRows(labels, plain, np.float64),
        notes=notes,
    )


class _WithFeatures:
    """Edges of one file with their features in another, line by line: an EdgeReader."""

    def __init__(self, edges: TableEdges, rows: TextRows, options: Options):
        self._edges, self._rows = edges, rows
        self.total, self.names, self.weight = edges.total, edges.names, edges.weight
        self.attr = (options.edge_feature_dtype or "float32", rows.width)

    def place(self, position: int) -> str:
        return self._edges.place(position)

    def chunks(self, limit_bytes: int, start: Cursor = ()) -> Iterator[EdgeChunk]:
        """Resumed from the beginning, as two files cannot be sought together."""
        skip = start[-1] if start else 0
        features = self._rows.blocks(limit_bytes // 2)
        held, at = np.empty((0, self._rows.width)), 0
        for chunk in self._edges.chunks(limit_bytes // 2):
            parts, need = [held], chunk.src.size - len(held)
            while need > 0:
                block = next(features, None)
                if block is None:
                    raise GraphError(
                        f"{self._rows.name} has fewer rows than there are edges",
                        culprit=self.place(int(chunk.positions()[chunk.src.size - need])),
                    )
                parts.append(block)
                need -= len(block)
            joined = np.concatenate(parts)
            mine, held = joined[: chunk.src.size], joined[chunk.src.size :]
            at += chunk.src.size
            if at <= skip:
                continue
            yield EdgeChunk(
                src=chunk.src,
                dst=chunk.dst,
                weight=chunk.weight,
                attr=cast_rows(
                    mine,
                    self.attr[0],
                    "edge feature",
                    self._rows.place,
                    start=at - chunk.src.size,
                ),
                where=chunk.where,
                end=(at,),
                done=chunk.done,
            )
        if len(held) or next(features, None) is not None:
            raise GraphError(f"{self._rows.name} has more rows than there are edges")


def _count(file: Path) -> int:
    lines = DelimitedTable(file, Options(header=False), comments="", blanks=True)
    counts = np.concatenate(
        [block.ints(0, "number of nodes") for block, _, _ in lines.pieces((0,), 2**20)]
        or [np.empty(0, np.int64)]
    )
    if counts.size == 0:
        raise GraphError(
            "the file is empty: wanted the number of nodes on its one line",
            culprit=str(file),
            hint="extract the folder anew, or remove the file and give num_nodes=N",
        )
    if counts.size > 1:
        raise GraphError(f"the folder holds {counts.size} graphs, wanted one", culprit=str(file))
    return int(counts[0])


def _splits(path: Path, notes: list[str]) -> dict[str, Split]:
    kinds = sorted(p for p in (path / "split").glob("*") if p.is_dir())
    if len(kinds) > 1:
        notes.append(f"{path}: not read: splits {', '.join(kind.name for kind in kinds[1:])}")
    return {} if not kinds else read_split_folder(kinds[0], notes)


def read_split_folder(folder: Path, notes: list[str]) -> dict[str, Split]:
    """A split from each file of ids, one a line."""
    splits = {}
    for file in sorted(folder.iterdir()):
        name = file.name.removesuffix(".gz").removesuffix(".csv").removesuffix(".txt")
        if "." in name or not file.is_file():
            notes.append(f"{file.name}: not read: splits are text, one id a line")
            continue
        table = DelimitedTable(file, Options(header=False), comments="", blanks=True)
        ids = [block.ints(0, "node id") for block, _, _ in table.pieces((0,), 2**24)]
        splits[{"valid": "val"}.get(name, name)] = Split(
            ids=np.concatenate(ids) if ids else np.empty(0, np.int64)
        )
    return splits


def _file(folder: Path, name: str) -> Path | None:
    """The file, gzipped or not."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    return None
