"""Rows of nodes in files of arrays, sparse matrices and text; masks.

Legend: R rows, D columns, S splits of one kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numba
import numpy as np

from tiergnn.errors import GraphError
from tiergnn.graph.formats.arrays import FileArray, HeldArray
from tiergnn.graph.formats.delimited import DelimitedTable
from tiergnn.graph.formats.options import Options
from tiergnn.graph.formats.source import Rows, Split

Array = FileArray | HeldArray
SPARSE = ("data", "indices", "indptr", "shape")
_MASK_NAMES = {"valid": "val", "validation": "val", "dev": "val"}


class ArrayRows:
    """Rows of an array [R, D] or [R]."""

    is_text = False

    def __init__(self, array: Array, what: str):
        if array.ndim not in (1, 2) or array.dtype.kind not in "biuf":
            raise GraphError(
                f"{what} need numbers [R] or [R, D], had {array.dtype} {list(array.shape)}",
                culprit=array.name,
            )
        self._array = array
        self.name = array.name
        self.num_rows: int | None = array.shape[0]
        self.width = array.shape[1] if array.ndim == 2 else 1
        self.dtype = array.dtype
        self.logical = array.logical

    def blocks(self, limit_bytes: int) -> Iterator[np.ndarray]:
        assert self.num_rows is not None
        step = max(1, limit_bytes // max(1, self._array.row_bytes))
        for start in range(0, self.num_rows, step):
            rows = self._array.rows(start, min(start + step, self.num_rows))
            yield rows.reshape(len(rows), self.width)

    def place(self, row: int) -> str:
        return f"{self.name}[{row}]"


class SparseRows:
    """Rows of a SciPy CSR matrix [R, D], made dense: float32, or float64 when asked for."""

    is_text = False

    def __init__(self, parts: Mapping[str, Array], name: str, *, wide: bool):
        self._data, self._indices, self._indptr, shape = (parts[key] for key in SPARSE)
        self.name = name
        num_rows, self.width = (int(side) for side in shape.whole())
        self.num_rows: int | None = num_rows
        self.dtype = np.dtype(np.float64 if wide else np.float32)
        self.logical = self.dtype.name
        if self._indptr.size != num_rows + 1 or self._data.size != self._indices.size:
            raise GraphError(
                f"not a CSR matrix of {num_rows} rows: indptr has {self._indptr.size} values, "
                f"indices {self._indices.size}, data {self._data.size}",
                culprit=name,
            )

    def blocks(self, limit_bytes: int) -> Iterator[np.ndarray]:
        assert self.num_rows is not None
        step = max(1, limit_bytes // max(1, self.width * self.dtype.itemsize))
        for start in range(0, self.num_rows, step):
            end = min(start + step, self.num_rows)
            ptr = self._indptr.flat(start, end + 1).astype(np.int64)
            if (np.diff(ptr) < 0).any() or ptr[0] < 0 or ptr[-1] > self._data.size:
                row = start + int(np.argmax(np.diff(ptr) < 0))
                raise GraphError("indptr of the CSR matrix runs backwards", culprit=self.place(row))
            first, last = int(ptr[0]), int(ptr[-1])
            columns = self._indices.flat(first, last)
            bad = np.flatnonzero((columns < 0) | (columns >= self.width))
            if bad.size:
                row = int(np.searchsorted(ptr, first + bad[0], side="right")) - 1
                raise GraphError(
                    f"column {columns[bad[0]]} is not in 0..{self.width - 1}",
                    culprit=self.place(start + row),
                )
            out = np.zeros((end - start, self.width), self.dtype)
            _scatter(ptr - first, columns, self._data.flat(first, last), out)
            yield out

    def place(self, row: int) -> str:
        return f"{self.name}[{row}]"


class TextRows:
    """Rows of numbers in delimited text, with or without a header."""

    is_text = True
    num_rows: int | None = None

    def __init__(self, path: Path, options: Options, dtype: type):
        self._table = DelimitedTable(path, options, comments="", blanks=True)
        self.name = str(path)
        self.width = len(self._table.columns)
        self.dtype = np.dtype(dtype)
        self.logical = self.dtype.name

    def blocks(self, limit_bytes: int) -> Iterator[np.ndarray]:
        columns = tuple(range(self.width))
        for block, _, _ in self._table.pieces(columns, limit_bytes):
            out = np.empty((block.num_rows, self.width), self.dtype)
            for column in columns:
                out[:, column] = block.floats(column, f"column {column}")
            yield out

    def place(self, row: int) -> str:
        return f"{self.name}, row {row} of the data"


def open_file_rows(
    path: Path, arrays: Mapping[str, Array], options: Options, what: str, dtype: type
) -> Rows:
    """Rows of one file: text, a ``.npy``, or a ``.npz`` (``arrays``) of one array or a matrix."""
    if not arrays:
        return TextRows(path, options, dtype)
    if all(key in arrays for key in SPARSE):
        refuse_layout(arrays, path.name)
        return SparseRows(arrays, path.name, wide=options.feature_dtype == "float64")
    if len(arrays) > 1:
        raise GraphError(
            f"wanted one array of {what}, the file has {', '.join(arrays)}",
            culprit=str(path),
            hint="save them apart",
        )
    return ArrayRows(next(iter(arrays.values())), what)


def refuse_layout(arrays: Mapping[str, Array], name: str) -> None:
    """A matrix of rows must be CSR."""
    layout = layout_of(arrays)
    if layout != "csr":
        raise GraphError(
            f"wanted a CSR matrix, had {layout}",
            culprit=name,
            hint="scipy.sparse.save_npz(path, matrix.tocsr())",
        )


def layout_of(arrays: Mapping[str, Array]) -> str:
    """What SciPy calls the layout of a sparse matrix; "csr" when nothing says it."""
    if "format" not in arrays:
        return "csr"
    layout = arrays["format"].whole()[()]
    return layout.decode() if isinstance(layout, bytes) else str(layout)


def read_splits(
    arrays: Mapping[str, Array], num_nodes: int | None, notes: list[str]
) -> dict[str, Split]:
    """Splits from masks [V], [S, V] or [V, S], and from ids; masks of edges are noted."""
    splits: dict[str, Split] = {}
    for key, array in arrays.items():
        if key.endswith("_edges"):
            notes.append(f"{array.name}: not read: splits of edges are not kept")
            continue
        name = key
        for ending in ("_mask", "_idx", "_index"):
            name = name.removesuffix(ending)
        name = _MASK_NAMES.get(name, name)
        if array.dtype.kind in "iu" and array.ndim == 1 and not key.endswith("_mask"):
            splits[name] = Split(ids=array.whole())
        elif array.dtype.kind != "b" or array.ndim not in (1, 2):
            raise GraphError(
                f"split {name!r} needs a boolean mask or node ids, "
                f"had {array.dtype} {list(array.shape)}",
                culprit=array.name,
                hint="mask.astype(bool)",
            )
        elif array.ndim == 1:
            splits[name] = _mask(array, 0, array.size)
        else:
            first = num_nodes is None or array.shape[0] == num_nodes
            rows, others = array.shape if first else array.shape[::-1]
            for s in range(others):
                splits[f"{name}.{s}"] = (
                    _mask_column(array, s) if first else _mask(array, s * rows, rows)
                )
    return splits


def _mask(array: Array, begin: int, num_rows: int) -> Split:
    """One that lies in a piece."""
    if isinstance(array, FileArray) and array.fortran:
        return _mask_row(array, begin // num_rows)

    def blocks(limit_bytes: int) -> Iterator[np.ndarray]:
        for start in range(begin, begin + num_rows, max(1, limit_bytes)):
            yield array.flat(start, min(start + max(1, limit_bytes), begin + num_rows))

    return Split(mask=blocks, num_rows=num_rows)


def _mask_row(array: Array, s: int) -> Split:
    def blocks(limit_bytes: int) -> Iterator[np.ndarray]:
        yield array.rows(s, s + 1)[0]

    return Split(mask=blocks, num_rows=array.shape[1])


def _mask_column(array: Array, s: int) -> Split:
    def blocks(limit_bytes: int) -> Iterator[np.ndarray]:
        step = max(1, limit_bytes // max(1, array.row_bytes))
        for start in range(0, array.shape[0], step):
            yield array.rows(start, min(start + step, array.shape[0]))[:, s]

    return Split(mask=blocks, num_rows=array.shape[0])


@numba.njit(cache=True, nogil=True)
def _scatter(ptr, columns, data, out):
    """Entries given twice are added, as SciPy does."""
    for r in range(out.shape[0]):
        for e in range(ptr[r], ptr[r + 1]):
            out[r, columns[e]] += data[e]
