"""Planning: from what a user names (a graph, a model, a machine, budgets) to plans.

Nothing here imports torch before a model has to be traced: a graph folder (or the shape of a
graph) and a workload, with a machine that is named, are planned without it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from tiergnn.errors import ConfigError, PlanError, StoreError, unknown
from tiergnn.graph.csr import Graph
from tiergnn.graph.partition import partition
from tiergnn.graph.published import SHAPES, published_shape
from tiergnn.graph.shape import GraphShape, Layout, expected_layout, layout_of, shape_of
from tiergnn.hardware.capacities import ASIDE_BYTES
from tiergnn.hardware.machine import Machine, Tier
from tiergnn.hardware.presets import PRESETS, resolve
from tiergnn.hardware.sharing import shared
from tiergnn.planner.choose import Choosing, best
from tiergnn.planner.models import CLASSIC, classic
from tiergnn.planner.plan import Plan
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.planner.strategies.known import RANKED
from tiergnn.training.features import check_nodes
from tiergnn.training.options import Options, check_count, is_number
from tiergnn.training.parting import Parts, parts_of
from tiergnn.units import format_bytes, format_count
from tiergnn.workload import Workload

IN_PLACE = ("leo", "mgg", "uva")  # they read rows of others where those lie
_COUNTED_EDGES = 20_000_000  # up to here parts are counted, not estimated: a pass for each number


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """Bytes that a plan may hold in each tier; None: what there is. ``disk``: a folder, or none."""

    device_bytes: int | None = None
    host_bytes: int | None = None
    disk: str | Path | None = None


def question(
    graph: Graph | GraphShape | str | Path | Any,
    model: Any,
    options: Options,
    *,
    machine: Machine | str | Path | None = None,
    budgets: Budgets | None = None,
    ranks: int = 1,
    parts: Parts = None,
    storage: tuple[str, ...] = (),
    hot_frac: float | None = None,
    thorough: bool = False,
) -> Choosing:
    """All that plans are chosen from, as ``api.plan`` takes it. Raises as that does.

    ``parts``: see ``parting.parts_of``; without any, ``thorough`` tries fewer ranks as well.
    """
    budgets = budgets or Budgets()
    check_count("ranks", ranks)
    if hot_frac is not None and not (is_number(hot_frac) and 0 <= hot_frac <= 1):
        raise ConfigError(f"hot_frac must be a fraction from 0 to 1, had {hot_frac!r}")
    if not isinstance(budgets.disk, str | Path | None):
        raise ConfigError(f"disk must be a folder, had {budgets.disk!r}", hint='disk="scratch"')
    if budgets.disk is not None and not Path(budgets.disk).is_dir():
        there = Path(budgets.disk).exists()
        raise ConfigError(
            f"there is no folder {budgets.disk} whose disk could be used",
            hint="a folder, not a file" if there else f"mkdir -p {shlex.quote(str(budgets.disk))}",
        )
    graph = _graph(graph)
    check_nodes(graph.num_nodes)
    notes: list[str] = []
    found = None if machine is None else _named(machine, budgets, ranks)
    workload, prepared = _workload(graph, model, options)
    split = _training_nodes(graph, options)
    shape = _shape(graph, split, workload)
    counted = None
    fewer = thorough and ranks > 1 and parts is None
    if isinstance(graph, Graph) and fewer:
        counted = cache(lambda num_parts, _: _as_ranks(graph, shape, split, num_parts))
    elif isinstance(graph, Graph) and ranks > 1:
        layout = layout_of(parts_of(graph, ranks, parts), graph, split)
        counted = _only(layout)
    elif parts is not None:
        raise ConfigError(
            "a partition is for several ranks on a graph that is here", hint="ranks=N (--ranks)"
        )
    elif isinstance(graph, Graph):
        counted = _counted(graph, shape, notes)
    if found is None:  # last, since it may have to be measured
        found = _here(options, budgets, ranks, notes)
    return Choosing(
        workload=workload,
        shape=shape,
        machine=found,
        ranks=ranks,
        storage=storage,
        hot_frac=hot_frac,
        prepared=prepared,
        layout_of=counted,
        notes=tuple(notes),
        scratch="" if budgets.disk is None else str(budgets.disk),
        thorough=thorough,
        fewer=fewer,
    )


def forecast(graph: Any, model: Any, choices: Mapping[str, Any]) -> Plan | str:
    """The plan of training with everything on the device, or why there is none, in words.

    Nothing is measured for it: the rates of this machine must be known.
    """
    from tiergnn.hardware.measure import known
    from tiergnn.training.assemble import pick_device

    options = Options(**choices)
    machine = known(device=pick_device(options.device).type)
    if machine is None:
        return "this machine has not been measured; `tiergnn machine` does so, once, in 20 s"
    budgets = Budgets(device_bytes=options.device_memory_bytes)
    asked = question(graph, model, options, machine=machine, budgets=budgets)
    trial = asked.trial("resident", Knobs(), asked.prepared)
    if trial.plan is None:
        return "" if trial.refused is None else trial.refused.problem.splitlines()[0]
    return trial.plan


def for_ranks(
    graph: Graph,
    model: Any,
    options: Options,
    ranks: int,
    *,
    like: Plan | None = None,
    parts: Parts = None,
) -> Plan | None:
    """The fastest plan that so many ranks here carry out; None for one, which holds everything.

    ``like``: a plan of the same model, whose strategy is kept where it is one of several ranks.
    Raises as ``api.plan``.
    """
    if ranks == 1:
        return None
    names = [like.strategy] if like is not None and like.strategy in RANKED else []
    asked = question(
        graph,
        model if like is None or like.workload.prepared else like.workload,
        options,
        budgets=Budgets(device_bytes=options.device_memory_bytes),
        ranks=ranks,
        parts=parts,
    )
    return best(asked.trials(names or carried_out(options, ranks)))


def carried_out(options: Options, ranks: int) -> list[str]:
    """The strategies that so many ranks carry out over the transport that they will have."""
    from tiergnn.training.assemble import pick_device
    from tiergnn.training.joined import hosts_here
    from tiergnn.transport.pick import pick, probe

    on_gpu = pick_device(options.device).type == "cuda"
    choice = pick(probe(ranks, one_host=hosts_here() == 1, on_gpu=on_gpu), options.transport)
    in_place = choice.name not in ("gloo", "nccl")
    return [name for name in RANKED if in_place or name not in IN_PLACE]


def _graph(graph: Any) -> Graph | GraphShape:
    """A graph or the shape of one: itself, a folder, a shape's JSON file, a published name."""
    if isinstance(graph, Graph | GraphShape):
        return graph
    if not isinstance(graph, str | Path):
        return Graph.from_pyg(graph)
    path = Path(graph)
    if path.is_file() and path.suffix == ".json":
        return GraphShape.load(path)
    if path.exists():
        return Graph.open(path)
    if str(graph) in SHAPES:
        return published_shape(str(graph))
    if len(path.parts) == 1:
        raise StoreError(
            f"{graph!r} is neither a graph folder nor a graph whose counts are known",
            hint=f"{unknown('graph', graph, SHAPES).hint}; `tiergnn ingest SRC --out DIR` makes a "
            "graph folder",
        )
    return Graph.open(path)


