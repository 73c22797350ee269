"""Leo over ranks: any share of rows in either cache, refreshed by rows or by sums, gives the
numbers of one device; and its switches do what they say."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tiergnn as tg
from tests.models.nets import NETS
from tests.planner.strategies.cases import machine
from tests.runtime.ranking import compare, dealt, knobs_of, ranked, start_processes
from tests.runtime.staging import plan_of, random_graph
from tiergnn.errors import PlanError, RankError
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.runtime.rank_transfers import RankTransfers
from tiergnn.runtime.rank_visits import RankVisits
from tiergnn.schedule.actions import Action, Lane, Op
from tiergnn.schedule.contents import What

# Dropout in all, BatchNorm in gin and deep (SAGE and GCN). Sums can refresh caches of all but
# attention's.
MODELS = ("gcn", "sage", "gin", "deep", "gat", "gatv2")
SHARES = ("0 0", "0.2 0", "0 0.2", "0.1 0.2", "0.3 1", "1 0", "0 1")
CASES = [
    ("gcn", 2, "0.1 0.2 inputs"), ("gcn", 4, "1 0 inputs"), ("gcn", 3, "0 1 narrower"),
    ("gcn", 1, "1 0 inputs"), ("sage", 2, "0 1 inputs"), ("sage", 4, "0.1 0.2 narrower"),
    ("gin", 3, "0.1 0.2 inputs"), ("gin", 2, "0.2 0 narrower"), ("gin", 4, "0.3 1 inputs"),
    ("deep", 2, "0.2 0 inputs"), ("deep", 3, "0 0.2 inputs"), ("deep", 4, "0.1 0.2 inputs"),
    ("sgc", 3, "0.1 0.2 inputs"), ("jumping cat", 3, "0.1 0.2 inputs"),
    ("gat", 3, "0.1 0.2 narrower"), ("gatv2", 2, "1 0 inputs"),
]  # fmt: skip


def on_replicas(found) -> list[Action]:
    """Row-local code that ranks run for rows of others."""
    return [a for a in found[0].schedules[0].actions if a.op is Op.UPDATE and a.slice == 1]


@pytest.mark.parametrize(("model", "num_ranks", "way"), CASES)
def test_exact(model, num_ranks, way):
    """Directed graphs with loops, repeats and nodes without edges; parts at random."""
    found = compare(model, random_graph(40, 150, 1), f"leo {way}", num_ranks)
    if way.endswith("inputs") and num_ranks > 1:
        assert bool(on_replicas(found)) == (model not in ("gat", "gatv2"))


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_every_share_on_every_number_of_ranks(model):
    graph = random_graph(40, 150, 1)
    for shares, num_ranks in product(SHARES, (1, 2, 3, 4)):
        for exchange in ("outputs", "inputs", "narrower"):
            compare(model, graph, f"leo {shares} {exchange}", num_ranks)


@pytest.mark.parametrize("model", ["gcn", "deep"])
def test_float32(model):
    graph = random_graph(40, 150, 4, dtype=np.float32)
    compare(model, graph, "leo 0.1 0.2 inputs", 3, dtype=torch.float32)


@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_random_graphs_ranks_and_caches(data):
    """More ranks than nodes, empty parts, parts without labels, and no edges among them."""
    num_nodes = data.draw(st.integers(2, 16))
    graph = random_graph(num_nodes, data.draw(st.integers(0, 60)), data.draw(st.integers(0, 99)))
    fraction = st.floats(0, 1).map(lambda share: round(share, 2))
    device, host = data.draw(fraction), data.draw(fraction)
    exchange = data.draw(st.sampled_from(["inputs", "narrower", "outputs"]))
    compare(
        data.draw(st.sampled_from(["gcn", "sage", "gin", "deep"])),
        graph,
        f"leo {device} {host} {exchange}",
        data.draw(st.integers(1, 6)),
        seed=data.draw(st.integers(0, 99)),
        pipeline=data.draw(st.booleans()),
        asynchronous=data.draw(st.booleans()),
        pieces=data.draw(st.sampled_from([0, 1, 3])),
    )


@pytest.mark.parametrize(
    "knobs",
    [{"pipeline": False}, {"recompute": (1, 2)}, {"asynchronous": False}, {"pieces": 3}],
    ids=str,
)
@pytest.mark.parametrize("exchange", ["inputs", "outputs"])
def test_otherwise(knobs, exchange):
    found = compare("deep", random_graph(40, 150, 5), f"leo 0.1 0.2 {exchange}", 3, **knobs)
    again = {a.stage for seen in found for a, _ in seen.moved if a.op is Op.RECOMPUTE}
    assert again == {*knobs.get("recompute", ())}


@pytest.mark.parametrize("num_ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_processes(num_ranks, tmp_path):
    cases = [
        ("leo 0.1 0.2 outputs", "gcn"), ("leo 0.1 0.2 inputs", "gcn"), ("leo 0 1 inputs", "sage"),
        ("leo 0.2 0 inputs", "gin"), ("leo 0.1 0.2 inputs", "deep"), ("leo 0.3 1 narrower", "gat"),
    ]  # fmt: skip
    start_processes(cases, (40, 150, 1), num_ranks, "shared", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_every_share_in_processes(num_ranks, tmp_path):
    cases = [
        (f"leo {shares} inputs", model) for shares, model in product(SHARES, ("gcn", "gin", "deep"))
    ]
    start_processes(cases, (40, 150, 1), num_ranks, "shared", tmp_path)


@pytest.mark.parametrize("exchange", ["inputs", "outputs"])
@pytest.mark.parametrize("model", ["gcn", "gin"])
def test_pieces(model, exchange):
    """Up to one of each row, in either cache; bytes are those of the plan, and of no pieces."""
    graph, moved = random_graph(40, 150, 3), {}
    for pieces in (1, 3, 7, 50):
        found = compare(model, graph, f"leo 0.2 0.2 {exchange}", 3, pieces=pieces)
        for action, num_bytes in found[0].moved:
            assert num_bytes == action.moved_bytes or action.op is Op.REDUCE, action
        copied = [(a, m) for seen in found for a, m in seen.moved if a.op is Op.COPY]
        moved[pieces] = sum(m for _, m in copied)
        most = max(sum(a.label == b.label for b, _ in copied) for a, _ in copied)
        assert most >= pieces or pieces == 50
    assert len(set(moved.values())) == 1


# Switches


def test_caches_take_reads_of_others_away():
    """No cache, the device's, both: each time fewer bytes are read of others edge by edge."""
    graph = random_graph(60, 900, 2)
    read = []
    for shares in ("0 0", "0.1 0", "0.1 0.2", "1 0"):
        found, _ = ranked("gcn", graph, f"leo {shares}", 3)
        sums = (Op.AGGREGATE, Op.BACKWARD)
        read.append(sum(m for seen in found for a, m in seen.moved if a.op in sums))
    assert read[0] > read[1] > read[2] > read[3] == 0


