"""Which back end is chosen, and why; memory that does not fit."""

from __future__ import annotations

import pytest

from tiergnn.errors import ConfigError, StoreError
from tiergnn.transport import segment
from tiergnn.transport.pick import NAMES, Setting, pick, probe
from tiergnn.transport.segment import Segment, map_segment

CPU = {"num_ranks": 2}
GPU = {"num_ranks": 2, "on_gpu": True, "nccl": True}
CASES = [
    ({"num_ranks": 1}, "virtual", "one rank"),
    (CPU, "shared", "one host"),
    ({**CPU, "shared_memory": False}, "gloo", "cannot open each other's memory"),
    ({**CPU, "one_host": False}, "gloo", "several hosts"),
    ({"num_ranks": 1, "one_host": False}, "gloo", "several hosts"),
    ({**GPU, "num_devices": 2, "peer_access": True}, "symmetric", "read each other's memory"),
    ({**GPU, "num_devices": 1, "peer_access": True}, "ipc", "share a GPU"),
    ({**GPU, "num_devices": 2}, "nccl", "cannot read each other's memory"),
    ({**GPU, "num_devices": 2, "one_host": False}, "nccl", "several hosts"),
    ({**GPU, "num_devices": 2, "nccl": False}, "gloo", "no NCCL"),
    ({**GPU, "num_devices": 1, "shared_memory": False}, "gloo", "through host memory"),
]


@pytest.mark.parametrize(("setting", "name", "why"), CASES)
def test_best(setting, name, why):
    choice = pick(Setting(**setting))
    assert choice.name == name
    assert why in choice.why
    assert "\n" not in choice.why


@pytest.mark.parametrize(("setting", "name", "why"), CASES)
def test_what_is_asked_for_works_or_is_refused_with_what_would(setting, name, why):
    refused = {}
    for asked in NAMES:
        try:
            assert pick(Setting(**setting), asked).why == "asked for"
        except ConfigError as error:
            refused[asked] = error
    assert name not in refused
    for asked, error in refused.items():
        assert error.problem.startswith(f"transport {asked}: ")
        assert str(error.hint).startswith(f"transport {name}: ")


def test_unknown_name():
    with pytest.raises(ConfigError, match="unknown transport 'glow'"):
        pick(Setting(num_ranks=2), "glow")


def test_two_ranks_of_one_gpu_cannot_use_nccl():
    with pytest.raises(ConfigError, match="NCCL wants a GPU for each rank"):
        pick(Setting(num_ranks=2, on_gpu=True, num_devices=1, nccl=True), "nccl")


def test_probe_of_this_machine():
    setting = probe(2)
    assert setting.shared_memory
    assert setting.gloo
    assert pick(setting).name == "shared"


def test_probe_where_memory_cannot_be_opened(monkeypatch):
    def refused(address):
        raise StoreError("no")

    monkeypatch.setattr("tiergnn.transport.pick.map_segment", refused)
    assert pick(probe(2)).name == "gloo"


def test_too_large_memory_is_refused_before_it_is_taken(monkeypatch):
    monkeypatch.setattr(segment, "free_host_bytes", lambda: 3 * 2**20)
    with pytest.raises(StoreError, match=r"4\.0 MiB wanted, 3\.0 MiB are free"):
        Segment(4 * 2**20)


def test_a_closed_segment_stays_with_who_has_mapped_it():
    ours = Segment(100)
    there = map_segment(ours.address)
    assert not there.any()
    ours.tensor().fill_(7)
    ours.close()
    ours.close()
    assert (there == 7).all()
    with pytest.raises(StoreError, match="cannot be opened"):
        map_segment(ours.address)
