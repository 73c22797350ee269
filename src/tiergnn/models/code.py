"""Code: some nodes of a trace that run together, as a function; what each node is to a cut.

Legend: P rows of one part (destinations), S source rows it reads, E edges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from string import ascii_lowercase
from typing import Any

from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from tiergnn.kernels.product import linear_rows, unread_rows
from tiergnn.models import functional as ops
from tiergnn.models import terms
from tiergnn.models.operation import Operation
from tiergnn.models.stages import Rows
from tiergnn.models.traced import fact

EDGE_INPUTS = ("edge_weight", "edge_attr")
_TERM = ("other", "loop")  # of ``finish_rows``: own rows that are added to a sum, and their weight


@dataclass(frozen=True, kw_only=True, eq=False)
class Code:
    """``bound`` is the graph operation among the ``nodes``, which stand in the trace's order.

    ``names`` are those of all tensors that stages may be given, ``writes`` those that this code
    makes. ``plain``: the operation gives its sum where it is a mean; ``mean_of`` is such an
    operation whose sum this code is given. ``adjoint``: the operation, a sum, gives the gradient of
    what it gathers from that of its result, which it is given instead. ``term`` is an epilogue of
    the operation whose own rows are added in the code that has the operation, not after it.
    ``again``: the code is run for its backward alone, so that what is ``unread`` then is not made.
    """

    nodes: tuple[Node, ...]
    bound: Node | None
    names: Mapping[Node, str]
    writes: Mapping[str, Node]
    plain: bool = False
    mean_of: Node | None = None
    adjoint: bool = False
    term: Node | None = None
    again: bool = False

    @property
    def gathers(self) -> dict[Node, str]:
        """Rows of sources that it is given, with their names."""
        found = [] if self.bound is None else gathered_by(self.bound)
        return {n: self.names[n] for n in found}

    @property
    def reads(self) -> dict[Node, str]:
        """Own rows that it is given."""
        given = [n for n in self._inputs if not is_statistic(n) and n not in self.edges]
        return {n: self.names[n] for n in given if n in self.names}

    @property
    def edges(self) -> dict[Node, str]:
        """Inputs of edges that it is given."""
        found = [n for n in self._inputs if n.op == "placeholder" and n.target in EDGE_INPUTS]
        return {n: str(n.target) for n in found}

    @property
    def statistics(self) -> dict[Node, str]:
        return {n: self.names[n] for n in self._inputs if is_statistic(n)}

    @property
    def random(self) -> bool:
        return any(n.op == "placeholder" and n.target == "key" for n in self._inputs)

    @property
    def plain_sum(self) -> bool:
        """Whether it adds up gathered rows by numbers of edges that are given: it reads neither own
        rows nor parameters, and has one weight an edge, if any, for all columns."""
        weight = None if self.bound is None else self.bound.kwargs["weight"]
        wide = isinstance(weight, Node) and fact(weight).value.dim() != 1
        return not (wide or self.learned or self.reads)

    @property
    def learned(self) -> bool:
        """Whether it reads parameters."""
        return any(n.op in ("get_attr", "call_module") for n in self.nodes)

    @property
    def unread(self) -> dict[str, Node]:
        """Of what it writes the products that it reads nowhere, nor its backward."""
        read = {n for node in self.nodes for n in self.sources(node)}
        made = {name: node for name, node in self.writes.items() if node in self.nodes}
        return {n: v for n, v in made.items() if v.target is linear_rows and v not in read}

    @property
    def by_degrees(self) -> bool:
        """Whether it asks nothing of edges but how many each row has."""
        asked = [*self.nodes, *self._inputs]
        return not any(fact(n).kind in ("edges", "edge count") for n in asked)

    @property
    def _inputs(self) -> list[Node]:
        """What its nodes read and none of them makes, but for rows of sources."""
        found: dict[Node, None] = {}
        inside = set(self.nodes)
        for node in self.nodes:
            found |= dict.fromkeys(n for n in self.sources(node) if n not in inside)
        handed = [n for n in self.writes.values() if n not in inside]
        return list(found | dict.fromkeys(handed))

    def sources(self, node: Node) -> list[Node]:
        """What a node of this code reads, but for rows of sources."""
        if node is self.bound:
            given = own_inputs(node)
            if self.term is not None:
                other, loop = self.term.kwargs["other"], self.term.kwargs["loop"]
                added = [loop] if self.adjoint else [other, loop]
                given += [n for n in added if isinstance(n, Node)]
            return given
        if node is self.term:
            found: list[Node] = []
            map_arg({k: v for k, v in node.kwargs.items() if k not in _TERM}, found.append)
            return found
        return node.all_input_nodes

    @property
    def function(self) -> Callable[..., tuple[Tensor, ...]]:
        """``function(root, block, key, columns, *gathers, *reads, *edges, *statistics)``."""
        graph = Graph()
        made: dict[Any, Node] = {name: graph.placeholder(name) for name in ("block", "key")}
        columns = graph.placeholder("columns")
        sources = {n: graph.placeholder(f"gathered_{n.name}") for n in self.gathers}
        own = (*self.reads, *self.edges, *self.statistics)
        made |= {n: graph.placeholder(f"own_{n.name}") for n in own}

        def find(node: Node) -> Node:
            return made[node.target if node.op == "placeholder" and node.target in made else node]

        unread = {*self.unread.values()} if self.again else set[Node]()
        if self.mean_of is not None:
            loops = _leaves_out_loops(self.mean_of)
            given = (made[self.mean_of], made["block"], loops)
            made[self.mean_of] = graph.call_function(ops.mean_of_sum, given)
        for node in self.nodes:
            if node is self.bound:
                gathers = operation_of(node).gathers
                given = {
                    name: map_arg(value, sources.__getitem__ if name in gathers else find)
                    for name, value in node.kwargs.items()
                }
                given |= {"columns": columns} if node.target in ops.COLUMNWISE else {}
                given |= {"reduce": "sum"} if self.plain else {}
                given |= {"adjoint": True} if self.adjoint else {}
                made[node] = graph.call_function(node.target, (), given)  # pyright: ignore[reportArgumentType]
                if self.term is not None:
                    (rows,) = sources.values()  # a gradient
                    own_rows = rows if self.adjoint else map_arg(self.term.kwargs["other"], find)
                    loop = map_arg(self.term.kwargs["loop"], find)
                    given = (made[node], own_rows, loop, made["block"])
                    add = terms.add_own_grad if self.adjoint else terms.add_own
                    made[node] = graph.call_function(add, given)
            elif node is self.term:
                left = dict(node.kwargs) | dict.fromkeys(_TERM)
                given = {name: map_arg(value, find) for name, value in left.items()}
                sources_of = self.sources(node)
                idle = len(sources_of) == 1 and given["act"] == "none"  # nothing else is to be done
                if idle:
                    made[node] = find(sources_of[0])
                else:
                    made[node] = graph.call_function(ops.finish_rows, (), given)
            else:
                made[node] = graph.node_copy(node, find)
                if node in unread:
                    made[node].target = unread_rows
        graph.output(tuple(made[n] for n in self.writes.values()))
        code = graph.python_code("self")
        space = dict(code.globals)
        exec(code.src, space)
        return space["forward"]


def _leaves_out_loops(node: Node) -> bool:
    """Whether the in-edges that a mean counts are without loops: weighted loops count as 0."""
    return bool(node.kwargs["skip_loops"]) and node.kwargs["weight"] is None


def operation_of(node: Node) -> Operation:
    return node.target.operation  # pyright: ignore[reportFunctionMemberAccess, reportAttributeAccessIssue]


def is_operation(node: Node, *kinds: str) -> bool:
    return hasattr(node.target, "operation") and operation_of(node).kind in kinds


def is_bound(node: Node) -> bool:
    """Whether a stage begins with the node."""
    return is_operation(node, "graph", "statistic")


def is_statistic(node: Node) -> bool:
    return is_operation(node, "statistic")


def gathered_by(node: Node) -> list[Node]:
    """The nodes that a graph operation reads as rows of sources."""
    if not is_bound(node):
        return []
    found: list[Node] = []
    for name in operation_of(node).gathers:
        map_arg(node.kwargs[name], found.append)
    return found


def own_inputs(node: Node) -> list[Node]:
    """The nodes that a graph operation reads as own rows, rows of edges or parameters."""
    found: list[Node] = []
    for name, value in node.kwargs.items():
        if name not in operation_of(node).gathers:
            map_arg(value, found.append)
    return found


def is_item(node: Node) -> bool:
    return any(fact(n).kind == "mixed" for n in node.all_input_nodes)


def rows_of(name: str, node: Node) -> Rows:
    value = fact(node).value
    of = "edges" if fact(node).kind == "edges" else "nodes"
    return Rows(name=name, shape=tuple(value.shape[1:]), dtype=value.dtype, of=of)


def suffix(ordinal: int) -> str:
    """Nothing, a, b ... z, aa ...: for the first, second, third ... of its kind."""
    text = ""
    while ordinal > 0:
        ordinal, letter = divmod(ordinal - 1, 26)
        text = ascii_lowercase[letter] + text
    return text
