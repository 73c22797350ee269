"""What the tests of strategies plan for: random graphs in random parts, small models, a machine."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from tiergnn.graph.csr import from_edges
from tiergnn.graph.partition import Partition
from tiergnn.graph.shape import GraphShape, Layout, layout_of, shape_of
from tiergnn.hardware.machine import Curve, Link, Machine, Tier
from tiergnn.hardware.presets import preset
from tiergnn.planner.models import classic
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.workload import Peak, Size, Workload

WORKLOADS: dict[str, Workload] = {
    name: classic(name, 7, 3, hidden=4, layers=layers, heads=2)
    for name, layers in (("gcn", 2), ("gin", 2), ("sage", 3), ("gat", 2))
}


def _late_moments() -> Workload:
    """GIN with a stage of moments alone, which the next one reads."""
    gin = WORKLOADS["gin"]
    stages = list(gin.stages)
    place = next(i for i, stage in enumerate(stages) if stage.moments_of)
    reader = stages[place]
    alone = replace(
        reader, writes=(), saves=(), frees=(), forward=(), backward=(), kept=Size(),
        kept_held=Peak(), forward_held=Peak(), backward_held=Peak(), parameter_bytes=0,
        statistics=(),
    )  # fmt: skip
    last = max(stage.index for stage in stages) + 1
    reader = replace(reader, index=last, kind="rows", moments_of="")
    return replace(gin, stages=(*stages[:place], alone, reader, *stages[place + 1 :]))


WORKLOADS["late moments"] = _late_moments()
_SLOW = Link(Bps=Curve.flat(1e6))


def machine(num_devices: int = 8, num_hosts: int = 1) -> Machine:
    """Eight devices with every link; figures do not matter here."""
    like = preset("a100x8-pcie")
    return replace(
        like,
        name="test",
        num_devices=num_devices,
        num_hosts=num_hosts,
        links=dict(like.links) | {"network": _SLOW},
    )


def small(device_bytes: int, host_bytes: int) -> Machine:
    whole = machine(1)
    device = replace(whole.device, memory=Tier(device_bytes))
    return replace(whole, device=device, host=Tier(host_bytes))


@dataclass(frozen=True)
class Case:
    """A graph in parts; prints as its counts."""

    shape: GraphShape
    layout: Layout

    def __repr__(self) -> str:
        return f"Case({[(p.rows, p.edges, p.halo_of, p.labelled) for p in self.layout.parts]})"


def graph_case(
    num_nodes: int,
    num_edges: int,
    num_parts: int,
    labelled: int,
    seed: int,
    *,
    skew: float = 1.0,
    hot_frac: float = 0.0,
) -> Case:
    """A random graph, its nodes dealt to parts at random: some parts may have none."""
    draw = np.random.default_rng(seed)
    ids = (num_nodes * draw.random((2, num_edges)) ** skew).astype(np.int64)
    owners = draw.integers(0, num_parts, num_nodes).astype(np.int32)
    train = np.sort(draw.permutation(num_nodes)[:labelled]).astype(np.int64)
    graph = from_edges(
        ids[0],
        ids[1],
        num_nodes=num_nodes,
        x=np.zeros((num_nodes, 7), np.float32),
        y=np.arange(num_nodes) % 3,
        splits={"train": train},
    )
    partition = Partition(graph=graph, part_of=owners, num_parts=num_parts)
    return Case(shape_of(graph), layout_of(partition, graph, hot_frac=hot_frac))


@st.composite
def cases(draw, max_parts: int = 8) -> Case:
    """Among them empty parts, parts without labels, more parts than nodes, no edges at all."""
    num_nodes = draw(st.integers(1, 30))
    return graph_case(
        num_nodes,
        draw(st.integers(0, 80)),
        draw(st.integers(1, max_parts)),
        draw(st.integers(0, num_nodes)),
        draw(st.integers(0, 10**6)),
        skew=draw(st.sampled_from([1.0, 3.0])),
    )


@st.composite
def knobs_of(draw, uses: tuple[str, ...], workload: Workload, num_parts: int) -> Knobs:
    """Any knobs that a strategy reads."""
    fraction = st.sampled_from([0.0, 0.1, 0.5, 1.0])
    choices = {
        "recompute": st.sets(st.sampled_from([s.index for s in workload.stages])).map(
            lambda found: tuple(sorted(found))
        ),
        "storage": st.sampled_from([None, "bfloat16"]),
        "tier": st.sampled_from(["host", "disk"]),
        "topology": st.sampled_from(["device", "host"]),
        "gradients": st.sampled_from(["whole", "buckets"]),
        "hot_frac": fraction,
        "slices": st.integers(1, 5),
        "device_cache_frac": fraction,
        "host_cache_frac": fraction,
        "asynchronous": st.booleans(),
        "pipeline": st.booleans(),
        "exchange": st.sampled_from(["narrower", "inputs", "outputs"]),
        "managed": st.booleans(),
        "pieces": st.sampled_from([0, 1, 3]),
        "keep_inputs": st.booleans(),
    }
    values = {name: draw(choice) for name, choice in choices.items() if name in uses}
    values["ranks" if "ranks" in uses else "parts"] = num_parts
    return Knobs(**values)