def _workload(
    graph: Graph | GraphShape, model: Any, options: Options
) -> tuple[Workload, Workload | None]:
    """The workload of a model, and that where rows are prepared, if there are any."""
    if isinstance(model, str | Path) and Path(model).suffix == ".json":
        model = Workload.load(model)
    if isinstance(model, Workload):
        prepared = None if options.prepare is False else model.prepared_form
        return replace(model, prepared_form=None), prepared
    if isinstance(graph, Graph):
        from tiergnn.training.assemble import build, model_spec
        from tiergnn.training.metering import prepares, workload_of

        spec = model_spec(model, graph, options.features)
        made: Any = model if spec is None else build(spec, options.seed)
        whole = workload_of(graph, made, options)
        if options.prepare is False or not prepares(graph, made, options):
            return whole, None
        return whole, workload_of(graph, made, options, prepared=True)
    named = {"name": model} if isinstance(model, str) else model
    if not isinstance(named, Mapping) or named.get("name") not in CLASSIC:
        raise ConfigError(
            f"for the shape of a graph the model is a workload or one of {', '.join(CLASSIC)}, "
            f"had {model!r}",
            hint="tiergnn plan GRAPH --model ... --save-workload w.json on a small graph of the "
            "same widths, then --model w.json",
        )
    known = {"hidden_channels": "hidden", "num_layers": "layers"}
    if named["name"] == "gat":
        known["heads"] = "heads"
    given = {known[key]: value for key, value in named.items() if key in known}
    strangers = [key for key in named if key not in ("name", *known)]
    if strangers:
        raise ConfigError(
            f"a workload of {named['name']} counted by hand does not know {strangers[0]}",
            hint=", ".join(known),
        )
    widths: dict[str, Any] = {"hidden": 64, "layers": 2} | given
    counted = classic(
        named["name"],
        graph.num_features,
        graph.num_classes,
        dtype=options.dtype or "float32",
        **widths,
    )
    return counted, None


def _training_nodes(graph: Graph | GraphShape, options: Options) -> Any:
    """The nodes that make the loss: their ids, or the split that has them."""
    if isinstance(graph, GraphShape) or graph.y is None:
        return "train"
    from tiergnn.training.splits import choose_splits

    return choose_splits(graph, options.split, options.seed)["train"]


