"""Edges of a source, checked and written as sorted runs.

Legend: n edges of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from tiergnn.errors import GraphError
from tiergnn.graph.assemble import ATTR, POSITION, WEIGHT
from tiergnn.graph.formats.options import Options
from tiergnn.graph.formats.source import Cursor, EdgeChunk, EdgeReader
from tiergnn.graph.radix import pack, reverse
from tiergnn.graph.runs import Column, Runs
from tiergnn.graph.table import STORED
from tiergnn.graph.workspace import Workspace

MOST_NODES = 2**32  # an edge's key has 32 bits for each end


class SparseIdsError(Exception):
    """Ids "auto", and these are too far apart to be dense: relabel them."""


@dataclass(slots=True, kw_only=True)
class Seen:
    """What the edges read so far were like."""

    edges: int = 0  # as in the source, before any rule
    max_id: int = -1
    single: bool = True  # float32 holds every weight exactly
    done: int = 0  # of the reader's total
    cursor: Cursor = ()
    sizes: list[int] = field(default_factory=list)  # of the runs


class Collector:
    """Reads a source to its end into ``runs``."""

    def __init__(
        self,
        workspace: Workspace,
        reader: EdgeReader,
        options: Options,
        *,
        num_nodes: int | None,
        counted_by: str,
        may_relabel: bool,
        memory_bytes: int,
        phase: str = "read",
    ):
        self._workspace, self._reader, self._options = workspace, reader, options
        self._num_nodes, self._counted_by = num_nodes, counted_by
        self._may_relabel = may_relabel
        self._phase = phase
        entries = workspace.all(phase)
        self.seen = Seen(**entries[-1]["seen"]) if entries else Seen()
        self.seen.cursor = tuple(self.seen.cursor)
        self._is_complete = bool(entries and entries[-1]["complete"])
        columns = []
        if reader.weight is not None:
            dtype = np.dtype(options.weight_dtype or reader.weight.dtype)
            columns.append(Column(WEIGHT, dtype, 1))
        if reader.attr is not None:
            columns.append(Column(ATTR, STORED[reader.attr[0]], reader.attr[1]))
        if options.duplicates == "refuse":
            columns.append(Column(POSITION, np.dtype(np.int64), 1))
        self.runs = Runs(workspace.path / "edges.runs", columns, self.seen.sizes)
        payload = self.runs.row_bytes - 8
        # A run in the making, the same put together, its scratch, its order, its columns sorted.
        row_bytes = 8 * 3 + 3 * payload + (8 if payload else 0)
        self._run_rows = max(1, memory_bytes // 2 // row_bytes)
        self._limit_bytes = memory_bytes // (16 if options.undirected else 8)

    def run(self, progress: Callable[[int, int], None]) -> Seen:
        """Raises GraphError at the first edge that cannot be, SparseIdsError."""
        seen = self.seen
        if self._is_complete:
            return seen
        keys: list[np.ndarray] = []
        rows: list[list[np.ndarray]] = []
        count = 0
        with ThreadPoolExecutor(1) as pool:  # sorts and writes one run while the next is read
            writing: Future[None] | None = None
            for chunk in self._reader.chunks(self._limit_bytes, seen.cursor):
                keys_of_chunk, rows_of_chunk = self._convert(chunk)
                keys.append(keys_of_chunk)
                rows.append(rows_of_chunk)
                count += keys_of_chunk.size
                seen.cursor, seen.done = chunk.end, chunk.done
                if count >= self._run_rows:
                    if writing is not None:
                        writing.result()
                    writing = pool.submit(self._store, keys, rows, self._snapshot())
                    keys, rows, count = [], [], 0
                progress(seen.done, self._reader.total)
            if writing is not None:
                writing.result()
        seen.done = self._reader.total
        self._store(keys, rows, self._snapshot(), last=True)
        progress(seen.done, self._reader.total)
        return seen

    def _snapshot(self) -> Seen:
        return replace(self.seen)

    def _store(
        self, keys: list[np.ndarray], rows: list[list[np.ndarray]], seen: Seen, last: bool = False
    ) -> None:
        """Sort and write one run; ``seen`` is how far the source was read with it."""
        joined = np.concatenate(keys) if keys else np.empty(0, np.uint64)
        keys.clear()
        columns = [np.concatenate(values) for values in zip(*rows, strict=True)]
        rows.clear()
        if joined.size:
            self.seen.sizes.append(self.runs.add(joined, columns))
        if self._workspace.is_due(joined.size * self.runs.row_bytes) or last:
            self.runs.sync()
            seen.sizes = list(self.seen.sizes)
            self._workspace.note({"phase": self._phase, "seen": asdict(seen), "complete": last})

    def _convert(self, chunk: EdgeChunk) -> tuple[np.ndarray, list[np.ndarray]]:
        """Checked keys and columns of a chunk; loops removed, reverses added as the user said."""
        options = self._options
        src, dst = chunk.src, chunk.dst
        assert isinstance(src, np.ndarray)
        assert isinstance(dst, np.ndarray)
        self._check(chunk, {"source": src, "target": dst})
        self.seen.edges += src.size
        rows = []
        for column in self.runs.columns:
            if column.name == WEIGHT:
                rows.append(self._weights(chunk, column.dtype)[:, None])
            elif column.name == ATTR:
                assert chunk.attr is not None
                rows.append(chunk.attr)
            else:
                rows.append(chunk.positions()[:, None])
        if options.self_loops == "remove":
            stay = src != dst
            src, dst = src[stay], dst[stay]
            rows = [values[stay] for values in rows]
        if options.one_based:
            src, dst = src.astype(np.int64) - 1, dst.astype(np.int64) - 1
        keys = pack(src, dst)
        if options.undirected:
            both = np.empty(2 * keys.size, np.uint64)
            both[0::2] = keys
            both[1::2] = reverse(keys)
            stay = np.ones(both.size, np.bool_)
            stay[1::2] = src != dst
            keys = both[stay]
            rows = [np.repeat(values, 2, axis=0)[stay] for values in rows]
        return keys, rows

    def _check(self, chunk: EdgeChunk, ends: dict[str, np.ndarray]) -> None:
        """Raise GraphError at the first edge that names a node there is not, or SparseIdsError."""
        base = int(self._options.one_based)
        limit = MOST_NODES if self._num_nodes is None else self._num_nodes
        lows = [int(ids.min()) - base for ids in ends.values() if ids.size]
        highs = [int(ids.max()) - base for ids in ends.values() if ids.size]
        self.seen.max_id = max([self.seen.max_id, *highs])
        if min(lows, default=0) >= 0 and max(highs, default=-1) < limit:
            return
        if min(lows) >= 0 and self._may_relabel:
            raise SparseIdsError
        bad = {end: (ids < base) | (ids >= limit + base) for end, ids in ends.items()}
        first = {end: int(np.argmax(at)) for end, at in bad.items() if at.any()}
        end = min(first, key=lambda end: first[end])
        raise self._bad_id(int(ends[end][first[end]]), end, chunk, first[end])

    def _bad_id(self, node: int, end: str, chunk: EdgeChunk, at: int) -> GraphError:
        base = int(self._options.one_based)
        ways = ["ids='relabel', which takes any ids and keeps their map"]
        if node < base:
            problem = "is negative" if not base else "is below 1, and one_based=True"
        elif self._num_nodes is None:
            problem = f"is too large: dense ids go up to {MOST_NODES - 1}"
        else:
            last = self._num_nodes - 1 + base
            problem = f"is out of range: {self._counted_by} says {self._num_nodes} nodes, " + (
                f"so ids are {base}..{last}" if self._num_nodes else "so no id can be"
            )
            if node == self._num_nodes and not base:
                ways.insert(0, "one_based=True if ids count from 1")
            if self._counted_by == "num_nodes":
                ways.insert(0, f"num_nodes={node + 1 - base} or more")
        return GraphError(
            f"{end} id {node} {problem}",
            culprit=self._reader.place(int(chunk.positions()[at])),
            hint=", or ".join(ways),
        )

    def _weights(self, chunk: EdgeChunk, dtype: np.dtype) -> np.ndarray:
        assert chunk.weight is not None
        with np.errstate(over="ignore"):
            weight = chunk.weight.astype(dtype, copy=False)
        bad = ~np.isfinite(weight)
        if bad.any():
            at = int(np.argmax(bad))
            raise GraphError(
                f"edge weight {chunk.weight[at]} is not "
                + ("a finite number" if not np.isfinite(chunk.weight[at]) else f"a finite {dtype}"),
                culprit=self._reader.place(int(chunk.positions()[at])),
                hint="finite weights, or weight='none' for the edges alone",
            )
        if self.seen.single and dtype == np.float64:
            with np.errstate(over="ignore"):
                self.seen.single = bool((weight.astype(np.float32) == weight).all())
        return weight
