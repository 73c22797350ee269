"""Seconds of work: monotone in bytes and rates, and learned back from what was measured."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planner.works import GB, action, gather, works
from tiergnn import frozen
from tiergnn.errors import ConfigError, PlanError
from tiergnn.hardware.machine import Curve, Link, Machine
from tiergnn.hardware.presets import PRESETS, preset
from tiergnn.planner.cost import CLASSES, Costs
from tiergnn.schedule.actions import Lane, Op, Work


@given(st.sampled_from(sorted(PRESETS)), works, st.floats(1, 100))
@settings(max_examples=50, deadline=None)
def test_more_bytes_never_take_less(name, work, times):
    costs = Costs.of(preset(name))
    more = replace(work, amount=int(work.amount * times))
    assert costs.seconds(action(more)) >= costs.seconds(action(work)) * (1 - 1e-9)


@given(st.sampled_from(sorted(PRESETS)), works, st.floats(1, 10))
@settings(max_examples=50, deadline=None)
def test_higher_rates_never_take_more(name, work, times):
    machine = preset(name)
    costs, faster = Costs.of(machine), Costs.of(sped_up(machine, times))
    assert faster.seconds(action(work)) <= costs.seconds(action(work)) * (1 + 1e-9)


def sped_up(machine: Machine, times: float) -> Machine:
    def curve(old: Curve) -> Curve:
        return Curve(tuple((size, rate * times) for size, rate in old.points))

    device = machine.device
    near, each = device.near_gather_Bps, device.elementwise_Bps
    return replace(
        machine,
        device=replace(
            device,
            stream_Bps=device.stream_Bps * times,
            gather_Bps=curve(device.gather_Bps),
            cached_gather_Bps=curve(device.cached_gather_Bps),
            near_gather_Bps=None if near is None else curve(near),
            elementwise_Bps=None if each is None else curve(each),
            matmul_flops={name: curve(old) for name, old in device.matmul_flops.items()},
            launch_s=device.launch_s / times,
        ),
        links={k: replace(link, Bps=curve(link.Bps)) for k, link in machine.links.items()},
    )


def test_a_product_takes_its_arithmetic_and_its_bytes():
    cpu, cuda = (Costs.of(preset(name)) for name in ("cpu2", "h200"))
    flops = Work(kind="matmul", amount=GB, grain=64)
    moved = Work(kind="stream", amount=GB)
    both = replace(flops, span=GB)
    for costs, together in ((cpu, sum), (cuda, max)):
        alone = [costs.seconds(action(replace(w, launches=0))) for w in (flops, moved)]
        alone[1] = costs.seconds(action(moved)) - costs.machine.device.launch_s
        taken = costs.seconds(action(both)) - costs.machine.device.launch_s
        assert taken == pytest.approx(together(alone), rel=1e-6)


def test_what_operations_take_beside_their_bytes():
    machine = preset("cpu2")
    device = replace(
        machine.device,
        fresh_Bps=1e9,
        walks_per_s=4e9,
        draws_per_s=2e9,
        attends_per_s=Curve(((1, 1e9), (8, 4e9))),
        drops_per_s=Curve(((1, 3e9), (8, 5e9))),
        softmaxes_per_s=Curve(((1, 1e9), (8, 6e9))),
    )
    costs = Costs.of(replace(machine, device=device))
    for work, seconds in (
        (Work(kind="fresh", amount=GB), GB / 1e9),
        (Work(kind="fresh", amount=GB, launches=1000), 0.0),  # each of memory that is there
        (Work(kind="walk", amount=GB), GB / 4e9),
        (Work(kind="draw", amount=GB), GB / 2e9),
        (Work(kind="attend", amount=GB, grain=8), GB / 4e9),
        (Work(kind="drop", amount=GB, grain=8), GB / 5e9),
        (Work(kind="softmax", amount=GB, grain=8), GB / 6e9),
    ):
        assert costs.seconds(action(work)) == pytest.approx(seconds)
    drop = action(Work(kind="drop", amount=GB, grain=8))
    drawn = Costs.of(replace(machine, device=replace(device, drops_per_s=None)))
    assert drawn.seconds(drop) == pytest.approx(4 * GB / 2e9)  # four numbers for each
    without = replace(
        device,
        fresh_Bps=None,
        walks_per_s=None,
        draws_per_s=None,
        attends_per_s=None,
        drops_per_s=None,
        softmaxes_per_s=None,
    )
    free = Costs.of(replace(machine, device=without))
    kinds = ("fresh", "walk", "draw", "attend", "drop", "softmax")
    assert free.seconds(action(*(Work(kind=k, amount=GB) for k in kinds))) == 0


def test_sums_over_rows_and_rows_added_by_index_have_rates_of_their_own():
    plain = preset("cpu2")
    device = replace(plain.device, totals_Bps=Curve.flat(3e9), adds_Bps=Curve.flat(2e9))
    costs, alike = Costs.of(replace(plain, device=device)), Costs.of(plain)
    total = Work(kind="total", amount=GB)
    assert costs.seconds(action(total)) == pytest.approx(device.launch_s + GB / 3e9)
    stream = action(replace(total, kind="stream"))
    assert alike.seconds(action(total)) == alike.seconds(stream)
    add = Work(kind="add", amount=GB, grain=64, span=GB, launches=0)
    assert costs.seconds(action(add)) == pytest.approx(GB / 2e9)
    gather = action(replace(add, kind="gather"))
    assert alike.seconds(action(add)) == pytest.approx(alike.seconds(gather))


def test_our_own_kernels_on_rows_have_a_rate_and_a_launch_of_their_own():
    device = replace(
        preset("cpu2").device, launch_s=1e-6, graph_launch_s=5e-5, rowwise_Bps=Curve.flat(2e9)
    )
    costs = Costs.of(replace(preset("cpu2"), device=device))
    ours = Work(kind="rowwise", amount=GB, launches=4)
    assert costs.seconds(action(ours)) == pytest.approx(4 * 5e-5 + GB / 2e9)
    torchs = replace(ours, kind="stream")
    alike = Costs.of(replace(preset("cpu2"), device=replace(device, rowwise_Bps=None)))
    less = alike.seconds(action(ours)) - alike.seconds(action(torchs))
    assert less == pytest.approx(4 * (5e-5 - 1e-6))


def test_calls_take_longer_between_operations_that_fill_a_cache():
    plain = replace(preset("cpu2").device, launch_s=1e-6, graph_launch_s=5e-5)
    device = replace(plain, cold_launch_s=4e-6, cold_graph_launch_s=3e-4)

    def launch_s(device, work: Work) -> float:
        shares = Costs.of(replace(preset("cpu2"), device=device)).shares(action(work))
        return sum(share.seconds for share in shares if share.cost_class == "launch")

    for kind, warm, cold in (("stream", 1e-6, 4e-6), ("rowwise", 5e-5, 3e-4)):
        small = Work(kind=kind, amount=3 * device.near_cache_bytes // 300, launches=3)
        large = Work(kind=kind, amount=3000 * device.near_cache_bytes, launches=3)
        assert launch_s(device, small) == pytest.approx(3 * warm, rel=0.01)
        assert launch_s(device, large) == pytest.approx(3 * cold, rel=0.01)
        assert launch_s(plain, large) == pytest.approx(3 * warm)


def test_attention_waits_longer_for_rows_that_lie_farther_away():
    plain = preset("cpu2")
    waiting = Costs.of(replace(plain, device=replace(plain.device, attend_reads=4.0)))
    alike = Costs.of(plain)
    attend = Work(kind="attend", amount=1, grain=1)

    def beyond_s(costs: Costs, span: int) -> float:
        """What attention takes beyond a sum of the same rows."""
        rows = gather(GB, span=span)
        return costs.seconds(action(rows, attend)) - costs.seconds(action(rows))

    far, near = 1000 * plain.device.cache_bytes, 1
    assert beyond_s(alike, far) == 0
    sum_s = alike.seconds(action(gather(GB, span=far)))
    assert 2 * sum_s < beyond_s(waiting, far) < 3 * sum_s  # less what the nearest cache takes
    assert beyond_s(waiting, near) < 0.1 * beyond_s(waiting, far)


def test_a_cpu_finds_rows_first_where_other_operations_left_them():
    """A table that a core's own cache holds: its first reads are from farther away."""
    machine = preset("cpu2")
    span = machine.device.near_cache_bytes // 4
    assert span
    once, often = (
        costs.seconds(action(gather(amount=times * span, grain=256, span=span, launches=0)))
        / (times * span)
        for costs, times in ((Costs.of(machine), 1), (Costs.of(machine), 1000))
    )
    assert once > 1.3 * often
    nearest = machine.device.near_gather_Bps
    assert nearest is not None
    assert often == pytest.approx(1 / nearest.at(256), rel=0.05)


