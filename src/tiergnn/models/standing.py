"""A layer that runs as it stands: how it is handed a block, and how its dropout is counted.

It gets the rows of a block's sources and destinations as a pair, or, when it takes no pairs, the
rows of the sources alone, of which the first are the destinations.

Legend: P destinations, S sources, E edges.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from tiergnn.kernels.block import Block
from tiergnn.kernels.dropout import Key, dropout, make_key
from tiergnn.models.operation import kept, operation


class Signature(NamedTuple):
    """What each parameter of a layer takes: rows, graph, edges (and which one), or a constant."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    values: tuple[Any, ...]


@operation(kind="graph", gathers=("gathered",))
def run_layer(
    layer: nn.Module,
    block: Block,
    gathered: tuple[Tensor, ...],
    own: tuple[Tensor, ...],
    edges: tuple[Tensor, ...],
    *,
    signature: tuple,
    pairs: bool,
    training: bool,
    drops: tuple[str, ...] | None = None,
    p: float = 0.0,
    key: Key | None = None,
    site: int = 0,
    copies: bool = False,
) -> Tensor:
    """layer(...) on a block: gathered [S, ...] and own [P, ...] rows -> [P, ...].

    ``copies``: the layer changes what it is given, so that it is given copies.

    ``drops`` says of each dropout call inside the layer whether it drops edges or nodes; they are
    sites ``site``, ``site + 1`` ... under ``key`` (``p`` above 0 only says that there are some).
    """
    mode = Drops(block, make_key(0, 0) if key is None else key, site, drops)
    given = gathered, own, edges
    if copies:
        given = copied(given)
    return call(layer, block, given, signature, pairs, training, mode)


def call(
    layer: nn.Module,
    block: Block,
    rows: tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]],
    signature: tuple,
    pairs: bool,
    training: bool,
    mode: Drops,
) -> Tensor:
    """``run_layer``, of rows as (gathered, own, edges); ValueError where it gives no rows."""
    gathered, own, edges = rows
    given: dict[str, Any] = {}
    for parameter, kind, value in zip(*signature, strict=True):
        if kind == "rows":
            given[parameter] = (gathered[value], own[value]) if pairs else gathered[value]
        elif kind == "constant":
            given[parameter] = value
        else:
            given[parameter] = edge_index_of(block) if kind == "graph" else edges[value]
    if pairs and "size" in inspect.signature(layer.forward).parameters:
        given["size"] = (block.num_src, block.num_dst)
    with _mode(layer, training), mode:
        out = layer(**given)
    if not isinstance(out, Tensor) or out.shape[:1] not in ((block.num_dst,), (block.num_src,)):
        raise ValueError("it does not give one tensor of rows")
    return out[: block.num_dst]


def edge_index_of(block: Block) -> Tensor:
    """edge_index int64 [2, E] of a block, kept with it."""
    return kept(
        block, ("edge_index",), None, lambda: torch.stack([block.col.long(), block.edge_dst])
    )


class Drops(TorchFunctionMode):
    """Inside it, F.dropout is counter-based, by the ids of a block's edges or nodes.

    ``expected`` lists what the calls drop; None finds out by the number of rows.
    """

    def __init__(
        self, block: Block, key: Key, site: int, expected: tuple[str, ...] | None = None
    ) -> None:
        super().__init__()
        self.block, self.key, self.site, self.expected = block, key, site, expected
        self.seen: list[str] = []

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if func is not F.dropout:
            return func(*args, **(kwargs or {}))
        names = ("input", "p", "training", "inplace")
        given = dict(zip(names, args, strict=False)) | (kwargs or {})
        x, p = given["input"], given.get("p", 0.5)
        if not given.get("training", True) or p == 0:
            return x
        block, count = self.block, x.shape[0]
        kind = self.expected[len(self.seen)] if self.expected else self._kind(count)
        if kind == "edges":
            gid = block.eid
        else:
            gid = block.src_gid if count == block.num_src else block.dst_gid
        self.seen.append(kind)
        return dropout(x, p, self.key, self.site + len(self.seen) - 1, gid)

    def _kind(self, count: int) -> str:
        if count == self.block.num_edges:
            return "edges"
        if count in (self.block.num_src, self.block.num_dst):
            return "nodes"
        raise ValueError(f"dropout over {count} rows, neither the graph's edges nor its nodes")


def copied(rows: tuple[tuple[Tensor, ...], ...]) -> Any:
    """Copies, one of a tensor that stands in several places."""
    copies = {id(tensor): tensor.clone() for tensors in rows for tensor in tensors}
    return tuple(tuple(copies[id(tensor)] for tensor in tensors) for tensors in rows)


@contextmanager
def _mode(layer: nn.Module, training: bool) -> Iterator[None]:
    """The layer in training or evaluation, as the trace found it."""
    flags = [(m, m.training) for m in layer.modules()]
    changed = any(flag != training for _, flag in flags)
    if changed:
        layer.train(training)
    try:
        yield
    finally:
        for m, flag in flags if changed else ():
            m.training = flag
