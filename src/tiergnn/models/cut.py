"""Cutting a traced graph into stages: which stage computes a row, and what is kept for later ones.

Row-local code may run in any stage from the one that gives its last input to the first that uses
it. It runs where fewer bytes of rows have to be stored and read for it; where that is a tie, early.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn
from torch.fx import Graph, Node

from tiergnn.models import dropouts
from tiergnn.models import functional as ops
from tiergnn.models.code import (
    Code,
    gathered_by,
    is_bound,
    is_item,
    is_operation,
    is_statistic,
    rows_of,
    suffix,
)
from tiergnn.models.epilogues import epilogue_text
from tiergnn.models.halves import adjoint_of, columns_of, halves_of, sums_of
from tiergnn.models.loops import ignores_loops, leaves_out_loops
from tiergnn.models.moments import moments
from tiergnn.models.products import PRODUCTS
from tiergnn.models.rowlocal import name_of
from tiergnn.models.stages import AS_IT_STANDS, Program, Rows, Stage, Statistic
from tiergnn.models.traced import fact


def cut(graph: Graph, root: nn.Module, *, training: bool) -> Program:
    """The Program of a graph that ``ModelTracer`` made of ``root``."""
    graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
    return _Cut(graph, root, training).program()


@dataclass
class _Cut:
    graph: Graph
    root: nn.Module
    training: bool
    num_stages: int = 1
    first: dict[Node, int] = field(default_factory=dict)  # the first stage that could run a node
    stage: dict[Node, int] = field(default_factory=dict)  # the one that does, of stored nodes
    names: dict[Node, str] = field(default_factory=dict)  # of row tensors and statistics
    between: dict[str, Rows] = field(default_factory=dict)  # what halves of stages hand over

    def program(self) -> Program:
        self._find_stages()
        for node in reversed(self.graph.nodes):
            self._place(node)
        self._name()
        stages = [self._describe(index) for index in range(self.num_stages)]
        placeholders = [n for n in self.graph.nodes if n.op == "placeholder" and n.users]
        needs = [str(n.target) for n in placeholders if fact(n).kind in ("rows", "edges")]
        named = {n: name for n, name in self.names.items() if not is_statistic(n)}
        named |= {n: str(n.target) for n in placeholders if n.target in needs}
        return Program(
            training=self.training,
            needs=tuple(needs),
            stages=tuple(s for s in stages if s.writes or s.statistic is not None),
            rows={name: rows_of(name, node) for node, name in named.items()},
            between=self.between,
            output=self.names[self._output()],
        )

    # Which stage a node runs in

    def _find_stages(self) -> None:
        """Number the operations, and start from every node running as early as it can."""
        for node in self.graph.nodes:
            self.first[node] = max((self.first[n] for n in node.all_input_nodes), default=0)
            if is_bound(node):
                self.first[node] = self.num_stages
                self.num_stages += 1
            if self._is_stored(node):
                self.stage[node] = self.first[node]

    def _is_stored(self, node: Node) -> bool:
        """Whether one stage computes a node and others read it; the rest is made where it is used.

        What comes of parameters, inputs of edges and the block alone is not stored, unless it
        was dropped out, which costs more than to read it.
        """
        if node.op == "placeholder":
            return fact(node).kind == "rows"
        if node.op == "output":
            return False
        if is_bound(node):
            return True
        if fact(node).kind == "whole":
            return False
        if is_operation(node, "dropout"):
            return True
        from_rows = any(n in self.stage and not is_statistic(n) for n in node.all_input_nodes)
        return from_rows or any(
            user.op == "output" or is_statistic(user) or node in gathered_by(user)
            for user in node.users
        )

    def _place(self, node: Node) -> None:
        """Move row-local code to the first stage that uses it, if that is cheaper."""
        if not self._is_movable(node):
            return
        early, late = self.first[node], min(self._use(node, user)[0] for user in node.users)
        if late > early and self._is_cheaper(node, late, early):
            self.stage[node] = late

    def _is_cheaper(self, node: Node, late: int, early: int) -> bool:
        """A tie goes to the early stage, but for a source that serves several stages."""
        if fact(node).kind == "edges":  # it reads no rows of nodes
            return True
        gain = self._cost(node, early) - self._cost(node, late)
        shared = any(len(n.users) > 1 for n in node.all_input_nodes if n in self.stage)
        return gain > 0 or (gain == 0 and shared)

    def _is_movable(self, node: Node) -> bool:
        """Row-local code; the items of a tuple stay with the call that made it."""
        if node not in self.stage or node.op == "placeholder" or is_bound(node):
            return False
        return all(fact(n).kind != "mixed" for n in (node, *node.all_input_nodes))

    def _use(self, node: Node, user: Node) -> tuple[int, int]:
        """The last stage that may compute ``node`` for ``user``, and the stage that uses it."""
        if user.op == "output":
            return self.num_stages - 1, self.num_stages - 1
        stage = self.stage[user]
        before = is_bound(user) and fact(node).kind == "rows"
        return stage - before, stage

    def _cost(self, node: Node, stage: int) -> int:
        """Bytes a row that are stored and read if ``node`` runs in ``stage``."""
        kept = any(self._use(node, user)[1] > stage for user in node.users)
        return 2 * _row_bytes(node) * kept + self._read_cost(node, stage)

    def _read_cost(self, node: Node, stage: int) -> int:
        """Bytes a row of having all inputs of ``node`` in ``stage``."""
        total = 0
        for source in node.all_input_nodes:
            others = [user for user in source.users if user is not node]
            if source not in self.stage or is_statistic(source):
                continue
            if self.stage[source] == stage and source.op != "placeholder":
                continue
            if any(self._use(source, user)[1] == stage for user in others):
                continue
            read = _row_bytes(source)
            home = self.stage[source]
            if source.op == "placeholder" or any(self._use(source, u)[1] > home for u in others):
                total += read
            elif self._is_movable(source) and not others and self.first[source] <= stage:
                total += min(2 * read, self._read_cost(source, stage))
            else:
                total += 2 * read
        return total

    # What a stage is

    def _output(self) -> Node:
        returned = next(n for n in self.graph.nodes if n.op == "output").args[0]
        assert isinstance(returned, Node)
        return returned

    def _name(self) -> None:
        """Name the rows that outlive their stage h1, h1a, h1b ... and statistics s2, s3 ..."""
        count = [0] * self.num_stages
        for node in self.graph.nodes:
            if node.op == "placeholder" and fact(node).kind == "rows":
                self.names |= {node: str(node.target)} if node.users else {}
            elif is_statistic(node):
                self.names[node] = f"s{self.stage[node]}"
            elif node in self.stage and (
                node is self._output()
                or any(self._use(node, user)[1] > self.stage[node] for user in node.users)
            ):
                stage = self.stage[node]
                letter = "e" if fact(node).kind == "edges" else "h"
                self.names[node] = f"{letter}{stage}{suffix(count[stage])}"
                count[stage] += 1

    def _nodes_of(self, index: int) -> list[Node]:
        """The nodes that a stage runs, in order: its own and what is made where it is used."""
        own = {n for n, s in self.stage.items() if s == index and n.op != "placeholder"}
        own = {n for n in own if not is_statistic(n)}
        waiting = list(own)
        while waiting:
            for source in waiting.pop().all_input_nodes:
                if source not in own and source not in self.stage and source.op != "placeholder":
                    own.add(source)
                    waiting.append(source)
        return [n for n in self.graph.nodes if n in own]

    def _describe(self, index: int) -> Stage:
        nodes = self._nodes_of(index)
        bound = next((n for n, s in self.stage.items() if s == index and is_bound(n)), None)
        writes = {self.names[n]: n for n in nodes if n in self.names}
        graph = bound is not None and not is_statistic(bound)
        code = Code(
            nodes=tuple(nodes), bound=bound if graph else None, names=self.names, writes=writes
        )
        statistic = None
        if bound is not None and is_statistic(bound):
            follow, least_rows = bound.meta.get("statistic", (None, 1))
            (source,) = bound.all_input_nodes
            statistic = Statistic(
                name=self.names[bound],
                of=self.names[source],
                least_rows=least_rows,
                follow=follow,
            )
        shown = bound or next(iter(n for n in nodes if n in self.stage), None)
        stage = Stage(
            index=index,
            kind="rows" if bound is None else "statistic" if statistic else "graph",
            op=_operation_text(bound),
            frees=self._freed_after(index),
            module=fact(shown).path if shown is not None else "",
            place=fact(shown).place if shown is not None else "",
            statistic=statistic,
            root=self.root,
            skips_loops=graph and _skips_loops(bound),
            ignores_loops=ignores_loops(nodes),
            leaves_out_loops=leaves_out_loops(nodes),
            **self._fields(code),
        )
        if not graph:
            return replace(stage, by_degrees=code.by_degrees)
        halves = halves_of(code, index)
        self.between |= {name: rows_of(name, node) for name, node in halves[0].writes.items()}
        sums, columns = sums_of(code, index), columns_of(code, index)
        adjoint = adjoint_of(columns[0], index) if columns and sums else None
        divisible = bool(sums) and sums[0].plain_sum and adjoint is not None
        return replace(
            stage,
            halves=self._divided(stage, halves),
            sums=self._divided(stage, sums),
            columns=self._divided(stage, columns),
            adjoint=replace(stage, **self._fields(adjoint)) if adjoint and divisible else None,
            divisible=divisible,
            by_degrees=bool(sums) and sums[1].by_degrees,
        )

    def _fields(self, code: Code) -> dict[str, Any]:
        """What a stage says of its code."""
        return {
            "gathers": tuple(code.gathers.values()),
            "reads": tuple(code.reads.values()),
            "edges": tuple(code.edges.values()),
            "statistics": tuple(code.statistics.values()),
            "writes": tuple(code.writes),
            "code": tuple(_code_text(n) for n in code.nodes if n in self.stage and not is_item(n)),
            "random": code.random,
            "function": code.function,
            "unread": tuple(code.unread),
            "again": replace(code, again=True).function if code.unread else None,
        }

    def _divided(self, stage: Stage, halves: tuple[Code, ...]) -> tuple[Stage, ...]:
        """Two halves as stages; the first frees what the second does not read."""
        if not halves:
            return ()
        first, second = (self._fields(code) for code in halves)
        read = {*second["reads"], *second["edges"], *second["statistics"], *second["writes"]}
        frees = tuple(name for name in stage.frees if name not in read)
        later = tuple(name for name in stage.frees if name in read)
        return (
            replace(stage, frees=frees, **first),
            replace(stage, kind="rows", op="rows", frees=(*later, *first["writes"]), **second),
        )

    def _freed_after(self, index: int) -> tuple[str, ...]:
        """Names that no later stage reads, of those that exist by then."""
        freed = []
        for node, name in self.names.items():
            last = max((s for s in self._uses(node)), default=self.stage[node])
            if last == index and node is not self._output():
                freed.append(name)
        return tuple(freed)

    def _uses(self, node: Node) -> Iterator[int]:
        """The stages that read a named node; what is made where it is used passes it on."""
        for user in node.users:
            if user.op == "output" or user in self.stage:
                yield self._use(node, user)[1]
            else:
                yield from self._uses(user)


def _row_bytes(node: Node) -> int:
    value = fact(node).value
    return rows_of("", node).row_bytes if isinstance(value, Tensor) else 0


_SIGNS = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.truediv: "/",
    operator.matmul: "@",
}
_SAID = {dropouts.drop_rows: "dropout", ops.scale_rows: "scale"}


def _code_text(node: Node) -> str:
    """One operation in few characters; a graph operation in brackets."""
    if is_bound(node):
        return f"[{_operation_text(node)}]"
    if node.op == "call_module":
        return str(node.target).removeprefix("model.")
    if node.target is ops.finish_rows:
        return epilogue_text(node)
    if node.target in PRODUCTS and isinstance(weight := node.args[1], Node):
        return str(weight.target).removeprefix("model.").removesuffix(".weight")
    return _SIGNS.get(node.target) or _SAID.get(node.target) or name_of(node.target)  # pyright: ignore[reportArgumentType, reportCallIssue]


def _skips_loops(node: Node | None) -> bool:
    """Whether an operation goes over the edges without loops; weighted ones have weights of 0."""
    if node is None or node.target is not ops.propagate:
        return False
    return bool(node.kwargs["skip_loops"]) and node.kwargs["weight"] is None


def _operation_text(node: Node | None) -> str:
    if node is None:
        return "rows"
    given = node.kwargs
    if node.target is ops.propagate:
        weighted = ", weighted" if given["weight"] is not None else ""
        return f"{given['reduce']} of in-edges{weighted}"
    if node.target in (ops.attend_gat, ops.attend_gatv2):
        kind, heads = name_of(node.target).removeprefix("attend_"), fact(node).value.shape[1]
        return f"{kind} of {heads} head{'s' if heads > 1 else ''}"
    if node.target is moments:
        return "moments of all rows"
    layer = given["layer"]
    assert isinstance(layer, Node)
    return f"{type(fact(layer).value).__name__} {AS_IT_STANDS}"