@pytest.mark.parametrize("name", PRESETS)
def test_a_gather_goes_smoothly_from_the_cache_to_memory(name):
    machine = preset(name)
    costs, row = Costs.of(machine), 64
    taken = [costs.seconds(action(gather(grain=row, span=2**power))) for power in range(12, 44)]
    assert taken == sorted(taken)
    assert all(b < 3 * a for a, b in pairwise(taken))
    launch_s = costs.seconds(action(gather(amount=0)))
    fastest = machine.device.near_gather_Bps or machine.device.cached_gather_Bps
    assert taken[0] == pytest.approx(GB / fastest.at(row) + launch_s, rel=0.05)
    assert taken[-1] == pytest.approx(GB / machine.device.gather_Bps.at(row) + launch_s, rel=0.01)


def test_hot_rows_stay_in_the_cache():
    costs = Costs.of(preset("h200"))
    even, skewed = (costs.seconds(action(gather(evenness=e))) for e in (1.0, 0.05))
    assert skewed < 0.7 * even


def test_a_kernel_that_walks_wide_rows_sees_a_narrow_table():
    machine = preset("h200")
    whole = replace(machine, device=replace(machine.device, pass_bytes=0))
    wide = action(gather(grain=1024, span=2**28))
    assert Costs.of(machine).seconds(wide) < 0.7 * Costs.of(whole).seconds(wide)


