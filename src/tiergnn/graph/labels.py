"""Labels and splits as users hold them, made into the forms a Graph keeps.

Legend: V nodes, C classes, T targets, S splits of one kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tiergnn.errors import GraphError, unknown

TASKS = ("class", "multilabel", "real")


class Labels(NamedTuple):
    """y: class int64 [V], -1 unlabelled; multilabel int8 [V, C], -1 unknown; real [V, T], NaN."""

    y: np.ndarray
    task: str
    num_classes: int | None  # None for a real task


def read_labels(y: np.ndarray, task: str | None = None, num_classes: int | None = None) -> Labels:
    """Labels [V], [V, 1] or [V, C] of any number type, checked and in the form of their task.

    Without a ``task``: floats are real targets, never guessed to be classes; whole numbers and
    booleans [V] or [V, 1] are classes; [V, C] of 0, 1 and -1 is multilabel, other whole numbers
    in several columns are refused. NaN means unlabelled or unknown in every task, -1 in the first
    two. Raises GraphError naming the first bad value and its position.
    """
    y = np.asarray(y)
    if task is not None and task not in TASKS:
        raise unknown("task", task, TASKS)
    if y.dtype.kind not in "biuf" or y.ndim not in (1, 2):
        raise GraphError(f"y needs numbers [V] or [V, C], has {y.dtype} {list(y.shape)}")
    columns = (
        y.reshape(len(y), -1) if y.size else y.reshape(len(y), y.shape[-1] if y.ndim == 2 else 1)
    )
    task = task or _task_of(columns)
    if task == "real":
        if num_classes is not None:
            raise GraphError("a real target has no classes", hint="leave num_classes out")
        return Labels(_real(columns), task, None)
    if task == "class":
        if columns.shape[1] != 1:
            raise GraphError(
                f"a class label is one number a node, y has shape {list(y.shape)}",
                hint="task='multilabel' for columns of 0 and 1, or y.argmax(1) for one-hot rows",
            )
        labels = _whole(columns, "class")[:, 0].astype(np.int64)
        _refuse(
            labels < -1, labels, "is not a class", "0, 1, ... for classes and -1 for unlabelled"
        )
        found = int(labels.max(initial=-1)) + 1
    else:
        labels = _whole(columns, "multilabel").astype(np.int8)
        _refuse((columns > 1) | (columns < -1), columns, "is not 0, 1 or unknown (-1)", "0 or 1")
        found = columns.shape[1]
        if num_classes not in (None, found):
            raise GraphError(f"y has {found} columns, num_classes says {num_classes}")
    if num_classes is not None and found > num_classes:
        _refuse(
            labels >= num_classes, labels, f"is not below num_classes={num_classes}", str(found)
        )
    return Labels(labels, task, found if num_classes is None else int(num_classes))


def check_labels(y: np.ndarray, task: str, num_classes: int | None) -> None:
    """Raise GraphError unless ``y`` has the dtype and shape of its task, and a count of classes.

    Values are not read, save to say which is at fault: ``read_labels`` checks them.
    """
    if task not in TASKS:
        raise unknown("task", task, TASKS)
    wanted = {
        "class": ("int64 [V]", y.dtype == np.int64 and y.ndim == 1),
        "multilabel": ("int8 [V, C]", y.dtype == np.int8 and y.ndim == 2),
        "real": ("float32 or float64 [V, T]", y.dtype in (np.float32, np.float64) and y.ndim == 2),
    }
    form, is_so = wanted[task]
    if not is_so:
        raise GraphError(
            f"y of task {task!r} is {form}, had {y.dtype} {list(y.shape)}", hint="read_labels(y)"
        )
    if (num_classes is None) != (task == "real"):
        raise GraphError(f"task {task!r} with num_classes={num_classes}")
    if task == "multilabel" and num_classes != y.shape[1]:
        raise GraphError(f"y has {y.shape[1]} columns, num_classes says {num_classes}")
    if task == "class" and num_classes is not None and num_classes > most_classes(y.size):
        node = int(np.argmax(y)) if y.size else None
        greatest = None if node is None else (int(y[node]), f"node {node}")
        raise too_many_classes(num_classes, y.size, greatest)


def most_classes(num_nodes: int) -> int:
    """More than these are no classes but numbers of another kind: each would be an output."""
    return max(2**20, 100 * num_nodes)


def too_many_classes(
    num_classes: int, num_nodes: int, greatest: tuple[int, str] | None
) -> GraphError:
    """``greatest``: the greatest label and where it is, if there is any label."""
    label = "" if greatest is None else f"; the greatest label is {greatest[0]}, of {greatest[1]}"
    return GraphError(
        f"{num_classes} classes for {num_nodes} nodes{label}",
        hint="labels numbered from 0 on (numpy.unique(y, return_inverse=True)), -1 for unlabelled, "
        "or task='real' for a number to predict",
    )


def read_split(name: str, chosen: np.ndarray, num_nodes: int) -> np.ndarray:
    """Ascending int64 node ids from a boolean mask [V] or from node ids in any order.

    Raises GraphError on a mask of another length, an id out of range or an id given twice.
    """
    chosen = np.asarray(chosen)
    if chosen.ndim != 1:
        raise GraphError(f"split {name!r} needs one dimension, has shape {list(chosen.shape)}")
    if chosen.dtype == np.bool_:
        if chosen.size != num_nodes:
            raise GraphError(
                f"the mask of split {name!r} has {chosen.size} entries, the graph {num_nodes} nodes"
            )
        return np.flatnonzero(chosen)
    if chosen.size == 0:
        return np.empty(0, np.int64)
    if chosen.dtype.kind not in "iu":
        raise GraphError(f"split {name!r} needs a boolean mask or node ids, has {chosen.dtype}")
    _refuse(
        (chosen < 0) | (chosen >= num_nodes),
        chosen,
        f"is not a node: ids must be 0..{num_nodes - 1}",
        "ids of this graph's nodes",
        f"split {name!r}",
    )
    ids = np.sort(chosen.astype(np.int64))
    twice = np.flatnonzero(ids[1:] == ids[:-1])
    if twice.size:
        raise GraphError(
            f"split {name!r} holds node {ids[twice[0]]} more than once", hint="numpy.unique(ids)"
        )
    return ids


def read_masks(masks: Mapping[str, np.ndarray], num_nodes: int) -> dict[str, np.ndarray]:
    """Splits from masks or ids by name; a mask [V, S] gives ``name.0`` to ``name.S-1``.

    Only booleans are masks: 0/1 integers are node ids, so cast them first.
    """
    splits = {}
    for name, mask in masks.items():
        mask = np.asarray(mask)
        if mask.ndim == 2:
            for s in range(mask.shape[1]):
                splits[f"{name}.{s}"] = read_split(f"{name}.{s}", mask[:, s], num_nodes)
        else:
            splits[name] = read_split(name, mask, num_nodes)
    return splits


def _task_of(columns: np.ndarray) -> str:
    if columns.dtype.kind == "f":
        return "real"
    if columns.shape[1] == 1:
        return "class"
    if columns.size == 0 or (columns.min() >= -1 and columns.max() <= 1):
        return "multilabel"
    raise GraphError(
        f"y has {columns.shape[1]} columns of whole numbers {columns.min()}..{columns.max()}: "
        "neither classes nor 0/1 labels",
        hint="task='real' for targets, or one column for classes",
    )


def _real(columns: np.ndarray) -> np.ndarray:
    """float32, or float64 where float32 would change a value that came as float64 or integer."""
    if columns.dtype in (np.float32, np.float64):
        out = columns
    else:
        out = columns.astype(np.float32)
        if columns.dtype.kind in "iu" and (out.astype(np.float64) != columns).any():
            out = columns.astype(np.float64)
    _refuse(np.isinf(out), out, "is infinite", "a finite target, or NaN for unknown")
    return out


def _whole(columns: np.ndarray, task: str) -> np.ndarray:
    """Whole numbers, with NaN as -1. Raises GraphError at the first value with a fraction."""
    if columns.dtype.kind != "f":
        return columns
    known = np.where(np.isnan(columns), -1, columns).astype(np.float64)
    _refuse(
        (known != np.floor(known)) | (np.abs(known) > 2**31),
        columns,
        f"is not a whole number, and task is {task!r}",
        "task='real' for regression",
    )
    return known


def _refuse(bad: np.ndarray, values: np.ndarray, what: str, hint: str, name: str = "y") -> None:
    if not bad.any():
        return
    position = np.unravel_index(int(np.argmax(bad)), bad.shape)
    where = ", ".join(str(int(axis)) for axis in position)
    raise GraphError(f"{name}[{where}] is {values[position]}, which {what}", hint=hint)
