"""One rank alone: with what the others gave it, it gives the numbers that it gave among them; the
others' counts are told as they would tell them; and without their rows it moves the same bytes."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from tests.planner.strategies.cases import machine
from tests.runtime.lone import Record, Recorder, Replay
from tests.runtime.ranking import Seen, dealt, knobs_of, make, train
from tests.runtime.staging import close, plan_of, random_graph, workload
from tiergnn.graph.csr import Graph, from_edges
from tiergnn.graph.partition import Partition
from tiergnn.graph.shape import PartShape, layout_of
from tiergnn.planner.plan import Plan
from tiergnn.runtime.absent import AbsentRanks
from tiergnn.runtime.own_part import READ
from tiergnn.runtime.rank_graph import RankGraph
from tiergnn.runtime.ranked import COUNTS, COUNTS_LEAVING, Ranked
from tiergnn.runtime.source_classes import reach_of
from tiergnn.transport.alone import Alone, Shelf
from tiergnn.transport.virtual import Virtual, World

RANKS, RANK = 4, 1
WAYS = (
    "halo", "nfp", "mgg", "uva", "leo 0.1 0.2", "leo 0.1 0", "leo 0 0.2", "leo 1 0",
    "leo 0.1 0.2 inputs",
)  # fmt: skip
GRAPH = random_graph(60, 240, 1)
PARTS = dealt(GRAPH, RANKS, 0)


def planned(way: str, name: str, **more) -> Plan:
    strategy, knobs = knobs_of(way, RANKS)
    knobs = replace(knobs, **more)
    return plan_of(name, strategy, knobs, GRAPH, PARTS, torch.float64, machine(8))


@cache
def among_others(way: str, name: str, device: str = "cpu") -> tuple[Plan, Record, Seen]:
    """Rank RANK among virtual ranks, and what came of its transport."""
    plan, record, world = planned(way, name), Record(), World(RANKS)
    evaluated, models = workload(name, torch.float64, False), [make(name, plan) for _ in range(4)]
    seen: dict[int, Seen] = {}

    def run(rank: int) -> None:
        t = Recorder(world, rank, record) if rank == RANK else Virtual(world, rank)
        train(t, GRAPH, plan, PARTS, evaluated, models, seen, device)
        t.close()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return plan, record, seen[RANK]


def alone(plan: Plan, name: str, t: Alone, device: str = "cpu") -> Seen:
    seen: dict[int, Seen] = {}
    evaluated, models = workload(name, torch.float64, False), {RANK: make(name, plan)}
    train(t, GRAPH, plan, PARTS, evaluated, models, seen, device)
    t.close()
    return seen[RANK]


def turned(graph: Graph, parts: Partition) -> tuple[PartShape, ...]:
    """Parts of the graph with its edges turned round."""
    ends = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    back = from_edges(
        ends, graph.col, num_nodes=graph.num_nodes, y=graph.y, splits=dict(graph.splits)
    )
    there = Partition(graph=back, part_of=parts.part_of, num_parts=parts.num_parts)
    return layout_of(there, back).parts


def absent_ranks() -> AbsentRanks:
    layout = replace(layout_of(PARTS, GRAPH), leaving=turned(GRAPH, PARTS))
    return AbsentRanks(layout, reach_of(GRAPH, PARTS, RANK, out=True))


def with_what_others_gave(way: str, device: str) -> None:
    """Dropout and BatchNorm; losses, gradients before they are summed, statistics, bytes."""
    plan, record, theirs = among_others(way, "deep", device)
    record = record.again()
    ours = alone(plan, "deep", Replay(RANK, RANKS, record), device)
    assert record.is_used_up
    assert ours.schedules == theirs.schedules
    assert [moved for _, moved in ours.moved] == [moved for _, moved in theirs.moved]
    for mine, other in zip(ours.losses, theirs.losses, strict=True):
        assert abs(mine - other) <= 1e-10 * max(1.0, abs(other))
    for mine, other in zip(ours.buffers, theirs.buffers, strict=True):
        close(mine, other, 1e-10)


@pytest.mark.parametrize("way", WAYS)
def test_with_what_others_gave(way):
    with_what_others_gave(way, "cpu")


@pytest.mark.parametrize("way", ["halo", "mgg"])
def test_what_absent_ranks_say_of_their_parts(way):
    _, record, _ = among_others(way, "deep")
    absent, tags = absent_ranks(), [READ, COUNTS, *([COUNTS_LEAVING] if way == "mgg" else [])]
    for tag in tags:
        (said,) = record.of("said", tag)
        assert absent.say(said[RANK], tag, RANKS) == said
    (given,) = record.of("given", READ)
    told = absent.give(torch.empty(0), READ, RANKS)
    assert told is not None
    for rank, (mine, theirs) in enumerate(zip(told, given, strict=True)):
        assert rank == RANK or torch.equal(mine, theirs)


@pytest.mark.parametrize("way", WAYS)
def test_bytes_without_the_rows_of_others(way):
    plan, record, theirs = among_others(way, "deep")
    t = Alone(RANK, RANKS, absent_ranks())
    ours = alone(plan, "deep", t)
    assert ours.schedules == theirs.schedules
    assert [moved for _, moved in ours.moved] == [moved for _, moved in theirs.moved]
    assert t.taken_bytes == record.given_bytes(RANK)
    assert np.isfinite(ours.losses).all()


def test_jobs_that_follow_each_other_share_memory_and_graph():
    """Both ways, twice, with what the rank has of the graph made once: numbers stay the same."""
    plans, shelf = [planned(way, "gin") for way in ("mgg", "leo 0.1 0.2", "halo", "nfp")], Shelf()
    labelled = GRAPH.splits["train"]
    held: RankGraph | None = None
    losses: list[list[float]] = []
    for turn in range(2):
        for plan in plans:
            t = Alone(RANK, RANKS, absent_ranks(), shelf=shelf)
            again = held if turn else None
            ranked = Ranked(
                make("gin", plan), GRAPH, plan, t, labelled=labelled, dtype=torch.float64,
                parts=PARTS, evaluated=workload("gin", torch.float64, False), held=again,
            )  # fmt: skip
            losses.append([ranked.train_step(lambda out, part: out.square().mean(), 1)])
            assert ranked.timeline is not None
            losses[-1] += [s.moved_bytes for s in ranked.timeline.spans]
            ranked.close()
            t.close()
            held = held or RankGraph(
                GRAPH, PARTS, Alone(RANK, RANKS, absent_ranks()), device=torch.device("cpu"),
                dtype=torch.float64,
            )  # fmt: skip
    assert losses[:4] == losses[4:]
    assert shelf.num_pieces == 1
    assert len({loss for loss, *_ in losses}) > 1
    shelf.close()