def test_the_h200_predicts_what_was_measured_on_it():
    """ms of benchmarks/results/kernels_gpu.json, one call at a time."""
    costs = Costs.of(preset("h200"))
    shapes = {
        "reddit": (232_965, 114_615_892, 0.035, {32: 1.07, 64: 1.95, 128: 4.01, 256: 7.61}),
        "products": (2_449_029, 123_718_280, 0.13, {32: 2.73, 64: 5.06, 128: 10.1, 256: 20.8}),
        "uniform": (2_000_000, 100_000_000, 0.97, {32: 2.92, 64: 6.04, 128: 11.8, 256: 22.9}),
    }
    for nodes, edges, even, measured in shapes.values():
        for width, ms in measured.items():
            row = 4 * width
            rows = gather(edges * row, grain=row, span=nodes * row, evenness=even)
            ordered = Work(kind="stream", amount=4 * edges + (8 + row) * nodes, launches=0)
            assert costs.seconds(action(rows, ordered)) * 1e3 == pytest.approx(ms, rel=0.18)


def test_links_are_told_apart_from_what_nothing_can_lengthen():
    machine = preset("h200")
    costs = Costs.of(machine)
    move = Work(kind="move", amount=554 * 10**8, place="h2d", launches=3)
    fixed_s, uses = costs.parts(action(move, gather(amount=0), lane=Lane.H2D))
    assert fixed_s == pytest.approx(3 * machine.link("h2d").latency_s + 30e-6)
    assert uses == (("h2d", 554 * 10**8, pytest.approx(55.4e9)),)
    assert costs.seconds(action(move)) == pytest.approx(1.0, rel=1e-3)
    assert costs.parts(action()) == (0.0, ())


@pytest.mark.parametrize(
    ("work", "lane", "link"),
    [
        (Work(kind="stream", amount=GB, place="host"), Lane.HOST, "host_copy"),
        (gather(place="host"), Lane.HOST, "host_gather"),
        (gather(place="host"), Lane.COMPUTE, "zero_copy"),
        (gather(place="peer"), Lane.COMPUTE, "peer"),
        (Work(kind="move", amount=GB, place="disk_write"), Lane.DISK_WRITE, "disk_write"),
    ],
)
def test_what_goes_over_which_link(work, lane, link):
    _, uses = Costs.of(preset("a100x8-nvswitch")).parts(action(work, lane=lane))
    assert [use.link for use in uses] == [link]


def test_the_host_of_a_cpu_machine_is_its_device():
    costs = Costs.of(preset("cpu2"))
    assert costs.parts(action(gather(place="host"))) == costs.parts(action(gather()))


