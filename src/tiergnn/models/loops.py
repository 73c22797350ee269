"""Loops: whether a model reads edges from a row to itself, or how it leaves them out."""

from __future__ import annotations

from collections.abc import Iterable

from torch.fx import Node

from tiergnn.models import counts
from tiergnn.models import functional as ops
from tiergnn.models.code import is_operation, operation_of
from tiergnn.models.stages import Program
from tiergnn.models.traced import fact

_OF_ROWS = ("rows", "dropout", "statistic")


def ignores_loops(nodes: Iterable[Node]) -> bool:
    """Whether code gives the same on a block without such edges: its operations leave them out."""
    return all(map(_ignores, nodes))


def _ignores(node: Node) -> bool:
    if fact(node).kind in ("edges", "edge count"):
        return False
    given = node.kwargs
    if node.target is ops.propagate:
        return bool(given["skip_loops"]) and given["weight"] is None
    if node.target is ops.attend_gat:
        return bool(given["self_loop"]) and given["score_edge"] is None
    if node.target is ops.attend_gatv2:
        of_edges = given["edge_attr"], given["edge_weight"]
        return bool(given["self_loop"]) and of_edges == (None, None)
    if node.target is ops.gcn_scale:
        return bool(given["self_loops"]) and given["weight"] is None
    if node.target in (counts.row_ones, counts.num_rows):
        return True
    if hasattr(node.target, "operation"):
        return is_operation(node, *_OF_ROWS) and operation_of(node).of == "rows"
    return not any(n.op == "placeholder" and n.target == "block" for n in node.all_input_nodes)


def leaves_out_loops(nodes: Iterable[Node]) -> bool:
    """Whether an operation goes over edges without loops, or counts them: these are held, then."""
    return any(map(_leaves_out, nodes))


def _leaves_out(node: Node) -> bool:
    given = node.kwargs
    if node.target is ops.propagate:
        return bool(given["skip_loops"]) and given["weight"] is None
    if node.target is ops.gcn_scale:
        return bool(given["self_loops"]) and given["weight"] is None
    if node.target is ops.attend_gat:
        mean = given["score_edge"] is not None and given["score_loop"] is None
        return bool(given["self_loop"]) and mean
    if node.target is ops.attend_gatv2:
        mean = given["edge_attr"] is not None and given["loop_attr"] is None
        return bool(given["self_loop"]) and mean
    return node.target is ops.loop_attr


def without_loops(programs: Iterable[Program]) -> str:
    """What is held of edges without loops, as ``workload.Topology`` has it."""
    programs = list(programs)
    programs += [made.program for program in programs for made in program.prepared]
    stages = [stage for program in programs for stage in program.stages]
    if all(stage.ignores_loops for stage in stages):
        return "alone"
    return "beside" if any(stage.leaves_out_loops for stage in stages) else ""
