"""Planned: whether a plan is one of what is trained: its graph, its model, its budget."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import nn

from tiergnn.errors import ConfigError, PlanError
from tiergnn.graph.csr import Graph
from tiergnn.models.trace import trace
from tiergnn.planner.plan import Plan
from tiergnn.training.examples import dtype_of, example_rows
from tiergnn.training.features import choose_features
from tiergnn.training.options import Options
from tiergnn.training.randomness import random_state
from tiergnn.units import format_bytes
from tiergnn.workload import Workload


class Outline(NamedTuple):
    """What tells models apart before they run; the names are those that a refusal says."""

    stages: list[tuple[str, tuple[str, ...], set[str], tuple[str, ...]]]
    widths: Mapping[str, int]
    dtype: str
    parameters: int  # bytes

    def __str__(self) -> str:
        return (
            f"{len(self.stages)} stages, rows of {sum(self.widths.values())} {self.dtype} numbers "
            f"in all, {self.parameters:,} bytes of parameters"
        )


def check_plan(plan: Plan, graph: Graph, model: nn.Module, options: Options) -> None:
    """Before anything is held: raises PlanError for a plan of another graph or model, or that holds
    more than is allowed; ConfigError for one that prepares rows where none may be."""
    plan.check_graph(graph.num_nodes, graph.num_edges)
    if plan.workload.prepared and options.prepare is False:
        raise ConfigError(
            "the plan prepares rows, and prepare is False",
            hint="a plan made with prepare=False (--no-prepare)",
        )
    planned, found = _planned(plan.workload), _found(plan.workload, graph, model, options)
    if planned != found:
        pairs = zip(Outline._fields, planned, found, strict=True)
        other = " and ".join(name for name, a, b in pairs if a != b)
        raise PlanError(
            f"the plan is of another model, whose {other} are not those of this one\n"
            f"  planned: {planned}\n  this: {found}",
            culprit=f"the plan's workload, {plan.workload.name}",
            hint="the options that the plan was made with, or a plan of this very model: "
            "tiergnn.plan(graph, model), tiergnn plan --out",
        )
    budget = options.device_memory_bytes
    held = 0 if budget is None else plan.peak_bytes.get("device", 0)
    if budget is not None and held > budget:
        raise PlanError(
            f"the plan holds {format_bytes(held)} ({held:,} bytes) on the device, device_memory "
            f"allows {format_bytes(budget)} ({budget:,} bytes)",
            culprit=f"the plan, {plan.strategy} {plan.knobs}",
            hint=f"a plan made with that device_memory, or device_memory={held}",
        )


def _planned(workload: Workload) -> Outline:
    return Outline(
        [(s.op, s.gathers, {*s.reads}, s.writes) for s in workload.stages],
        {rows.name: rows.width for rows in workload.rows},
        workload.dtype,
        workload.parameter_bytes,
    )


def _found(planned: Workload, graph: Graph, model: nn.Module, options: Options) -> Outline:
    """The model's, where it lies: what a GPU holds before a run is not of the run."""
    if any(nn.parameter.is_lazy(p) for p in (*model.parameters(), *model.buffers())):
        model = copy.deepcopy(model)  # whose first values are given where it is trained
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    width = choose_features(graph, options.features).width
    with random_state(device, options.seed):
        rows = example_rows(graph, width, device, dtype_of(model, None))
        program = trace(model, rows, training=True, prepared=bool(planned.prepared))
    stages = []
    for s in program.stages:
        own = {*s.reads, *s.edges} | ({s.statistic.of} if s.statistic else set())
        stages.append((s.op, s.gathers, own, s.writes))
    dtype = dtype_of(model, options.dtype)
    return Outline(
        stages,
        {name: kind.width for name, kind in program.rows.items()},
        str(dtype).removeprefix("torch."),
        sum(p.numel() * dtype.itemsize for p in model.parameters()),
    )
