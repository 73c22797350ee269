"""Matrix Market files: entry (i, j) of a square matrix is the edge i -> j of that weight.

The format: R. F. Boisvert, R. Pozo, K. A. Remington, "The Matrix Market Exchange Formats: Initial
Design", NISTIR 5935, 1996. Legend: n entries of a block, V rows of the matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tiergnn.errors import ConfigError, GraphError, unknown
from tiergnn.graph.formats.fields import Fields, split
from tiergnn.graph.formats.lines import LineFile
from tiergnn.graph.formats.options import Options
from tiergnn.graph.formats.pairs import square
from tiergnn.graph.formats.source import Cursor, EdgeChunk, Source, Weight

_BANNER = b"%%matrixmarket"
_VALUES = {"pattern": 0, "real": 1, "double": 1, "integer": 1, "complex": 2}
_SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")


def sniff(path: Path) -> bool:
    if not path.is_file():
        return False
    if path.name.lower().endswith((".mtx", ".mtx.gz")):
        return True
    with open(path, "rb") as file:
        return file.read(len(_BANNER)).lower() == _BANNER


def open_matrix_market(path: Path, options: Options, scratch: Path) -> Source:
    """Symmetric kinds give both directions. Zeros of a dense matrix are no edges.

    Rectangular matrices are refused; so are complex weights, unless weight="none".
    """
    options.refuse_columns("matrix_market")
    header = _read_header(path)
    if header.is_dense and header.field in ("pattern", "complex"):
        raise GraphError(f"a dense {header.field} matrix is no graph", culprit=str(path))
    if header.field == "complex" and options.weight != "none":
        raise GraphError(
            "the weights are complex numbers, edges have real ones",
            culprit=str(path),
            hint="weight='none' for the edges alone",
        )
    num_nodes = square(np.array([header.rows, header.columns]), str(path))
    reader = MatrixEdges(path, header, options)
    return Source(
        format="matrix_market",
        edges=reader,
        num_nodes=num_nodes,
        counted_by=f"the header of {path.name}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The banner and the line of sizes."""

    is_dense: bool
    field: str
    symmetry: str
    rows: int
    columns: int
    entries: int
    start: int  # byte after the line of sizes
    line: int  # number of the line there


def _read_header(path: Path) -> Header:
    file = LineFile(path)
    banner = file.head().partition(b"\n")[0].decode(errors="replace")
    words = banner.lower().split()
    if len(words) != 5 or words[0] != _BANNER.decode() or words[1] != "matrix":
        raise GraphError(
            "wanted a first line '%%MatrixMarket matrix LAYOUT FIELD SYMMETRY', "
            f"had {banner[:80]!r}",
            culprit=f"{path}, line 1",
        )
    _, _, layout, field, symmetry = words
    for kind, word, known in (
        ("layout", layout, ("coordinate", "array")),
        ("field", field, _VALUES),
        ("symmetry", symmetry, _SYMMETRIES),
    ):
        if word not in known:
            problem = unknown(f"Matrix Market {kind}", word, known)
            raise GraphError(problem.problem, culprit=f"{path}, line 1", hint=problem.hint)
    rest, start, line = file.begin(b"%")
    first = rest.partition(b"\n")[0]
    sizes = first.split()
    wanted = 2 if layout == "array" else 3
    if len(sizes) != wanted or not all(size.isdigit() for size in sizes):
        raise GraphError(
            f"wanted {wanted} sizes (rows, columns{', entries' if wanted == 3 else ''}), "
            f"had {first[:80].decode(errors='replace')!r}",
            culprit=f"{path}, line {line}",
        )
    rows, columns = int(sizes[0]), int(sizes[1])
    triangle = rows * (rows + 1) // 2
    dense = {"general": rows * columns, "skew-symmetric": triangle - rows}.get(symmetry, triangle)
    return Header(
        is_dense=layout == "array",
        field=field,
        symmetry=symmetry,
        rows=rows,
        columns=columns,
        entries=dense if layout == "array" else int(sizes[2]),
        start=start + len(first) + 1,
        line=line + 1,
    )