@pytest.mark.parametrize("exchange", ["inputs", "outputs"])
@pytest.mark.parametrize("asynchronous", [True, False])
def test_own_rows_wait_for_a_refresh_that_is_not_asynchronous(monkeypatch, exchange, asynchronous):
    """A refresh holds on until its rank is at work on its own rows, which come after it where it
    is not asynchronous."""
    working: dict[tuple[int, int], threading.Event] = {}
    seen: list[bool] = []
    lock, refresh = threading.Lock(), RankTransfers._replicate
    starts = {"outputs": "aggregate", "inputs": "update"}  # what a refresh goes along with
    kind = What.REPLICAS if exchange == "outputs" else What.SUM_REPLICAS
    start = getattr(RankVisits, starts[exchange])

    def event(action: Action) -> threading.Event:
        with lock:
            return working.setdefault((action.rank, action.stage), threading.Event())

    def work(self, action):
        if action.slice in (0, -1):
            event(action).set()
        return start(self, action)

    def copy(self, action, target):
        if self._buffers.holds(target).what is kind:
            seen.append(event(action).wait(10 if asynchronous else 0.02))
        return refresh(self, action, target)

    def forget(self, key, share):
        with lock:  # of this rank's steps before; others may be at work already
            for place in [place for place in working if place[0] == self._part.rank]:
                del working[place]
        return begin(self, key, share)

    begin = RankVisits.begin
    monkeypatch.setattr(RankVisits, starts[exchange], work)
    monkeypatch.setattr(RankTransfers, "_replicate", copy)
    monkeypatch.setattr(RankVisits, "begin", forget)
    ranked(
        "gcn", random_graph(40, 150, 1), f"leo 0.2 0 {exchange}", 1 + 1, asynchronous=asynchronous
    )
    assert seen
    assert all(seen) if asynchronous else not any(seen)


@pytest.mark.parametrize("exchange", ["inputs", "outputs"])
def test_without_a_pipeline_all_classes_are_on_one_lane(exchange):
    lanes, way = {}, f"leo 0.1 0.2 {exchange}"
    for pipeline in (True, False):
        found, _ = ranked("gcn", random_graph(40, 150, 1), way, 2, pipeline=pipeline)
        own = [a for a, _ in found[0].moved if a.op in (Op.AGGREGATE, Op.BACKWARD, Op.COPY)]
        lanes[pipeline] = {a.lane for a in own}
    assert lanes == {True: {Lane.COMPUTE, Lane.PEER, Lane.H2D, Lane.D2H}, False: {Lane.COMPUTE}}


def test_sums_are_refused_where_the_edges_of_replicas_would_be_asked_for():
    """Given weights of edges scale the rows of the others, too."""
    graph, (_, knobs) = random_graph(40, 150, 1, edges=True), knobs_of("leo 0.1 0 inputs", 3)
    parts = dealt(graph, 3, 0)
    plan = plan_of("data", "leo", knobs, graph, parts, torch.float64, machine(8))
    with pytest.raises(PlanError, match=r"no sums of .* can refresh its caches\n  h1, .*asks for"):
        _ = plan.schedule
    narrower = replace(plan, knobs=replace(knobs, exchange="narrower"))
    assert narrower.schedule.actions
    compare("data", graph, "leo 0.1 0.2 narrower", 3)


def test_unified_memory_is_simulated_alone():
    """A plan of it is clocked, and refused before a rank is started; ranks refuse it, too."""
    graph = random_graph(40, 150, 1)
    plan = plan_of(
        "gcn", "leo", Knobs(ranks=3, managed=True), graph, dealt(graph, 3, 0), torch.float64,
        machine(8),
    )  # fmt: skip
    assert plan.seconds > 0
    why = "leo with managed is simulated alone: it models the page"
    with pytest.raises(PlanError, match=why):
        tg.train(graph, NETS["gcn"](), plan, device="cpu", dtype="float64")
    with pytest.raises(RankError, match=why):
        ranked("gcn", graph, "leo 0 0", 3, managed=True)
