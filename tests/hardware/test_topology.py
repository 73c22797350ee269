"""Topologies as data: ways of bytes, files and text, and what is no topology."""

from __future__ import annotations

import numpy as np
import pytest

from tests.exchanges import random_topology
from tiergnn.errors import ConfigError, StoreError
from tiergnn.hardware.topologies import TOPOLOGIES, topology
from tiergnn.hardware.topology import Topology, Wire


def names(found: Topology, sender: int, receiver: int) -> list[str]:
    return [found.ways[way] for way in found.path(sender, receiver)]


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_known_ones_are_read_back(name, tmp_path):
    known = topology(name)
    assert known.num_devices == 8
    assert Topology.parse(str(known)) == known
    known.save(tmp_path / "t.json")
    assert topology(tmp_path / "t.json") == known
    for a in range(8):
        assert known.path(a, a) == ()
        for b in range(8):
            back = [way ^ 1 for way in reversed(known.path(b, a))]
            assert list(known.path(a, b)) == back


def test_dgx1_is_the_hybrid_cube_mesh():
    dgx1 = topology("dgx1")
    links = dict.fromkeys(range(8), 0)
    for wire in dgx1.wires:
        if wire.kind.startswith("nvlink"):
            for end in (wire.a, wire.b):
                links[int(end.removeprefix("gpu"))] += int(wire.kind[-1])
    assert set(links.values()) == {6}
    assert names(dgx1, 0, 4) == ["gpu0>gpu4"]
    assert names(dgx1, 0, 5) == [
        "gpu0>switch0", "switch0>cpu0", "cpu0>cpu1", "cpu1>switch2", "switch2>gpu5",
    ]  # fmt: skip


def test_two_hosts_share_one_card_each():
    two = topology("2x4-nic")
    assert names(two, 1, 2) == ["gpu1>gpu2"]
    for sender in range(4):
        assert "nic0>nic1" in names(two, sender, 4 + sender)


def test_ways_run_through_no_other_device():
    wires = (
        Wire(a="d0", b="d1", kind="fast", Bps=1e9),
        Wire(a="d1", b="d2", kind="fast", Bps=1e9),
        *(Wire(a=f"d{i}", b="switch", kind="slow", Bps=1.0) for i in range(3)),
    )
    found = Topology(name="line", devices=("d0", "d1", "d2"), wires=wires)
    assert names(found, 0, 2) == ["d0>switch", "switch>d2"]
    assert names(found, 0, 1) == ["d0>d1"]


@pytest.mark.parametrize("seed", range(20))
def test_random_ones_are_read_back(seed):
    found = random_topology(np.random.default_rng(seed))
    assert Topology.parse(str(found)) == found


def line(**changes) -> Topology:
    fields = {
        "name": "two",
        "devices": ("a", "b"),
        "wires": (Wire(a="a", b="b", kind="x", Bps=1.0),),
    }
    return Topology(**fields | changes)


def test_what_is_no_topology(tmp_path):
    wire = Wire(a="a", b="b", kind="x", Bps=1.0)
    for changes, said in (
        ({"devices": ("a", "c")}, "no wires lead from a to c"),
        ({"devices": ("a", "a")}, "each device once"),
        ({"devices": ()}, "1 to 64 devices"),
        ({"wires": (wire, Wire(a="b", b="a", kind="y", Bps=2.0))}, "one wire between two"),
        ({"stage_s": -1.0}, "stage_s"),
        ({"name": "two words"}, "one printable word"),
        ({"source": "two\nlines"}, "one line"),
    ):
        with pytest.raises(ConfigError, match=said):
            line(**changes)
    for changes, said in (
        ({"Bps": 0.0}, "Bps"),
        ({"b": "a"}, "two places"),
        ({"kind": ""}, "a kind"),
    ):
        with pytest.raises(ConfigError, match=said):
            Wire(**{"a": "a", "b": "b", "kind": "x", "Bps": 1.0} | changes)
    for text in ("", "topology", "wire a b", str(line()).replace("1.0", "fast")):
        with pytest.raises(ConfigError):
            Topology.parse(text)
    with pytest.raises(ConfigError, match="dgx1"):
        topology("dgx")
    with pytest.raises(StoreError):
        topology(tmp_path / "none.json")
