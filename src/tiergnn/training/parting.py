"""Parting: which partition the ranks of a run take: one that was given, saved, or made now."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from tiergnn.errors import ConfigError, PlanError, StoreError
from tiergnn.graph.csr import Graph
from tiergnn.graph.partition import METHODS, Partition, partition
from tiergnn.graph.partition_folder import list_partitions, open_partition
from tiergnn.planner.plan import Plan

Parts = str | Path | Partition | None  # what users name a partition by
_log = logging.getLogger("tiergnn")


def ranks_of(plan: Plan | None) -> int:
    """How many ranks carry it out."""
    return 1 if plan is None else plan.knobs.ranks


def parts_by(plan: Plan, graph: Graph, asked: Parts) -> Partition:
    """``graph`` in the parts of a plan's ranks, made as the plan has them where nothing is asked.

    Raises PlanError for a plan of another graph, and as ``parts_of``.
    """
    if plan.shape.num_nodes != graph.num_nodes:
        raise PlanError(
            f"the plan is for {plan.shape.num_nodes:,} nodes, the graph has {graph.num_nodes:,}",
            hint="tiergnn.plan(graph, model)",
        )
    method = plan.layout.method if plan.layout.method in METHODS else "auto"
    return parts_of(graph, plan.knobs.ranks, asked, method)


def parts_of(graph: Graph, num_parts: int, asked: Parts, method: str = "auto") -> Partition:
    """``graph`` in ``num_parts`` parts.

    asked: a Partition; a method ("block", "metis", "switching", "auto"); the name of one saved in
    the graph's folder, or its path; None: one saved there of so many parts, else one by ``method``.
    Raises ConfigError for one of another number of parts, StoreError, GraphError.
    """
    if asked is None:
        found = _saved(graph, num_parts)
        return partition(graph, num_parts, method) if found is None else found
    if isinstance(asked, str) and asked in (*METHODS, "auto"):
        return partition(graph, num_parts, asked)
    if not isinstance(asked, str | Path | Partition):
        raise ConfigError(
            f"partition must be a Partition, a method, or the name or path of one, had {asked!r}",
            hint=", ".join((*METHODS, "auto")),
        )
    found = asked if isinstance(asked, Partition) else open_partition(graph, asked)
    if found.num_parts != num_parts:
        raise ConfigError(
            f"the partition has {found.num_parts} parts, {num_parts} ranks want one each",
            hint=f"ranks={found.num_parts} (--ranks), or a partition of {num_parts}",
        )
    if found.part_of.size != graph.num_nodes:
        raise ConfigError(
            f"the partition is of {found.part_of.size:,} nodes, the graph has {graph.num_nodes:,}",
            hint="a partition of this graph",
        )
    return found


def _saved(graph: Graph, num_parts: int) -> Partition | None:
    """The first by name of those saved beside the graph; stale ones are told and passed over."""
    for name in list_partitions(graph):
        try:
            found: Any = open_partition(graph, name)
        except StoreError as error:
            _log.warning("partition passed over: %s", error.problem)
            continue
        if found.num_parts == num_parts:
            _log.info("the saved partition %s", name)
            return found
    return None
