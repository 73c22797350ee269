"""Rows of nodes streamed from a source into a graph folder: features, labels, splits.

Legend: V nodes, D columns, C classes, r rows of a block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tiergnn.errors import GraphError
from tiergnn.graph.folder import FolderWriter
from tiergnn.graph.formats.cast import cast_rows
from tiergnn.graph.formats.source import Rows, Split
from tiergnn.graph.labels import most_classes, read_split, too_many_classes
from tiergnn.graph.table import STORED

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Target:
    """Where rows go and how much of them may be held at once."""

    writer: FolderWriter
    num_nodes: int
    memory_bytes: int
    progress: Progress
    notes: list[str]


def check_features(rows: Rows, scale: np.ndarray | None, dtype: str | None, num_nodes: int) -> str:
    """The dtype that features are stored as. Raises GraphError when they cannot be."""
    logical = dtype or rows.logical
    if logical not in STORED:
        raise GraphError(
            f"features of dtype {rows.logical} are not stored as they are",
            culprit=rows.name,
            hint="feature_dtype='float32', or int8, uint8 where the values fit",
        )
    check_length(rows, num_nodes)
    if scale is not None and logical not in ("int8", "uint8"):
        raise GraphError(f"a scale goes with int8 or uint8 features, they are {logical}")
    if scale is not None and scale.shape not in ((), (rows.width,)):
        raise GraphError(
            f"the scale of {rows.width} features has shape {list(scale.shape)}",
            hint=f"one number, or {rows.width}",
        )
    return logical


def write_features(rows: Rows, scale: np.ndarray | None, dtype: str | None, to: Target) -> None:
    """x as a table of ``dtype``, by default of its own. Raises GraphError, with a position."""
    logical = check_features(rows, scale, dtype, to.num_nodes)
    stream = to.writer.stream("x", STORED[logical], (to.num_nodes, rows.width), logical)
    count, told = 0, False
    for block in rows.blocks(to.memory_bytes):
        _refuse_extra(rows, count + len(block), to.num_nodes)
        if not told and block.dtype.kind == "f":
            told = _note_not_finite(block, rows, count, to.notes)
        if logical != rows.logical:
            if rows.logical == "bfloat16":
                block = (block.astype(np.uint32) << 16).view(np.float32)
            block = cast_rows(block, logical, "feature", rows.place, start=count)
        stream.append(block)
        count += len(block)
        to.progress("features", count, to.num_nodes)
    _refuse_missing(rows, count, to.num_nodes)
    if scale is not None:
        to.writer.array("x_scale", scale.astype(np.float32))


def write_labels(
    rows: Rows, task: str | None, num_classes: int | None, to: Target
) -> tuple[str, int | None]:
    """y in the form of its task, which is found out when None; (task, number of classes)."""
    check_length(rows, to.num_nodes)
    scan = _scan(rows, to)
    task = task or scan.task(rows)
    scan.check(rows, task, num_classes)
    if task == "class":
        dtype, shape = np.dtype(np.int64), (to.num_nodes,)
        found = scan.high + 1
        classes = found if num_classes is None else num_classes
        if classes > most_classes(to.num_nodes):
            at = scan.at_high
            greatest = None if at is None else (scan.high, rows.place(at[0]))
            raise too_many_classes(classes, to.num_nodes, greatest)
    elif task == "multilabel":
        dtype, shape = np.dtype(np.int8), (to.num_nodes, rows.width)
        found = rows.width
    else:
        given = rows.dtype == np.float64 and not rows.is_text
        wide = given or not scan.single
        dtype, shape = np.dtype(np.float64 if wide else np.float32), (to.num_nodes, rows.width)
        found = None
    stream = to.writer.stream("y", dtype, shape)
    count = 0
    for block in rows.blocks(to.memory_bytes):
        if task != "real" and block.dtype.kind == "f":
            block = np.where(np.isnan(block), -1, block)
        stream.append(block.astype(dtype))
        count += len(block)
        to.progress("labels", count, to.num_nodes)
    return task, num_classes if num_classes is not None and task == "class" else found


def write_split(name: str, split: Split, to: Target) -> None:
    """Ascending ids of a named split. Raises GraphError on ids out of range or given twice."""
    if split.ids is not None:
        to.writer.array(f"splits/{name}", read_split(name, split.ids, to.num_nodes))
        return
    assert split.mask is not None
    if split.num_rows != to.num_nodes:
        raise GraphError(
            f"the mask of split {name!r} has {split.num_rows} entries, "
            f"the graph has {to.num_nodes} nodes"
        )
    count = sum(int(np.count_nonzero(block)) for block in split.mask(to.memory_bytes))
    stream = to.writer.stream(f"splits/{name}", np.dtype(np.int64), (count,))
    start = 0
    for block in split.mask(to.memory_bytes):
        stream.append(np.flatnonzero(block) + start)
        start += block.size
    to.progress("splits", start, to.num_nodes)


def check_length(rows: Rows, num_nodes: int) -> None:
    """Raise GraphError when it is known beforehand that rows and nodes do not match."""
    if rows.num_rows is not None and rows.num_rows != num_nodes:
        raise GraphError(
            f"{rows.name} has {rows.num_rows} rows, the graph has {num_nodes} nodes",
            hint=f"num_nodes={rows.num_rows}, when nodes without edges come last"
            if rows.num_rows > num_nodes
            else "one row a node",
        )


def _refuse_extra(rows: Rows, count: int, num_nodes: int) -> None:
    if count > num_nodes:
        raise GraphError(
            f"{rows.name} has more than {num_nodes} rows, the number of nodes",
            culprit=rows.place(num_nodes),
            hint="num_nodes=N, when nodes without edges come last",
        )


def _refuse_missing(rows: Rows, count: int, num_nodes: int) -> None:
    if count < num_nodes:
        raise GraphError(
            f"{rows.name} has {count} rows, the graph has {num_nodes} nodes", hint="one row a node"
        )


def _note_not_finite(block: np.ndarray, rows: Rows, start: int, notes: list[str]) -> bool:
    bad = ~np.isfinite(block)
    if not bad.any():
        return False
    row, column = np.unravel_index(int(np.argmax(bad)), bad.shape)
    notes.append(
        f"{rows.place(start + int(row))}, column {column}: the feature is "
        f"{block[row, column]}, kept as it is; training on it gives NaN"
    )
    return True


@dataclass(slots=True)
class _Labels:
    """What all labels were like."""

    high: int = -1  # the largest class
    single: bool = True  # float32 holds every value
    # The first (row, column, value) that
    at_fraction: tuple[int, int, float] | None = None  # is not whole,
    at_infinite: tuple[int, int, float] | None = None  # is infinite,
    at_low: tuple[int, int, float] | None = None  # is below -1,
    at_many: tuple[int, int, float] | None = None  # is not 0, 1 or unknown,
    at_high: tuple[int, int, float] | None = None  # is the largest of all.

    def task(self, rows: Rows) -> str:
        if rows.dtype.kind == "f" and (not rows.is_text or self.at_fraction or self.at_infinite):
            return "real"
        if rows.width == 1:
            return "class"
        if self.at_many is None:
            return "multilabel"
        row, column, value = self.at_many
        raise GraphError(
            f"labels in {rows.width} columns are neither one class a node nor 0 and 1: "
            f"had {value:g} in column {column}",
            culprit=rows.place(row),
            hint="task='real' for targets, or one column for classes",
        )

    def check(self, rows: Rows, task: str, num_classes: int | None) -> None:
        """Raise GraphError at the first label that the task does not allow."""
        if task == "real":
            if num_classes is not None:
                raise GraphError("a real target has no classes", hint="leave num_classes out")
            self._refuse(rows, self.at_infinite, "is infinite", "NaN for an unknown target")
            return
        self._refuse(
            rows,
            self.at_fraction,
            f"is not a whole number, and task is {task!r}",
            "task='real' for regression",
        )
        if task == "multilabel":
            if num_classes not in (None, rows.width):
                raise GraphError(
                    f"{rows.name} has {rows.width} columns, num_classes says {num_classes}"
                )
            self._refuse(rows, self.at_many, "is not 0, 1 or unknown (-1)", "task='class'")
            return
        if rows.width != 1:
            raise GraphError(
                f"{rows.name} has {rows.width} columns, a class is one number a node",
                hint="task='multilabel' for columns of 0 and 1",
            )
        self._refuse(rows, self.at_low, "is not a class", "0, 1, ..., and -1 for unlabelled")
        if num_classes is not None and self.high >= num_classes:
            self._refuse(
                rows,
                self.at_high,
                f"is not below num_classes={num_classes}",
                f"num_classes={self.high + 1}",
            )

    @staticmethod
    def _refuse(rows: Rows, at: tuple[int, int, float] | None, what: str, hint: str) -> None:
        if at is not None:
            row, column, value = at
            where = f" in column {column}" if rows.width > 1 else ""
            raise GraphError(f"label {value:g}{where} {what}", culprit=rows.place(row), hint=hint)


def _scan(rows: Rows, to: Target) -> _Labels:
    """One pass over labels that may not fit the memory."""
    seen, count = _Labels(), 0
    for block in rows.blocks(to.memory_bytes):
        _refuse_extra(rows, count + len(block), to.num_nodes)
        if block.dtype.kind == "b":
            block = block.astype(np.int8)
        known = block
        if block.dtype.kind == "f":
            known = np.where(np.isnan(block), -1, block)
            seen.at_infinite = seen.at_infinite or _first(np.isinf(block), block, count)
            fraction = known != np.floor(known)
            seen.at_fraction = seen.at_fraction or _first(fraction, block, count)
        if block.dtype.itemsize > 2:
            with np.errstate(over="ignore"):
                seen.single &= bool((known.astype(np.float32).astype(np.float64) == known).all())
        seen.at_low = seen.at_low or _first(known < -1, block, count)
        many = (known < -1) | (known > 1) | (known != np.floor(known))
        seen.at_many = seen.at_many or _first(many, block, count)
        if known.size and np.isfinite(top := known.max()) and top > seen.high:
            seen.high = int(top)
            seen.at_high = _first(known == top, block, count)
        count += len(block)
    _refuse_missing(rows, count, to.num_nodes)
    return seen


def _first(bad: np.ndarray, block: np.ndarray, start: int) -> tuple[int, int, float] | None:
    if not bad.any():
        return None
    row, column = np.unravel_index(int(np.argmax(bad)), bad.shape)
    return start + int(row), int(column), float(block[row, column])
