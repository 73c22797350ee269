"""What a format makes of a path: edges in chunks, rows of nodes in blocks, what is known.

Legend: n edges of a chunk, V nodes, D columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from tiergnn.graph.formats.fields import Text
from tiergnn.graph.formats.options import Options
from tiergnn.graph.ids import NodeIds

Cursor = tuple[int, ...]  # where a reader goes on; () is the beginning
Ids = np.ndarray | Text  # integers of any width, or names


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EdgeChunk:
    """n edges src -> dst, in the order of the file."""

    src: Ids  # [n]
    dst: Ids  # [n]
    weight: np.ndarray | None = None  # [n], of the reader's weight dtype
    attr: np.ndarray | None = None  # [n, D], of the reader's attr dtype
    where: int | np.ndarray  # positions int64 [n] for ``place``; a number: it and those after it
    end: Cursor
    done: int  # of the reader's total

    def positions(self) -> np.ndarray:
        if isinstance(self.where, int):
            return np.arange(self.where, self.where + self.src.size)
        return self.where


class Weight(NamedTuple):
    """How edge weights come: their dtype, and whether a narrower one may store them exactly."""

    dtype: np.dtype  # float32 or float64
    narrows: bool


class EdgeReader(Protocol):
    """Edges of one source, from the beginning or from a cursor."""

    @property
    def total(self) -> int:
        """What ``done`` runs to."""
        ...

    @property
    def names(self) -> bool:
        """Whether ids are Text."""
        ...

    @property
    def weight(self) -> Weight | None: ...

    @property
    def attr(self) -> tuple[str, int] | None:
        """The dtype of a Table, and D."""
        ...

    def chunks(self, limit_bytes: int, start: Cursor = ()) -> Iterator[EdgeChunk]:
        """Chunks whose arrays and buffers take at most about ``limit_bytes``."""
        ...

    def place(self, position: int) -> str:
        """Where an edge is, for messages."""
        ...


class Rows(Protocol):
    """Rows of nodes (features, labels) in order."""

    name: str  # for messages
    num_rows: int | None  # None: found out by reading
    width: int
    dtype: np.dtype
    logical: str  # "bfloat16" for uint16 bits, else the dtype's name
    is_text: bool  # decimals, whose dtype nobody chose

    def blocks(self, limit_bytes: int) -> Iterator[np.ndarray]:
        """Arrays [r, D] that follow one another."""
        ...

    def place(self, row: int) -> str: ...


class Split(NamedTuple):
    """A named set of nodes: blocks of a boolean mask [V] one after the other, or all its ids."""

    mask: Callable[[int], Iterator[np.ndarray]] | None = None
    num_rows: int = 0  # of the mask
    ids: np.ndarray | None = None


@dataclass(kw_only=True, eq=False)
class Source:
    """Everything that a path holds."""

    format: str
    edges: EdgeReader
    num_nodes: int | None = None
    counted_by: str = ""  # who says so, for messages
    x: Rows | None = None
    x_scale: np.ndarray | None = None
    y: Rows | None = None
    task: str | None = None
    num_classes: int | None = None
    splits: dict[str, Split] = field(default_factory=dict)
    node_ids: NodeIds | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def has_rows(self) -> bool:
        """Whether it holds rows that belong to nodes by position."""
        return bool(self.x or self.y or self.splits or self.node_ids)


class Format(NamedTuple):
    """One entry of the registry."""

    what: str  # a line for people
    sniff: Callable[[Path], bool]
    open: Callable[[Path, Options, Path], Source]  # (path, options, scratch folder)
