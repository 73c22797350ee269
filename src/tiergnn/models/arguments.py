"""Arguments and results of recorded calls: the traced ones among them, and what stands for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.nn import functional as F

from tiergnn.models.rowlocal import name_of
from tiergnn.models.traced import Fact, Traced, fact, is_traced

WAY_OUT = (
    "only rows of the same node may meet outside of layers; statistics over all nodes come from "
    "BatchNorm1d or a norm of torch_geometric.nn"
)


def item(value: Any, index: int) -> Any:
    """One of several results of a call."""
    return value[index]


@dataclass(frozen=True)
class Several:
    """The facts of a call that returns a tuple, and the type of the tuple."""

    kind: Callable[[tuple], Any]
    facts: tuple[Fact, ...]


def spread(value: Any, of: str, verdict: Any = True) -> Fact | Several:
    """Facts of a result: of kind ``of`` where the verdict is True, else mixed."""
    if not isinstance(value, (tuple, list)):
        return Fact(of, value) if verdict is True else Fact("mixed", value, str(verdict))
    verdicts = verdict if isinstance(verdict, tuple) else [verdict] * len(value)
    facts = [spread(v, of, w) for v, w in zip(value, verdicts, strict=True)]
    # A tuple in a tuple is the state of an LSTM, which no row-local code can read.
    flat = [f if isinstance(f, Fact) else Fact("mixed", reason="it is a tuple") for f in facts]
    named = type(value).__module__ == "torch.return_types"
    return Several(type(value) if named else tuple, tuple(flat))


def fill(given: Any, pick: Callable[[Node], Any]) -> Any:
    return map_traced(given, lambda traced: pick(traced.node))


def examples(given: Any) -> Any:
    return fill(given, lambda node: fact(node).value)


def map_traced(given: Any, change: Callable[[Traced], Any]) -> Any:
    if is_traced(given):
        return change(given)
    if isinstance(given, dict):
        return {key: map_traced(value, change) for key, value in given.items()}
    if isinstance(given, slice):
        return slice(*(map_traced(v, change) for v in (given.start, given.stop, given.step)))
    if isinstance(given, (tuple, list)):
        return type(given)(map_traced(value, change) for value in given)
    return given


def nodes_in(tracer: Any, given: Any) -> list[Node]:
    """The nodes among arguments, each once; refuses those that may not be read."""
    found: dict[Node, None] = {}
    map_traced(given, lambda traced: found.setdefault(traced.node))
    for node in found:
        if fact(node).kind == "mixed":
            tracer.refuse(fact(node).reason, node=node, hint=WAY_OUT)
        if fact(node).stale:
            tracer.refuse(
                "it reads a tensor that was changed in place through another view of it",
                node=node,
                hint="the same operation without the underscore or inplace=True",
            )
    return list(found)


def out_of_place(kind: str, target: Any) -> tuple[Any, bool]:
    """``relu_`` -> (``relu``, True); a call that changes nothing -> itself, False."""
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if not name.endswith("_") or name.endswith("__") or name in ("and_", "or_"):
        return target, False
    if kind == "call_method":
        return name[:-1], True
    return getattr(torch, name[:-1], None) or getattr(F, name[:-1]), True


def storage(value: Any) -> int | None:
    if not isinstance(value, Tensor) or not value.numel():
        return None
    return value.untyped_storage().data_ptr()


def lookup(root: nn.Module, target: str) -> Any:
    value: Any = root
    for name in target.split("."):
        value = getattr(value, name)
    return value.detach() if isinstance(value, Tensor) else value


def traced_in(given: Any) -> list[Traced]:
    """The traced leaves of arguments."""
    found: list[Traced] = []
    map_traced(given, found.append)
    return found


def call_text(target: Any, args: Any, kwargs: Any) -> str:
    """A call for people: names of nodes for tensors."""

    def show(value: Any) -> str:
        if isinstance(value, Node):
            return value.name
        if is_traced(value):
            return value.node.name
        if isinstance(value, (tuple, list)):
            return "(" + ", ".join(map(show, value)) + ")"
        return "..." if isinstance(value, (Tensor, nn.Module)) else str(value)

    parts = [show(a) for a in args]
    parts += [f"{k}={show(v)}" for k, v in kwargs.items() if v is not None]
    return f"{name_of(target).removeprefix('model.')}({', '.join(parts)})"
