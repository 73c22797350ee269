"""From runs of edges to the arrays of a CSR, one key range after the other, under a memory cap.

What ``from_edges`` does in memory, to the same bytes. The results are raw files (no header) in the
workspace: rowptr, col, edge_weight, edge_attr.

Legend: n edges of a range, V nodes, D columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tiergnn.errors import GraphError
from tiergnn.graph.edges import round_sums, sum_rows, widen
from tiergnn.graph.order import sum_runs
from tiergnn.graph.radix import (
    missing_loops,
    pack,
    row_ends,
    sort_keys,
    sort_with_order,
    unpack,
)
from tiergnn.graph.raw import RawFile
from tiergnn.graph.runs import Cut, Runs
from tiergnn.graph.table import Table
from tiergnn.graph.workspace import Workspace

WEIGHT, ATTR, POSITION = "edge_weight", "edge_attr", "position"
_LOW = 2**32 - 1
_BLOCK = 2**20  # values converted at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What becomes of the edges."""

    num_nodes: int
    index: np.dtype  # of col
    duplicates: str
    self_loops: str
    attr_dtype: str | None  # the Table dtype of edge_attr
    place: Callable[[int], str]  # where the edge of a position is, for messages
    name: Callable[[int], object]  # what the user calls a node


class Assembly:
    """Sorts runs into raw files. ``run`` does it all, or what an earlier process left to do."""

    def __init__(self, workspace: Workspace, runs: Runs, rules: Rules, memory_bytes: int):
        self._workspace, self._runs, self.rules = workspace, runs, rules
        self._columns = {column.name: i for i, column in enumerate(runs.columns)}
        payload = sum(column.row_bytes for column in runs.columns)
        wide = sum(8 * column.width for column in runs.columns if rules.duplicates == "sum")
        # Keys and their scratch, a mask, and every column as loaded and as sorted.
        row_bytes = 8 + 8 + 1 + (8 + 2 * payload if payload else 0) + wide
        self._max_rows = max(1, int(memory_bytes * 0.7) // row_bytes)
        self._max_span = max(1, memory_bytes // 64)
        self.has_weight = WEIGHT in self._columns or rules.duplicates == "sum"
        self.weight_dtype = (
            runs.columns[self._columns[WEIGHT]].dtype
            if WEIGHT in self._columns
            else np.dtype(np.float32)
        )
        self.num_edges = 0
        self._rows_done = 0
        self._repeats = 0
        self._first_repeat: tuple[int, int, int] | None = None  # (position, before it, key)

    def path(self, name: str) -> Path:
        return self._workspace.path / f"{name}.raw"

    def run(self, progress: Callable[[int], None]) -> None:
        """Write the raw files. Raises GraphError when duplicates are refused and there are some."""
        state = self._workspace.last("sort") or {}
        self._take_up(state)
        names = ["rowptr", "col"]
        names += [WEIGHT] * self.has_weight + [ATTR] * (ATTR in self._columns)
        files = {
            name: RawFile(self.path(name), state.get("bytes", {}).get(name, 0)) for name in names
        }
        if not state:
            files["rowptr"].append(np.zeros(1, np.int64))
        try:
            done = 0
            end = self.rules.num_nodes << 32
            for cut in self._runs.cuts(self._max_rows, self._max_span, state.get("key", 0), end):
                self._cut(cut, files)
                done += cut.num_rows
                progress(done)
                written = 16 * (cut.num_rows + 1)
                if self._workspace.is_due(written) or cut.high == end:
                    for file in files.values():
                        file.sync()
                    self._workspace.note(self._state(cut.high, files))
        finally:
            for file in files.values():
                file.close()
        self._refuse_repeats()

    def _cut(self, cut: Cut, files: dict[str, RawFile]) -> None:
        """Sort one key range, apply the rules and append it to the files."""
        before = self.num_edges
        if cut.is_one_key and cut.num_rows > self._max_rows:
            self._append_one_key(cut, files)
            keys = np.array([cut.low], np.uint64)
        else:
            keys, rows = self._runs.load(cut)
            if self.rules.self_loops == "add":
                keys, rows = self._with_loops(cut, keys, rows)
            if rows:
                keys, order = sort_with_order(keys)
                rows = [values[order] for values in rows]
            else:
                keys = sort_keys(keys)
            keys = self._append(keys, rows, files)
        ends = np.empty((cut.high >> 32) - self._rows_done, np.int64)
        row_ends(keys, self._rows_done, ends)
        if keys.size:
            ends *= (self.num_edges - before) // keys.size  # of one key there may be many edges
        files["rowptr"].append(before + ends)
        self._rows_done += ends.size

    def _append(
        self, keys: np.ndarray, rows: list[np.ndarray], files: dict[str, RawFile]
    ) -> np.ndarray:
        """Write sorted edges; the keys of those that stay."""
        weight = rows[self._columns[WEIGHT]] if WEIGHT in self._columns else None
        attr = rows[self._columns[ATTR]] if ATTR in self._columns else None
        if self.rules.duplicates != "keep":
            first = np.ones(keys.size, np.bool_)
            np.not_equal(keys[1:], keys[:-1], out=first[1:])
            starts = np.flatnonzero(first)
            if self.rules.duplicates == "refuse":
                self._note_repeats(keys, rows[self._columns[POSITION]][:, 0], first)
            else:
                if weight is None:
                    weight = np.diff(starts, append=keys.size).astype(np.float32)
                elif starts.size < keys.size:
                    weight = sum_runs(weight, starts).astype(weight.dtype)
                if attr is not None:
                    attr = sum_rows(Table(data=attr, dtype=self._attr_dtype), first).data
                keys = keys[starts]
        self._write(keys, weight, attr, files)
        return keys

    def _append_one_key(self, cut: Cut, files: dict[str, RawFile]) -> None:
        """More copies of one edge than fit, taken piece by piece."""
        total: dict[str, np.ndarray] = {}
        copies: list[int] = []
        for piece in self._runs.pieces(cut, self._max_rows):
            keys, rows = self._runs.load(piece)
            values = {name: rows[c] for name, c in self._columns.items()}
            if self.rules.duplicates != "sum":
                copies += values[POSITION][:2, 0].tolist() if POSITION in values else []
                self._write(keys, values.get(WEIGHT), values.get(ATTR), files)
                continue
            for name, new in values.items():
                new = widen(new, self._attr_dtype if name == ATTR else new.dtype.name)
                so_far = [total[name], new] if name in total else [new]
                total[name] = sum_runs(np.concatenate(so_far), np.zeros(1, np.int64))
        if copies:
            self._repeats += cut.num_rows - 2
            self._note_repeats(
                np.array([cut.low, cut.low], np.uint64),
                np.array(copies[:2]),
                np.array([True, False]),
            )
        if self.rules.duplicates == "sum":
            weight = total.get(WEIGHT, np.array([[cut.num_rows]])).astype(self.weight_dtype)
            attr = round_sums(total[ATTR], self._attr_dtype) if ATTR in total else None
            self._write(np.array([cut.low], np.uint64), weight, attr, files)

    def _write(
        self,
        keys: np.ndarray,
        weight: np.ndarray | None,
        attr: np.ndarray | None,
        files: dict[str, RawFile],
    ) -> None:
        for start in range(0, keys.size, _BLOCK):
            files["col"].append(unpack(keys[start : start + _BLOCK], self.rules.index)[0])
        if weight is not None:
            files[WEIGHT].append(weight)
        if attr is not None:
            files[ATTR].append(attr)
        self.num_edges += keys.size

    def _with_loops(
        self, cut: Cut, keys: np.ndarray, rows: list[np.ndarray]
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """The edges, and a loop of weight 1 and features 0 for each node that has none."""
        # The nodes v whose loop, key v << 32 | v, lies in the range.
        begin = (cut.low >> 32) + ((cut.low & _LOW) > (cut.low >> 32))
        end = (cut.high >> 32) + ((cut.high & _LOW) > (cut.high >> 32))
        new = missing_loops(keys, begin, end)
        new_rows = []
        for column, values in zip(self._runs.columns, rows, strict=True):
            fill = {WEIGHT: 1, ATTR: 0, POSITION: -1}[column.name]
            added = np.full((new.size, column.width), fill, column.dtype)
            new_rows.append(np.concatenate([values, added]))
        return np.concatenate([keys, pack(new, new)]), new_rows

    def _note_repeats(self, keys: np.ndarray, position: np.ndarray, first: np.ndarray) -> None:
        again = np.flatnonzero(~first)
        if again.size == 0:
            return
        self._repeats += again.size
        # Of all repeats, the one that a reader of the input meets first.
        edge = int(again[np.argmin(position[again])])
        found = (int(position[edge]), int(position[edge - 1]), int(keys[edge]))
        if self._first_repeat is None or found < self._first_repeat:
            self._first_repeat = found

    def _refuse_repeats(self) -> None:
        if self._first_repeat is None:
            return
        position, before, key = self._first_repeat
        name, place = self.rules.name, self.rules.place
        raise GraphError(
            f"edge {name(key & _LOW)} -> {name(key >> 32)} is given twice "
            f"({self._repeats} such repeats in all)",
            culprit=f"{place(before)} and {place(position)}",
            hint="duplicates='keep', or 'sum' to add their weights",
        )

    @property
    def _attr_dtype(self) -> str:
        assert self.rules.attr_dtype is not None
        return self.rules.attr_dtype

    def _state(self, key: int, files: dict[str, RawFile]) -> dict[str, Any]:
        return {
            "phase": "sort",
            "key": key,
            "rows": self._rows_done,
            "edges": self.num_edges,
            "repeats": self._repeats,
            "first_repeat": self._first_repeat,
            "bytes": {name: file.num_bytes for name, file in files.items()},
        }

    def _take_up(self, state: dict[str, Any]) -> None:
        if state:
            self._rows_done, self.num_edges = state["rows"], state["edges"]
            self._repeats = state["repeats"]
            if state["first_repeat"] is not None:
                self._first_repeat = tuple(state["first_repeat"])
