"""Tables of columns (delimited text, Parquet) and the edges in them.

Legend: n rows of a block, D edge features.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from tiergnn.errors import ConfigError, GraphError
from tiergnn.graph.formats.cast import cast_rows
from tiergnn.graph.formats.fields import Text
from tiergnn.graph.formats.options import Column, Options
from tiergnn.graph.formats.source import Cursor, EdgeChunk, Ids, Weight

SOURCES = ("src", "source", "from", "u", "head", "source_id", "src_id", "from_id", "node1")
TARGETS = ("dst", "target", "to", "v", "tail", "target_id", "dst_id", "to_id", "node2")
NODE_IDS = ("id", "node_id", "node", "name", "nid", "node_name")
WEIGHTS = ("weight", "w", "edge_weight")


class Block(Protocol):
    """n rows of the columns asked for, in the order asked for."""

    @property
    def num_rows(self) -> int: ...
    def ints(self, column: int, what: str, hint: str | None = None) -> np.ndarray: ...
    def floats(self, column: int, what: str, *, or_nan: bool = False) -> np.ndarray: ...
    def names(self, column: int, *, or_empty: bool = False) -> Text: ...
    def positions(self) -> np.ndarray: ...


class Piece(NamedTuple):
    block: Block
    end: Cursor
    done: int


class TableFile(Protocol):
    """A file of rows and columns."""

    path: Path
    columns: tuple[str, ...]  # their names; "column 0" and so on when they have none
    is_named: bool
    total: int

    def kind(self, column: int) -> str:
        """ "int", "float" or "text", as the first row has it."""
        ...

    def dtype(self, column: int) -> Weight:
        """How numbers of a column come."""
        ...

    def pieces(
        self, columns: tuple[int, ...], limit_bytes: int, start: Cursor = ()
    ) -> Iterator[Piece]: ...

    def place(self, position: int) -> str: ...


def find_column(table: TableFile, column: Column, option: str) -> int:
    """The position of a column by name or position. Raises ConfigError listing those there are."""
    if isinstance(column, int):
        if 0 <= column < len(table.columns):
            return column
    elif column in table.columns and table.is_named:
        return table.columns.index(column)
    have = ", ".join(table.columns) if table.is_named else f"0 to {len(table.columns) - 1}"
    raise ConfigError(
        f"{option}={column!r} is no column of {table.path}",
        hint=f"one of {have}" if table.columns else "a file with columns",
    )


def guess_column(table: TableFile, known: tuple[str, ...]) -> int | None:
    """The first column whose name, in lower case, is one of ``known``."""
    if not table.is_named:
        return None
    lower = [name.lower() for name in table.columns]
    return next((lower.index(name) for name in known if name in lower), None)


class TableEdges:
    """The edges of a table: an EdgeReader."""

    def __init__(self, table: TableFile, options: Options, notes: list[str]):
        """Decides which columns are what; those not read go into ``notes``."""
        self._table = table
        self.total = table.total
        if len(table.columns) < 2:
            raise GraphError(
                f"an edge needs a source and a target, the file has {len(table.columns)} columns",
                culprit=str(table.path),
                hint="delimiter=..., if columns are separated by something unusual",
            )
        self._src, self._dst = _ends(table, options)
        self._features = tuple(
            find_column(table, column, "edge_features") for column in options.edge_features
        )
        self._weight = self._find_weight(options)
        kinds = {table.kind(self._src), table.kind(self._dst)}
        self.names = options.ids == "names" or (options.ids != "dense" and "text" in kinds)
        self.weight = None if self._weight is None else table.dtype(self._weight)
        self.attr = None
        if self._features:
            logical = options.edge_feature_dtype or _widest(table, self._features)
            self.attr = (logical, len(self._features))
        elif options.edge_feature_dtype is not None:
            raise ConfigError("edge_feature_dtype is given, and no edge_features are")
        used = {self._src, self._dst, self._weight, *self._features}
        unread = [name for c, name in enumerate(table.columns) if c not in used]
        if unread and options.weight != "none":
            self._refuse_unnamed(unread)
        if unread:
            notes.append(
                f"{table.path}: not read: {', '.join(unread)} "
                "(edge_features=NAMES, --edge-features, keeps columns)"
            )

    def _find_weight(self, options: Options) -> int | None:
        table, weight = self._table, options.weight
        if weight == "none":
            return None
        if weight != "auto":
            return find_column(table, weight, "weight")
        if table.is_named:
            found = guess_column(table, WEIGHTS)
        else:
            rest = [
                c
                for c in range(len(table.columns))
                if c not in (self._src, self._dst, *self._features)
            ]
            found = rest[0] if len(rest) == 1 else None
        return None if found in (self._src, self._dst, *self._features) else found

    def _refuse_unnamed(self, unread: list[str]) -> None:
        """Without a header nobody can tell what further columns are."""
        if not self._table.is_named:
            raise GraphError(
                f"the file has {len(self._table.columns)} columns and no header: "
                f"what are {', '.join(unread)}?",
                culprit=str(self._table.path),
                hint="weight=2 for column 2, edge_features='3,4', or weight='none' to leave "
                "further columns out",
            )

    def place(self, position: int) -> str:
        return self._table.place(position)

    def chunks(self, limit_bytes: int, start: Cursor = ()) -> Iterator[EdgeChunk]:
        # Text is cut from left to right, so columns are asked for in ascending order, each once.
        weight = () if self._weight is None else (self._weight,)
        wanted = tuple(sorted({self._src, self._dst, *weight, *self._features}))
        at = {column: i for i, column in enumerate(wanted)}
        for block, end, done in self._table.pieces(wanted, limit_bytes, start):
            yield EdgeChunk(
                src=self._ids(block, at[self._src], "source id"),
                dst=self._ids(block, at[self._dst], "target id"),
                weight=None if self._weight is None else self._weights(block, at[self._weight]),
                attr=self._attr(block, [at[c] for c in self._features]),
                where=block.positions(),
                end=end,
                done=done,
            )

    def _ids(self, block: Block, column: int, what: str) -> Ids:
        if self.names:
            return block.names(column)
        hint = "ids='names', which takes any text; header=True if it is a header"
        return block.ints(column, what, hint)

    def _weights(self, block: Block, column: int) -> np.ndarray:
        assert self.weight is not None
        return block.floats(column, "edge weight").astype(self.weight.dtype, copy=False)

    def _attr(self, block: Block, columns: list[int]) -> np.ndarray | None:
        if self.attr is None:
            return None
        values = np.stack([block.floats(c, "edge feature") for c in columns], axis=1)
        positions = block.positions()
        return cast_rows(
            values, self.attr[0], "edge feature", lambda row: self.place(int(positions[row]))
        )


def _ends(table: TableFile, options: Options) -> tuple[int, int]:
    """The columns of source and target: named by the user, by their names, or the first two."""
    src = None if options.source is None else find_column(table, options.source, "source")
    dst = None if options.target is None else find_column(table, options.target, "target")
    if src is None:
        src = guess_column(table, SOURCES)
    if dst is None:
        dst = guess_column(table, TARGETS)
    rest = [c for c in range(len(table.columns)) if c not in (src, dst)]
    if src is None:
        src = rest.pop(0)
    if dst is None:
        dst = rest.pop(0)
    if src == dst:
        raise ConfigError(f"source and target are both column {table.columns[src]!r}")
    return src, dst


def _widest(table: TableFile, columns: tuple[int, ...]) -> str:
    """float64 when some column came as that from a typed file, else float32."""
    wide = any(table.dtype(c).dtype == np.float64 and not table.dtype(c).narrows for c in columns)
    return "float64" if wide else "float32"
