"""The resident schedule: its golden texts, its proof, and what knobs change of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch_geometric.nn import GATConv, GCNConv, GINConv

from tests.models.graphs import given
from tests.models.nets import NETS
from tests.runtime.test_walk import WAYS, chosen, made, shape_of
from tiergnn.errors import ConfigError
from tiergnn.graph.odd import ODD
from tiergnn.graph.shape import GraphShape, Histogram
from tiergnn.hardware.presets import preset
from tiergnn.models.trace import trace
from tiergnn.planner.strategies import resident
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.runtime.outline import outline
from tiergnn.schedule.actions import Op
from tiergnn.schedule.check import check, peaks
from tiergnn.schedule.schedule import Schedule

GOLDEN = Path(__file__).parent / "golden"


class Two(nn.Module):
    def __init__(self, first, last):
        super().__init__()
        self.first, self.last = first, last

    def forward(self, x, edge_index):
        return self.last(self.first(x, edge_index).relu(), edge_index)


def gin(width, out):
    return GINConv(
        nn.Sequential(nn.Linear(width, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, out))
    )


MODELS = {
    "gcn": lambda: Two(GCNConv(6, 16), GCNConv(16, 4)),
    "gat": lambda: Two(GATConv(6, 8, heads=2), GATConv(16, 4)),
    "gin": lambda: Two(gin(6, 8), gin(8, 4)),
}


def shape(feature_dtype="float32"):
    degrees = Histogram((10,), (1000.0,))
    return GraphShape(
        name="golden", num_nodes=1000, num_edges=10_000, in_degrees=degrees, out_degrees=degrees,
        num_features=6, feature_dtype=feature_dtype, num_classes=4, num_labelled=100,
    )  # fmt: skip


def workload(name, *, training=True, learned=False):
    program = trace(MODELS[name](), {"x": torch.ones(9, 6)}, training=training)
    return outline(program, dtype=torch.float32, learned=learned)


@pytest.mark.parametrize("way", ["keep", "recompute", "evaluation"])
@pytest.mark.parametrize("name", MODELS)
def test_golden(name, way):
    work = workload(name, training=way != "evaluation")
    if way == "evaluation":
        got = resident.evaluation(work, shape())
    else:
        again = tuple(s.index for s in work.stages) if way == "recompute" else ()
        got = resident.write(work, shape(), None, preset("h200"), Knobs(recompute=again))
    check(got, preset("h200"))
    assert Schedule.parse(got.text()) == got
    assert got.text() == (GOLDEN / f"resident-{name}-{way}.txt").read_text()


@pytest.mark.parametrize("learned", [False, True], ids=["given", "learned"])
@pytest.mark.parametrize("name", NETS)
def test_every_model_has_a_sound_schedule(name, learned):
    _, _, block, program = made(name, given(ODD["weighted"]()), learned=learned)
    work = outline(program, dtype=torch.float64, learned=learned)
    for way in WAYS:
        schedule = resident.training(work, shape_of(block), recompute=chosen(program, way))
        check(schedule, preset("h200"))
        again = [a.stage for a in schedule.actions if a.op == Op.RECOMPUTE]
        assert set(again) <= set(chosen(program, way))
        assert bool(again) == (way != "keep")


def test_recomputed_stages_give_back_more():
    """Bytes that are kept count from the forward on, or from the forward run again."""
    from dataclasses import replace

    from tiergnn.workload import Size

    work = workload("gcn")
    stages = tuple(replace(s, kept=Size(per_row=400.0)) for s in work.stages)
    work = replace(work, stages=stages)
    whole, _ = peaks(resident.training(work, shape()))[0, "device"]
    less, _ = peaks(resident.training(work, shape(), recompute=(0, 1, 2)))[0, "device"]
    assert whole - less > 1.5 * 400 * 1000


def test_narrow_features_are_decoded_and_given_back():
    narrow = resident.training(workload("gcn"), shape("int8"))
    assert narrow.buffer_of["x.stored"].num_bytes == 6_000
    assert narrow.buffer_of["x"].num_bytes == 24_000
    assert [a.op for a in narrow.actions].count(Op.COPY) == 1
    check(narrow, preset("h200"))
    assert resident.training(workload("gcn"), shape()).buffer_of["x"].given


def test_unknown_stages_are_refused():
    with pytest.raises(ConfigError, match="recompute names stage 7"):
        resident.training(workload("gcn"), shape(), recompute=(0, 7))
