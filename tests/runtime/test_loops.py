"""Edges from a row to itself: held once where no stage reads them, and planned as they are held."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.models.nets import NETS, WIDTH
from tests.runtime.staging import OF_EDGES, Pair, least_host, random_graph, workload
from tiergnn.errors import PlanError
from tiergnn.graph.csr import Graph, from_edges
from tiergnn.graph.shape import expected_layout, layout_of, shape_of
from tiergnn.models.loops import without_loops
from tiergnn.models.trace import trace
from tiergnn.planner.strategies.grinnder import write
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.runtime.brought import topology_bytes
from tiergnn.schedule.actions import Op
from tiergnn.schedule.contents import What

KINDS = {
    "gcn": "alone", "gat": "alone", "gatv2": "alone", "sage": "", "gin": "",
    "own layer": "", "deep": "beside", "weighted": "beside",
    "appnp": "beside",  # which drops edges in training, and weighs them for that
}  # fmt: skip


def looped(seed: int, *, loops: bool = True, edges: bool = False) -> Graph:
    """A loop at every other node, and some twice, beside other edges."""
    plain = random_graph(60, 300, seed, edges=edges)
    dst = np.repeat(np.arange(60), np.diff(plain.rowptr))
    kept = np.flatnonzero(np.asarray(plain.col) != dst)
    more = np.r_[np.arange(0, 60, 2), np.arange(0, 60, 6)] if loops else np.zeros(0, np.int64)
    given = {}
    if edges:
        draw = np.random.default_rng(seed)
        attr = plain.edge_attr.data[kept]
        own = draw.standard_normal((more.size, attr.shape[1]))
        given["edge_attr"] = np.concatenate([attr, own])
        given["edge_weight"] = np.r_[plain.edge_weight[kept], draw.random(more.size) + 0.1]
    return from_edges(
        np.r_[np.asarray(plain.col)[kept], more], np.r_[dst[kept], more], num_nodes=60,
        x=plain.x.data, y=plain.y, splits=plain.splits, **given,
    )  # fmt: skip


def given_bytes(pair) -> int:
    buffers = pair.staged.schedule.buffers
    return sum(b.num_bytes for b in buffers if b.kind == "topology" and b.given)


def held_bytes(pair, what: What) -> int:
    parts = pair.staged.parts
    return sum(topology_bytes(block, out=what is What.OUT_EDGES) for block in parts.blocks)


@pytest.mark.parametrize("model", KINDS)
def test_what_a_model_reads_of_loops(model):
    inputs = {"x": torch.ones(8, WIDTH, dtype=torch.float64)}
    if model in OF_EDGES:
        inputs["edge_weight"] = torch.ones(8, dtype=torch.float64)
        inputs["edge_attr"] = torch.ones(8, 3, dtype=torch.float64)
    net = NETS[model]().double()
    programs = [trace(net, inputs, training=training) for training in (True, False)]
    assert without_loops(programs) == KINDS[model]
    for program in programs:
        metered = workload(model, torch.float64, program.training)
        assert metered.topology.without_loops == without_loops([program])


@pytest.mark.parametrize("topology", ["device", "host"])
@pytest.mark.parametrize("model", KINDS)
def test_exact_and_held_as_planned(model, topology):
    graph = looped(3, edges=model in OF_EDGES)
    assert shape_of(graph).self_loops == 40
    pair = Pair.make(model, graph, "grinnder", Knobs(parts=3, topology=topology))
    pair.compare(1e-10, epochs=2)
    held = held_bytes(pair, What.TOPOLOGY) + held_bytes(pair, What.OUT_EDGES)
    if graph.edge_weight is not None:  # in the order of out-edges, which a device makes itself
        held += 4 * graph.num_edges
    assert given_bytes(pair) == held
    moved = {span.index: span.moved_bytes for span in pair.staged.timeline.spans}
    for action in pair.staged.schedule.actions:
        if action.op is Op.COPY and graph.edge_weight is None:
            assert moved[action.index] == action.moved_bytes, action
    pair.staged.close()


@pytest.mark.parametrize("topology", ["device", "host", "turns"])
@pytest.mark.parametrize("model", ["gcn", "gat", "sage", "deep"])
def test_columns_are_exact_and_edges_brought_as_planned(model, topology):
    """Of slices, whose edges are one block, chunks, or one block at a time."""
    graph, knobs = looped(3), Knobs(parts=3, slices=2, topology=topology)
    if (model, topology) == ("gat", "turns"):
        with pytest.raises(PlanError, match="topology=host"):
            Pair.make(model, graph, "sliced", knobs)
        return
    pair = Pair.make(model, graph, "sliced", knobs)
    pair.compare(1e-10, epochs=2)
    moved = {span.index: span.moved_bytes for span in pair.staged.timeline.spans}
    for action in pair.staged.schedule.actions:
        if action.op is Op.COPY:
            assert moved[action.index] == action.moved_bytes, action
    blocks = [pair.staged.parts.block(p) for p in (range(3) if topology == "host" else (-1,))]
    bare = KINDS[model] == "alone"
    assert sum(b.num_edges for b in blocks) == graph.num_edges - (40 if bare else 0)
    if topology == "device":
        held = [topology_bytes(blocks[0], out=out) for out in (False, True)]
        buffers = pair.staged.schedule.buffer_of
        assert [buffers[name].num_bytes for name in ("topology", "topology.out")] == held
    pair.staged.close()


@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_loops_that_nobody_reads_cost_nothing(model, tmp_path):
    """As much as the same graph without them, on the disk too; a layer that reads them pays."""
    found = {}
    for name in (model, "sage"):
        for loops in (False, True):
            graph = looped(3, loops=loops)
            pair = least_host(name, graph, Knobs(parts=3, tier="disk"), scratch=tmp_path)
            pair.compare(1e-10, epochs=1)
            found[name, loops] = given_bytes(pair)
            blocks = pair.staged.parts.blocks
            assert sum(b.num_edges for b in blocks) == graph.num_edges - (
                40 if loops and name == model else 0
            )
            pair.staged.close()
    assert found[model, True] == found[model, False]
    assert found["sage", True] > found["sage", False]


def test_plans_count_the_loops_of_parts():
    graph = looped(5)
    pair = Pair.make("gcn", graph, "grinnder", Knobs(parts=4))
    layout, shape = layout_of(pair.parts, graph), shape_of(graph)
    dst = np.repeat(np.arange(60), np.diff(graph.rowptr))
    own = pair.parts.part_of[dst[np.asarray(graph.col) == dst]]
    assert [part.loops for part in layout.parts] == np.bincount(own, minlength=4).tolist()
    assert sum(part.loops for part in expected_layout(shape, 4).parts) == shape.self_loops
    plan = pair.staged.plan
    made = write(plan.workload, shape, layout, plan.machine, plan.knobs)
    planned = sum(b.num_bytes for b in made.buffers if b.kind == "topology")
    assert planned == given_bytes(pair)
    beside = replace(plan.workload.topology, without_loops="beside")
    twice = write(replace(plan.workload, topology=beside), shape, layout, plan.machine, plan.knobs)
    assert sum(b.num_bytes for b in twice.buffers if b.kind == "topology") > 1.5 * planned
    pair.staged.close()
