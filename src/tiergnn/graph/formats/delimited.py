"""Delimited text as a table: edge lists as SNAP writes them, CSV, TSV; plain or gzipped."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tiergnn.errors import GraphError
from tiergnn.graph.formats.fields import split
from tiergnn.graph.formats.lines import LineFile
from tiergnn.graph.formats.options import Options
from tiergnn.graph.formats.source import Cursor, Weight
from tiergnn.graph.formats.table import NODE_IDS, SOURCES, TARGETS, Piece

# What a byte of text may take in buffers, fields and numbers, at four bytes a line.
_BYTES_PER_BYTE = 12
_SEPARATORS = (",", "\t", ";", "|")


class DelimitedTable:
    """A TableFile. Raises GraphError when the text cannot be cut into fields."""

    def __init__(self, path: Path, options: Options, *, comments: str, blanks: bool):
        """comments: lines that begin with one of these are passed over. blanks: columns are
        separated by runs of blanks unless a separator is seen; else a separator is expected."""
        self.path = path
        self._file = LineFile(path)
        self.total = self._file.total_bytes
        self._comments = comments
        rest, self._start, self._line = self._file.begin((comments or "#").encode())
        if b"\0" in rest:
            raise GraphError(
                "not text: it holds NUL bytes",
                culprit=str(path),
                hint="format=..., or another file",
            )
        first = _lines(rest, comments, 1)
        self._separator = options.delimiter
        if options.delimiter is None:
            self._separator = _separator(first[0]) if first else ","
            if blanks and self._separator == "\t":
                self._separator = None
        elif options.delimiter == " ":
            self._separator = None
        self._sample = [_cut(line, self._separator) for line in _lines(rest, comments, 20)]
        self.is_named = self._has_header(options.header, blanks)
        width = len(self._sample[0]) if first else 2  # an empty file is a list of no edges
        self.columns = tuple(f"column {c}" for c in range(width))
        if self.is_named and first:
            self.columns = tuple(self._sample.pop(0))
            self._start += rest.index(b"\n") + 1
            self._line += 1
            self._refuse_twins()

    def kind(self, column: int) -> str:
        for row in self._sample:
            if column < len(row) and row[column]:
                return _kind(row[column])
        return "int"  # no rows, so no ids

    def dtype(self, column: int) -> Weight:
        return Weight(np.dtype(np.float64), narrows=True)

    def pieces(
        self, columns: tuple[int, ...], limit_bytes: int, start: Cursor = ()
    ) -> Iterator[Piece]:
        block_bytes = max(2**12, limit_bytes // _BYTES_PER_BYTE)
        begin, line = start or (self._start, self._line)
        for block in self._file.blocks(block_bytes, begin, line):
            fields = split(
                self.path,
                block.data,
                block.first_line,
                separator=self._separator,
                columns=columns,
                comments=self._comments,
                exactly=len(self.columns),
            )
            yield Piece(fields, (block.end, block.end_line), block.done_bytes)

    def place(self, position: int) -> str:
        return f"{self.path}, line {position}"

    def _has_header(self, option: bool | None, blanks: bool) -> bool:
        """As the user says; else by the names in the first row, and what stands below them."""
        if option is not None or not self._sample:
            return bool(option)
        first = [field.lower() for field in self._sample[0]]
        has_ends = any(f in SOURCES for f in first) and any(f in TARGETS for f in first)
        if has_ends or blanks:
            return has_ends
        if any(_kind(field) != "text" for field in first):
            return False
        below = self._sample[1] if len(self._sample) > 1 else []
        if any(name in first for name in NODE_IDS) or any(_kind(f) != "text" for f in below if f):
            return True
        raise GraphError(
            f"is {','.join(self._sample[0])!r} a header, or the first row?",
            culprit=self.place(self._line),
            hint="header=True or header=False",
        )

    def _refuse_twins(self) -> None:
        for c, name in enumerate(self.columns):
            if name in self.columns[:c]:
                raise GraphError(
                    f"two columns are called {name!r}", culprit=self.place(self._line - 1)
                )


def _lines(text: bytes, comments: str, count: int) -> list[bytes]:
    """The first lines that hold data."""
    lines = []
    for line in text.split(b"\n", 4 * count)[: 4 * count]:
        stripped = line.strip()
        if stripped and stripped[:1].decode(errors="replace") not in comments:
            lines.append(stripped)
    return lines[:count]


def _separator(line: bytes) -> str | None:
    """The one that the line has, or None for blanks."""
    return next((s for s in _SEPARATORS if s.encode() in line), None)


def _cut(line: bytes, separator: str | None) -> list[str]:
    text = line.decode(errors="replace")
    if separator is None:
        return text.split()
    fields = next(csv.reader([text], delimiter=separator, skipinitialspace=True))
    return [field.strip() for field in fields]


def _kind(field: str) -> str:
    if re.fullmatch(r"[+-]?[0-9]+", field):
        return "int"
    try:
        float(field)
    except ValueError:
        return "text"
    return "float"
