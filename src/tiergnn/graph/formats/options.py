"""What a user may say about a graph's files, checked once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tiergnn.errors import ConfigError, unknown
from tiergnn.graph.edges import DUPLICATES, SELF_LOOPS
from tiergnn.graph.labels import TASKS
from tiergnn.graph.table import STORED

IDS = ("auto", "dense", "relabel", "names")
WEIGHTS = ("float32", "float64")
Column = str | int  # the name of a column, or its position from 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of ``ingest``, which says what they mean."""

    undirected: bool = False
    self_loops: str = "keep"
    duplicates: str = "keep"
    ids: str = "auto"
    num_nodes: int | None = None
    one_based: bool = False
    delimiter: str | None = None
    header: bool | None = None
    source: Column | None = None
    target: Column | None = None
    weight: Column = "auto"
    weight_dtype: str | None = None
    edge_features: tuple[Column, ...] = ()
    edge_feature_dtype: str | None = None
    nodes: Path | None = None
    node_id: Column | None = None
    node_label: Column | None = None
    node_split: Column | None = None
    node_features: tuple[Column, ...] | None = None
    features: Path | None = None
    feature_dtype: str | None = None
    feature_scale: float | Path | None = None
    labels: Path | None = None
    splits: Path | None = None
    task: str | None = None
    num_classes: int | None = None

    def __post_init__(self) -> None:
        for name, known in (("self_loops", SELF_LOOPS), ("duplicates", DUPLICATES), ("ids", IDS)):
            if getattr(self, name) not in known:
                raise unknown(name, getattr(self, name), known)
        for name, known in (
            ("weight_dtype", WEIGHTS),
            ("edge_feature_dtype", STORED),
            ("feature_dtype", STORED),
            ("task", TASKS),
        ):
            if getattr(self, name) is not None and getattr(self, name) not in known:
                raise unknown(name, getattr(self, name), known)
        if len({*self.edge_features}) < len(self.edge_features):
            twice = max(self.edge_features, key=self.edge_features.count)
            raise ConfigError(f"edge_features names {twice!r} twice")
        scale = self.feature_scale
        if scale is not None and not isinstance(scale, Path) and not 0 < scale < float("inf"):
            raise ConfigError(f"feature_scale must be a number above 0, had {scale}")
        if self.num_classes is not None and self.num_classes < 1:
            raise ConfigError(f"num_classes must be 1 or more, had {self.num_classes}")
        if self.num_nodes is not None and self.num_nodes < 0:
            raise ConfigError(f"num_nodes must be 0 or more, had {self.num_nodes}")
        if self.relabels and self.num_nodes is not None:
            raise ConfigError(
                f"num_nodes={self.num_nodes} cannot be given with ids={self.ids!r}: "
                "the nodes are those that the files name",
                hint="nodes=FILE, a table with one row a node, adds nodes without edges",
            )
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\n\r'):
            raise ConfigError(
                f"delimiter must be one character other than quotes and line ends, "
                f"had {self.delimiter!r}",
                hint="',', ';', '\\t', '|' or ' '",
            )
        if self.nodes is None:
            for name in ("node_id", "node_label", "node_split", "node_features"):
                if getattr(self, name) is not None:
                    raise ConfigError(
                        f"{name} names a column of the table of nodes, and there is none",
                        hint="nodes=FILE",
                    )
        if self.nodes is not None and (self.labels or self.splits):
            raise ConfigError(
                "labels and splits are columns of the table of nodes when there is one",
                hint="node_label=COLUMN, node_split=COLUMN",
            )

    @property
    def relabels(self) -> bool:
        return self.ids in ("relabel", "names")

    def refuse_columns(self, format: str) -> None:
        """Raise ConfigError when an option names or shapes columns, and ``format`` has none."""
        for name in ("delimiter", "header", "source", "target", "edge_features"):
            if getattr(self, name) not in (None, ()):
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} is for columns, and {format} has none",
                    hint=f"leave {name} out, or format='csv' if the file is a table",
                )

    def as_json(self) -> dict[str, Any]:
        return {
            name: str(value) if isinstance(value, Path) else value
            for name, value in asdict(self).items()
        }


def as_columns(columns: Column | Iterable[Column] | None) -> tuple[Column, ...]:
    """``"a,b"``, ``"a"``, 2 or a sequence of names and positions as a tuple."""
    if columns is None:
        return ()
    if isinstance(columns, int):
        return (columns,)
    if isinstance(columns, str):
        return tuple(as_column(name) for name in columns.split(",") if name.strip())
    return tuple(as_column(column) for column in columns)


def as_column(column: Column) -> Column:
    """A name, or a position when it is a whole number."""
    if isinstance(column, str):
        column = column.strip()
        return int(column) if column.isdecimal() else column
    return column
