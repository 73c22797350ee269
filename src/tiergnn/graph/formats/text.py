"""Edge lists in text: one edge a line, as SNAP writes them, and CSV."""

from __future__ import annotations

from pathlib import Path

from tiergnn.graph.formats.delimited import DelimitedTable
from tiergnn.graph.formats.options import Options
from tiergnn.graph.formats.source import Source
from tiergnn.graph.formats.table import TableEdges

_CSV = (".csv", ".tsv", ".csv.gz", ".tsv.gz")


def sniff_csv(path: Path) -> bool:
    return path.is_file() and path.name.lower().endswith(_CSV)


def sniff_edge_list(path: Path) -> bool:
    """Any file without NUL bytes near its beginning: what nothing else takes."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        head = file.read(4096)
    return head.startswith(b"\x1f\x8b") or b"\0" not in head


def open_csv(path: Path, options: Options, scratch: Path) -> Source:
    """Columns by the names of the header; comments only before it."""
    return _open("csv", DelimitedTable(path, options, comments="", blanks=False), options)


def open_edge_list(path: Path, options: Options, scratch: Path) -> Source:
    """Tabs, blanks, commas, semicolons or bars between columns; lines with # or % are comments."""
    return _open("edge_list", DelimitedTable(path, options, comments="#%", blanks=True), options)


def _open(format: str, table: DelimitedTable, options: Options) -> Source:
    notes: list[str] = []
    return Source(format=format, edges=TableEdges(table, options, notes), notes=notes)
