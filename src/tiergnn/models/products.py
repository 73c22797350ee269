"""Products of a traced graph: those of rows with a weight become ``linear_rows``, which knows how
they are multiplied fast. Elsewhere than on a GPU the numbers are the same to the bit.

A module is called as it stands where it is more than its product: with hooks, parametrized, or of a
class of the user's own.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.fx import Graph, Node
from torch.nn import functional as F

from tiergnn.kernels.product import linear_rows
from tiergnn.models.linear import is_product
from tiergnn.models.traced import Fact, fact

PRODUCTS = (F.linear, linear_rows)
_NAMES = ("input", "weight", "bias")


def join_products(graph: Graph, root: nn.Module) -> None:
    """Change ``graph``, which computes the same but for rounding."""
    for node in list(graph.nodes):
        given = _given(graph, root, node)
        if given is None:
            continue
        with graph.inserting_before(node):
            made = graph.call_function(linear_rows, given)
        made.meta["fact"] = fact(node)
        node.replace_all_uses_with(made)
        graph.erase_node(node)


def _given(graph: Graph, root: nn.Module, node: Node) -> tuple[Any, ...] | None:
    """Rows, weight and bias of a product; None of another node."""
    if node.op == "call_function" and node.target is F.linear:
        given = dict(zip(_NAMES, node.args, strict=False)) | node.kwargs
        return tuple(given.get(name) for name in _NAMES) if _is_table(given["input"]) else None
    if node.op != "call_module" or not _is_table(node.args[0] if node.args else None):
        return None
    module = root.get_submodule(str(node.target))
    if not is_product(module):
        return None
    return node.args[0], *(_parameter(graph, node, module, name) for name in ("weight", "bias"))


def _parameter(graph: Graph, node: Node, module: nn.Module, name: str) -> Node | None:
    value = module._parameters[name]
    if value is None:
        return None
    with graph.inserting_before(node):
        made = graph.get_attr(f"{node.target}.{name}")
    known = fact(node)
    made.meta["fact"] = Fact("whole", value.detach(), place=known.place, path=known.path)
    return made


def _is_table(node: Any) -> bool:
    """Rows [V, D], or of edges."""
    if not isinstance(node, Node) or fact(node).kind not in ("rows", "edges"):
        return False
    value = fact(node).value
    return isinstance(value, Tensor) and value.dim() == 2
