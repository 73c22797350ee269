"""PyG's layers in a traced model: as ours where we have them, else as they stand.

A layer that stands as it is gets the rows of a block's sources and destinations as a pair, or, when
it takes no pairs, the rows of the sources alone, of which the first are the destinations. Either
way an output row may depend on nothing but the row itself, its in-edges and their sources: that is
tried on a small graph and its parts before the layer is let in.

Legend: P destinations, S sources, E edges.
"""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from tiergnn.kernels.block import Block
from tiergnn.kernels.dropout import Key, dropout, make_key
from tiergnn.models import functional as ops
from tiergnn.models import norms
from tiergnn.models.layers import AGGREGATIONS, LAYERS
from tiergnn.models.operation import kept, operation
from tiergnn.models.options import unlike_ours
from tiergnn.models.parts import part_of
from tiergnn.models.traced import fact, is_traced

if TYPE_CHECKING:
    from tiergnn.models.tracer import ModelTracer

_SUPPORTED = (
    f"{', '.join(LAYERS)}; or any MessagePassing layer whose output rows depend on their own "
    "in-edges only"
)

# They fail on edge_attr when they have no edge_dim; others ignore it, or need none.
_NEEDS_EDGE_DIM = ("PNAConv", "ResGatedGraphConv", "RGATConv")


def as_ours(m: nn.Module) -> Any:
    """Our layer over the very parameters, submodules and options of a PyG layer, or None.

    They share one ``__dict__``, so that whatever changes in one changes in the other.
    """
    layer = LAYERS.get(type(m).__name__) if _is_pygs(m) else None
    if layer is None or _unlike_ours(m):
        return None
    ours = object.__new__(layer)
    object.__setattr__(ours, "__dict__", m.__dict__)
    return ours


def _is_pygs(m: nn.Module) -> bool:
    return type(m).__module__.startswith("torch_geometric.nn.conv.")


def _unlike_ours(m: nn.Module) -> str | None:
    """Which option keeps a layer that we have from running as ours; None when none does."""
    fill = getattr(m, "fill_value", None)
    if isinstance(fill, str) and fill not in ops.FILLS:
        return f"fill_value={fill!r}"
    return unlike_ours(m, AGGREGATIONS if type(m).__name__ == "SAGEConv" else ("add", "sum"))


def is_message_passing(m: nn.Module) -> bool:
    pyg = sys.modules.get("torch_geometric.nn.conv")
    return pyg is not None and isinstance(m, pyg.MessagePassing)


def takes_no_edge_attr(m: nn.Module) -> bool:
    """Whether a ready model of PyG's hands edge_attr to layers made without edge_dim only."""
    ready = sys.modules.get("torch_geometric.nn.models.basic_gnn")
    if ready is None or not isinstance(m, ready.BasicGNN):
        return False
    return all(_lacks_edge_dim(conv) for conv in m.modules() if is_message_passing(conv))


def _lacks_edge_dim(m: nn.Module) -> bool:
    return getattr(m, "edge_dim", 0) is None


