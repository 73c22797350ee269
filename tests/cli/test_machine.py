"""machine: this host's rates, a preset's or a file's, as a table, as JSON and as a file."""

from __future__ import annotations

import pytest

from tiergnn.hardware import measure as measuring
from tiergnn.hardware.machine import Machine
from tiergnn.hardware.presets import PRESETS, preset


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_printed_with_all_that_it_has(cli, name):
    told = cli("machine", "--preset", name)
    assert told.code == 0, told.err
    found = preset(name)
    assert told.out.startswith(f"{name} ({found.source}")
    for link in found.links:
        assert f"\n  {link} " in told.out
    assert found.device.name in told.out
    assert str(found.host) in told.out


def test_a_machine_is_written_read_and_printed_as_json(cli, tmp_path):
    path = tmp_path / "m.json"
    assert f"written to {path}" in cli("machine", "--preset", "a100x8-pcie", "--out", path).out
    assert Machine.load(path) == preset("a100x8-pcie")
    printed = cli("machine", "--preset", path, "--json").json
    assert printed["format"] == "tiergnn-machine"
    assert printed["num_devices"] == 8
    shared = cli("machine", "--preset", path).out
    assert "shared by 2 devices" in shared
    assert "87% of it beside the opposite way" in shared
    assert "1.68 TB/s" in shared


def test_without_a_preset_this_machine_is_measured(cli, tmp_path, monkeypatch):
    asked = []

    def measure(folder, *, refresh, device):
        asked.append((folder, refresh, device))
        return preset("cpu2")

    monkeypatch.setattr(measuring, "measure", measure)
    assert "2 cores of an AMD EPYC" in cli("machine").out
    assert cli("machine", "--refresh", "--folder", tmp_path, "--device", "cpu").code == 0
    assert [(str(f), r, d) for f, r, d in asked] == [
        (".", False, None),
        (str(tmp_path), True, "cpu"),
    ]


def test_what_machine_refuses(cli, tmp_path):
    unknown = cli("machine", "--preset", "dgx2")
    assert unknown.code == 2
    assert "unknown machine 'dgx2'" in unknown.err
    assert "'dgx1', or one of" in unknown.err
    both = cli("machine", "--preset", "dgx1", "--refresh")
    assert both.code == 2
    assert "dgx1 is not measured" in both.err
    absent = cli("machine", "--preset", tmp_path / "none.json")
    assert absent.code == 3
    assert "cannot be read" in absent.err
    (tmp_path / "file").write_text("")
    nowhere = cli("machine", "--preset", "dgx1", "--out", tmp_path / "file" / "m.json")
    assert nowhere.code == 3
    assert "cannot make its folder" in nowhere.err
