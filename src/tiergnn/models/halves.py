"""Halves: a stage of a graph operation as the code up to it, and the row-local code after it.

The first half gathers; the second reads what the first gives, and own rows. What both need of the
block and of parameters alone is made in both; rows of nodes or edges are handed over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.fx import Node

from tiergnn.models import functional as ops
from tiergnn.models.code import EDGE_INPUTS, Code, gathered_by, suffix
from tiergnn.models.traced import fact


def halves_of(code: Code, index: int) -> tuple[Code, Code]:
    """Code up to the graph operation of a stage, and after it; one after the other they give its
    bits. The first writes ``sum.sINDEX``, what the operation gives, and then what else it hands
    over, ``mid.sINDEX``."""
    assert code.bound is not None
    first = _before(code)
    handed = {f"sum.s{index}": code.bound}
    rest = _needed(code.writes.values(), [code.bound, *filter(_is_handed, first)], code)
    ends = set(code.writes.values())
    kept = [
        n
        for n in _ordered(code, first)
        if n is not code.bound and n not in rest and (n in ends or not rest.isdisjoint(n.users))
    ]
    handed |= {f"mid.s{index}{suffix(i)}": n for i, n in enumerate(kept)}
    names = {**code.names, **{n: name for name, n in handed.items()}}
    return (
        replace(code, nodes=_ordered(code, first), writes=handed),
        replace(code, nodes=_ordered(code, rest), bound=None, names=names),
    )


def sums_of(code: Code, index: int) -> tuple[Code, Code] | tuple[()]:
    """Halves of which the first may run on any of a row's edges: over disjoint sets of them its
    sums add up to what the second, on all edges, takes. () where the operation is no sum or mean.
    """
    bound = code.bound
    assert bound is not None
    if bound.target is not ops.propagate or bound.kwargs["reduce"] not in ("sum", "mean"):
        return ()
    first = _before(code)
    if any(fact(n).kind == "rows" for n in first if n is not bound):
        return ()  # of a row's edges all together
    name, mean = f"sum.s{index}", bound.kwargs["reduce"] == "mean"
    rest = _needed(code.writes.values(), [bound], code)
    return (
        replace(code, nodes=_ordered(code, first), writes={name: bound}, plain=mean),
        replace(
            code,
            nodes=_ordered(code, rest),
            bound=None,
            names={**code.names, bound: name},
            mean_of=bound if mean else None,
        ),
    )


def columns_of(code: Code, index: int) -> tuple[Code, Code] | tuple[()]:
    """Halves of which the first may run on a slice of columns of the rows that it gathers first;
    what of edges, the block and parameters both need is made in both. () where columns depend on
    each other. Own rows that a plain sum is added to are added in the first.
    """
    bound = code.bound
    assert bound is not None
    if bound.target not in ops.COLUMNWISE:
        return ()
    code = replace(code, term=_term_of(code, index))
    name, rest = f"sum.s{index}", _needed(code.writes.values(), [bound], code)
    first = _ordered(code, _before(code))
    if code.term is not None:  # what weighs own rows may stand behind the sum
        first = (*(n for n in first if n is not bound), bound)
    return (
        replace(code, nodes=first, writes={name: bound}),
        replace(code, nodes=_ordered(code, rest), bound=None, names={**code.names, bound: name}),
    )


def adjoint_of(code: Code, index: int) -> Code | None:
    """From the gradient of a sum to that of what it gathers, where that is all it takes. Of half a
    stage by columns, with what it gave to own rows."""
    sums = sums_of(replace(code, term=None), index)
    if not sums or sums[0].reads or sums[0].learned:
        return None
    first = sums[0] if code.term is None else code
    ((gathered, name),) = code.gathers.items()
    names = {**code.names, gathered: f"sum.s{index}"}
    return replace(first, names=names, writes={name: code.bound}, plain=False, adjoint=True)


def _term_of(code: Code, index: int) -> Node | None:
    """The epilogue of a plain sum that adds the very rows that were gathered, as they are or times
    what neither parameters nor rows decide."""
    bound = code.bound
    assert bound is not None
    if adjoint_of(code, index) is None or bound.kwargs["reduce"] != "sum":
        return None
    ends = [n for n in code.nodes if n.target is ops.finish_rows and n.kwargs["x"] is bound]
    (gathered,) = code.gathers
    if len(bound.users) != 1 or not ends or ends[0].kwargs["other"] is not gathered:
        return None
    return ends[0] if _is_given(ends[0].kwargs["loop"], code) else None


def _is_given(loop: Any, code: Code) -> bool:
    """Whether the block, edges and what needs no gradient make a number, of each row or of all."""
    waiting, seen = [n for n in [loop] if isinstance(n, Node)], set()
    while waiting:
        node = waiting.pop()
        value = fact(node).value
        learned = node.op == "call_module" or (isinstance(value, Tensor) and value.requires_grad)
        if learned or (node in code.names and node.op != "placeholder"):
            return False
        if node.op == "placeholder" and node.target not in ("block", *EDGE_INPUTS):
            return False
        waiting += [n for n in node.all_input_nodes if n not in seen]
        seen.update(node.all_input_nodes)
    return True


def _before(code: Code) -> set[Node]:
    """The operation and what it is made of, with all items of tuples among that."""
    assert code.bound is not None
    found = _needed([code.bound], (), code)
    inside = set(code.nodes)
    tuples = [n for n in found if fact(n).kind == "mixed"]
    while tuples:
        items = [n for n in tuples.pop().users if n in inside and n not in found]
        found.update(items)
        tuples += [n for n in items if fact(n).kind == "mixed"]
    return found


def _needed(ends: Iterable[Node], given: Iterable[Node], code: Code) -> set[Node]:
    """The nodes that make ``ends`` where ``given`` are there already."""
    inside, given = set(code.nodes), set(given)
    found: set[Node] = set()
    waiting = [n for n in ends if n in inside and n not in given]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += [n for n in code.sources(node) if n in inside and n not in given]
            waiting += [n for n in gathered_by(node) if n in inside and n not in given]
    return found


def _is_handed(node: Node) -> bool:
    """Rows of nodes and edges, unless they are made of the block and of parameters alone."""
    if fact(node).kind not in ("rows", "edges"):
        return False
    waiting, seen = [node], {node}
    while waiting:
        for source in waiting.pop().all_input_nodes:
            if source.op == "placeholder" and source.target not in ("block", "key"):
                return True
            if source not in seen:
                seen.add(source)
                waiting.append(source)
    return False


def _ordered(code: Code, nodes: set[Node]) -> tuple[Node, ...]:
    return tuple(n for n in code.nodes if n in nodes)