def _shape(graph: Graph | GraphShape, split: Any, workload: Workload) -> GraphShape:
    if isinstance(graph, GraphShape):
        _check_widths(graph, workload)
        return graph
    shape = shape_of(graph, split)
    if "x" not in workload.inputs:
        return shape
    features = workload.row_kind("x")
    if features.width == shape.num_features:
        return shape
    # Made features: as wide and as stored as the model reads them.
    return replace(shape, num_features=features.width, feature_dtype=features.dtype)


def _check_widths(shape: GraphShape, workload: Workload) -> None:
    """Raises ConfigError for a workload that reads features of another width than a shape's."""
    width = workload.row_kind("x").width if "x" in workload.inputs else shape.num_features
    if width != shape.num_features:
        raise ConfigError(
            f"the workload reads features of {width} columns, {shape.name} has "
            f"{shape.num_features}",
            hint="a workload of a graph with the same widths",
        )


def _as_ranks(graph: Graph, shape: GraphShape, split: Any, num_parts: int) -> Layout:
    """The parts that so many ranks would have."""
    if num_parts == 1:
        return expected_layout(shape, 1)
    return layout_of(parts_of(graph, num_parts, None), graph, split)


def _only(layout: Layout) -> Callable[[int, float], Layout]:
    """The parts that the ranks have, whatever a strategy of one device would ask for."""

    def count(num_parts: int, hot_frac: float) -> Layout:
        if num_parts != layout.num_parts:
            raise PlanError(
                f"the graph is in {layout.num_parts} parts, one a rank, wanted {num_parts}",
                hint="a strategy of several ranks, or ranks=1",
            )
        return layout

    return count


def _counted(graph: Graph, shape: GraphShape, notes: list[str]) -> Any:
    """The graph in so many parts of consecutive nodes: counted, or expected where that is long."""
    if graph.num_edges > _COUNTED_EDGES:
        notes.append(
            f"parts are estimated from degrees: counting {format_count(graph.num_edges)} edges "
            "for every number of parts would take longer than planning"
        )
        return cache(lambda num_parts, _: expected_layout(shape, num_parts))

    def count(num_parts: int, hot_frac: float) -> Layout:
        if num_parts == 1:
            return expected_layout(shape, 1)
        return layout_of(partition(graph, num_parts, "block"), graph, hot_frac=hot_frac)

    return cache(count)


def _named(machine: Machine | str | Path, budgets: Budgets, ranks: int) -> Machine:
    """Raises ConfigError for what names none, PlanError for one of fewer devices than ranks."""
    if not isinstance(machine, Machine | str | Path):
        raise ConfigError(
            f"machine must be a Machine, its JSON file or a preset, had {machine!r}",
            hint=", ".join(PRESETS),
        )
    found = machine if isinstance(machine, Machine) else resolve(machine)
    count = _devices(found)
    if count < ranks:
        larger = [name for name in PRESETS if _devices(resolve(name)) >= ranks]
        raise PlanError(
            f"{ranks} ranks need as many devices, {found.name} has {count}",
            hint=f"ranks={count} (--ranks), or a machine with more: "
            + ", ".join([*larger, "a file of `tiergnn machine --out`"]),
        )
    return found.with_budgets(device_bytes=budgets.device_bytes, host_bytes=budgets.host_bytes)


def _devices(machine: Machine) -> int:
    return machine.num_devices * machine.num_hosts


def _here(options: Options, budgets: Budgets, ranks: int, notes: list[str]) -> Machine:
    """This host, which has a place for any number of ranks, or torchrun's share of several."""
    from tiergnn.hardware.measure import measure
    from tiergnn.training.assemble import pick_device
    from tiergnn.training.joined import hosts_here

    kind = pick_device(options.device).type
    found = measure(budgets.disk or ".", device=kind)
    if budgets.disk is None:
        found = replace(found, disk=None)
    hosts = hosts_here()
    found, assumed = shared(found, ranks, num_hosts=hosts)
    notes.extend(assumed)
    each = -(-ranks // hosts)
    processors = len(os.sched_getaffinity(0))
    if kind == "cpu" and each > processors:
        notes.append(f"{each} ranks take turns on {processors} processors: fewer are faster")
    found = found.with_budgets(device_bytes=budgets.device_bytes, host_bytes=budgets.host_bytes)
    memory = found.device.memory
    if kind == "cuda" and budgets.device_bytes == memory.capacity_bytes:
        aside = min(ASIDE_BYTES, memory.capacity_bytes)
        memory = Tier(memory.capacity_bytes, max(aside, memory.reserved_bytes))
        notes.append(
            f"{format_bytes(aside)} of the device's budget are left to CUDA's libraries and to "
            "rows on their way"
        )
    return replace(found, device=replace(found.device, memory=memory))
