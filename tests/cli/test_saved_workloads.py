"""Workloads in files: plans of them are those of the model by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tiergnn.errors import ConfigError
from tiergnn.graph.generate import sbm
from tiergnn.workload import Workload

SAGE = ("--model", "sage", "--hidden", 16, "--layers", 2)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    folder = tmp_path_factory.mktemp("graphs") / "sbm"
    sbm(500, 4, degree=8, num_features=16, seed=1).save(folder)
    return folder


def test_a_saved_workload_is_prepared_as_the_model_is(cli, graph, tmp_path):
    named = ("plan", graph, *SAGE, "--machine", "h200", "--strategy", "resident", "--json")
    by_name = cli(*named, "--save-workload", tmp_path / "w.json").json
    saved = ("plan", graph, "-m", tmp_path / "w.json", *named[-5:])
    assert any("prepared" in trial["knobs"] for trial in by_name["trials"])
    assert cli(*saved).json == by_name
    plain = cli(*named, "--no-prepare").json
    assert cli(*saved, "--no-prepare").json == plain
    assert plain["predicted_s"] > by_name["predicted_s"]
    held = Workload.load(tmp_path / "w.json")
    assert Workload.load(tmp_path / "w.json").prepared_form is not None
    with pytest.raises(ConfigError, match="prepared_form"):
        replace(held, prepared_form=replace(held, prepared_form=None))
