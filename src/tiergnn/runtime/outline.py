"""Outline: the workload of a program as far as it can be read off it, without running anything.

Rows and parameters have their bytes; what stages hold beyond them is what the meter is for.
"""

from __future__ import annotations

import torch

from tiergnn.graph.csr import Graph
from tiergnn.graph.shape import GraphShape, Histogram
from tiergnn.models.stages import Program, Stage
from tiergnn.models.stages import Rows as ProgramRows
from tiergnn.row_kinds import RowKind
from tiergnn.workload import Peak, Size, StageWork, Workload


def outline(program: Program, *, dtype: torch.dtype, learned: bool) -> Workload:
    """``learned``: whether the features x are parameters."""
    parameters = program.stages[0].root.parameters() if program.stages else ()
    parameter_bytes = sum(p.numel() * p.element_size() for p in parameters)
    return Workload(
        name="outline",
        dtype=_name(dtype),
        rows=tuple(_kind(program, rows, learned) for rows in program.rows.values()),
        inputs=program.needs,
        output=program.output,
        stages=tuple(_stage(stage, parameter_bytes) for stage in program.stages),
        loss=(),
        loss_held=Peak(),
        step=(),
        step_held=0,
        parameter_bytes=parameter_bytes,
        optimizer_bytes=0,
    )


def counts_of(graph: Graph, name: str = "graph") -> GraphShape:
    """The shape of a graph as far as bytes go: all edges as if they were of one node."""
    edges = Histogram((0,), (float(graph.num_nodes),))
    if graph.num_edges:
        edges = Histogram((0, graph.num_edges), (graph.num_nodes - 1.0, 1.0))
    return GraphShape(
        name=name,
        num_nodes=graph.num_nodes,
        num_edges=graph.num_edges,
        in_degrees=edges,
        out_degrees=edges,
        num_features=0 if graph.x is None else graph.x.width,
        feature_dtype="float32" if graph.x is None else graph.x.dtype,
        num_classes=graph.num_classes or 0,
        num_labelled=0,
        edge_features=0 if graph.edge_attr is None else graph.edge_attr.width,
        weighted=graph.edge_weight is not None,
    )


def _kind(program: Program, rows: ProgramRows, learned: bool) -> RowKind:
    grad = rows.dtype.is_floating_point
    if rows.name in program.needs:
        grad = learned and rows.name == "x"
    return RowKind(name=rows.name, width=rows.width, dtype=_name(rows.dtype), of=rows.of, grad=grad)


def _stage(stage: Stage, parameter_bytes: int) -> StageWork:
    of = "" if stage.statistic is None else stage.statistic.of
    reads = [*([of] if of else []), *stage.reads, *stage.edges]
    return StageWork(
        index=stage.index,
        kind=stage.kind,
        op=stage.op,
        gathers=stage.gathers,
        reads=tuple(dict.fromkeys(reads)),
        writes=stage.writes,
        frees=stage.frees,
        saves=(),
        columnwise=False,
        forward=(),
        backward=(),
        forward_held=Peak(),
        kept=Size(),
        kept_held=Peak(),
        backward_held=Peak(),
        parameter_bytes=parameter_bytes,  # those of the model: a bound
        moments_of=of,
        statistics=stage.statistics,
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
