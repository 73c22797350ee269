"""What strategies of several ranks move, against closed forms of papers and of ours, exactly."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from tests.planner.strategies.cases import WORKLOADS, cases, graph_case, machine
from tests.planner.strategies.test_bytes import MODELS, Sizes, over, write
from tiergnn.planner.models import classic
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.planner.strategies.known import RANKED, STRATEGIES
from tiergnn.schedule.actions import Buffer, Lane, Op
from tiergnn.schedule.check import check
from tiergnn.schedule.schedule import Schedule


@pytest.mark.parametrize("keep_inputs", [True, False])
@pytest.mark.parametrize("model", MODELS)
@given(case=cases())
@settings(max_examples=10, deadline=None)
def test_halo_brings_unique_remote_rows(model, keep_inputs, case):
    """Those of inputs in every pass, or in none where they are kept."""
    workload = WORKLOADS[model]
    size = Sizes(workload, case)
    schedule = write("halo", workload, case, keep_inputs=keep_inputs)
    wanted = 0
    for stage in workload.stages:
        brought = [n for n in stage.gathers if not keep_inputs or n not in workload.inputs]
        wanted += size.halo * size.row(*brought)
        if any(size.grad(name) for name in stage.gathers) and stage in size.backward():
            wanted += size.halo * size.row(*stage.gathers)
    found = sum(a.moved_bytes for a in schedule.actions if rows_are_exchanged(a))
    assert found == wanted


@pytest.mark.parametrize("summed", [True, False], ids=["summed", "whole"])
def test_halo_keeps_inputs_of_others(summed):
    """The bytes that are there in training and evaluation: boundary rows beside own ones, or all
    sources of an operation that wants them together."""
    workload, case = WORKLOADS["gin"], graph_case(50, 300, 4, 20, seed=2)
    if not summed:
        stages = (replace(stage, divisible=False) for stage in workload.stages)
        workload = replace(workload, stages=tuple(stages))
    size = Sizes(workload, case)
    assert "x" in workload.stages[0].gathers
    for written in (STRATEGIES["halo"], RANKED["halo"]):
        held: list[Buffer] = []
        for keep_inputs in (False, True):
            knobs = Knobs(ranks=4, keep_inputs=keep_inputs)
            schedule = written(workload, case.shape, case.layout, machine(), knobs)
            check(schedule, machine())
            held = [b for b in schedule.buffers if b.given and b.kind == "cache"]
            assert len(held) == 4 * keep_inputs
            tags = {a.tag for a in schedule.actions if a.op is Op.EXCHANGE}
            first = workload.stages[0].index
            brought = any(tag.startswith(f"s{first}.") and "backward" not in tag for tag in tags)
            assert brought != keep_inputs
        for buffer, part in zip(held, case.layout.parts, strict=True):
            rows = part.halo if summed else part.sources
            assert (buffer.tier, buffer.lasting) == ("device", True)
            assert buffer.num_bytes == rows * size.row("x")


def rows_are_exchanged(action) -> bool:
    return action.op is Op.EXCHANGE and "." in action.tag


@pytest.mark.parametrize("model", ["gcn", "gin", "sage"])
def test_nfp_sends_two_all_to_alls(model):
    """Each rank sends its rows less its own columns, and gets as much of the sums back."""
    workload, case = WORKLOADS[model], graph_case(50, 300, 4, 20, seed=2)
    size = Sizes(workload, case)
    schedule = write("nfp", workload, case)
    wanted = 0
    for stage in workload.stages:
        if not stage.gathers:
            continue
        width = workload.row_kind(stage.gathers[0]).width
        sent = 0
        for rank, part in enumerate(case.layout.parts):
            mine = width // 4 + (rank < width % 4)
            sent += part.rows * (width - mine) * 4
        passes = 1 + (size.grad(*stage.gathers) > 0)
        wanted += 2 * passes * sent
    assert sum(a.moved_bytes for a in schedule.actions if rows_are_exchanged(a)) == wanted


@pytest.mark.parametrize("model", ["gcn", "gin", "sage"])
def test_reads_in_place_are_of_every_edge(model):
    workload, case = WORKLOADS[model], graph_case(50, 300, 4, 20, seed=2)
    size = Sizes(workload, case)
    remote = sum(part.edges - part.local_edges for part in case.layout.parts)
    passes = {
        s.index: (1 + (size.grad(*s.gathers) > 0)) * size.row(*s.gathers) for s in workload.stages
    }
    assert over(write("uva", workload, case))["zero_copy"] == size.edges * sum(passes.values())
    found = sum(
        action.moved_bytes
        for action in write("mgg", workload, case).actions
        if action.lane is Lane.PEER and action.op in (Op.AGGREGATE, Op.BACKWARD)
    )
    # Reads are dealt to links by their share of boundary rows, rounded down.
    assert found == remote * sum(passes.values())


@pytest.mark.parametrize("name", ["uva", "mgg"])
def test_attention_reads_boundary_rows_once(name):
    """Its sources are put together first: a remote row, and its gradient, travels once."""
    workload, case = WORKLOADS["gat"], graph_case(50, 300, 4, 20, seed=2)
    size = Sizes(workload, case)
    passes = sum(2 * size.row(*s.gathers) for s in workload.stages)
    link = {"uva": "zero_copy", "mgg": "peer"}[name]
    found = over(write(name, workload, case))[link]
    assert found == size.halo * passes


def test_leo_reads_what_its_replicas_leave():
    workload, case = WORKLOADS["gcn"], graph_case(60, 900, 4, 20, seed=5, skew=3.0)
    size = Sizes(workload, case)
    moved = {}
    for device, host in ((0.0, 0.0), (0.1, 0.0), (0.1, 0.2), (1.0, 0.0)):
        caches = {"device_cache_frac": device, "host_cache_frac": host}
        schedule = write("leo", workload, case, exchange="outputs", **caches)
        read = copied = 0
        for action in schedule.actions:
            if action.op in (Op.AGGREGATE, Op.BACKWARD):
                read += action.moved_bytes
            elif action.op is Op.COPY and action.lane in (Lane.PEER, Lane.D2H):
                copied += sum(w.amount for w in action.work if w.place == "peer")
        passes = 2 * sum(size.row(*s.gathers) for s in workload.stages)
        rows = [min(p.halo, int(device * 60)) for p in case.layout.parts]
        more = [
            min(p.halo - r, int(host * 60)) for p, r in zip(case.layout.parts, rows, strict=True)
        ]
        left = 0
        for part, d, h in zip(case.layout.parts, rows, more, strict=True):
            left += part.edges - part.local_edges - int(part.edges_served(d + h))
        assert read == left * passes
        assert copied == (sum(rows) + sum(more)) * passes
        moved[device, host] = read
    assert moved[0.0, 0.0] > moved[0.1, 0.0] > moved[0.1, 0.2] > moved[1.0, 0.0] == 0


def test_the_narrower_side_is_exchanged():
    """GCN with a wide second layer: sums are narrower than what the stage makes of them."""
    case = graph_case(60, 900, 4, 20, seed=5)
    workload = classic("gcn", 7, 40, hidden=30, layers=3)
    peer = {}
    for exchange in ("inputs", "outputs", "narrower"):
        schedule = write("leo", workload, case, device_cache_frac=1.0, exchange=exchange)
        peer[exchange] = over(schedule)["peer"]
    assert peer["inputs"] < peer["outputs"]
    assert peer["narrower"] == min(peer.values())
    sums = write("leo", workload, case, device_cache_frac=1.0, exchange="inputs")
    assert any(action.op is Op.UPDATE and action.slice == 1 for action in sums.actions)


def test_narrow_storage_halves_what_moves():
    workload, case = WORKLOADS["gcn"], graph_case(50, 300, 4, 20, seed=2)
    for name, lane in (("halo", "peer_copy"), ("uva", "zero_copy")):
        full = write(name, workload, case)
        half = write(name, workload, case, storage="bfloat16")

        def rows(schedule: Schedule, lane: str = lane) -> int:
            return sum(
                work.amount
                for action in schedule.actions
                if action.op is not Op.REDUCE
                for work in action.work
                if work.kind == "move" and work.place == lane
            )

        assert rows(half) * 2 == rows(full), name


def test_ranks_reduce_their_gradients_once():
    workload, case = WORKLOADS["gin"], graph_case(50, 300, 4, 20, seed=2)
    for name in ("uva", "mgg", "leo", "halo", "nfp"):
        reduced = [
            action
            for action in write(name, workload, case).actions
            if action.op is Op.REDUCE and action.tag == "gradients"
        ]
        assert len(reduced) == 4, name
        sent = {action.moved_bytes for action in reduced}
        assert sent == {round(1.5 * workload.parameter_bytes)}
