"""A table of nodes: one row a node, in any order, with its id, label, split and features.

Legend: n rows of a block, D features.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tiergnn.errors import ConfigError, GraphError
from tiergnn.graph.formats.fields import Text
from tiergnn.graph.formats.options import Column, Options
from tiergnn.graph.formats.source import Ids, Rows
from tiergnn.graph.formats.table import NODE_IDS, Block, TableFile, find_column, guess_column

_LABELS = ("label", "y", "class", "target")
_SPLITS = ("split", "set", "fold")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeBlock:
    """n rows."""

    ids: Ids
    label: np.ndarray | Text | None  # float64 [n], or names of classes
    split: Text | None
    x: np.ndarray | None  # [n, D]
    positions: np.ndarray  # for ``place``


class NodeTable:
    """Reads the table; with features from another file, row by row beside it."""

    def __init__(self, table: TableFile, rows: Rows | None, options: Options):
        self._table, self._rows = table, rows
        self.path: Path = table.path
        self._id = _column(table, options.node_id, NODE_IDS, "node_id") or 0
        self._label = _column(table, options.node_label, _LABELS, "node_label", self._id)
        self._split = _column(table, options.node_split, _SPLITS, "node_split", self._id)
        taken = (self._id, self._label, self._split)
        if options.node_features is not None:
            self._features = tuple(
                find_column(table, column, "node_features") for column in options.node_features
            )
        else:
            self._features = tuple(
                c for c in range(len(table.columns)) if c not in taken and table.kind(c) != "text"
            )
        if self._features and rows is not None:
            raise ConfigError(
                f"features come from {rows.name} and from columns "
                + ", ".join(table.columns[c] for c in self._features),
                hint="node_features='' for those of the file alone",
            )
        self.names = options.ids == "names" or table.kind(self._id) != "int"
        self.has_label_names = self._label is not None and table.kind(self._label) == "text"
        unread = [
            name
            for c, name in enumerate(table.columns)
            if c not in taken and c not in self._features
        ]
        way = "" if self._label is not None else " (node_label=NAME, --node-label, takes classes)"
        self.notes = [f"{table.path}: not read: {', '.join(unread)}{way}"] if unread else []
        self.width = rows.width if rows is not None else len(self._features)
        if rows is not None:
            self.dtype, self.logical = rows.dtype, rows.logical
        else:
            wide = options.feature_dtype == "float64"
            self.dtype = np.dtype(np.float64 if wide else np.float32)
            self.logical = self.dtype.name

    @property
    def has_labels(self) -> bool:
        return self._label is not None

    @property
    def has_splits(self) -> bool:
        return self._split is not None

    @property
    def labels_narrow(self) -> bool:
        """Whether labels came without a dtype that says whether they are classes."""
        return self._label is not None and self._table.dtype(self._label).narrows

    def place(self, position: int) -> str:
        return self._table.place(position)

    def ids(self, limit_bytes: int) -> Iterator[tuple[Ids, np.ndarray]]:
        """Ids and positions alone."""
        for block, _, _ in self._table.pieces((self._id,), limit_bytes):
            yield self._ids(block, 0), block.positions()

    def max_id(self, limit_bytes: int) -> int:
        """The largest id, of numbers; -1 when there is none."""
        return max(
            (
                int(ids.max())
                for ids, _ in self.ids(limit_bytes)
                if isinstance(ids, np.ndarray) and ids.size
            ),
            default=-1,
        )

    def blocks(self, limit_bytes: int) -> Iterator[NodeBlock]:
        extra = [c for c in (self._label, self._split) if c is not None]
        wanted = tuple(sorted({self._id, *extra, *self._features}))
        at = {column: i for i, column in enumerate(wanted)}
        beside = _Beside(self._rows, limit_bytes // 2) if self._rows is not None else None
        for block, _, _ in self._table.pieces(wanted, limit_bytes // 2):
            label = None
            if self._label is not None:
                column = at[self._label]
                if self.has_label_names:
                    label = block.names(column, or_empty=True)
                else:
                    label = block.floats(column, "label", or_nan=True)
            yield NodeBlock(
                ids=self._ids(block, at[self._id]),
                label=label,
                split=None if self._split is None else block.names(at[self._split], or_empty=True),
                x=beside.take(block.num_rows) if beside else self._x(block, at),
                positions=block.positions(),
            )
        if beside:
            beside.end()

    def _ids(self, block: Block, column: int) -> Ids:
        if self.names:
            return block.names(column)
        return block.ints(column, "node id", "ids='names', which takes any text")

    def _x(self, block: Block, at: dict[int, int]) -> np.ndarray | None:
        if not self._features:
            return None
        out = np.empty((block.num_rows, self.width), self.dtype)
        for i, column in enumerate(self._features):
            out[:, i] = block.floats(at[column], f"feature {self._table.columns[column]!r}")
        return out


class _Beside:
    """Rows of another file, taken in step."""

    def __init__(self, rows: Rows, limit_bytes: int):
        self._rows, self._blocks = rows, rows.blocks(limit_bytes)
        self._held = np.empty((0, rows.width), rows.dtype)

    def take(self, count: int) -> np.ndarray:
        parts, need = [self._held], count - len(self._held)
        while need > 0:
            block = next(self._blocks, None)
            if block is None:
                raise GraphError(f"{self._rows.name} has fewer rows than the table of nodes")
            parts.append(block)
            need -= len(block)
        joined = np.concatenate(parts)
        self._held = joined[count:]
        return joined[:count]

    def end(self) -> None:
        if len(self._held) or next(self._blocks, None) is not None:
            raise GraphError(f"{self._rows.name} has more rows than the table of nodes")


def _column(
    table: TableFile,
    given: Column | None,
    known: tuple[str, ...],
    option: str,
    other_than: int | None = None,
) -> int | None:
    if given is not None:
        return find_column(table, given, option)
    found = guess_column(table, known)
    return None if found == other_than else found
