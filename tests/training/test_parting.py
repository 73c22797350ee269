"""Which partition ranks get: given, saved beside the graph, or made."""

from __future__ import annotations

import numpy as np
import pytest

import tiergnn as tg
from tests.planner.strategies.cases import machine
from tests.training.models import community, net
from tiergnn.errors import ConfigError, StoreError
from tiergnn.graph.partition import Partition
from tiergnn.graph.shape import layout_of
from tiergnn.training.parting import parts_of


def test_saved_ones_are_found_others_are_made(tmp_path):
    graph = community(200)
    assert parts_of(graph, 3, None).method in ("metis", "switching")
    assert parts_of(graph, 3, "block").method == "block"
    graph.save(tmp_path / "g")
    graph = tg.Graph.open(tmp_path / "g")
    draw = np.random.default_rng(0)
    owners = draw.integers(0, 3, 200).astype(np.int32)
    odd = Partition(graph=graph, part_of=owners, num_parts=3)
    odd.save("mine")
    np.testing.assert_array_equal(parts_of(graph, 3, None).part_of, owners)
    np.testing.assert_array_equal(parts_of(graph, 3, "mine").part_of, owners)
    assert parts_of(graph, 2, None).method != "given"  # none of two parts was saved
    with pytest.raises(ConfigError, match="3 parts, 2 ranks want one each"):
        parts_of(graph, 2, "mine")
    with pytest.raises(StoreError, match="no partition 'other'"):
        parts_of(graph, 2, "other")
    with pytest.raises(ConfigError, match="of 200 nodes, the graph has 100"):
        parts_of(community(100), 3, odd)


def test_a_plan_counts_the_parts_that_ranks_will_have():
    graph = community(200)
    owners = np.random.default_rng(0).integers(0, 3, 200).astype(np.int32)
    parts = Partition(graph=graph, part_of=owners, num_parts=3)
    split = {"train": np.arange(50)}
    options = {"machine": machine(3), "ranks": 3, "strategies": ["halo"], "split": split}
    plan = tg.plan(graph, net(graph), partition=parts, device="cpu", **options)
    assert plan.layout == layout_of(parts, graph, split["train"])
    assert plan.knobs.ranks == 3
    other = tg.plan(graph, net(graph), partition="block", device="cpu", **options)
    assert other.layout.method == "block"
    with pytest.raises(ConfigError, match="a partition is for several ranks"):
        tg.plan(graph, net(graph), partition=parts, device="cpu", machine=machine(1))
    with pytest.raises(tg.PlanError, match="one a rank"):
        tg.plan(graph, net(graph), device="cpu", **{**options, "strategies": ["grinnder"]})
