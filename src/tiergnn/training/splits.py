"""Which nodes train, validate and test: stored splits, seeded random ones, or the caller's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tiergnn.errors import ConfigError
from tiergnn.graph.csr import Graph
from tiergnn.graph.labels import read_split

PARTS = ("train", "val", "test")
_ALIASES = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation"),
    "test": ("test",),
}
_MAKE = "split='random:0.6/0.2/0.2' (--split) or 'planetoid:20/500/1000' makes one"


def labelled(graph: Graph) -> np.ndarray:
    """bool [V]: nodes with a label; with any known entry where a node has several."""
    y = graph.y
    if y is None:
        return np.zeros(graph.num_nodes, bool)
    known: np.ndarray = ~np.isnan(y) if y.dtype.kind == "f" else y >= 0
    return known if known.ndim == 1 else np.asarray(known.any(axis=1))


def judged_nodes(graph: Graph, splits: Mapping[str, np.ndarray]) -> np.ndarray:
    """int64, ascending: the labelled nodes of all splits."""
    ids = np.unique(np.concatenate([np.zeros(0, np.int64), *splits.values()]))
    return ids[labelled(graph)[ids]]


def choose_splits(graph: Graph, split: Any, seed: int) -> dict[str, np.ndarray]:
    """Node ids, int64 and ascending, of "train" and, where there are such, "val" and "test".

    split is what ``api.train`` takes. Raises ConfigError when there is no training split, listing
    the stored ones, or no label, and GraphError when given ids do not fit the graph.
    """
    if graph.y is None:
        raise ConfigError(
            "the graph has no labels y to train on",
            hint="a Data with y; or ingest with labels=FILE (--labels), "
            "or with nodes=FILE, node_label=COLUMN (--nodes, --node-label)",
        )
    if isinstance(split, Mapping):
        chosen = _given(split, graph.num_nodes)
    elif isinstance(split, str) and ":" in split:
        chosen = _made(graph, split, seed)
    else:
        chosen = _stored(graph, "" if split is None else str(split))
    if "train" not in chosen:
        raise ConfigError(
            f"there is no training split; splits: {', '.join(graph.splits) or 'none'}", hint=_MAKE
        )
    if not labelled(graph)[chosen["train"]].any():
        raise ConfigError(
            f"none of the {chosen['train'].size} nodes of the training split has a label",
            hint=_MAKE,
        )
    return chosen


def training_nodes(graph: Graph, split: Any, seed: int) -> np.ndarray | None:
    """Those of the training split of ``choose_splits``; None where a graph has none."""
    try:
        return choose_splits(graph, split, seed)["train"]
    except ConfigError:
        return None


def _stored(graph: Graph, which: str) -> dict[str, np.ndarray]:
    """The splits named train, val, test, or train.K and so on; K = 0 when only such are there."""
    numbered = sorted(
        {name.rpartition(".")[2] for name in graph.splits if "." in name},
        key=lambda number: (len(number), number),
    )
    if which and which not in numbered:
        raise ConfigError(
            f"there is no split {which!r}",
            hint=f"one of {', '.join(numbered)}" if numbered else _MAKE,
        )
    if not which and numbered and not any(name in graph.splits for name in _ALIASES["train"]):
        which = numbered[0]
    suffix = f".{which}" if which else ""
    return {
        part: np.asarray(graph.splits[alias + suffix])
        for part in PARTS
        for alias in _ALIASES[part]
        if alias + suffix in graph.splits
    }


def _given(split: Mapping[str, Any], num_nodes: int) -> dict[str, np.ndarray]:
    if names := [str(name) for name in split if name not in PARTS]:
        raise ConfigError(f"a split is called {', '.join(PARTS)}; had {', '.join(names)}")
    return {name: read_split(name, np.asarray(ids), num_nodes) for name, ids in split.items()}


def _made(graph: Graph, spec: str, seed: int) -> dict[str, np.ndarray]:
    """Splits of the labelled nodes by "random:A/B/C" or "planetoid:A/B/C", "@SEED" may follow."""
    kind, _, rest = spec.partition(":")
    numbers, _, fixed = rest.partition("@")
    try:
        values = [float(part) for part in numbers.split("/")]
        seed = int(fixed) if fixed else seed
    except ValueError:
        values = []
    whole = kind == "random" or all(value.is_integer() for value in values)
    bounded = all(0 <= value < 2**53 for value in values) and 0 <= seed < 2**64  # nan is not
    if len(values) != 3 or not (bounded and whole) or kind not in ("random", "planetoid"):
        raise ConfigError(
            f"{spec!r} is not a split",
            hint="random:0.6/0.2/0.2 or planetoid:20/500/1000, and @SEED after it if you like",
        )
    ids = np.flatnonzero(labelled(graph))
    # Raw words of a counter-based generator: the same on every machine and NumPy version.
    words = np.random.Philox(key=seed).random_raw(ids.size)
    ids = ids[np.argsort(words, kind="stable")]
    if kind == "random":
        if sum(values) > 1 + 1e-9:
            raise ConfigError(f"{spec!r}: the three fractions add to more than 1")
        ends = np.floor(np.cumsum(values) * ids.size + 1e-6).astype(np.int64)
        parts = np.split(ids, ends)[:3]
    else:
        parts = _planetoid(graph, spec, ids, [int(value) for value in values])
    return {name: np.sort(part) for name, part in zip(PARTS, parts, strict=True)}


def _planetoid(graph: Graph, spec: str, ids: np.ndarray, counts: list[int]) -> list[np.ndarray]:
    """The first ``counts[0]`` of each class of the shuffled ids, then the next of any class."""
    assert graph.y is not None
    if graph.task != "class":
        raise ConfigError(f"{spec!r} needs one class a node, the task is {graph.task}")
    per_class, num_val, num_test = counts
    y = np.asarray(graph.y)[ids]
    by_class = np.argsort(y, kind="stable")
    sorted_y = y[by_class]
    rank = np.arange(ids.size) - np.searchsorted(sorted_y, sorted_y)
    in_train = np.zeros(ids.size, bool)
    in_train[by_class[rank < per_class]] = True
    rest = ids[~in_train]
    if rest.size < num_val + num_test:
        raise ConfigError(
            f"{spec!r} leaves {rest.size} labelled nodes for {num_val} + {num_test}",
            hint=f"planetoid:{per_class}/{rest.size // 3}/{rest.size - rest.size // 3}",
        )
    return [ids[in_train], rest[:num_val], rest[num_val : num_val + num_test]]
