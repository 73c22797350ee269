"""Rows of others that ranks read: what caches take from the links, and the bytes of each strategy.

Counted from exact layouts of partitions and from schedules; nothing is timed.
"""

from __future__ import annotations

from typing import Any

from tiergnn.graph.csr import Graph
from tiergnn.graph.partition import partition
from tiergnn.graph.shape import Layout, layout_of, shape_of
from tiergnn.hardware.presets import resolve
from tiergnn.planner.models import classic
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.planner.strategies.known import STRATEGIES
from tiergnn.schedule.actions import Action, Op
from tiergnn.schedule.contents import What
from tiergnn.schedule.schedule import Schedule
from tiergnn.workload import StageWork

RANKS = 8  # as in LEO
DEVICE_FRAC, HOST_FRAC = 0.25, 0.15
WIDTH, LAYER = 64, 1  # the second layer, which gathers hidden rows
WAYS: dict[str, tuple[str, Knobs]] = {
    "halo": ("halo", Knobs(ranks=RANKS)),
    "nfp": ("nfp", Knobs(ranks=RANKS)),
    "leo, caches for all": ("leo", Knobs(ranks=RANKS, device_cache_frac=1.0, exchange="outputs")),
    "leo, 25% + 15%": (
        "leo",
        Knobs(
            ranks=RANKS,
            device_cache_frac=DEVICE_FRAC,
            host_cache_frac=HOST_FRAC,
            exchange="outputs",
        ),
    ),
    "mgg": ("mgg", Knobs(ranks=RANKS)),
    "uva": ("uva", Knobs(ranks=RANKS)),
}


def reads(name: str, graph: Graph) -> dict[str, Any]:
    """Of a graph in blocks of consecutive nodes, as LEO's figures are; of a real one also in parts
    as a run takes them."""
    methods = ("block",) if "/" in name else ("block", "auto")
    parts = [of_parts(graph, method) for method in methods]
    return {"graph": name, "nodes": graph.num_nodes, "edges": graph.num_edges, "parts": parts}


def of_parts(graph: Graph, method: str) -> dict[str, Any]:
    parts = partition(graph, RANKS, method)
    layout = layout_of(parts, graph)
    remote = sum(part.edges - part.local_edges for part in layout.parts)
    found = {"method": parts.method, "remote edges": remote}
    for label, frac in (("device", DEVICE_FRAC), ("device and host", DEVICE_FRAC + HOST_FRAC)):
        rows = int(frac * graph.num_nodes)
        served = sum(part.edges_served(min(rows, part.halo)) for part in layout.parts)
        found[f"removed by {label}"] = served / max(1, remote)
    halo = sum(part.halo for part in layout.parts)
    found |= {"halo rows": halo, "halo rows over nodes": halo / graph.num_nodes}
    return found | {"bytes over the halo's": moved(graph, layout)}


def moved(graph: Graph, layout: Layout) -> dict[str, float]:
    """Bytes that a GIN layer of 64 columns moves forward over all links, over those of each row of
    the halo once."""
    least = sum(part.halo for part in layout.parts) * 4 * WIDTH
    workload = classic("gin", WIDTH, 16, hidden=WIDTH, layers=3)
    layer = [stage for stage in workload.stages if stage.kind == "graph"][LAYER]
    machine, shape = resolve("a100x8-pcie"), shape_of(graph)
    found = {}
    for label, (strategy, knobs) in WAYS.items():
        schedule = STRATEGIES[strategy](workload, shape, layout, machine, knobs)
        total = sum(a.moved_bytes for a in schedule.actions if _forward(a, schedule, layer))
        found[label] = total / max(1, least)
    return found


def _forward(action: Action, schedule: Schedule, layer: StageWork) -> bool:
    """Whether an action brings a layer what it gathers, or gathers it."""
    if action.op is Op.AGGREGATE:
        return action.stage == layer.index
    if action.op is Op.EXCHANGE:
        return action.tag.startswith(f"s{layer.index}.aggregate")
    if action.op is not Op.COPY:
        return False
    written = [schedule.buffer_of[name].holds for name in action.writes]
    kinds = {c.what for c in written if c is not None and c.of == layer.gathers[0]}
    return bool(kinds & {What.ROWS, What.REPLICAS})
