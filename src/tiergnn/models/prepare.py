"""Prepared rows: what a model makes of the graph and its features alone, the same at every step.

A first aggregation or the hops of an SGC read no parameter and draw nothing. A trace that may
prepare them puts an input in their place, and gives the Program that makes it.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from tiergnn.models import functional as ops
from tiergnn.models.code import is_bound
from tiergnn.models.cut import cut
from tiergnn.models.epilogues import join_epilogues
from tiergnn.models.fixed import GIVEN, is_fixed
from tiergnn.models.products import join_products
from tiergnn.models.stages import Prepared
from tiergnn.models.traced import fact

# Of rows [V, D] these give every column from the same column of what they read.
_BY_COLUMN = (
    ops.propagate, ops.scale_rows, ops.finish_rows,
    operator.add, operator.sub, operator.mul, torch.add, torch.mul,
)  # fmt: skip


def prepare(graph: Graph, root: nn.Module, *, training: bool) -> tuple[Prepared, ...]:
    """Change ``graph``: inputs ``p1``, ``p2`` ... are in the place of rows that can be prepared."""
    made: list[Prepared] = []
    start = next(iter(graph.nodes))
    for node in [n for n in graph.nodes if _is_prepared(n)]:
        name = f"p{len(made) + 1}"
        own = _making(graph, node)
        text = _text(own)
        columnwise = all(_is_by_column(n) for n in own.nodes)
        join_epilogues(own, root)
        join_products(own, root)
        program = cut(own, root, training=training)
        made.append(Prepared(name=name, program=program, text=text, columnwise=columnwise))
        with graph.inserting_before(start):
            given = graph.placeholder(name)
        given.meta["fact"] = fact(node)
        node.replace_all_uses_with(given, lambda user: not is_fixed(user))
    return tuple(made)


def _is_prepared(node: Node) -> bool:
    """Fixed rows behind a graph operation that other code reads; not what the model returns."""
    if node.op == "placeholder" or not is_fixed(node) or fact(node).kind != "rows":
        return False
    others = [user for user in node.users if not is_fixed(user)]
    return bool(others) and all(n.op != "output" for n in others) and _is_aggregated(node)


def _is_aggregated(node: Node) -> bool:
    waiting, seen = [node], {node}
    while waiting:
        found = waiting.pop()
        if is_bound(found):
            return True
        waiting += [n for n in found.all_input_nodes if n not in seen]
        seen.update(found.all_input_nodes)
    return False


def _making(graph: Graph, end: Node) -> Graph:
    """A graph of all placeholders, and of the nodes that make ``end``, which it returns."""
    needed, waiting = {end}, [end]
    while waiting:
        found = [n for n in waiting.pop().all_input_nodes if n not in needed]
        needed.update(found)
        waiting += found
    own = Graph()
    copies: dict[Node, Node] = {}
    for node in graph.nodes:
        if node in needed or (node.op == "placeholder" and node.target in (*GIVEN, "key")):
            copies[node] = own.node_copy(node, copies.__getitem__)
    own.output(copies[end])
    return own


def _text(graph: Graph) -> str:
    """The same for two graphs that compute the same by the same operations."""
    number = {node: f"%{i}" for i, node in enumerate(graph.nodes)}
    lines = []
    for node in graph.nodes:
        name = getattr(node.target, "__qualname__", node.target)
        given: Any = map_arg((node.args, node.kwargs), lambda n: _Named(number[n]))
        lines.append(f"{number[node]} {node.op} {name} {given}")
    return "\n".join(lines)


class _Named(str):
    """Printed without quotes."""

    __repr__ = str.__str__


def _is_by_column(node: Node) -> bool:
    if node.op in ("placeholder", "output") or fact(node).kind != "rows":
        return True
    value: Any = fact(node).value
    return value.dim() == 2 and (node.target in _BY_COLUMN or value.shape[1] == 1)
