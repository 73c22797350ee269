"""Arguments of the wrong kind are refused by name, before anything is done."""

from __future__ import annotations

import numpy as np
import pytest

import tiergnn as tg
from tests.training.models import community
from tiergnn.errors import ConfigError, GraphError, PlanError
from tiergnn.graph.csr import Graph
from tiergnn.units import format_needed, parse_bytes


@pytest.fixture(scope="module")
def graph():
    return community(60)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("machine", 5), ("machine", ["h200"]),
        ("ranks", "2"), ("ranks", True), ("ranks", 2.0), ("ranks", 0), ("ranks", None),
        ("device_memory", 1.5), ("device_memory", True), ("device_memory", 2**63),
        ("host_memory", 2.0**40), ("host_memory", [1]),
        ("disk", 5), ("disk", True),
        ("strategies", "halo"), ("strategies", 5), ("storage", "bfloat16"), ("storage", 5),
        ("hot_frac", True), ("hot_frac", "0.1"), ("hot_frac", float("nan")),
        ("features", 5), ("prepare", "no"), ("dtype", 5), ("seed", "a"),
    ],
)  # fmt: skip
def test_of_a_plan(graph, name, value):
    with pytest.raises(ConfigError) as refused:
        tg.plan(graph, "gcn", **{"machine": "cpu2", name: value})
    word = "number of bytes|64 bits" if "memory" in name else name
    refused.match(word)
    assert str(value) in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("plan", 5), ("plan", {}), ("out", 5), ("transport", 5), ("timeout", "a"), ("lr", "a"),
        ("weight_decay", "a"), ("clip", True), ("capture", "no"), ("tensorboard", 5),
    ],
)  # fmt: skip
def test_of_a_training(graph, name, value):
    with pytest.raises(ConfigError, match=name):
        tg.train(graph, "gcn", **{"epochs": 1, "progress": False, name: value})


def test_a_graph_without_nodes():
    """Whatever else it says of itself."""
    for classes in (0, 3):
        graph = Graph(
            rowptr=np.zeros(1, np.int64), col=np.zeros(0, np.int32), y=np.zeros(0, np.int64),
            task="class", num_classes=classes,
        )  # fmt: skip
        with pytest.raises(GraphError, match="the graph has no nodes"):
            tg.plan(graph, "gcn")
        with pytest.raises(ConfigError, match="there is no training split"):
            tg.train(graph, "gcn")


def test_of_a_partition(graph):
    with pytest.raises(ConfigError, match="partition must be"):
        tg.plan(graph, "gcn", machine="a100x8-pcie", ranks=2, partition=5)


@pytest.mark.parametrize("ranks", ["2", True, 0])
def test_of_a_run(graph, tmp_path, ranks):
    run = tg.train(graph, "gcn", epochs=1, progress=False, out=tmp_path / "run")
    for call in (tg.resume, tg.evaluate, tg.predict):
        with pytest.raises(ConfigError, match="ranks must be a whole number from 1"):
            call(run.path, ranks=ranks)


def test_counts_of_numpy_are_bytes():
    assert parse_bytes(np.int64(5)) == 5


def test_few_bytes_without_a_unit_are_asked_for_one(graph):
    """300 was meant as MiB; who means bytes says so, or gives a number of Python's."""
    for text in ("300", "1e3", " 4095 "):
        with pytest.raises(ConfigError, match=f"{text.strip()} bytes") as refused:
            parse_bytes(text)
        assert f"{text.strip()}MiB or {text.strip()}GiB" in str(refused.value)
    assert [parse_bytes(given) for given in ("300B", 300, "4096", "0")] == [300, 300, 4096, 0]
    with pytest.raises(ConfigError, match="300 bytes"):
        tg.plan(graph, "gcn", machine="cpu2", device_memory="300")


def test_more_ranks_than_devices_names_machines_that_have_them(graph):
    with pytest.raises(PlanError, match="1000 ranks need as many devices") as refused:
        tg.plan(graph, "gcn", machine="a100x8-pcie", ranks=1000)
    assert refused.value.hint is not None
    assert "ranks=8" in refused.value.hint
    assert "a100x8" not in refused.value.hint
    with pytest.raises(PlanError, match="6 ranks") as refused:
        tg.plan(graph, "gcn", machine="v100x4-pcie", ranks=6)
    assert "a100x8-pcie, a100x8-nvswitch, t4x8, dgx1" in str(refused.value)


def test_bytes_that_read_alike_are_told_in_full(graph):
    assert format_needed(2**20, 2**19) == ("1.0 MiB", "512.0 KiB")
    assert format_needed(2**24 + 1, 2**24) == (
        "16.0 MiB (16,777,217 bytes)", "16.0 MiB (16,777,216 bytes)",
    )  # fmt: skip
    plan = tg.plan(graph, "gcn", machine="cpu2", strategies=["resident"])
    held = plan.peak_bytes["device"]
    small = plan.on(plan.machine.with_budgets(device_bytes=held - 1))
    with pytest.raises(PlanError, match=f"{held:,} B.*{held - 1:,} B|{held:,} b.*{held - 1:,} b"):
        _ = small.schedule
