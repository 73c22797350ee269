"""Edges in arrays: pairs of ids, or the entries of a sparse matrix.

Legend: E edges, D edge features, V nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tiergnn.errors import ConfigError, GraphError
from tiergnn.graph.formats.cast import cast_rows, narrowest
from tiergnn.graph.formats.fields import Text
from tiergnn.graph.formats.options import Options
from tiergnn.graph.formats.rowfiles import Array
from tiergnn.graph.formats.source import Cursor, EdgeChunk, Ids, Weight
from tiergnn.graph.table import STORED


class EdgeColumns:
    """The weights and features that lie beside edges, row by row."""

    def __init__(
        self, weight: Array | None, attr: Sequence[Array], num_edges: int, options: Options
    ):
        if options.weight not in ("auto", "none"):
            raise ConfigError(
                f"weight={options.weight!r} names a column, and arrays have none",
                hint="weight='none' leaves weights out",
            )
        self._weight = None if options.weight == "none" else weight
        self._attr = tuple(attr)
        for array in (*([self._weight] if self._weight is not None else []), *self._attr):
            if array.ndim not in (1, 2) or array.shape[0] != num_edges:
                raise GraphError(
                    f"needs one row for each of {num_edges} edges, has {list(array.shape)}",
                    culprit=array.name,
                )
        self.weight: Weight | None = None
        if self._weight is not None:
            self.weight = _weight_of(self._weight)
        self.attr: tuple[str, int] | None = None
        if self._attr:
            logical = options.edge_feature_dtype or _common([_stored(a) for a in self._attr])
            self.attr = (logical, sum(a.shape[1] if a.ndim == 2 else 1 for a in self._attr))
        elif options.edge_feature_dtype is not None:
            raise ConfigError("edge_feature_dtype is given, and there are no edge features")
        self.row_bytes = sum(a.row_bytes for a in (weight, *self._attr) if a is not None)
        if self.attr is not None:
            self.row_bytes += STORED[self.attr[0]].itemsize * self.attr[1]

    def read(self, start: int, end: int) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Weights and features of edges start to end."""
        weight = attr = None
        if self._weight is not None and self.weight is not None:
            weight = self._weight.rows(start, end).reshape(-1).astype(self.weight.dtype, copy=False)
        if self.attr is not None:
            parts = [self._cast(array, start, end) for array in self._attr]
            attr = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        return weight, attr

    def _cast(self, array: Array, start: int, end: int) -> np.ndarray:
        assert self.attr is not None
        rows = array.rows(start, end).reshape(end - start, array.size // array.shape[0])
        if array.logical == self.attr[0]:
            return rows
        if array.logical == "bfloat16":
            rows = (rows.astype(np.uint32) << 16).view(np.float32)
        place = f"{array.name}[{{}}]".format
        return cast_rows(rows, self.attr[0], "edge feature", place, start=start)


class PairEdges:
    """Edges as ids [2, E] or [E, 2], or as two arrays [E]: an EdgeReader."""

    def __init__(
        self,
        pairs: Array | tuple[Array, Array],
        options: Options,
        *,
        weight: Array | None = None,
        attr: Sequence[Array] = (),
        notes: list[str],
    ):
        self._columns_first = True
        if isinstance(pairs, tuple):
            src, dst = self._arrays = pairs
            self.total = src.size
            if src.ndim != 1 or src.shape != dst.shape:
                raise GraphError(
                    "sources and targets need one length [E], "
                    f"have {list(src.shape)} and {list(dst.shape)}",
                    culprit=src.name,
                )
        else:
            self._arrays = (pairs, pairs)
            if pairs.ndim != 2 or 2 not in pairs.shape:
                raise GraphError(
                    f"wanted edges as ids [2, E] or [E, 2], had {list(pairs.shape)}",
                    culprit=pairs.name,
                )
            self._columns_first = pairs.shape[0] == 2
            self.total = pairs.shape[1] if self._columns_first else pairs.shape[0]
            if pairs.shape == (2, 2):
                notes.append(f"{pairs.name}: [2, 2] is taken as sources above targets")
        for array in self._arrays:
            _refuse_no_ids(array)
        self._name = self._arrays[0].name
        self.names = self._arrays[0].dtype.kind in "SU"
        if options.ids == "names" and not self.names:
            raise ConfigError(
                "ids='names' is for text; these ids are numbers", hint="ids='relabel'"
            )
        if options.ids == "dense" and self.names:
            raise ConfigError("ids='dense' needs numbers, these ids are names", hint="ids='auto'")
        self._columns = EdgeColumns(weight, attr, self.total, options)
        self.weight, self.attr = self._columns.weight, self._columns.attr

    def place(self, position: int) -> str:
        if self._arrays[0] is not self._arrays[1]:
            return f"{self._name}[{position}]"
        return f"{self._name}[{f':, {position}' if self._columns_first else f'{position}, :'}]"

    def chunks(self, limit_bytes: int, start: Cursor = ()) -> Iterator[EdgeChunk]:
        id_bytes = sum(array.dtype.itemsize for array in self._arrays)
        step = max(1, limit_bytes // (2 * id_bytes + self._columns.row_bytes))
        for begin in range(start[0] if start else 0, self.total, step):
            end = min(begin + step, self.total)
            src, dst = self._ends(begin, end)
            weight, attr = self._columns.read(begin, end)
            yield EdgeChunk(
                src=self._as_ids(src),
                dst=self._as_ids(dst),
                weight=weight,
                attr=attr,
                where=begin,
                end=(end,),
                done=end,
            )

    def _ends(self, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        first, second = self._arrays
        if first is not second:
            return first.rows(start, end), second.rows(start, end)
        # [2, E] in C order and [E, 2] in Fortran order are the same bytes.
        fortran = getattr(first, "fortran", False)
        if self._columns_first != fortran:
            return first.flat(start, end), first.flat(self.total + start, self.total + end)
        pairs = first.flat(2 * start, 2 * end).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    def _as_ids(self, ids: np.ndarray) -> Ids:
        return fixed_names(ids, self._name) if self.names else ids


class SparseEdges:
    """The entries (i, j) of a square matrix as edges i -> j: an EdgeReader."""

    names = False

    def __init__(self, parts: Mapping[str, Array], layout: str, name: str, options: Options):
        if options.ids == "names":
            raise ConfigError("ids='names' is for text; a matrix has positions")
        if layout not in ("csr", "csc"):
            raise GraphError(
                f"wanted a CSR, CSC or COO matrix, had {layout}",
                culprit=name,
                hint="scipy.sparse.save_npz(path, matrix.tocsr())",
            )
        self.num_nodes = square(parts["shape"].whole(), name)
        self._indices, self._indptr = parts["indices"], parts["indptr"]
        self._by_source, self._name = layout == "csr", name
        self.total = self._indices.size
        if self._indptr.size != self.num_nodes + 1:
            raise GraphError(
                f"indptr has {self._indptr.size} values, {self.num_nodes} rows need one more",
                culprit=name,
            )
        _refuse_no_ids(self._indices)
        self._columns = EdgeColumns(parts.get("data"), (), self.total, options)
        self.weight, self.attr = self._columns.weight, None

    def place(self, position: int) -> str:
        return f"{self._name}, entry {position}"

    def chunks(self, limit_bytes: int, start: Cursor = ()) -> Iterator[EdgeChunk]:
        at, row = start or (0, 0)
        step = max(1, limit_bytes // (24 + self._columns.row_bytes))
        while at < self.total:
            last = min(row + step, self.num_nodes)
            ptr = self._indptr.flat(row, last + 1).astype(np.int64)
            if (np.diff(ptr) < 0).any() or ptr[0] > at or ptr[-1] > self.total:
                raise GraphError(
                    "indptr does not ascend to the number of entries",
                    culprit=f"{self._name}, rows {row} to {last}",
                )
            if last == self.num_nodes and ptr[-1] < self.total:
                raise GraphError(
                    f"indptr ends at {ptr[-1]}, there are {self.total} entries", culprit=self._name
                )
            end = min(at + step, int(ptr[-1]))
            rows = row + np.searchsorted(ptr, np.arange(at, end), side="right") - 1
            columns = self._indices.flat(at, end)
            weight, _ = self._columns.read(at, end)
            row = int(rows[-1]) if end < ptr[-1] else last
            yield EdgeChunk(
                src=rows if self._by_source else columns,
                dst=columns if self._by_source else rows,
                weight=weight,
                where=at,
                end=(end, row),
                done=end,
            )
            at = end


def square(shape: np.ndarray, name: str) -> int:
    """The number of nodes of an adjacency matrix of this shape."""
    num_rows, num_columns = (int(side) for side in shape)
    if num_rows != num_columns:
        raise GraphError(
            f"an adjacency matrix is square, this one is {num_rows} x {num_columns}",
            culprit=name,
            hint="a bipartite graph as an edge list with node ids of its own on each side",
        )
    return num_rows


def fixed_names(ids: np.ndarray, name: str) -> Text:
    """Strings of a fixed width as names: UTF-8, without the NULs that fill them up."""
    if ids.dtype.kind == "U":
        ids = np.char.encode(ids, "utf-8")
    ids = np.ascontiguousarray(ids)
    width = ids.dtype.itemsize
    data = ids.view(np.uint8).reshape(ids.size, width)
    try:
        data.tobytes().decode()
    except UnicodeDecodeError as error:
        raise GraphError(f"names must be UTF-8: {error.reason}", culprit=name) from None
    starts = np.arange(ids.size, dtype=np.int64) * width
    return Text(data.reshape(-1), starts, starts + np.char.str_len(ids))


def _refuse_no_ids(array: Array) -> None:
    if array.dtype.kind not in "iuSU":
        raise GraphError(
            f"ids must be whole numbers or text, had {array.dtype}",
            culprit=array.name,
            hint="array.astype('int64'), where that is exact",
        )


def _weight_of(array: Array) -> Weight:
    if array.dtype.kind not in "biuf" or array.size != array.shape[0]:
        raise GraphError(
            f"edge weights need one number an edge, had {array.dtype} {list(array.shape)}",
            culprit=array.name,
        )
    if array.logical == "bfloat16":
        raise GraphError(
            "edge weights in bfloat16 are not read", culprit=array.name, hint="float32"
        )
    if array.dtype.kind == "f":
        wide = array.dtype.itemsize == 8
        return Weight(np.dtype(np.float64 if wide else np.float32), narrows=False)
    return Weight(np.dtype(np.float64), narrows=True)


def _stored(array: Array) -> str:
    """The dtype of a table that keeps an array of edge features exactly."""
    if array.dtype.kind not in "biuf":
        raise GraphError(f"edge features need numbers, had {array.dtype}", culprit=array.name)
    if array.logical in STORED:
        return array.logical
    low = high = 0
    step = max(1, 2**22 // max(1, array.row_bytes))
    for start in range(0, array.shape[0], step):
        rows = array.rows(start, min(start + step, array.shape[0]))
        low, high = min(low, int(rows.min())), max(high, int(rows.max()))
    return narrowest(low, high)


def _common(dtypes: list[str]) -> str:
    if len(set(dtypes)) == 1:
        return dtypes[0]
    return "float64" if "float64" in dtypes else "float32"
