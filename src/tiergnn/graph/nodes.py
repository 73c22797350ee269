"""A table of nodes brought into the order of the graph, by the same external sort as edges.

Legend: V nodes, n rows of a block, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tiergnn.errors import GraphError
from tiergnn.graph.dictionary import BadNameError, Names
from tiergnn.graph.formats.fields import Text
from tiergnn.graph.formats.node_table import NodeBlock, NodeTable
from tiergnn.graph.formats.options import Options
from tiergnn.graph.formats.source import Split
from tiergnn.graph.radix import sort_with_order
from tiergnn.graph.raw import RawFile, read_raw
from tiergnn.graph.relabel import Interner
from tiergnn.graph.rows import Target, write_features, write_labels, write_split
from tiergnn.graph.runs import Column, Runs
from tiergnn.graph.workspace import Workspace

_NONE = -1  # the code of no label and of no split
_SPLITS = {"valid": "val", "validation": "val", "dev": "val"}
_NO_SPLIT = ("", "none", "null", "nan", "-")


def intern_nodes(
    workspace: Workspace, interner: Interner, nodes: NodeTable, limit_bytes: int
) -> None:
    """Take in the ids of the table, so that nodes without edges are nodes, too."""
    if any(entry["kind"] == "nodes" and entry["complete"] for entry in workspace.all("segment")):
        return
    done = [entry for entry in workspace.all("segment") if entry["kind"] == "nodes"]
    skip = sum(entry["rows"] for entry in done)  # ended before a kill
    rows = 0
    with RawFile(workspace.path / "nodes.numbers", 4 * skip) as out:
        for ids, positions in nodes.ids(limit_bytes):
            if skip >= ids.size:
                skip -= ids.size
                continue
            if interner.is_full(ids):
                out.sync()
                interner.end(kind="nodes", rows=rows, complete=False)
                rows = 0
            try:
                out.append(interner.add(ids))
            except BadNameError as error:
                where = nodes.place(int(positions[error.row]))
                raise GraphError(error.problem, culprit=where) from None
            rows += ids.size
        out.sync()
        interner.end(kind="nodes", rows=rows, complete=True)


def write_nodes(
    workspace: Workspace,
    interner: Interner | None,
    nodes: NodeTable,
    options: Options,
    name_of: Callable[[int], object],
    scale: np.ndarray | None,
    to: Target,
) -> tuple[str | None, int | None]:
    """Features, labels and splits of the table, by node; (task, number of classes)."""
    sorter = _Sorter(workspace, nodes, name_of, to)
    for block, ranks in _with_ranks(workspace, interner, nodes, options, to):
        sorter.add(block, ranks)
    sorter.sort(options.task)
    task = None, None
    if nodes.width:
        write_features(sorter.rows("x"), scale, options.feature_dtype, to)
    if nodes.has_labels:
        task = write_labels(sorter.rows("label"), options.task, options.num_classes, to)
    for name, split in sorter.splits().items():
        write_split(name, split, to)
    return task


def _with_ranks(
    workspace: Workspace,
    interner: Interner | None,
    nodes: NodeTable,
    options: Options,
    to: Target,
) -> Iterator[tuple[NodeBlock, np.ndarray]]:
    """Blocks of the table with the nodes, int64 [n], of their rows."""
    if interner is None:
        for block in nodes.blocks(to.memory_bytes):
            yield block, _dense(block, nodes, options, to.num_nodes)
        return
    numbers = workspace.path / "nodes.numbers"
    segments = [
        (segment, entry["rows"])
        for segment, entry in enumerate(workspace.all("segment"))
        if entry["kind"] == "nodes"
    ]
    ranks, at, until = np.empty(0, np.int64), 0, 0
    for block in nodes.blocks(to.memory_bytes):
        parts, need = [], block.positions.size
        while need:
            if at == until:  # on to the next segment
                segment, rows = segments.pop(0)
                ranks, until = interner.ranks(segment), at + rows
            count = min(need, until - at)
            parts.append(ranks[read_raw(numbers, np.int32, at, at + count)])
            at, need = at + count, need - count
        yield block, np.concatenate(parts or [np.empty(0, np.int64)])


def _dense(block: NodeBlock, nodes: NodeTable, options: Options, num_nodes: int) -> np.ndarray:
    assert isinstance(block.ids, np.ndarray)
    base = int(options.one_based)
    bad = (block.ids < base) | (block.ids >= num_nodes + base)
    if bad.any():
        at = int(np.argmax(bad))
        raise GraphError(
            f"node id {block.ids[at]} is unknown: with {num_nodes} nodes ids are "
            f"{base}..{num_nodes - 1 + base}",
            culprit=nodes.place(int(block.positions[at])),
            hint="num_nodes=N, when nodes without edges come last",
        )
    return block.ids.astype(np.int64) - base


class _Sorter:
    """Rows by node in raw files, one file a column."""

    def __init__(
        self,
        workspace: Workspace,
        nodes: NodeTable,
        name_of: Callable[[int], object],
        to: Target,
    ):
        self._folder, self._nodes, self._name_of, self._to = workspace.path, nodes, name_of, to
        self._classes, self._names = Names(), Names()
        self._columns = [Column("position", np.dtype(np.int64), 1)]
        if nodes.width:
            self._columns.append(Column("x", nodes.dtype, nodes.width))
        if nodes.has_labels:
            self._columns.append(Column("label", np.dtype(np.float64), 1))
        if nodes.has_splits:
            self._columns.append(Column("split", np.dtype(np.int32), 1))
        self._runs = Runs(workspace.path / "nodes.runs", self._columns)

    def add(self, block: NodeBlock, ranks: np.ndarray) -> None:
        rows = []
        for column in self._columns:
            if column.name == "position":
                rows.append(block.positions.astype(np.int64))
            elif column.name == "x":
                rows.append(block.x)
            elif column.name == "split":
                rows.append(self._codes(self._names, block.split, block).astype(np.int32))
            elif isinstance(block.label, Text):
                codes = self._codes(self._classes, block.label, block)
                rows.append(np.where(codes == _NONE, np.nan, codes))
            else:
                rows.append(block.label)
        self._runs.add(ranks.astype(np.uint64) << np.uint64(32), rows)

    def _codes(self, dictionary: Names, text: Text | None, block: NodeBlock) -> np.ndarray:
        """int64 [n]: the number of each word; none for the empty one."""
        assert text is not None
        given = text.ends > text.starts
        out = np.full(text.size, _NONE, np.int64)
        words = Text(text.bytes, text.starts[given], text.ends[given])
        try:
            out[given] = dictionary.add(words)
        except BadNameError as error:
            row = int(np.flatnonzero(given)[error.row])
            where = self._nodes.place(int(block.positions[row]))
            raise GraphError(error.problem, culprit=where) from None
        return out

    def sort(self, task: str | None) -> None:
        """Write the raw files. Raises GraphError at a node that has two rows, or none where its
        features are needed, and at names where a task wants numbers."""
        memory_bytes, num_nodes = self._to.memory_bytes, self._to.num_nodes
        most = max(1, memory_bytes // (2 * self._runs.row_bytes + 16))
        files = {c.name: RawFile(self._path(c.name)) for c in self._columns}
        ranked = self._ranked_classes(task)
        for cut in self._runs.cuts(most, most, 0, num_nodes << 32):
            begin, end = (cut.low + 2**32 - 1) >> 32, (cut.high + 2**32 - 1) >> 32
            keys, rows = self._runs.load(
                next(self._runs.pieces(cut, 2)) if cut.is_one_key and cut.num_rows > most else cut
            )
            keys, order = sort_with_order(keys)
            node = (keys >> np.uint64(32)).astype(np.int64)
            twice = np.flatnonzero(node[1:] == node[:-1])
            if twice.size:
                first, second = rows[0][order[twice[0] : twice[0] + 2], 0].tolist()
                raise GraphError(
                    f"node {self._name_of(int(node[twice[0]]))} has two rows",
                    culprit=f"{self._nodes.place(first)} and {self._nodes.place(second)}",
                )
            if self._nodes.width and node.size < end - begin:
                has = np.zeros(end - begin, np.bool_)
                has[node - begin] = True
                raise GraphError(
                    f"node {self._name_of(begin + int(np.argmin(has)))} has no row, so no features",
                    culprit=str(self._nodes.path),
                    hint="one row for every node that an edge names",
                )
            for column, values in zip(self._columns, rows, strict=True):
                fill = np.nan if column.name == "label" else _NONE
                full = np.full((end - begin, column.width), fill, column.dtype)
                full[node - begin] = values[order]
                if column.name == "label" and ranked.size:
                    known = ~np.isnan(full)
                    full[known] = ranked[full[known].astype(np.int64)]
                files[column.name].append(full)
        for file in files.values():
            file.close()
        self._runs.close()

    def _ranked_classes(self, task: str | None) -> np.ndarray:
        """The class of each code: classes with names are numbered in the order of their names."""
        text, order = self._classes.sorted()
        if order.size and task not in (None, "class"):
            raise GraphError(
                f"labels of task {task!r} are numbers, had {text[0]!r}",
                culprit=str(self._nodes.path),
                hint="task='class', or another node_label=COLUMN",
            )
        ranked = np.empty(order.size, np.float64)
        ranked[order] = np.arange(order.size)
        if order.size:
            shown = ", ".join(text[c] for c in range(min(order.size, 1000)))
            self._to.notes.append(f"classes 0..{order.size - 1} are called {shown}")
        return ranked

    def rows(self, name: str) -> _RawRows:
        column = next(c for c in self._columns if c.name == name)
        logical = self._nodes.logical if name == "x" else column.dtype.name
        return _RawRows(
            self._path(name), column, logical, self._to.num_nodes, self._place, self._nodes
        )

    def splits(self) -> dict[str, Split]:
        """One for each word of the column, but for those that say none."""
        if not self._nodes.has_splits:
            return {}
        codes: dict[str, list[int]] = {}
        text, order = self._names.sorted()
        for i in range(order.size):
            word = text[i].strip()
            if word.lower() not in _NO_SPLIT:
                codes.setdefault(_SPLITS.get(word.lower(), word), []).append(int(order[i]))
        return {name: self._split(chosen) for name, chosen in codes.items()}

    def _split(self, codes: list[int]) -> Split:
        def blocks(limit_bytes: int) -> Iterator[np.ndarray]:
            step = max(1, limit_bytes // 8)
            for start in range(0, self._to.num_nodes, step):
                end = min(start + step, self._to.num_nodes)
                yield np.isin(read_raw(self._path("split"), np.int32, start, end), codes)

        return Split(mask=blocks, num_rows=self._to.num_nodes)

    def _place(self, node: int) -> str:
        return f"{self._nodes.path}, node {self._name_of(node)}"

    def _path(self, name: str):
        return self._folder / f"nodes_{name}.raw"


class _RawRows:
    """Rows of a raw file, as a source of rows."""

    def __init__(
        self,
        path,
        column: Column,
        logical: str,
        num_nodes: int,
        place: Callable[[int], str],
        nodes: NodeTable,
    ):
        self._path, self._place = path, place
        self.name = str(nodes.path)
        self.num_rows: int | None = num_nodes
        self.width, self.dtype, self.logical = column.width, column.dtype, logical
        self.is_text = nodes.labels_narrow

    def blocks(self, limit_bytes: int) -> Iterator[np.ndarray]:
        assert self.num_rows is not None
        row_bytes = self.dtype.itemsize * self.width
        step = max(1, limit_bytes // row_bytes)
        for start in range(0, self.num_rows, step):
            end = min(start + step, self.num_rows)
            values = read_raw(self._path, self.dtype, start * self.width, end * self.width)
            yield values.reshape(-1, self.width)

    def place(self, row: int) -> str:
        return self._place(row)
