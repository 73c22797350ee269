"""From what a user names (a graph, a model, features, a device) to a Resident that can run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tiergnn.errors import ConfigError, unknown
from tiergnn.graph.arrays import crc32_of_array
from tiergnn.graph.csr import Graph
from tiergnn.graph.folder import read_manifest
from tiergnn.graph.partition import Partition
from tiergnn.models import zoo
from tiergnn.planner.plan import Plan
from tiergnn.planner.strategies.known import EVALUATIONS, RANKED
from tiergnn.runtime.executor import Resident, indexed
from tiergnn.runtime.memory import check_room, out_of_memory
from tiergnn.runtime.ranked import Ranked
from tiergnn.runtime.staged import Staged
from tiergnn.training.examples import dtype_of
from tiergnn.training.features import check_nodes, choose_features, feature_table
from tiergnn.training.options import Options
from tiergnn.training.planned import check_plan
from tiergnn.training.randomness import random_state
from tiergnn.training.splits import choose_splits, judged_nodes
from tiergnn.transport.transport import Transport
from tiergnn.workload import Workload

Held = Resident | Staged | Ranked  # what runs a model over a graph, or one rank's share of it
_log = logging.getLogger("tiergnn")


def as_graph(graph: Any) -> Graph:
    """A Graph as it is, a path opened, anything else read as a PyG or OGB object."""
    if isinstance(graph, Graph):
        return graph
    return Graph.open(graph) if isinstance(graph, str | Path) else Graph.from_pyg(graph)


def fingerprint(graph: Graph) -> dict[str, int]:
    """Array name -> CRC-32, the same for a graph in memory and for its folder."""
    if graph.path is not None:
        arrays = read_manifest(graph.path)["arrays"]
        return {n: entry["crc32"] for n, entry in arrays.items() if not n.startswith("node_ids")}
    found = {
        "rowptr": graph.rowptr,
        "col": graph.col,
        "edge_weight": graph.edge_weight,
        "y": graph.y,
        **{f"splits/{name}": ids for name, ids in graph.splits.items()},
    }
    for name, table in (("x", graph.x), ("edge_attr", graph.edge_attr)):
        found[name] = None if table is None else table.data
        found[f"{name}_scale"] = None if table is None else table.scale
    return {name: crc32_of_array(array) for name, array in found.items() if array is not None}


def pick_device(name: str) -> torch.device:
    """ "auto" is CUDA where there is some. Raises ConfigError for a device that is not there."""
    if name == "auto":
        return indexed(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise unknown("device", name, ("auto", "cpu", "cuda", "cuda:N")) from error
    if device.type not in ("cpu", "cuda"):
        raise unknown("device", name, ("auto", "cpu", "cuda", "cuda:N"))
    count = torch.cuda.device_count() if device.type == "cuda" else 1
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ConfigError(
            f"there is no device {name}: CUDA devices here: {count}",
            hint="device='auto' or 'cpu'; `tiergnn doctor` says what this machine offers",
        )
    return indexed(device)


def model_spec(model: Any, graph: Graph, features: str) -> dict[str, Any] | None:
    """What ``build`` makes a ready model from; None for a module. Raises ConfigError.

    Columns in are those of the features, columns out the classes or targets of the graph.
    """
    if isinstance(model, nn.Module):
        return None
    options = {"name": model} if isinstance(model, str) else model
    if not isinstance(options, Mapping) or "name" not in options:
        raise ConfigError(
            f"model must be a module, a name, or a mapping with a name, had {model!r}",
            hint='"gcn", or {"name": "gcn", "hidden_channels": 16}',
        )
    check_nodes(graph.num_nodes)
    if graph.y is None:
        raise ConfigError("the graph has no labels y to train on")
    return {
        "name": options["name"],
        "in_channels": choose_features(graph, features).width,
        "out_channels": graph.num_classes or graph.y.shape[1],
        "options": {key: value for key, value in options.items() if key != "name"},
    }


def build(spec: Mapping[str, Any], seed: int) -> nn.Module:
    """A ready model whose first weights are those of ``seed``. Raises ConfigError, PlanError."""
    cpu = torch.device("cpu")

    def made() -> nn.Module:
        return zoo.from_config(spec)

    try:
        # Nothing is held there: a system may end who asks for too much.
        with random_state(cpu, seed), torch.device("meta"):
            num_bytes = sum(p.numel() * p.element_size() for p in made().parameters())
    except (RuntimeError, TypeError) as error:
        if "verflow" not in str(error):
            raise
        raise ConfigError(
            f"{spec['name']} is wider than 64 bits can count", hint="narrower layers"
        ) from error
    check_room(cpu, {"parameters": num_bytes, "their gradients": num_bytes})
    with random_state(cpu, seed), out_of_memory(cpu, f"making {spec['name']}"):
        return made()


def resident(
    graph: Graph,
    model: nn.Module,
    options: Options,
    plan: Plan | None = None,
    *,
    transport: Transport | None = None,
    parts: Partition | None = None,
    evaluated: Workload | None = None,
) -> Held:
    """The model over the graph with its features, on the device of ``options``, or in the parts of
    a plan that is carried out in stages, or one rank's share, which has a ``transport``,
    ``parts`` and the workload of an evaluation.

    ``plan`` is one for this graph and model. Raises ConfigError and PlanError.
    """
    _check_edge_dim(model, graph)
    if plan is not None and transport is None:
        check_plan(plan, graph, model, options)
    features = choose_features(graph, options.features)
    embedding = None
    if features.kind == "embedding":
        if options.normalize_features is not None:
            raise ConfigError("learned rows are not normalised", hint="no normalize_features")
        with random_state(torch.device("cpu"), options.seed):
            rows = torch.randn(graph.num_nodes, features.width) / features.width**0.5
        embedding = nn.Parameter(rows)
    if features.kind == "onehot":
        check_room(torch.device("cpu"), {"one-hot features": graph.num_nodes**2})
    device = pick_device(options.device)
    with random_state(device, options.seed):  # lazy parameters get their first values here
        featured, dtype = (
            replace(graph, x=feature_table(graph, features)),
            dtype_of(model, options.dtype),
        )
        by_parts: dict[str, Any] = {
            "device": device,
            "dtype": dtype,
            "seed": options.seed,
            "normalize_rows": options.normalize_features == "row",
        }
        # A criterion of the caller's may decide anew at every step.
        capture = options.capture and not callable(options.criterion)
        if plan is not None and plan.strategy in (*EVALUATIONS, *RANKED):
            splits = choose_splits(graph, options.split, options.seed)
            by_parts["labelled"] = splits["train"]
            if plan.strategy in EVALUATIONS:
                by_parts["asked"] = judged_nodes(graph, splits)
        if transport is not None:
            assert plan is not None
            by_parts |= {"parts": parts, "evaluated": evaluated}
            made = Ranked(model, featured, plan, transport, capture=capture, **by_parts)
        elif plan is not None and plan.strategy in EVALUATIONS:
            made = Staged(
                model, featured, plan, scratch=plan.scratch or None, capture=capture, **by_parts
            )
        else:
            made = Resident(
                model,
                featured,
                device=device,
                dtype=dtype,
                seed=options.seed,
                embedding=embedding,
                normalize_rows=options.normalize_features == "row",
                budget_bytes=options.device_memory_bytes,
                schedule=None if plan is None else plan.schedule,
                prepare=options.prepare if plan is None else bool(plan.workload.prepared),
                capture=capture,
            )
    for name in ("edge_weight", "edge_attr"):
        if getattr(graph, name) is not None and name not in made.programs[False].inputs:
            _log.warning("the model does not read the graph's %s", name)
    return made


def _check_edge_dim(model: nn.Module, graph: Graph) -> None:
    """Raise when a ready model was to attend to edge features of another width, or to none.

    PyG's own layers run without edge_attr whatever their edge_dim: there the caller decides.
    """
    wanted = model.edge_dim if isinstance(model, zoo.GAT) else None
    width = 0 if graph.edge_attr is None else graph.edge_attr.width
    if wanted is not None and wanted != width:
        had = f"{width} edge features" if width else "no edge features"
        raise ConfigError(
            f"edge_dim={wanted}, and the graph has {had}",
            hint=f"edge_dim={width} (--edge-dim {width}), or none"
            if width
            else "no edge_dim (--edge-dim); ingest keeps columns of edges by "
            "edge_features=NAMES (--edge-features)",
        )
