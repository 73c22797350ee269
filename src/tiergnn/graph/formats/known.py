"""The formats that ingest reads, and how a path is opened as one of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tiergnn.errors import ConfigError, GraphError, StoreError, unknown
from tiergnn.graph.formats import (
    matrix_market,
    metis,
    neutral,
    numpy_file,
    ogb,
    parquet,
    pyg,
    text,
)
from tiergnn.graph.formats.arrays import is_npy, npz_names, open_npy, open_npz
from tiergnn.graph.formats.delimited import DelimitedTable
from tiergnn.graph.formats.node_table import NodeTable
from tiergnn.graph.formats.ogb import read_split_folder
from tiergnn.graph.formats.options import Options
from tiergnn.graph.formats.parquet import ParquetTable
from tiergnn.graph.formats.rowfiles import Array, open_file_rows, read_splits
from tiergnn.graph.formats.source import Format, Source, Split

# Asked in this order what a path is; text comes last, as it takes nearly anything.
FORMATS: dict[str, Format] = {
    "ogb": Format("an OGB node property folder, CSV or binary", ogb.sniff, ogb.open_ogb),
    "neutral": Format(
        "a folder of edge_index, x, y and masks as .npy or .npz",
        neutral.sniff,
        neutral.open_neutral,
    ),
    "parquet": Format("Parquet, one edge a row", parquet.sniff, parquet.open_parquet),
    "pyg": Format("a .pt of PyG's tensors", pyg.sniff, pyg.open_pt),
    "numpy": Format(
        "a .npy of edges, a .npz of a graph or matrix", numpy_file.sniff, numpy_file.open_numpy
    ),
    "matrix_market": Format(
        "Matrix Market .mtx", matrix_market.sniff, matrix_market.open_matrix_market
    ),
    "metis": Format("METIS .graph", metis.sniff, metis.open_metis),
    "csv": Format("CSV or TSV, one edge a line", text.sniff_csv, text.open_csv),
    "edge_list": Format(
        "text, one edge a line, as SNAP writes it", text.sniff_edge_list, text.open_edge_list
    ),
}


def sniff(path: Path) -> str:
    """The name of the format of ``path``. Raises GraphError listing the formats, StoreError."""
    if not path.exists():
        raise StoreError("there is no such file or folder", culprit=str(path))
    if (path / "manifest.json").exists():
        raise ConfigError(
            "this is a graph folder already",
            culprit=str(path),
            hint="Graph.open(PATH), or `tiergnn info PATH`",
        )
    for name, format in FORMATS.items():
        if format.sniff(path):
            return name
    raise GraphError(
        "this is no graph in a known format",
        culprit=str(path),
        hint="format=..., or a file of one of these: "
        + "; ".join(f"{name} ({format.what})" for name, format in FORMATS.items()),
    )


def open_source(path: Path, format: str | None, options: Options, scratch: Path) -> Source:
    """Open ``path``, with the files that options name for rows of nodes.

    Raises GraphError, ConfigError on an unknown format, StoreError.
    """
    if format is not None and format not in FORMATS:
        raise unknown("format", format, FORMATS)
    if not path.exists():
        raise StoreError("there is no such file or folder", culprit=str(path))
    source = FORMATS[format or sniff(path)].open(path, options, scratch)
    if options.features is not None and options.nodes is None:
        if source.x is not None:
            raise ConfigError(f"features=..., and {path} holds features ({source.x.name})")
        wide = np.float64 if options.feature_dtype == "float64" else np.float32
        arrays = _arrays(options.features, scratch)
        source.x = open_file_rows(options.features, arrays, options, "features", wide)
    if options.labels is not None:
        if source.y is not None:
            raise ConfigError(f"labels=..., and {path} holds labels ({source.y.name})")
        arrays = _arrays(options.labels, scratch)
        source.y = open_file_rows(options.labels, arrays, options, "labels", np.float64)
    if options.splits is not None:
        if source.splits:
            raise ConfigError(f"splits=..., and {path} holds splits ({', '.join(source.splits)})")
        source.splits = _splits(options, source, scratch)
    scale = open_scale(options, scratch)
    if scale is not None:
        source.x_scale = scale
    return source


def open_nodes(options: Options, scratch: Path) -> NodeTable:
    """The table of nodes, with features from another file beside it when there is one."""
    path = options.nodes
    assert path is not None
    if not path.exists():
        raise StoreError("there is no such file", culprit=str(path))
    if parquet.sniff(path):
        table = ParquetTable(path)
    else:
        plain = Options(header=None if options.header is None else True)
        table = DelimitedTable(path, plain, comments="", blanks=False)
    rows = None
    if options.features is not None:
        wide = np.float64 if options.feature_dtype == "float64" else np.float32
        arrays = _arrays(options.features, scratch)
        rows = open_file_rows(options.features, arrays, Options(), "features", wide)
    return NodeTable(table, rows, options)


def open_scale(options: Options, scratch: Path) -> np.ndarray | None:
    """feature_scale as float32 [] or [D]."""
    scale = options.feature_scale
    if scale is None or isinstance(scale, float | int):
        return None if scale is None else np.array(scale, np.float32)
    arrays = _arrays(scale, scratch)
    if len(arrays) != 1:
        raise GraphError("wanted one array, a scale for each feature", culprit=str(scale))
    return next(iter(arrays.values())).whole().astype(np.float32)


def _splits(options: Options, source: Source, scratch: Path) -> dict[str, Split]:
    path = options.splits
    assert path is not None
    if path.is_dir():
        return read_split_folder(path, source.notes)
    arrays = _arrays(path, scratch)
    if not arrays:
        raise GraphError(
            "splits are a .npz of masks or ids by name, or a folder of one file a split",
            culprit=str(path),
        )
    known = options.num_nodes if options.num_nodes is not None else source.num_nodes
    if known is None and source.x is not None:
        known = source.x.num_rows
    if known is None and source.y is not None:
        known = source.y.num_rows
    return read_splits(arrays, known, source.notes)


def _arrays(path: Path, scratch: Path) -> dict[str, Array]:
    """The arrays of a NumPy file by name; {} when it is another kind of file."""
    if not path.exists():
        raise StoreError("there is no such file", culprit=str(path))
    if is_npy(path):
        return {path.stem: open_npy(path)}
    return dict(open_npz(path, scratch)) if path.suffix == ".npz" or npz_names(path) else {}
