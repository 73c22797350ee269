"""Machines as data: curves, files, presets; each wrong file is one clear error."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiergnn import frozen
from tiergnn.errors import ConfigError, PlanError, StoreError
from tiergnn.graph.distributions import rmat_shape
from tiergnn.graph.shape import Histogram
from tiergnn.hardware.machine import (
    LINKS,
    OF_HOST,
    Curve,
    Device,
    Link,
    Machine,
    Tier,
    cache_of,
    hit_frac,
)
from tiergnn.hardware.presets import PRESETS, preset, resolve

rates = st.floats(1.0, 1e15)
curves = (
    st.lists(
        st.tuples(st.floats(1.0, 1e12), rates), min_size=1, max_size=5, unique_by=lambda p: p[0]
    )
    .map(sorted)
    .map(lambda points: Curve(tuple(points)))
)
tiers = st.integers(0, 2**45).flatmap(
    lambda most: st.integers(0, most).map(lambda reserved: Tier(most, reserved))
)
links = st.builds(
    Link,
    Bps=curves,
    latency_s=st.floats(0, 1),
    devices=st.integers(1, 8),
    duplex_frac=st.floats(0.1, 1),
    wire=st.sampled_from(["", "h2d"]),
    pulled_Bps=st.none() | curves,
    cached_Bps=st.none() | curves,
)
devices = st.builds(
    Device,
    name=st.text(max_size=8),
    kind=st.sampled_from(["cuda", "cpu"]),
    memory=tiers,
    cache_bytes=st.integers(1000, 10**9),
    stream_Bps=rates,
    gather_Bps=curves,
    cached_gather_Bps=curves,
    matmul_flops=st.dictionaries(st.sampled_from(["float32", "float64"]), curves, min_size=1),
    launch_s=st.floats(0, 1),
    near_cache_bytes=st.integers(0, 1000),
    near_gather_Bps=curves,
    pass_bytes=st.integers(0, 512),
    elementwise_Bps=st.none() | curves,
    graph_launch_s=st.none() | st.floats(0, 1),
    replayed_launch_s=st.none() | st.floats(0, 1),
    fresh_Bps=st.none() | rates,
    draws_per_s=st.none() | rates,
    attends_per_s=st.none() | curves,
    walks_per_s=st.none() | rates,
    attend_reads=rates,
    softmaxes_per_s=st.none() | curves,
    drops_per_s=st.none() | curves,
    totals_Bps=st.none() | curves,
    adds_Bps=st.none() | curves,
    rowwise_Bps=st.none() | curves,
    outer_flops=st.dictionaries(st.sampled_from(["float32", "float64"]), curves),
)
machines = st.builds(
    Machine,
    name=st.text(max_size=8),
    num_devices=st.integers(1, 16),
    device=devices,
    host=tiers,
    disk=st.none() | tiers,
    links=st.dictionaries(st.sampled_from(LINKS), links, max_size=4),
    num_hosts=st.integers(1, 4),
)


@given(curves, st.floats(0.5, 1e13))
@settings(max_examples=50, deadline=None)
def test_a_curve_stays_within_its_points_and_meets_them(curve, size):
    values = [rate for _, rate in curve.points]
    assert min(values) * (1 - 1e-9) <= curve.at(size) <= max(values) * (1 + 1e-9)
    for at, rate in curve.points:
        assert curve.at(at) == pytest.approx(rate)
    assert curve.at(curve.points[0][0] / 2) == curve.points[0][1]
    assert curve.at(curve.points[-1][0] * 2) == curve.points[-1][1]


def test_a_curve_is_linear_in_the_logarithm_of_the_size():
    assert Curve(((16.0, 1.0), (256.0, 3.0))).at(64) == pytest.approx(2.0)
    assert Curve.flat(7).at(1e9) == 7


@pytest.mark.parametrize(
    "points",
    [
        (),
        ((1.0, 0.0),),
        ((0.0, 1.0),),
        ((2.0, 1.0), (1.0, 1.0)),
        ((1.0, 1.0), (1.0, 2.0)),
        ((1.0, math.inf),),
        ((math.nan, 1.0),),
    ],
)
def test_a_curve_of_nonsense_is_refused(points):
    with pytest.raises(ConfigError, match="a curve needs positive"):
        Curve(points)


@given(machines)
@settings(max_examples=40, deadline=None)
def test_a_machine_comes_back_from_json(machine):
    text = json.dumps(frozen.encode(machine))
    assert frozen.decode(Machine, json.loads(text)) == machine


def test_a_machine_comes_back_from_its_file(tmp_path):
    machine = preset("h200")
    machine.save(tmp_path / "m.json")
    assert Machine.load(tmp_path / "m.json") == machine
    assert resolve(tmp_path / "m.json") == machine
    assert resolve(str(tmp_path / "m.json")) == machine


def wrong(tmp_path, change) -> Any:
    """A good file of a machine, changed."""
    path = tmp_path / "m.json"
    preset("a5000-nvme").save(path)
    data = json.loads(path.read_text())
    data = change(data) or data
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda d: "{", "had no JSON"),
        (lambda d: "[]", "had another file"),
        (lambda d: d.update(format="tiergnn-plan"), "had tiergnn-plan version 1"),
        (lambda d: d.update(version=9), "had tiergnn-machine version 9"),
        (lambda d: d.pop("device") and None, "a field is missing"),
        (lambda d: d.update(color="red"), "unknown field 'color'"),
        (lambda d: d.update(num_devices=0), "has no devices"),
        (lambda d: d.update(num_devices="one"), "wanted a value of type int, had 'one'"),
        (lambda d: d["device"].update(kind="tpu"), "cuda or cpu, had 'tpu'"),
        (lambda d: d["device"].update(stream_Bps=0.0), "stream_Bps is above 0, had 0.0"),
        (lambda d: d["device"].update(launch_s=-1.0), "launch_s is 0 or more, had -1.0"),
        (lambda d: d["device"].update(matmul_flops={}), "matmul_flops is empty"),
        (lambda d: d["device"].update(near_cache_bytes=5), "needs near_gather_Bps"),
        (lambda d: d["device"].update(near_cache_bytes=10**9), "no larger than the last"),
        (lambda d: d["device"]["memory"].update(reserved_bytes=2**50), "a tier reserves"),
        (lambda d: d["device"]["gather_Bps"].update(points=[]), "a curve needs positive"),
        (lambda d: d["links"].update(h3d=d["links"]["h2d"]), "unknown link 'h3d'"),
        (lambda d: d["links"]["h2d"].update(devices=0), "devices is above 0"),
        (lambda d: d["links"]["h2d"].update(duplex_frac=1.5), "at most 1, had 1.5"),
        (lambda d: d["links"]["h2d"].update(latency_s=math.nan), "latency_s is 0 or more"),
    ],
)
def test_each_wrong_file_is_one_clear_error(tmp_path, change, told):
    with pytest.raises(ConfigError) as caught:
        Machine.load(wrong(tmp_path, change))
    assert told in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(StoreError, match="cannot be read"):
        resolve(tmp_path / "none.json")
    with pytest.raises(StoreError, match="cannot write"):
        preset("h200").save(tmp_path / "none" / "m.json")


@pytest.mark.parametrize("name", PRESETS)
def test_what_a_host_has_once_its_devices_share(name):
    """Its disk and its cores; what a disk reads and writes at once goes slower each way."""
    machine = preset(name)
    assert {machine.link(link).devices for link in OF_HOST} == {machine.num_devices}
    if machine.device.kind == "cuda":
        assert machine.link("disk_read").duplex_frac < 1 > machine.link("disk_write").duplex_frac
    wire = {"h2d", "d2h", "zero_copy", "pageable"} & set(machine.links)
    assert len({machine.link(link).devices for link in wire}) == 1


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_whole(name, tmp_path):
    machine = resolve(name)
    assert machine.name == name
    assert machine.source in ("measured", "published")
    assert machine.device.gather_Bps.at(64) <= machine.device.cached_gather_Bps.at(64)
    assert {"h2d", "d2h", "disk_read", "disk_write", "host_copy", "host_gather"} <= set(
        machine.links
    )
    if machine.num_devices > 1:
        assert {"peer", "peer_copy"} <= set(machine.links)
    if machine.device.kind == "cuda":
        assert machine.link("zero_copy").Bps.at(64) < machine.link("h2d").Bps.at(64)
    machine.save(tmp_path / "m.json")
    assert Machine.load(tmp_path / "m.json") == machine


def test_the_presets_say_what_the_papers_do():
    a, b = preset("a100x8-pcie"), preset("a100x8-nvswitch")
    assert a.num_devices == b.num_devices == 8
    assert b.link("peer_copy").Bps.at(1e9) > 10 * a.link("peer_copy").Bps.at(1e9)
    # LEO: A and B have 8 A100 of 80 GB, B any two of them 400 GB/s apart; C is 4 V100 on PCIe 3.
    assert {m.device.memory.capacity_bytes for m in (a, b)} == {80 * 2**30}
    assert 0.5 * 400e9 < b.link("peer_copy").Bps.at(1e9) <= 400e9
    c = preset("v100x4-pcie")
    assert c.num_devices == 4
    assert c.link("h2d").Bps.at(1) < 15.75e9 < a.link("h2d").Bps.at(1) < 31.5e9
    # APT: 8 T4, no NVLink between them.
    t4 = preset("t4x8")
    assert (t4.num_devices, t4.device.memory.capacity_bytes) == (8, 16 * 2**30)
    assert t4.link("peer_copy").Bps.at(1e9) <= t4.link("h2d").Bps.at(1)
    assert preset("dgx1").num_devices == 8
    work = preset("a5000-nvme")
    assert (work.device.memory.capacity_bytes, work.host.capacity_bytes) == (24 * 2**30, 2**37)
    assert work.link("disk_read").Bps.at(2**24) == 12e9
    h200 = preset("h200")
    assert h200.device.stream_Bps == 4165e9
    assert h200.link("zero_copy").Bps.at(256) == pytest.approx(51e9, rel=0.01)
    assert h200.link("d2h").Bps.at(1) == 55.2e9


def test_an_unknown_machine_is_answered_with_the_known_ones():
    with pytest.raises(ConfigError, match="unknown machine 'h20'") as caught:
        resolve("h20")
    assert "'h200', or one of a100x8-pcie" in str(caught.value)
    assert "JSON file" in str(caught.value)
    with pytest.raises(ConfigError, match="unknown machine 'A100'"):
        preset("A100")


def test_a_budget_caps_what_there_is():
    machine = preset("h200").with_budgets(device_bytes=2**33, host_bytes=2**60, disk_bytes=0)
    assert machine.tier("device").available_bytes == 2**33
    assert machine.tier("host") == preset("h200").host
    assert machine.tier("disk").available_bytes == 0
    with pytest.raises(PlanError, match="no disk tier"):
        replace(machine, disk=None).tier("disk")
    with pytest.raises(PlanError, match="has no peer link"):
        machine.link("peer")


def test_products_of_an_unknown_dtype_take_those_of_float32():
    device = preset("t4x8").device
    assert device.matmul_of("bfloat16") == device.matmul_flops["float32"]
    without = replace(device, matmul_flops={"float64": Curve.flat(1.0)})
    with pytest.raises(PlanError, match="no rate of matrix products of int8"):
        without.matmul_of("int8")


@given(st.floats(1, 1e10), st.floats(1, 1e12), st.floats(1e-3, 1))
@settings(max_examples=50, deadline=None)
def test_a_cache_answers_more_the_larger_it_is_and_the_more_uneven_the_reads(cache, span, even):
    hit = hit_frac(cache, span, even)
    assert 0 <= hit <= 1
    assert hit_frac(2 * cache, span, even) >= hit
    assert hit_frac(cache, 2 * span, even) <= hit
    assert hit_frac(cache, span, even / 2) >= hit
    assert hit_frac(0, span, even) == 0


@given(st.floats(0.05, 0.95), st.floats(1e3, 1e9))
@settings(max_examples=25, deadline=None)
def test_the_cache_of_a_hit_share_has_it(hit, span):
    assert hit_frac(cache_of(hit, span), span) == pytest.approx(hit)


@pytest.mark.parametrize(("streamed", "share"), [(0.1, 0.1), (0.1, 0.4), (0.4, 0.2), (1.0, 0.5)])
def test_what_is_streamed_takes_room_from_rows_in_a_cache(streamed, share):
    """Held to a least-recently-used cache: rows read as an R-MAT graph reads them, and lines that
    pass once."""
    degrees = rmat_shape(3_000, 45_000, a=0.57, b=0.19, c=0.19).out_degrees
    counts = np.array(degrees.counts).round()
    evenness = Histogram(degrees.degrees, tuple(counts.tolist())).evenness
    chance = np.repeat(np.array(degrees.degrees, np.float64), counts.astype(int))
    rows, random = chance.size, np.random.default_rng(0)
    reads = random.choice(rows, 40_000, p=chance / chance.sum())
    passing = random.random(reads.size) < streamed
    lines: OrderedDict[int, None] = OrderedDict()
    hits = judged = 0
    for i, row in enumerate(reads.tolist()):
        if passing[i]:
            lines[rows + i] = None  # a name that no row has
        if i > reads.size // 2:
            judged += 1
            hits += row in lines
        lines.pop(row, None)
        lines[row] = None
        while len(lines) > share * rows:
            lines.popitem(last=False)
    found = hits / judged
    alone = share / (share + evenness * (1 - share))
    assert hit_frac(share * rows, rows, evenness, streamed) == pytest.approx(found, abs=0.04)
    assert found < alone - 0.01
    assert hit_frac(share * rows, rows, evenness, 0.0) > found + 0.01
