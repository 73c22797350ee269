"""Rows that stay on the device beside the parts: exact, as planned, and not brought again."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.staging import Pair, least_host, random_graph
from tiergnn.graph.hot import expected_hot, hot_mask, hot_rows
from tiergnn.graph.partition import Partition
from tiergnn.graph.shape import layout_of, shape_of
from tiergnn.graph.table import Table
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.schedule.actions import Lane, Op
from tiergnn.schedule.check import peaks
from tiergnn.schedule.contents import What

MODELS = ("gcn", "sage", "gin", "gat", "gatv2")  # dropout in all, BatchNorm in gin
SHARES = (0.1, 0.5, 1.0)
# Every other pair, as on a chess board.
CASES = [(turn // 2, *pair) for turn, pair in enumerate(product(MODELS, SHARES)) if turn % 2 == 0]


def pair_of(model, hot_frac, parts, *, disk, scratch, graph=None, **knobs):
    graph = graph or random_graph(60, 240, parts)
    knobs = Knobs(parts=parts, hot_frac=hot_frac, tier="disk" if disk else "host", **knobs)
    if disk:
        return least_host(model, graph, knobs, scratch=scratch, extra=400)
    return Pair.make(model, graph, "grinnder", knobs)


def as_planned(pair) -> dict[Lane, int]:
    """Bytes of a step's copies by lane, each of them the plan's; no tier is held beyond it."""
    timeline = pair.staged.timeline
    assert timeline is not None
    moved = {span.index: span.moved_bytes for span in timeline.spans}
    found = dict.fromkeys(Lane, 0)
    for action in pair.staged.schedule.actions:
        if action.op is Op.COPY:
            assert moved[action.index] == action.moved_bytes, action
            found[action.lane] += action.moved_bytes
    machine = pair.staged.plan.machine
    for schedule in (pair.staged.schedule, pair.staged.evaluation):
        for (_, tier), (num_bytes, _) in peaks(schedule).items():
            assert num_bytes <= machine.tier(tier).available_bytes
    both = [peaks(s) for s in (pair.staged.schedule, pair.staged.evaluation)]
    for tier, num_bytes in pair.staged.peak_bytes.items():
        assert 0 < num_bytes <= max(one.get((0, tier), (0,))[0] for one in both)
    return found


@pytest.mark.parametrize(("turn", "model", "hot_frac"), CASES)
def test_exact_and_as_planned(turn, model, hot_frac, tmp_path):
    """Parts and tiers go round."""
    check(model, hot_frac, (2, 7)[turn % 2], turn % 3 == 0, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("disk", [False, True], ids=["host", "disk"])
@pytest.mark.parametrize("parts", [2, 7])
@pytest.mark.parametrize("hot_frac", SHARES)
@pytest.mark.parametrize("model", MODELS)
def test_every_share_in_every_cut(model, hot_frac, parts, disk, tmp_path):
    check(model, hot_frac, parts, disk, tmp_path)


def check(model, hot_frac, parts, disk, tmp_path):
    pair = pair_of(model, hot_frac, parts, disk=disk, scratch=tmp_path)
    try:
        pair.compare(1e-10, epochs=2)
        as_planned(pair)
        held = [b for b in pair.staged.schedule.buffers if b.kind == "cache"]
        assert {b.holds.what for b in held} == {What.HOT}
        assert any(not b.given for b in held)
    finally:
        pair.staged.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("knobs", [{"gradients": "buckets"}, {"topology": "host"}], ids=str)
@pytest.mark.parametrize("disk", [False, True], ids=["host", "disk"])
def test_with_other_knobs(knobs, disk, tmp_path):
    pair = pair_of("deep", 0.3, 4, disk=disk, scratch=tmp_path, **knobs)
    pair.compare(1e-10, epochs=2)
    as_planned(pair)
    pair.staged.close()


@given(
    model=st.sampled_from(["gcn", "gat", "gin"]),
    hot_frac=st.floats(0.0, 1.0),
    parts=st.integers(1, 9),
    size=st.tuples(st.integers(2, 25), st.integers(0, 60)),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=10, deadline=None)
def test_any_graph(model, hot_frac, parts, size, seed):
    """Parts without rows, edges, or rows that others read."""
    pair = pair_of(
        model, hot_frac, parts, disk=False, scratch=None, graph=random_graph(*size, seed)
    )
    pair.compare(1e-10, epochs=1)
    as_planned(pair)
    pair.staged.close()


@pytest.mark.parametrize("disk", [False, True], ids=["host", "disk"])
def test_what_stays_is_not_brought_again(disk, tmp_path):
    """Fails where the option is ignored: fewer bytes for each larger share, by what was counted."""
    graph = random_graph(200, 2000, 3)
    brought = []
    for hot_frac in (0.0, 0.1, 0.5, 1.0):
        pair = pair_of("gcn", hot_frac, 5, disk=disk, scratch=tmp_path, graph=graph)
        pair.compare(1e-10, epochs=1)
        moved = as_planned(pair)
        brought.append(moved[Lane.H2D])
        if hot_frac == 1.0:  # no part is brought rows of another: its own ones and gradients alone
            halo = pair.parts.num_halo.sum()
            stages = pair.staged.plan.workload.stages
            ending = max(s.index for s in stages if s.gathers)
            row = {r.name: r.row_bytes for r in pair.staged.plan.workload.rows}
            saved = sum(
                (1 if s.index == ending else 2) * halo * row[s.gathers[0]]
                for s in stages
                if s.gathers
            )
            assert brought[0] - brought[-1] == saved
        pair.staged.close()
    assert brought == sorted(brought, reverse=True)
    assert len(set(brought)) == len(brought)


def test_rows_that_stay_are_those_that_most_parts_read():
    graph = random_graph(300, 2400, 5)
    owners = np.random.default_rng(0).integers(0, 6, 300).astype(np.int32)
    parts = Partition(graph=graph, part_of=owners, num_parts=6)
    times = np.zeros(300, np.int64)
    for part in range(6):
        times[parts.halo(part).gid] += 1
    for hot_frac in (0.01, 0.1, 0.4, 1.0):
        mask = hot_mask(parts, hot_frac)
        assert mask.sum() == min(int(hot_frac * 300), (times > 0).sum())
        assert times[mask].min() >= times[~mask].max(initial=0) - (hot_frac < 1.0)
        assert times[mask].sum() == np.sort(times)[::-1][: mask.sum()].sum()
        found = hot_rows(parts, hot_frac)
        assert found.count == mask.sum()
        for p in range(6):
            halo = parts.halo(p).gid
            for q in range(6):
                assert found.read[p][q] == (mask[halo] & (owners[halo] == q)).sum()


@pytest.mark.parametrize("hot_frac", [0.05, 0.3, 1.0])
def test_what_random_parts_are_expected_to_read(hot_frac):
    """Within some percent of what is counted of parts drawn at random."""
    graph = random_graph(4000, 24000, 7)
    owners = np.random.default_rng(1).integers(0, 8, 4000).astype(np.int32)
    parts = Partition(graph=graph, part_of=owners, num_parts=8)
    layout, shape = layout_of(parts, graph, hot_frac=hot_frac), shape_of(graph)
    counted = layout.hot_rows(hot_frac, shape)
    assert counted is layout.hot
    guess = expected_hot(shape, layout, hot_frac)
    assert layout.hot_rows(hot_frac / 2, shape) == expected_hot(shape, layout, hot_frac / 2)
    assert guess.count == pytest.approx(counted.count, rel=0.02)
    assert np.sum(guess.read) == pytest.approx(np.sum(counted.read), rel=0.05)


@pytest.mark.parametrize("disk", [False, True], ids=["host", "disk"])
@pytest.mark.parametrize("storage", ["bfloat16", "float16"])
def test_they_are_kept_as_they_are_stored(storage, disk, tmp_path):
    """In half the bytes: what is read is rounded alike wherever it lies."""
    graph = random_graph(60, 300, 3, dtype=np.float32)
    found = []
    for hot_frac in (0.0, 0.5):
        pair = Pair.make(
            "gcn", graph, "grinnder",
            Knobs(parts=4, storage=storage, hot_frac=hot_frac, tier="disk" if disk else "host"),
            dtype=torch.float32, scratch=tmp_path,
        )  # fmt: skip
        pair.compare(0.03, epochs=1)
        as_planned(pair)
        found.append(pair.staged.infer())
        hot = [b for b in pair.staged.schedule.buffers if b.kind == "cache" and not b.given]
        rows = int(hot_mask(pair.parts, hot_frac).sum()) if hot_frac else 0
        width = pair.staged.plan.workload.row_kind("h1").width
        assert all(b.num_bytes == 2 * rows * width for b in hot if b.holds.of == "h1")
        assert bool(hot) == bool(hot_frac)
        pair.staged.close()
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


def test_features_that_are_decoded_stay_as_stored():
    graph = random_graph(60, 300, 3, dtype=np.float32)
    assert graph.x is not None
    values = (graph.x.data * 40 // 1).astype(np.int8)
    graph = replace(graph, x=Table(data=values, dtype="int8", scale=np.full(6, 0.1, "f4")))
    pair = Pair.make("sage", graph, "grinnder", Knobs(parts=4, hot_frac=0.5), dtype=torch.float32)
    pair.compare(1e-5, epochs=2)
    as_planned(pair)
    given = [b for b in pair.staged.schedule.buffers if b.kind == "cache" and b.given]
    assert sum(b.num_bytes for b in given) == 6 * int(hot_mask(pair.parts, 0.5).sum())
    pair.staged.close()