def test_rows_that_are_copied_as_they_lie_have_a_rate_of_their_own():
    """Sums read theirs at random."""
    found = preset("h200")
    slow, fast = Curve.flat(1e9), Curve.flat(4e9)
    move = Work(kind="move", amount=10**9, grain=256, place="peer")
    for pulled, copied_s in ((None, 1.0), (fast, 0.25)):
        links = found.links | {"peer": Link(Bps=slow, pulled_Bps=pulled)}
        costs = Costs.of(replace(found, links=links))
        for op, seconds in ((Op.COPY, copied_s), (Op.AGGREGATE, 1.0)):
            step = replace(action(move, lane=Lane.PEER), op=op)
            assert costs.seconds(step) == pytest.approx(seconds)
            own = "pull" if pulled is not None and op is Op.COPY else "peer"
            assert [share.cost_class for share in costs.shares(step)] == [own]
            assert [use.link for use in costs.parts(step)[1]] == ["peer"]


def test_rows_that_are_read_again_in_place_come_from_the_cache():
    """But those of a table that it cannot hold, and each row once."""
    found = preset("h200")
    cache = found.device.cache_bytes
    links = found.links | {"peer": Link(Bps=Curve.flat(1e9), cached_Bps=Curve.flat(4e9))}
    costs = Costs.of(replace(found, links=links))

    def seconds(span: int, reads: int) -> float:
        move = Work(kind="move", amount=reads * span, grain=256, span=span, place="peer")
        return costs.seconds(action(move, lane=Lane.PEER)) * 1e9 / move.amount

    assert seconds(cache // 100, 100) == pytest.approx(1 / 4, rel=0.1)
    assert seconds(cache // 100, 1) == pytest.approx(1)
    assert seconds(100 * cache, 100) == pytest.approx(1, rel=0.02)
    assert costs.seconds(action(Work(kind="move", amount=10**9, grain=256, place="peer"))) == 1


def test_a_piece_that_is_not_said_is_the_whole():
    costs = Costs.of(preset("h200"))
    small, whole = (Work(kind="move", amount=2**26, place="disk_read", grain=g) for g in (4096, 1))
    assert costs.seconds(action(small)) > 4 * costs.seconds(action(whole))


def test_products_by_dtype():
    costs = Costs.of(preset("cpu2"))
    product = Work(kind="matmul", amount=10**10, grain=64)
    single, double = (replace(product, place=place) for place in ("float32", "float64"))
    assert costs.seconds(action(product)) == costs.seconds(action(single))
    assert costs.seconds(action(double)) > 2 * costs.seconds(action(single))


def test_little_is_streamed_within_a_cache():
    costs = Costs.of(preset("cpu2"))
    own = Work(kind="stream", amount=2**30, launches=0)
    assert costs.seconds(action(own)) == pytest.approx(2**30 / 20e9, rel=0.02)
    few = Work(kind="stream", amount=2**20, launches=0)
    assert costs.seconds(action(few)) == pytest.approx(2**20 / 120e9, rel=0.02)


def test_what_cannot_be_priced_is_refused():
    costs = Costs.of(preset("h200"))
    with pytest.raises(PlanError, match="has no peer link"):
        costs.seconds(action(gather(place="peer")))
    with pytest.raises(ConfigError, match="unknown class of work 'gathers'"):
        Costs(machine=preset("h200"), factors={"gathers": 1.0})
    with pytest.raises(ConfigError, match="above 0, had 0"):
        Costs(machine=preset("h200"), factors={"gather": 0.0})


@given(st.dictionaries(st.sampled_from(CLASSES), st.floats(0.01, 100)))
@settings(max_examples=25, deadline=None)
def test_costs_come_back_from_json(factors):
    costs = Costs(machine=preset("cpu2"), factors=factors)
    assert frozen.decode(Costs, json.loads(json.dumps(frozen.encode(costs)))) == costs


def test_costs_come_back_from_their_file(tmp_path):
    costs = Costs(machine=preset("h200"), factors={"matmul": 1.5})
    costs.save(tmp_path / "c.json")
    assert Costs.load(tmp_path / "c.json") == costs
    with pytest.raises(ConfigError, match="wanted tiergnn-machine version 1, had tiergnn-costs"):
        Machine.load(tmp_path / "c.json")
