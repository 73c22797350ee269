"""A graph as arrays by name: `.npz` files, folders of arrays and PyG's tensors alike."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tiergnn.errors import GraphError
from tiergnn.graph.formats.arrays import FileArray
from tiergnn.graph.formats.options import Options
from tiergnn.graph.formats.pairs import PairEdges, SparseEdges, square
from tiergnn.graph.formats.rowfiles import (
    SPARSE,
    Array,
    ArrayRows,
    SparseRows,
    layout_of,
    read_splits,
    refuse_layout,
)
from tiergnn.graph.formats.source import EdgeReader, Source

_PAIRS = ("edge_index", "edges", "edge_list", "arr_0")
_ENDS = (("src", "dst"), ("source", "target"), ("row", "col"))
_WEIGHTS = ("edge_weight", "weight", "edge_weights")
_ATTR = ("edge_attr", "edge_feat", "edge_type")
_FEATURES = ("x", "features", "feat", "node_feat")
_LABELS = ("y", "labels", "label", "node_label")
_COUNTS = ("num_nodes", "num_nodes_list")


class _Bundle:
    """Arrays that know which of them were asked for."""

    def __init__(self, arrays: Mapping[str, Array]):
        self.arrays, self.read = arrays, set()

    def find(self, *names: str) -> Array | None:
        for name in names:
            if name in self.arrays:
                self.read.add(name)
                return self.arrays[name]
        return None

    def part(self, prefix: str) -> dict[str, Array]:
        """The arrays of a sparse matrix, whose names begin with ``prefix``; or nothing."""
        parts = {key: self.arrays.get(prefix + key) for key in SPARSE}
        if any(array is None for array in parts.values()):
            return {}
        self.read |= {prefix + key for key in (*SPARSE, "format")}
        found = {key: array for key, array in parts.items() if array is not None}
        if prefix + "format" in self.arrays:
            found["format"] = self.arrays[prefix + "format"]
        return found


def open_bundle(
    format: str,
    name: str,
    arrays: Mapping[str, Array],
    options: Options,
    *,
    num_nodes: int | None = None,
    counted_by: str = "",
) -> Source:
    """Raises GraphError when no edges are among the arrays, or one is not what it should be."""
    options.refuse_columns(format)
    bundle, notes = _Bundle(arrays), []
    edges = _edges(bundle, name, options, notes)
    if isinstance(edges, SparseEdges):
        num_nodes, counted_by = edges.num_nodes, f"the matrix in {name}"
    count = bundle.find(*_COUNTS)
    if count is not None and num_nodes is None:
        num_nodes, counted_by = _whole_number(count), count.name
    source = Source(
        format=format, edges=edges, num_nodes=num_nodes, counted_by=counted_by, notes=notes
    )
    x = bundle.find(*_FEATURES)
    matrix = bundle.part("attr_") or bundle.part("x_")
    if x is not None:
        source.x = ArrayRows(x, "features")
    elif matrix:
        refuse_layout(matrix, name)
        wide = options.feature_dtype == "float64"
        source.x = SparseRows(matrix, f"{name}: attr", wide=wide)
    scale = bundle.find("x_scale")
    source.x_scale = None if scale is None else scale.whole()
    y = bundle.find(*_LABELS)
    source.y = None if y is None else ArrayRows(y, "labels")
    masks = {
        key: array
        for key, array in arrays.items()
        if key.endswith(("_mask", "_idx", "_edges")) or key in ("train", "val", "valid", "test")
    }
    known = options.num_nodes if options.num_nodes is not None else num_nodes
    if known is None and source.x is not None:
        known = source.x.num_rows
    if known is None and source.y is not None:
        known = source.y.num_rows
    source.splits = read_splits(masks, known, notes)
    unread = sorted(set(arrays) - bundle.read - set(masks))
    if unread:
        notes.append(f"{name}: not read: {', '.join(unread)}")
    return source


def _edges(bundle: _Bundle, name: str, options: Options, notes: list[str]) -> EdgeReader:
    weight = bundle.find(*_WEIGHTS)
    attr = [array for key in _ATTR if (array := bundle.find(key)) is not None]
    pairs = bundle.find(*_PAIRS)
    if pairs is not None:
        return PairEdges(pairs, options, weight=weight, attr=attr, notes=notes)
    for prefix in ("", "adj_"):
        matrix = bundle.part(prefix)
        if matrix:
            return SparseEdges(matrix, layout_of(matrix), name, options)
    for ends in _ENDS:
        src, dst = bundle.find(ends[0]), bundle.find(ends[1])
        if src is not None and dst is not None:
            if ends == ("row", "col") and "shape" in bundle.arrays:  # SciPy's COO
                weight = bundle.find("data")
                bundle.read |= {"format", "shape"}
                square(bundle.arrays["shape"].whole(), name)
            return PairEdges((src, dst), options, weight=weight, attr=attr, notes=notes)
    raise GraphError(
        f"there are no edges among the arrays {', '.join(sorted(bundle.arrays)) or '(none)'}",
        culprit=name,
        hint="edges as edge_index [2, E], as src and dst, or as a SciPy sparse matrix",
    )


def _whole_number(count: Array) -> int:
    values = count.whole().reshape(-1)
    if values.size != 1 or values.dtype.kind not in "iu":
        if values.size > 1 and isinstance(count, FileArray):
            raise GraphError(f"the file holds {values.size} graphs, wanted one", culprit=count.name)
        raise GraphError(f"num_nodes must be one whole number, had {values}", culprit=count.name)
    return int(np.asarray(values)[0])
