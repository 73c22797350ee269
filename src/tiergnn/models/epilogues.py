"""Epilogues of a traced graph: row-local operations in a row become one pass over the rows.

A scaling of rows behind a product without bias is put before it where a pass is there already:
s (x W) = (s x) W. What is read by more than the next operation ends a chain.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node
from torch.nn import functional as F

from tiergnn.models import dropouts
from tiergnn.models import functional as ops
from tiergnn.models.linear import is_plain
from tiergnn.models.traced import fact

# The parts of an epilogue by when they are done; those of one number exclude each other or commute.
_ORDER = {
    "other": 0, "loop": 0, "scale": 1, "shift": 2, "gain": 2, "bias": 3, "act": 4, "slope": 4,
    "p": 5, "key": 5, "site": 5, "block": 5, "post": 6,
}  # fmt: skip
_LAST = _ORDER["post"]
_ADD = (operator.add, torch.add, "add")
_MULTIPLY = (operator.mul, torch.mul, "mul")
_ACTS: dict[Any, tuple[str, str, float]] = {
    **dict.fromkeys((F.relu, torch.relu, "relu", nn.ReLU), ("relu", "", 0.0)),
    **dict.fromkeys((F.leaky_relu, nn.LeakyReLU), ("leaky_relu", "negative_slope", 0.01)),
    **dict.fromkeys((F.elu, nn.ELU), ("elu", "alpha", 1.0)),
}  # what a model calls -> act, the name of its slope and what that is unless given
_NOTHING: dict[str, Any] = {
    name: parameter.default
    for name, parameter in inspect.signature(ops.finish_rows).parameters.items()
    if name != "x"
}


class Step(NamedTuple):
    """A node as an epilogue of rows ``x``."""

    x: Node
    parts: dict[str, Any]  # arguments of ``finish_rows``
    also: tuple[Node, ...] = ()  # nodes that it does, too


def join_epilogues(graph: Graph, root: nn.Module) -> None:
    """Change ``graph``, which computes the same but for rounding, with the same masks."""
    for node in list(graph.nodes):
        _advance_scale(graph, root, node)
    done: set[Node] = set()
    for node in list(graph.nodes):
        if node not in done:
            done.update(_join(graph, root, node))


def epilogue_text(node: Node) -> str:
    """What an epilogue does, in order, in brackets when that is more than one thing."""
    given = node.kwargs
    shown = {
        "+": given["other"] is not None,
        "scale": given["scale"] is not None,
        "normalize": given["shift"] is not None or given["gain"] is not None,
        "bias": given["bias"] is not None and given["gain"] is None,
        str(given["act"]): given["act"] != "none",
        "dropout": given["p"] != 0,
    }
    words = [word for word, is_done in shown.items() if is_done]
    words += ["scale"] if given["post"] is not None else []
    return words[0] if len(words) == 1 else f"({' '.join(words)})"


def _join(graph: Graph, root: nn.Module, node: Node) -> list[Node]:
    """Make one node of the chain that begins with ``node``; gives the nodes that are gone."""
    step = next(_steps(node, root), None)
    if step is None:
        return []
    x, parts, chain = step.x, step.parts, [*step.also, node]
    while (more := _next(chain[-1], parts, root)) is not None:
        parts = more[0]
        chain += more[1]
    if len(chain) == 1:
        return []
    last = chain[-1]
    with graph.inserting_after(last):
        made = graph.call_function(ops.finish_rows, (), {**_NOTHING, "x": x, **parts})
    known = fact(node)
    made.meta["fact"] = replace(fact(last), place=known.place, path=known.path)
    last.replace_all_uses_with(made)
    for gone in reversed(chain):
        graph.erase_node(gone)
    return chain


def _next(last: Node, parts: dict[str, Any], root: nn.Module) -> tuple[dict, list[Node]] | None:
    """The parts with what the only reader of ``last`` does, and the nodes that do it."""
    if len(last.users) != 1:
        return None
    (user,) = last.users
    for step in _steps(user, root):
        joined = _joined(parts, step.parts) if step.x is last else None
        if joined is not None:
            return joined, [*step.also, user]
    return None


def _joined(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any] | None:
    """Parts that do ``before`` and then ``after``, if one pass can."""
    reached = max(map(_ORDER.__getitem__, before))
    begins = min(map(_ORDER.__getitem__, after))
    if reached < begins or (set(before) == {"bias"} and set(after) <= {"other", "loop"}):
        return before | after
    if set(after) == {"scale"} and reached < _LAST:
        return before | {"post": after["scale"]}
    return None


def _steps(node: Node, root: nn.Module) -> Iterator[Step]:
    """The ways to see a node as an epilogue of one of its inputs."""
    if node.op in ("placeholder", "get_attr", "output") or not _is_table(node):
        return
    target: Any = node.target
    if node.op == "call_module":
        target = type(root.get_submodule(str(target)))
    if target in (ops.finish_rows, ops.scale_rows, dropouts.drop_rows):
        given = {n: v for n, v in node.kwargs.items() if _NOTHING.get(n, ()) != v}
        x = given.pop("x")
        if isinstance(x, Node) and given and _alike(x, node):
            yield Step(x, given)
    elif target in _ACTS:
        yield from _activation(node, root, target)
    elif target in _ADD and len(node.args) == 2 and not node.kwargs:
        for x, other in (node.args, node.args[::-1]):
            yield from _sum(x, other, node)


def _activation(node: Node, root: nn.Module, target: Any) -> Iterator[Step]:
    act, name, slope = _ACTS[target]
    if not node.args:
        return
    x, *more = node.args
    given: Any = more[0] if more else node.kwargs.get(name)
    if node.op == "call_module":
        slope = getattr(root.get_submodule(str(node.target)), name, slope)
    elif given is not None:
        slope = given
    plain = isinstance(slope, (int, float)) and slope >= 0
    if plain and isinstance(x, Node) and fact(x).value.dtype == fact(node).value.dtype:
        yield Step(x, {"act": act} | ({"slope": float(slope)} if name else {}))


def _sum(x: Any, other: Any, node: Node) -> Iterator[Step]:
    """x + other: rows of the same kind, or a bias; other may be weighed."""
    if not (isinstance(x, Node) and isinstance(other, Node) and _alike(x, node)):
        return
    if fact(other).kind == "whole":
        if tuple(fact(other).value.shape) == tuple(fact(node).value.shape[1:]):
            yield Step(x, {"bias": other})
        return
    if not _alike(other, node) or other is x:
        return
    if other.op != "call_module" and other.target in _MULTIPLY and len(other.users) == 1:
        for loop, rows in (other.args, other.args[::-1]):
            if _is_number(loop, node) and isinstance(rows, Node) and _alike(rows, node):
                yield Step(x, {"other": rows, "loop": loop}, (other,))
    yield Step(x, {"other": other})


def _advance_scale(graph: Graph, root: nn.Module, node: Node) -> None:
    """Scale what a product reads, not what it gives, where that joins an epilogue."""
    if node.target is not ops.scale_rows:
        return
    product, scale = node.kwargs["x"], node.kwargs["scale"]
    if not (isinstance(product, Node) and isinstance(scale, Node) and _alike(product, node)):
        return
    rows = _multiplied(product, root)
    early = all(source.op == "placeholder" for source in scale.all_input_nodes)
    if rows is None or not early or len(rows.users) > 1 or len(product.users) > 1:
        return
    if next(_steps(rows, root), None) is None:
        return
    next(n for n in graph.nodes if n.op != "placeholder").prepend(scale)
    with graph.inserting_after(rows):
        scaled = graph.call_function(ops.scale_rows, (), {"x": rows, "scale": scale})
    scaled.meta["fact"] = replace(fact(node), value=fact(rows).value)
    product.replace_input_with(rows, scaled)
    node.replace_all_uses_with(product)
    graph.erase_node(node)


def _multiplied(product: Node, root: nn.Module) -> Node | None:
    """The rows that a product without bias reads; None for anything else."""
    rows, *more = [*product.args, *product.kwargs.values(), None]
    if product.op == "call_module":
        plain = is_plain(root.get_submodule(str(product.target)))
    else:
        plain = product.target is F.linear and more[1] is None
    return rows if plain and isinstance(rows, Node) and fact(rows).kind == "rows" else None


def _is_table(node: Node) -> bool:
    """Rows [V, D] of numbers."""
    known = fact(node)
    return known.kind == "rows" and known.value.dim() == 2 and known.value.is_floating_point()


def _alike(x: Node, node: Node) -> bool:
    """Rows of one shape and dtype."""
    if not _is_table(x):
        return False
    a, b = fact(x).value, fact(node).value
    return a.shape == b.shape and a.dtype == b.dtype


def _is_number(loop: Any, node: Node) -> bool:
    """One number for all rows, as a tensor."""
    known = fact(loop) if isinstance(loop, Node) else None
    if known is None or known.kind != "whole" or not isinstance(known.value, Tensor):
        return False
    return tuple(known.value.shape) == (1,) and known.value.dtype == fact(node).value.dtype
