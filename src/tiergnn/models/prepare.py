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
    graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
    made: dict[str, Prepared] = {}  # by text: what is the same is made once
    places: list[tuple[Node, Prepared]] = []
    for node in _frontier(graph):
        own = _making(graph, node)
        text = _text(own)
        if text not in made:
            name = f"p{len(made) + 1}"
            free: dict[Node, bool] = {}
            columnwise = all(_is_by_column(n, free) for n in own.nodes)
            join_epilogues(own, root)
            join_products(own, root)
            program = cut(own, root, training=training)
            made[text] = Prepared(name=name, program=program, text=text, columnwise=columnwise)
        places.append((node, made[text]))
    start, given = next(iter(graph.nodes)), {}
    for node, prepared in places:
        if prepared.name not in given:
            with graph.inserting_before(start):
                given[prepared.name] = graph.placeholder(prepared.name)
            given[prepared.name].meta["fact"] = fact(node)
        node.replace_all_uses_with(given[prepared.name])
    return tuple(made.values())


def _frontier(graph: Graph) -> list[Node]:
    """The last fixed rows behind graph operations that other code reads, in order.

    Not what the model returns. Where less has to be held, it is the rows of the operations
    themselves: row-local code after them that widens rows, or of which there are several, is left
    to every step.
    """
    found = {n: _operations_of(n) for n in graph.nodes if _is_last(n)}
    shared = [op for ops in found.values() if len(ops) == 1 for op in ops]
    ends: set[Node] = set()
    for node, operations in found.items():
        widened = sum(map(_width, operations)) < _width(node)
        several = len(operations) == 1 and sum(op in operations for op in shared) > 1
        ends |= set(operations) if widened or several else {node}
    return [node for node in graph.nodes if node in ends]


def _is_last(node: Node) -> bool:
    if node.op == "placeholder" or not is_fixed(node) or fact(node).kind != "rows":
        return False
    others = [user for user in node.users if not is_fixed(user)]
    return bool(others) and all(n.op != "output" for n in others) and bool(_operations_of(node))


def _operations_of(node: Node) -> list[Node]:
    """The graph operations that rows are made of by row-local code alone: itself, or the last."""
    found: dict[Node, None] = {}
    waiting, seen = [node], {node}
    while waiting:
        one = waiting.pop()
        if is_bound(one):
            found[one] = None
        else:
            waiting += [n for n in one.all_input_nodes if n not in seen]
            seen.update(one.all_input_nodes)
    return list(found)


def _width(node: Node) -> int:
    value: Any = fact(node).value
    return value.shape[1:].numel()


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
        name = f"{getattr(node.target, '__module__', '')}.{name}"
        given: Any = map_arg((node.args, node.kwargs), lambda n: _Named(number[n]))
        lines.append(f"{number[node]} {node.op} {name} {given}")
    return "\n".join(lines)


class _Named(str):
    """Printed without quotes."""

    __repr__ = str.__str__


def _is_by_column(node: Node, free: dict[Node, bool]) -> bool:
    if node.op == "output":
        return True
    free[node] = node.target != "x" and all(free.get(n, True) for n in node.all_input_nodes)
    if node.op == "placeholder" or fact(node).kind != "rows":
        return True
    value: Any = fact(node).value
    weight = node.kwargs.get("weight")
    if isinstance(weight, Node) and fact(weight).value.dim() != 1:
        return False
    return value.dim() == 2 and (value.shape[1] == 1 if free[node] else node.target in _BY_COLUMN)
