"""Files that were changed by hand or by chance: one error that names file, field and way out."""

from __future__ import annotations

import json
import random
from contextlib import suppress

import pytest

import tiergnn as tg
from tiergnn.errors import ConfigError, StoreError, TiergnnError
from tiergnn.files import read_json
from tiergnn.graph.generate import sbm
from tiergnn.graph.shape import shape_of
from tiergnn.planner.models import classic
from tiergnn.planner.plan import Plan
from tiergnn.schedule.actions import WORKS
from tiergnn.workload import TERMS, Workload

NAN, INF, HUGE = float("nan"), float("inf"), 10**400
GONE = object()


@pytest.fixture(scope="module")
def plan():
    shape = shape_of(sbm(200, 3, degree=6, num_features=8, seed=1))
    work = classic("gin", 8, 3, hidden=16, layers=2)
    return tg.plan(
        shape, work, machine="cpu2", strategies=["grinnder"], device_memory="60KiB", split=None
    )


@pytest.fixture(scope="module")
def saved(plan, tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "p.json"
    plan.save(path)
    return path.read_text()


def changed(text, place, value):
    """The JSON text with another value at a place, ``a.0.b``; without it where that is GONE."""
    data = json.loads(text)
    *way, last = [int(word) if word.isdecimal() else word for word in place.split(".")]
    at = data
    for step in way:
        at = at[step]
    if value is GONE:
        del at[last]
    else:
        at[last] = value
    return json.dumps(data)


STAGE = "workload.stages.1"


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        (f"{STAGE}.backward_held.sizes.0.per_row", NAN, "wanted a number"),
        (f"{STAGE}.kept.per_row", INF, "wanted a number"),
        (f"{STAGE}.kept.per_row", HUGE, "64 bits"),
        (f"{STAGE}.parameter_bytes", HUGE, "64 bits"),
        (f"{STAGE}.parameter_bytes", -1, "parameter_bytes is 0 or more"),
        ("workload.stages.0.writes", [], "had none"),
        (f"{STAGE}.reads", ["nope"], "reads of stage 2: wanted what is there then, had nope"),
        (f"{STAGE}.frees", ["nope"], "frees of stage 2: wanted what is there then, had nope"),
        (f"{STAGE}.frees", [], "none frees"),
        (f"{STAGE}.frees", ["h2"], "had h2, which an earlier stage frees"),
        (f"{STAGE}.statistics", ["x"], "statistics of stage 2"),
        ("workload.stages.0.gathers", [], "gathers: wanted the rows that a graph operation reads"),
        (f"{STAGE}.writes", ["h1", "h1"], "each tensor once, had h1 again"),
        (f"{STAGE}.before", ["nope"], "before: wanted some of what stage 2 reads, had nope"),
        (f"{STAGE}.kind", "nope", "unknown kind of stage"),
        (f"{STAGE}.index", 1, "an index of its own"),
        (f"{STAGE}.forward.0.kind", "nope", "unknown kind of work"),
        (f"{STAGE}.forward.0.launches", -1, "launches is 0 or more"),
        ("workload.rows.0.width", -1, "width is 0 or more"),
        ("workload.rows.0.name", "nope", "unknown rows"),
        ("workload.rows.0.name", "s1", "a word of its own"),
        ("workload.rows.0.name", "parameters", "a word of its own"),
        ("workload.rows.0.dtype", "nope", "unknown dtype"),
        ("workload.output", "nope", "unknown rows"),
        ("workload.stages", [], "an index of its own"),
        ("workload.optimizer_bytes", GONE, "a field is missing"),
        ("layout.parts.0.rows", -1, "rows is 0 or more"),
        ("layout.parts.0.rows", 10**4, "wanted 200 rows in all"),
        ("layout.parts.0.halo_of", [], "halo_of: wanted one for each of"),
        ("layout.parts.0.local_edges", 10**6, "local_edges: wanted at most the"),
        ("layout.parts", [], "parts: wanted 1 or more"),
        ("shape.num_features", -1, "num_features is 0 or more"),
        ("strategy", "nope", "unknown strategy"),
        ("factors", {"gather": 0.0}, "factors.gather is above 0"),
        ("knobs.slices", 2**40, "slices: wanted at most"),
        ("layout.parts.0.served", [], "ascending"),
        ("machine.device.stream_Bps", NAN, "stream_Bps"),
        ("knobs.parts", "two", "a value of type int"),
    ],
)
def test_a_changed_field_is_named(saved, tmp_path, place, value, told):
    path = tmp_path / "changed.json"
    path.write_text(changed(saved, place, value))
    with pytest.raises(ConfigError, match=told) as refused:
        Plan.load(path)
    assert str(path) in str(refused.value)
    assert place.split(".")[0] in f"{refused.value.problem} {refused.value.culprit}"


def places(data, way=()):
    found = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in found:
        yield (*way, key), value
        if isinstance(value, dict | list):
            yield from places(value, (*way, key))


def test_no_change_is_a_crash(saved, tmp_path):
    """Changes drawn at random: a plan that says what it takes, or one of our errors."""
    draw = random.Random(1)
    data = json.loads(saved)
    every = [(".".join(map(str, way)), value) for way, value in places(data)]
    others = (-1, 0, NAN, HUGE, 1e300, "nope", [], {}, None, GONE)
    for place, _ in draw.sample(every, 150):
        path = tmp_path / "changed.json"
        path.write_text(changed(saved, place, draw.choice(others)))
        with suppress(TiergnnError):
            assert str(Plan.load(path))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[" * 100_000, "too deep"),
        ("", "had no JSON"),
        ('{"format": ', "had no JSON"),
        ("\udcff", "had no JSON"),
        ("[]", "had another file"),
        ('{"format": "tiergnn-workload", "version": 99}', "had tiergnn-workload version 99"),
    ],
)
def test_no_workload_names_the_way_out(tmp_path, text, told):
    path = tmp_path / "w.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=told) as refused:
        Workload.load(path)
    assert refused.value.culprit == str(path)
    assert "--save-workload" in (refused.value.hint or "")


def test_a_run_folders_file_too_deep_is_damaged(tmp_path):
    (tmp_path / "run.json").write_text("[" * 100_000)
    with pytest.raises(StoreError, match="too deep"):
        read_json(tmp_path / "run.json")
    with pytest.raises(StoreError, match="too deep"):
        tg.Graph.open(_damaged(tmp_path / "graph"))


def _damaged(folder):
    sbm(20, 2, num_features=2).save(folder)
    (file,) = (f for f in folder.glob("*.json"))
    file.write_text("[" * 100_000)
    return folder


def test_work_of_stages_is_work_of_schedules():
    assert set(TERMS) < set(WORKS)
