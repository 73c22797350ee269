"""Parquet as a table, read batch by batch through pyarrow, which is an optional extra."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tiergnn.errors import ConfigError, GraphError
from tiergnn.graph.formats.fields import Text
from tiergnn.graph.formats.options import Options
from tiergnn.graph.formats.source import Cursor, Source, Weight
from tiergnn.graph.formats.table import Piece, TableEdges
from tiergnn.graph.staging import store_errors

_MAGIC = b"PAR1"


def sniff(path: Path) -> bool:
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(4) == _MAGIC


def open_parquet(path: Path, options: Options, scratch: Path) -> Source:
    """Columns by name, as in a CSV with a header."""
    notes: list[str] = []
    edges = TableEdges(ParquetTable(path), options, notes)
    return Source(format="parquet", edges=edges, notes=notes)


class ParquetTable:
    """A TableFile. Raises ConfigError without pyarrow, GraphError when the file is damaged."""

    is_named = True

    def __init__(self, path: Path):
        self.path = path
        try:
            import pyarrow.parquet
        except ImportError:
            raise ConfigError(
                "reading Parquet needs pyarrow, which is not installed",
                culprit=str(path),
                hint="pip install 'tiergnn[parquet]'",
            ) from None
        with _errors(path):
            self._file = pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=2**20)
        self._schema = self._file.schema_arrow
        self.columns = tuple(self._schema.names)
        self.total = self._file.metadata.num_rows

    def kind(self, column: int) -> str:
        import pyarrow as pa

        dtype = self._schema.types[column]
        if pa.types.is_integer(dtype):
            return "int"
        return "float" if pa.types.is_floating(dtype) or pa.types.is_decimal(dtype) else "text"

    def dtype(self, column: int) -> Weight:
        import pyarrow as pa

        dtype = self._schema.types[column]
        if pa.types.is_float16(dtype) or pa.types.is_float32(dtype):
            return Weight(np.dtype(np.float32), narrows=False)
        return Weight(np.dtype(np.float64), narrows=not pa.types.is_float64(dtype))

    def pieces(
        self, columns: tuple[int, ...], limit_bytes: int, start: Cursor = ()
    ) -> Iterator[Piece]:
        rows = max(1, limit_bytes // (48 * max(1, len(columns))))
        row = start[0] if start else 0
        groups, at = [], 0
        for group in range(self._file.num_row_groups):
            size = self._file.metadata.row_group(group).num_rows
            if at + size > row:
                groups.append(group)
            else:
                at += size
        names = [self.columns[c] for c in columns]
        with _errors(self.path):
            for batch in self._file.iter_batches(rows, row_groups=groups, columns=names):
                skip = min(max(row - at, 0), batch.num_rows)
                first = at + skip
                at += batch.num_rows
                if skip < batch.num_rows:
                    arrays = [batch.column(name)[skip:] for name in names]
                    batch = _Batch(path=self.path, columns=names, arrays=arrays, first_row=first)
                    yield Piece(batch, (at,), at)

    def place(self, position: int) -> str:
        return f"{self.path}, row {position}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Batch:
    """A Block of a table: columns of some rows."""

    path: Path
    columns: list[str]
    arrays: list[Any]  # pyarrow.Array
    first_row: int

    @property
    def num_rows(self) -> int:
        return len(self.arrays[0])

    def positions(self) -> np.ndarray:
        return np.arange(self.first_row, self.first_row + self.num_rows)

    def ints(self, column: int, what: str, hint: str | None = None) -> np.ndarray:
        import pyarrow as pa

        array = self._full(column, what)
        if not pa.types.is_integer(array.type):
            raise GraphError(
                f"{what} needs whole numbers, column {self.columns[column]!r} is {array.type}",
                culprit=str(self.path),
                hint=hint,
            )
        return array.to_numpy(zero_copy_only=False)

    def floats(self, column: int, what: str, *, or_nan: bool = False) -> np.ndarray:
        import pyarrow as pa

        array = self.arrays[column] if or_nan else self._full(column, what)
        if pa.types.is_boolean(array.type):
            array = array.cast(pa.uint8())
        try:
            return array.cast(pa.float64()).to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid as error:
            raise GraphError(
                f"{what} needs numbers that float64 holds, column {self.columns[column]!r} is "
                f"{array.type}: {error}",
                culprit=f"{self.path}, from row {self.first_row} on",
            ) from None

    def names(self, column: int, *, or_empty: bool = False) -> Text:
        import pyarrow as pa

        array = self.arrays[column] if or_empty else self._full(column, "name")
        try:
            array = array.cast(pa.large_string())
            array = array.fill_null("") if or_empty else array
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise GraphError(
                f"names need text, column {self.columns[column]!r} is {array.type}",
                culprit=str(self.path),
            ) from None
        _, offsets, data = array.buffers()
        ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
        text = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
        return Text(text, ends[:-1], ends[1:])

    def _full(self, column: int, what: str) -> Any:
        array = self.arrays[column]
        if array.null_count:
            row = self.first_row + int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
            raise GraphError(
                f"{what} is missing in column {self.columns[column]!r}",
                culprit=f"{self.path}, row {row}",
                hint="fill in or drop rows with missing values",
            )
        return array


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    import pyarrow as pa

    try:
        with store_errors("read", path):
            yield
    except pa.ArrowException as error:
        raise GraphError(
            f"not a whole Parquet file: {error}", culprit=str(path), hint="write it again"
        ) from error
