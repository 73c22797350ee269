"""Fixed: what the graph and its features alone decide, the same at every step of a training."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from tiergnn.models.code import EDGE_INPUTS, is_operation
from tiergnn.models.traced import fact, is_traced

GIVEN = ("x", *EDGE_INPUTS, "block")


def is_fixed(node: Node) -> bool:
    """Whether a node depends on no parameter, buffer or key, and on no statistic, whose running
    values move with every step."""
    if "fixed" not in node.meta:
        if node.op == "placeholder":
            fixed = node.target in GIVEN
        else:
            fixed = node.op in ("call_function", "call_method") and not (
                is_operation(node, "statistic", "dropout") or fact(node).kind in ("mixed", "key")
            )
            fixed = fixed and all(is_fixed(n) for n in node.all_input_nodes)
        node.meta["fixed"] = fixed
    return node.meta["fixed"]


def is_free_to_aggregate(x: Any) -> bool:
    """Whether an aggregation of rows ``x`` is made once for all steps, however wide they are."""
    return is_traced(x) and x.tracer.prepares and is_fixed(x.node)