class Signature(NamedTuple):
    """What each parameter of a layer takes: rows, graph, edges (and which one), or a constant."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    values: tuple[Any, ...]


def call_layer(tracer: ModelTracer, m: nn.Module, args: tuple, kwargs: dict) -> Any:
    """One node for a layer as it stands; refuses one that no part could run."""
    name = type(m).__name__
    if _is_pygs(m) and name in LAYERS:
        name = f"{name} with {_unlike_ours(m)}"
    if getattr(m, "flow", "source_to_target") != "source_to_target":
        tracer.refuse(f"{name}: messages flow backwards", hint="reverse the edges at ingest")
    try:
        given = inspect.signature(m.forward).bind(*args, **kwargs).arguments
    except TypeError as error:
        tracer.refuse(f"{name}: {error}")
    if _is_pygs(m) and _lacks_edge_dim(m) and type(m).__name__ in _NEEDS_EDGE_DIM:
        edge_attr = given.get("edge_attr")
        if edge_attr is not None and is_traced(edge_attr):
            width = fact(edge_attr.node).value.shape[-1]
            tracer.refuse(
                f"{name} gets edge_attr and was made without edge_dim",
                hint=f"{name}(..., edge_dim={width}), or no edge_attr for it",
            )
    taken: dict[str, list[Any]] = {"gathered": [], "own": [], "edges": []}
    entries: list[tuple[str, str, Any]] = []
    for parameter, value in given.items():
        pair = value if isinstance(value, (tuple, list)) else (value, value)
        kinds = {fact(v.node).kind if is_traced(v) else "constant" for v in pair}
        if kinds == {"rows"} and len(pair) == 2:
            entries.append((parameter, "rows", len(taken["own"])))
            taken["gathered"].append(pair[0])
            taken["own"].append(pair[1])
        elif kinds == {"graph"}:
            entries.append((parameter, "graph", 0))
        elif kinds == {"edges"} and is_traced(value):
            entries.append((parameter, "edges", len(taken["edges"])))
            taken["edges"].append(value)
        elif value is None or isinstance(value, (bool, int, float, str)):
            entries.append((parameter, "constant", value))
        else:
            tracer.refuse(
                f"{name} gets {parameter}, which is neither rows, edges nor a constant",
                hint=f"supported: {_SUPPORTED}",
            )
    signature = Signature(*map(tuple, zip(*entries, strict=True)))
    if not {"rows", "graph"} <= set(signature.kinds):
        tracer.refuse(f"{name} needs rows of nodes and an edge_index", hint="pass both")
    rows = {what: tuple(values) for what, values in taken.items()}
    examples = {what: tuple(fact(v.node).value for v in vs) for what, vs in rows.items()}
    tracer.standing.update(m.modules())
    with tracer.pause(), torch.no_grad():
        trial = _try(m, tracer.judge.probe.block, examples, signature)
    if isinstance(trial, str):
        tracer.refuse(f"{name} {trial}", hint=f"supported: {_SUPPORTED}")
    out = run_layer(
        m,
        tracer.inputs["block"],
        **rows,
        signature=tuple(signature),
        pairs=trial.pairs,
        training=m.training,
        drops=trial.drops,
        p=1.0 if trial.drops else 0.0,
        copies=trial.copies,
    )
    tracer.sites += max(len(trial.drops) - 1, 0)
    return out


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
        given = _copied(given)
    return _call(layer, block, given, signature, pairs, training, mode)


def _call(
    layer: nn.Module,
    block: Block,
    rows: tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]],
    signature: tuple,
    pairs: bool,
    training: bool,
    mode: Drops,
) -> Tensor:
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


class _Trial(NamedTuple):
    pairs: bool
    drops: tuple[str, ...]
    copies: bool  # it changes what it is given


def _copied(rows: tuple[tuple[Tensor, ...], ...]) -> Any:
    """Copies, one of a tensor that stands in several places."""
    copies = {id(tensor): tensor.clone() for tensors in rows for tensor in tensors}
    return tuple(tuple(copies[id(tensor)] for tensor in tensors) for tensors in rows)


def _try(
    layer: nn.Module, block: Block, examples: dict[str, tuple], signature: Signature
) -> _Trial | str:
    """How the layer runs on parts of a small graph as it does on the whole, or why it does not."""
    rows = examples["gathered"], examples["own"], examples["edges"]
    single = all(g is o for g, o in zip(rows[0], rows[1], strict=True))
    training, problem = layer.training, ""
    with _untouched(layer) as changed:
        try:  # a lazy layer takes its width here
            mode, given = Drops(block, _KEY, _SITE), _copied(rows)
            alone = _call(layer, block, given, signature, not single, training, mode)
            copies = any(tensor._version for tensors in given for tensor in tensors)
        except Exception as error:
            return f"fails on a small graph: {_first_line(error)}"
        state = _random_state()
        for pairs in (True, False) if single else (True,):
            try:
                mode = Drops(block, _KEY, _SITE)
                whole = _call(layer, block, _copied(rows), signature, pairs, training, mode)
                drops = tuple(mode.seen)
                parts = _by_parts(layer, block, rows, signature, pairs, drops)
            except Exception as error:
                problem = problem or f"fails on a part of a graph: {_first_line(error)}"
                continue
            if _random_state() != state:
                return "draws its own random numbers"
            if names := changed():
                return f"keeps {', '.join(names)} from one call to the next (cached=True?)"
            if _same(alone, whole) and _same(alone, parts):
                return _Trial(pairs, drops, copies)
            problem = f"gives other rows on a part of the graph: {norms.reading_more(layer)}"
    return problem


def _by_parts(
    layer: nn.Module,
    block: Block,
    rows: tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]],
    signature: Signature,
    pairs: bool,
    drops: tuple[str, ...],
) -> Tensor:
    """The layer's rows, computed by two parts of the block."""
    order = torch.arange(block.num_dst, device=block.device)
    out = None
    for owned in (order[::2], order[1::2].flip(0)):
        part, sources, edges = part_of(block, owned)
        taken = (
            tuple(x[sources] for x in rows[0]),
            tuple(x[owned] for x in rows[1]),
            tuple(e[edges] for e in rows[2]),
        )
        mode = Drops(part, _KEY, _SITE, drops)
        got = _call(layer, part, taken, signature, pairs, layer.training, mode)
        out = got.new_zeros(block.num_dst, *got.shape[1:]) if out is None else out
        out[owned] = got
    assert out is not None
    return out


_KEY = make_key(1, 2)
_SITE = 3


def _same(a: Tensor, b: Tensor) -> bool:
    bound = 1e-9 if a.dtype == torch.float64 else 1e-3
    return a.shape == b.shape and torch.allclose(a, b, rtol=bound, atol=bound, equal_nan=True)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _random_state() -> tuple:
    """Where every generator stands that a layer might draw from."""
    states = [torch.get_rng_state().numpy().tobytes(), random.getstate()]
    states += [np.random.get_state(legacy=True)[1].tobytes()]  # pyright: ignore[reportArgumentType]
    if torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state().numpy().tobytes())
    return tuple(states)


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


@contextmanager
def _untouched(layer: nn.Module) -> Iterator[Callable[[], list[str]]]:
    """Undo what calls do to the layer's buffers and attributes; says which tensors it kept."""
    kept = [(m, dict(vars(m))) for m in layer.modules()]
    lazy = nn.parameter.is_lazy
    buffers = [(b, b.clone()) for b in layer.buffers() if not lazy(b)]

    def changed() -> list[str]:
        return [
            name
            for m, before in kept
            for name, value in vars(m).items()
            if value is not before.get(name) and _holds_tensor(value)
        ]

    try:
        yield changed
    finally:
        for m, before in kept:
            for name, value in list(vars(m).items()):
                if value is not before.get(name) and _holds_tensor(value):
                    if name in before:
                        vars(m)[name] = before[name]
                    else:
                        del vars(m)[name]
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_holds_tensor, value))
    return isinstance(value, Tensor)
