"""The steps of an ingest, in order, each of them taken up where an interrupted one left it.

Legend: V nodes, E edges.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tiergnn.errors import GraphError, StoreError
from tiergnn.graph.assemble import ATTR, WEIGHT, Assembly, Rules
from tiergnn.graph.collect import MOST_NODES, Collector, Seen, SparseIdsError
from tiergnn.graph.csr import index_dtype
from tiergnn.graph.folder import FolderWriter
from tiergnn.graph.formats.known import open_nodes, open_source
from tiergnn.graph.formats.node_table import NodeTable
from tiergnn.graph.formats.options import Options
from tiergnn.graph.formats.source import EdgeReader, Source
from tiergnn.graph.mixes import refuse_mixes, refuse_unread
from tiergnn.graph.nodes import intern_nodes, write_nodes
from tiergnn.graph.raw import read_raw
from tiergnn.graph.relabel import Interner
from tiergnn.graph.rows import (
    Target,
    check_features,
    write_features,
    write_labels,
    write_split,
)
from tiergnn.graph.spool import SpoolReader, spool_edges
from tiergnn.graph.table import STORED
from tiergnn.graph.workspace import Workspace
from tiergnn.units import format_bytes

_COPY_BYTES = 2**22
_SHOWN = 300  # characters of a note
log = logging.getLogger("tiergnn")


class Pipeline:
    """One ingest. ``run`` fills a FolderWriter and commits it."""

    def __init__(
        self,
        src: Path,
        format: str | None,
        options: Options,
        workspace: Workspace,
        memory_bytes: int,
        progress: Callable[[str, int, int], None] | None,
        check_files: Callable[[], None],
    ):
        """check_files: called when all is read; raises when what was read has changed since."""
        self._src, self._format, self._options = src, format, options
        self._check_files = check_files
        self._workspace, self._memory_bytes = workspace, memory_bytes
        self._progress = progress or (lambda phase, done, total: None)
        self._facts: list[str] = []
        self._interner: Interner | None = None

    def run(self, writer: FolderWriter) -> None:
        """Raises GraphError for bad input, ConfigError, StoreError."""
        options, workspace = self._options, self._workspace
        source = open_source(self._src, self._format, options, workspace.path)
        nodes = open_nodes(options, workspace.path) if options.nodes else None
        refuse_mixes(self._src, options, source, nodes)
        refuse_unread(options, source, nodes)
        source.notes += nodes.notes if nodes else []
        told = _say(source.notes)
        num_nodes, reader, collector = self._read(source, nodes)
        seen = collector.seen
        to = Target(
            writer=writer,
            num_nodes=num_nodes,
            memory_bytes=self._memory_bytes // 16,
            progress=self._progress,
            notes=source.notes,
        )
        task = self._write_small_rows(source, nodes, to)
        assembly = self._sort(num_nodes, reader, collector)
        self._write_edges(writer, assembly, reader, seen)
        if source.x is not None:
            write_features(source.x, source.x_scale, options.feature_dtype, to)
        _say(source.notes[told:])
        self._check_files()
        writer.commit(
            num_nodes=num_nodes,
            num_edges=assembly.num_edges,
            task=task[0],
            num_classes=task[1],
            source={
                "path": str(self._src),
                "format": source.format,
                "edges_read": seen.edges,
                "options": _chosen(options),
                "notes": source.notes + self._facts,
            },
        )

    def _read(self, source: Source, nodes: NodeTable | None) -> tuple[int, EdgeReader, Collector]:
        """All edges as sorted runs; (V, the reader that knows their places, what was seen)."""
        options, workspace = self._options, self._workspace
        if options.relabels or source.edges.names:
            return self._relabel(source.edges, nodes)
        if workspace.last("relabel") is None:
            try:
                return self._read_dense(source, nodes)
            except SparseIdsError:
                workspace.note({"phase": "relabel"})
        self._tell(
            "ids are far apart, so they were made 0..V-1 in ascending order, "
            "as ids='relabel' does; ids='dense' keeps them"
        )
        return self._relabel(source.edges, nodes)

    def _read_dense(
        self, source: Source, nodes: NodeTable | None
    ) -> tuple[int, EdgeReader, Collector]:
        """Ids as they are. Raises SparseIdsError where "auto" had better relabel them."""
        options = self._options
        num_nodes, counted_by = _count(source, options)
        if num_nodes is not None and num_nodes > MOST_NODES:
            raise GraphError(
                f"{counted_by} says {num_nodes} nodes; at most {MOST_NODES} can be ingested"
            )
        if num_nodes is not None:
            self._refuse_too_many(num_nodes)
        may_relabel = options.ids == "auto" and num_nodes is None and not options.one_based
        collector = self._collect(source.edges, num_nodes, counted_by, may_relabel)
        if num_nodes is not None:
            return num_nodes, source.edges, collector
        largest = max(collector.seen.max_id, self._max_id(nodes))
        if may_relabel and largest >= 8 * collector.seen.edges + 1024:
            raise SparseIdsError
        self._refuse_too_many(largest + 1)
        self._tell(
            f"num_nodes={largest + 1} is the largest id plus 1; "
            "nodes without edges after it need num_nodes=N"
        )
        return largest + 1, source.edges, collector

    def _refuse_too_many(self, num_nodes: int) -> None:
        """Raise StoreError where the disk has no room for the row pointers, sorted and written."""
        done = self._workspace.path / "rowptr.raw"  # by an ingest that is taken up
        done_bytes = done.stat().st_size if done.exists() else 0
        need_bytes = 2 * 8 * (num_nodes + 1)
        free_bytes = shutil.disk_usage(self._workspace.path).free + done_bytes
        if need_bytes > free_bytes:
            raise StoreError(
                f"{num_nodes} nodes take {format_bytes(need_bytes)} on the disk while they are "
                f"ingested, whatever their edges; {format_bytes(free_bytes)} are free",
                culprit=str(self._workspace.path.parent),
                hint="ids='relabel', so that only nodes that are named count, or another disk",
            )

    def _tell(self, fact: str) -> None:
        """Say what was found out, and keep it in the manifest."""
        self._facts.append(fact)
        log.info("%s", fact)

    def _max_id(self, nodes: NodeTable | None) -> int:
        """The largest node id, from 0, that the table of nodes names."""
        if nodes is None:
            return -1
        return nodes.max_id(self._memory_bytes // 16) - self._options.one_based

    def _relabel(
        self, reader: EdgeReader, nodes: NodeTable | None
    ) -> tuple[int, EdgeReader, Collector]:
        workspace, memory_bytes = self._workspace, self._memory_bytes
        interner = Interner(workspace, names=reader.names, memory_bytes=memory_bytes)
        self._interner = interner
        if nodes is not None:
            intern_nodes(workspace, interner, nodes, memory_bytes // 16)
        spool_edges(
            workspace,
            interner,
            reader,
            memory_bytes // 16,
            lambda done, total: self._progress("read", done, total),
        )
        merged = workspace.last("merged")
        if merged is None:
            total = sum(interner.segments)
            count = interner.merge(memory_bytes, lambda done: self._progress("ids", done, total))
            merged = {"phase": "merged", "nodes": count}
            workspace.note(merged)
        ranked = SpoolReader(workspace, interner, reader)
        # Ids are ranks from here on: they begin at 0 whatever the user's did.
        return merged["nodes"], ranked, self._collect(ranked, merged["nodes"], "", False, "ranked")

    def _collect(
        self,
        reader: EdgeReader,
        num_nodes: int | None,
        counted_by: str,
        may_relabel: bool,
        phase: str = "read",
    ) -> Collector:
        collector = Collector(
            self._workspace,
            reader,
            self._options,
            num_nodes=num_nodes,
            counted_by=counted_by,
            may_relabel=may_relabel,
            memory_bytes=self._memory_bytes,
            phase=phase,
        )
        collector.run(lambda done, total: self._progress(phase, done, total))
        return collector

    def _write_small_rows(
        self, source: Source, nodes: NodeTable | None, to: Target
    ) -> tuple[str | None, int | None]:
        """All rows of nodes but those of x, whose fitting is checked; (task, number of classes)."""
        options, writer = self._options, to.writer
        if self._interner is not None:
            self._write_names(writer, to.num_nodes)
        if source.node_ids is not None:
            if len(source.node_ids) != to.num_nodes:
                raise GraphError(
                    f"{len(source.node_ids)} nodes have names, the graph has {to.num_nodes} nodes"
                )
            for name, array in source.node_ids.arrays().items():
                writer.array(name, array)
        if nodes is not None:
            return write_nodes(
                self._workspace, self._interner, nodes, options, self._name, source.x_scale, to
            )
        task = None, None
        if source.x is not None:
            check_features(source.x, source.x_scale, options.feature_dtype, to.num_nodes)
        if source.y is not None:
            task = write_labels(
                source.y,
                options.task or source.task,
                source.num_classes if options.num_classes is None else options.num_classes,
                to,
            )
        for name, split in source.splits.items():
            write_split(name, split, to)
        return task

    def _write_names(self, writer: FolderWriter, num_nodes: int) -> None:
        assert self._interner is not None
        ids = self._workspace.path / "node_ids.raw"
        if not self._interner.names:
            _copy(ids, np.dtype(np.int64), writer, "node_ids", (num_nodes,))
            return
        offsets = self._workspace.path / "node_offsets.raw"
        _copy(offsets, np.dtype(np.int64), writer, "node_ids_offsets", (num_nodes + 1,))
        size = ids.stat().st_size
        _copy(ids, np.dtype(np.uint8), writer, "node_ids_text", (size,))

    def _sort(self, num_nodes: int, reader: EdgeReader, collector: Collector) -> Assembly:
        options = self._options
        rules = Rules(
            num_nodes=num_nodes,
            index=index_dtype(num_nodes),
            duplicates=options.duplicates,
            self_loops=options.self_loops,
            attr_dtype=reader.attr and reader.attr[0],
            place=reader.place,
            name=self._name,
        )
        assembly = Assembly(self._workspace, collector.runs, rules, self._memory_bytes)
        total = collector.runs.num_rows
        assembly.run(lambda done: self._progress("sort", done, total))
        collector.runs.close()
        return assembly

    def _name(self, node: int) -> object:
        """What the user calls a node."""
        if self._interner is None:
            return node + self._options.one_based
        folder = self._workspace.path
        if not self._interner.names:
            return int(read_raw(folder / "node_ids.raw", np.int64, node, node + 1)[0])
        start, end = read_raw(folder / "node_offsets.raw", np.int64, node, node + 2).tolist()
        return read_raw(folder / "node_ids.raw", np.uint8, start, end).tobytes().decode()

    def _write_edges(
        self, writer: FolderWriter, assembly: Assembly, reader: EdgeReader, seen: Seen
    ) -> None:
        rules, num_edges = assembly.rules, assembly.num_edges
        done = 0

        def copied(num_values: int) -> None:
            nonlocal done
            done += num_values
            self._progress("write", done, total)

        total = rules.num_nodes + 1 + num_edges
        rowptr = np.dtype(np.int64)
        _copy(assembly.path("rowptr"), rowptr, writer, "rowptr", (rules.num_nodes + 1,), copied)
        _copy(assembly.path("col"), rules.index, writer, "col", (num_edges,), copied)
        if assembly.has_weight:
            narrows = reader.weight is not None and reader.weight.narrows and seen.single
            narrow = narrows and self._options.weight_dtype is None
            dtype = np.dtype(np.float32) if narrow else assembly.weight_dtype
            _copy(
                assembly.path(WEIGHT), assembly.weight_dtype, writer, WEIGHT, (num_edges,), to=dtype
            )
        if reader.attr is not None:
            logical, width = reader.attr
            stored = STORED[logical]
            _copy(assembly.path(ATTR), stored, writer, ATTR, (num_edges, width), logical=logical)


def _copy(
    path: Path,
    dtype: np.dtype,
    writer: FolderWriter,
    name: str,
    shape: tuple[int, ...],
    copied: Callable[[int], None] = lambda num_values: None,
    *,
    to: np.dtype | None = None,
    logical: str | None = None,
) -> None:
    """A raw file of ``dtype`` into the folder, cast to ``to``."""
    stream = writer.stream(name, to or dtype, shape, logical)
    size = path.stat().st_size // dtype.itemsize
    step = _COPY_BYTES // dtype.itemsize
    for start in range(0, size, step):
        values = read_raw(path, dtype, start, min(start + step, size))
        stream.append(values.astype(to or dtype, copy=False))
        copied(values.size)


def _say(notes: list[str]) -> int:
    """Tell what was noted, a long list cut short; the manifest has all of it. Their number."""
    for note in notes:
        log.warning("%s", note if len(note) <= _SHOWN else f"{note[:_SHOWN]} ...")
    return len(notes)


def _count(source: Source, options: Options) -> tuple[int | None, str]:
    """The number of nodes when something says it, and what does."""
    if options.num_nodes is not None:
        return options.num_nodes, "num_nodes"
    if source.num_nodes is not None:
        return source.num_nodes, source.counted_by
    for rows in (source.x, source.y):
        if rows is not None and rows.num_rows is not None:
            return rows.num_rows, rows.name
    if source.node_ids is not None:
        return len(source.node_ids), "the list of names"
    for name, split in source.splits.items():
        if split.mask is not None:
            return split.num_rows, f"the mask {name!r}"
    return None, ""


def _chosen(options: Options) -> dict[str, Any]:
    """The options that are not the default."""
    default = Options().as_json()
    return {name: value for name, value in options.as_json().items() if value != default[name]}
