"""PyG's layers in a traced model: as ours where we have them, else as they stand.

How one runs as it stands is ``standing``; ``trial`` says whether it may.
"""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tiergnn.models import functional as ops
from tiergnn.models.layers import AGGREGATIONS, LAYERS
from tiergnn.models.options import unlike_ours
from tiergnn.models.standing import Signature, run_layer
from tiergnn.models.traced import fact, is_traced
from tiergnn.models.trial import attempt

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
        trial = attempt(m, tracer.judge.probe.block, examples, signature)
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