class MatrixEdges:
    """The entries: an EdgeReader."""

    names = False
    attr = None

    def __init__(self, path: Path, header: Header, options: Options):
        if options.weight not in ("auto", "none"):
            raise ConfigError(
                f"weight={options.weight!r} names a column; a matrix has one value an entry",
                hint="weight='none' leaves values out",
            )
        self._path, self._header = path, header
        self._file = LineFile(path)
        self.total = self._file.total_bytes
        self.weight: Weight | None = None
        if options.weight != "none" and header.field != "pattern":
            self.weight = Weight(np.dtype(np.float64), narrows=True)

    def place(self, position: int) -> str:
        return f"{self._path}, line {position}"

    def chunks(self, limit_bytes: int, start: Cursor = ()) -> Iterator[EdgeChunk]:
        header = self._header
        at, line, count = start or (header.start, header.line, 0)
        values = _VALUES[header.field]
        width = values + (0 if header.is_dense else 2)
        for block in self._file.blocks(max(2**12, limit_bytes // 48), at, line):
            fields = split(
                self._path,
                block.data,
                block.first_line,
                separator=None,
                columns=tuple(range(width)),
                comments="%",
                exactly=width,
            )
            if count + fields.num_rows > header.entries:
                raise GraphError(
                    f"the header says {header.entries} entries, here is one more",
                    culprit=fields.place(header.entries - count),
                )
            ends = self._dense_ends(count, fields) if header.is_dense else self._ends(fields)
            count += fields.num_rows
            cursor = (block.end, block.end_line, count)
            yield self._chunk(fields, *ends, cursor, block.done_bytes)
        if count < header.entries:
            raise GraphError(
                f"the header says {header.entries} entries, the file has {count}",
                culprit=str(self._path),
                hint="is the file cut short?",
            )

    def _ends(self, fields: Fields) -> tuple[np.ndarray, np.ndarray]:
        """Rows and columns of entries, from 0."""
        ends = []
        for column, what in ((0, "row"), (1, "column")):
            index = fields.ints(column, what)
            bad = np.flatnonzero((index < 1) | (index > self._header.rows))
            if bad.size:
                raise GraphError(
                    f"{what} {index[bad[0]]} is not in 1..{self._header.rows}",
                    culprit=fields.place(int(bad[0])),
                )
            ends.append(index - 1)
        return ends[0], ends[1]

    def _dense_ends(self, count: int, fields: Fields) -> tuple[np.ndarray, np.ndarray]:
        """Rows and columns of values ``count`` and on: column after column, of the symmetric
        kinds from the diagonal (or below it) down."""
        rows, at = self._header.rows, np.arange(count, count + fields.num_rows)
        if self._header.symmetry == "general":
            return at % rows, at // rows
        skew = int(self._header.symmetry == "skew-symmetric")
        lengths = rows - skew - np.arange(rows)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        column = np.searchsorted(starts, at, side="right") - 1
        return at - starts[column] + column + skew, column

    def _chunk(
        self, fields: Fields, row: np.ndarray, column: np.ndarray, end: Cursor, done: int
    ) -> EdgeChunk:
        header = self._header
        where = fields.line
        weight = None
        if header.field != "pattern" and (self.weight is not None or header.is_dense):
            weight = self._values(fields, 0 if header.is_dense else 2)
        if header.is_dense and weight is not None:
            stay = weight != 0
            row, column, where, weight = row[stay], column[stay], where[stay], weight[stay]
        if header.symmetry != "general":
            off = row != column
            if header.symmetry == "skew-symmetric" and not off.all():
                raise GraphError(
                    "a skew-symmetric matrix has no entries on its diagonal",
                    culprit=self.place(int(where[np.argmin(off)])),
                )
            stay = np.stack([np.ones_like(off), off], axis=1).reshape(-1)
            ends = np.stack([row, column], axis=1)
            row, column = ends.reshape(-1)[stay], ends[:, ::-1].reshape(-1)[stay]
            where = np.repeat(where, 2)[stay]
            if weight is not None:
                sign = -1.0 if header.symmetry == "skew-symmetric" else 1.0
                weight = np.stack([weight, sign * weight], axis=1).reshape(-1)[stay]
        return EdgeChunk(
            src=row,
            dst=column,
            weight=weight if self.weight is not None else None,
            where=where,
            end=end,
            done=done,
        )

    def _values(self, fields: Fields, column: int) -> np.ndarray:
        if self._header.field != "integer":
            return fields.floats(column, "edge weight")
        whole = fields.ints(column, "edge weight", "weight='none' for the edges alone")
        values = whole.astype(np.float64)
        over = values >= 2.0**63  # what 2**63 - 1 becomes does not go back
        bad = over | (np.where(over, 0, values).astype(np.int64) != whole)
        if bad.any():
            at = int(np.argmax(bad))
            raise GraphError(
                f"edge weight {whole[at]} is not held exactly by float64",
                culprit=fields.place(at),
                hint="weight='none' for the edges alone",
            )
        return values
