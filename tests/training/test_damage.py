"""Every file of a run folder, damaged one at a time; runs replaced while anything may fail."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
import zlib

import numpy as np
import pytest

import tiergnn as tg
from tests.contents import contents
from tests.training.models import community
from tiergnn import files, frozen
from tiergnn.errors import ConfigError, StoreError
from tiergnn.hardware.presets import resolve
from tiergnn.planner.plan import Plan
from tiergnn.report.record import RunRecord
from tiergnn.training import aside
from tiergnn.training import folder as folder_module

QUIET = {"progress": False}
GCN = {"name": "gcn", "hidden_channels": 4}


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return community(150).save(tmp_path_factory.mktemp("graphs") / "g")


@pytest.fixture(scope="module")
def planned(graph, tmp_path_factory):
    """A finished run with every file that a run folder may have."""
    out = tmp_path_factory.mktemp("runs") / "r"
    plan = tg.plan(graph, GCN, machine=resolve("h200"), strategies=["resident"], device="cpu")
    split = {name: np.asarray(ids) for name, ids in graph.splits.items()}
    tg.train(
        graph, GCN, plan, epochs=4, checkpoint_every=2, split=split, device="cpu", out=out, **QUIET
    )
    return out


@pytest.fixture
def run(planned, tmp_path):
    shutil.copytree(planned, tmp_path / "r")
    return tmp_path / "r"


DAMAGE = {
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "zeros": lambda data: bytes(len(data)),
    "flipped": lambda data: data[:-20] + bytes([data[-20] ^ 4]) + data[-19:],
    "list": lambda data: b"[1]\n",
    "object": lambda data: b"{}\n",
    "latin": lambda data: b"\xff\xfe{}\n",
}
ASKED = {
    "resume": lambda run: tg.resume(run, epochs=6, **QUIET),
    "evaluate": lambda run: tg.evaluate(run, "test"),
    "predict": lambda run: tg.predict(run),
    "report": RunRecord.read,
}
# What each may do without, and those who still do not look at it.
UNREAD = {
    "log.jsonl": {"resume", "evaluate", "predict"},
    "result.json": {"resume", "evaluate", "predict"},
    "timeline.json": {"resume", "evaluate", "predict"},
    "plan.json": {"evaluate", "predict"},
    "splits.npz": {"report"},
    "run.json": set(),
}


@pytest.mark.parametrize("how", [*DAMAGE, "gone"])
@pytest.mark.parametrize("name", UNREAD)
def test_a_damaged_file_is_one_error_of_stored_data_or_has_no_say(graph, run, name, how, caplog):
    want = tg.predict(run)
    if how == "gone":
        (run / name).unlink()
    else:
        (run / name).write_bytes(DAMAGE[how]((run / name).read_bytes()))
    before = contents(run)
    for asked, ask in ASKED.items():
        if asked == "resume":
            continue  # the last, since it may write
        _ask(ask, run, name, told=asked not in UNREAD[name], how=how, report=asked == "report")
        assert contents(run) == before
    if "predict" in UNREAD[name]:
        assert (tg.predict(run) == want).all()
    resumed = "resume" in UNREAD[name]
    _ask(ASKED["resume"], run, name, told=not resumed, how=how, report=False)
    assert resumed or how == "flipped" or contents(run) == before
    if resumed:  # which mends what it writes
        assert RunRecord.read(run).epochs == 6


def _ask(ask, run, name, *, told, how, report):
    harmless = report and name in ("log.jsonl", "result.json", "plan.json", "timeline.json")
    if harmless and how == "gone":
        told = False  # a run that is not finished, or that had no plan, looks like this
    if name == "log.jsonl" and how in ("cut", "empty", "zeros"):
        told = False  # no whole line
    found = None
    try:
        ask(run)
    except StoreError as error:
        found = str(error)
    if found is None:
        assert not told or how == "flipped", (name, how)
    else:
        assert told, found
        assert name in found


def test_a_flipped_byte_of_what_decides_a_run_is_seen(run):
    """All over each file, where its checksum or its format tells."""
    for name in ("run.json", "plan.json", "splits.npz"):
        good = (run / name).read_bytes()
        missed = []
        for at in range(0, len(good), max(1, len(good) // 12)):
            (run / name).write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
            try:
                tg.resume(run, **QUIET)
            except StoreError:
                continue
            missed.append(at)
        (run / name).write_bytes(good)
        # What blanks and an archive's unused fields say is nothing.
        assert len(missed) <= 4, (name, missed)
    assert tg.resume(run, **QUIET).finished


def test_a_plan_that_is_gone_or_another_is_not_passed_over(graph, run, planned, caplog):
    record = json.loads((run / "run.json").read_text())
    assert record["plan"] is not None
    other = tg.plan(
        graph, GCN, machine=resolve("a100x8-pcie"), strategies=["resident"], device="cpu"
    )
    other.save(run / "plan.json")
    with pytest.raises(StoreError, match="is not the plan that the run was made by"):
        tg.resume(run, epochs=6, **QUIET)
    (run / "plan.json").unlink()
    with pytest.raises(StoreError, match=r"its plan\.json is gone"):
        tg.resume(run, epochs=6, **QUIET)
    with caplog.at_level(logging.WARNING, "tiergnn"):
        tg.evaluate(run)
    assert "left out: the run was made by a plan" in caplog.text
    shutil.copy(planned / "plan.json", run)
    assert len(tg.resume(run, epochs=6, **QUIET).history) == 6
    tg.train(graph, GCN, epochs=1, out=run, overwrite=True, **QUIET)
    shutil.copy(planned / "plan.json", run)
    with pytest.raises(StoreError, match="made without a plan"):
        tg.resume(run, epochs=6, **QUIET)


def test_a_plan_of_before_a_field_was_added_is_the_plan(run):
    """Neither its plan.json nor its checksum of the plan knows of the field."""
    head = {"format": "tiergnn-plan", "version": 1}
    plan = frozen.encode(Plan.load(run / "plan.json"))
    stages = plan["workload"]["stages"]
    for holder, field in (
        (plan, "scratch"), (plan["knobs"], "pieces"), (plan["workload"], "label_bytes"),
        *((stage, "by_degrees") for stage in stages if not stage["by_degrees"]),
    ):  # fmt: skip
        del holder[field]
    folder, record = folder_module.RunFolder.open(run)
    whole = record["plan"]
    folder.rewrite(record | {"plan": zlib.crc32(json.dumps(plan).encode())})
    assert folder_module.RunFolder.open(run)[1]["plan"] != whole
    with pytest.raises(StoreError, match="is not the plan that the run was made by"):
        tg.resume(run, epochs=6, **QUIET)
    (run / "plan.json").write_text(json.dumps(head | plan, indent=1))
    assert len(tg.resume(run, epochs=6, **QUIET).history) == 6
    stages[0]["parameter_bytes"] += 4
    (run / "plan.json").write_text(json.dumps(head | plan, indent=1))
    with pytest.raises(StoreError, match="is not the plan that the run was made by"):
        tg.resume(run, epochs=6, **QUIET)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"epochs": "many"}, "epochs"),
        ({"horizon": 3}, "does not know: horizon"),
        ({"dtype": "float8"}, "float8"),
        ({"lr": "fast"}, "options that are none"),
    ],
)
def test_options_changed_by_hand_are_stored_data(run, change, told):
    file = run / "run.json"
    record = json.loads(file.read_text())
    record["options"] |= change
    del record["crc32"]
    file.write_text(json.dumps(record))
    for ask in ("resume", "evaluate", "predict"):
        with pytest.raises(StoreError, match=told):
            ASKED[ask](run)


def test_options_that_an_older_record_lacks_have_their_defaults(run):
    file = run / "run.json"
    record = json.loads(file.read_text())
    del record["crc32"], record["options"]["clip"], record["plan"]
    file.write_text(json.dumps(record))
    assert len(tg.resume(run, epochs=5, **QUIET).history) == 5


def fails_at(monkeypatch, count):
    """The count-th call that changes a name or makes data durable finds the disk full."""
    calls = iter(range(count))

    def guard(name, real):
        def call(*args, **kwargs):
            if next(calls, None) is None:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*args, **kwargs)

        return call

    for name in ("fsync", "replace"):
        monkeypatch.setattr(files.os, name, guard(name, getattr(os, name)))


def test_a_run_stays_whole_until_the_one_that_replaces_it_has_begun(graph, run, monkeypatch):
    """A full disk at every write of the new run's beginning; then a second try succeeds."""
    before = contents(run)
    for count in range(30):
        with monkeypatch.context() as patch:
            fails_at(patch, count)
            try:
                tg.train(graph, GCN, epochs=1, out=run, overwrite=True, **QUIET)
                break
            except StoreError as error:
                told = str(error)
        assert "No space left" in told
        if not (run / "plan.json").exists():
            break  # the new run has begun
        assert contents(run) == before
    assert count > 3
    assert not (run / aside.PLACE).exists()
    tg.train(graph, GCN, epochs=1, out=run, overwrite=True, **QUIET)
    assert RunRecord.read(run).epochs == 1
    assert not (run / "plan.json").exists()


class Kill(BaseException):
    pass


def killed(call, count):
    """Run ``call``, dying before the count-th change of a name; nothing of ours runs after that.

    Gives the number of changes that it made.
    """
    made = 0
    dead = False

    def guard(real):
        def change(*args, **kwargs):
            nonlocal made, dead
            if dead or made == count:
                dead = True
                raise Kill
            made += 1
            return real(*args, **kwargs)

        return change

    with pytest.MonkeyPatch.context() as patch:
        for name in ("rename", "replace", "unlink", "rmdir", "mkdir"):
            patch.setattr(os, name, guard(getattr(os, name)))
        with contextlib.suppress(Kill):
            call()
    return made


def test_killed_at_any_change_of_a_replacement(tmp_path):
    """Either the old run is there, whole, or the new one has begun; never neither."""
    names = folder_module._OURS

    def old(at):
        (at / "checkpoints").mkdir(parents=True)
        (at / "run.json").write_text("old")
        (at / "log.jsonl").write_text("old")
        (at / "checkpoints" / "epoch-3.json").write_text("old")

    def replace(at, begins):
        aside.settle(at, names)
        aside.move_aside(at, names)
        (at / "partial").write_text("new")
        os.replace(at / "partial", at / "run.json")
        if begins:
            os.mkdir(at / "checkpoints")
            (at / "checkpoints" / "partial").write_text("new")
            os.replace(at / "checkpoints" / "partial", at / "checkpoints" / "epoch-0.json")
        aside.settle(at, names)

    for begins in (False, True):
        for count in range(60):
            at = tmp_path / f"{begins}-{count}"
            old(at)
            want = contents(at)
            if killed(lambda at=at, b=begins: replace(at, b), count) < count:
                break
            again = 0
            while killed(lambda at=at: aside.settle(at, names), again) == again:
                again += 1  # killed while it settles, too
            (at / "partial").unlink(missing_ok=True)
            (at / "checkpoints" / "partial").unlink(missing_ok=True)
            found = contents(at)
            assert not (at / aside.PLACE).exists()
            if found != want:
                assert begins
                assert found == {
                    "run.json": b"new",
                    "checkpoints/epoch-0.json": b"new",
                }
        assert 10 < count < 59


def test_a_run_that_never_began_is_begun_anew_without_being_told_to(graph, tmp_path):
    out = tmp_path / "r"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tiergnn.training.loop.Trainer.keep_in", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            tg.train(graph, GCN, epochs=1, out=out, **QUIET)
    assert not out.exists()
    out.mkdir()
    (out / "run.json").write_text("{}")  # as after a kill -9
    assert tg.train(graph, GCN, epochs=1, out=out, **QUIET).losses
    with pytest.raises(ConfigError, match="overwrite=True"):
        tg.train(graph, GCN, epochs=1, out=out, **QUIET)
    shutil.rmtree(out / "checkpoints")  # to save room: its result is still worth keeping
    with pytest.raises(ConfigError, match="overwrite=True"):
        tg.train(graph, GCN, epochs=1, out=out, **QUIET)


def _interrupt(*args):
    raise KeyboardInterrupt


def test_a_replacement_that_was_killed_is_undone_by_whoever_asks_next(graph, run):
    want = tg.predict(run)
    before = contents(run)
    aside.move_aside(run, folder_module._OURS)
    (run / "run.json").write_text("half")
    assert (tg.predict(run) == want).all()
    assert contents(run) == before


def test_a_later_version_is_not_taken_for_damage(run):
    """Of the run, the plan and the checkpoints: the way out is the tiergnn that wrote it."""
    later = {
        "run.json": "a run of version 2",
        "plan.json": "version 2",
        "checkpoints/epoch-4.json": "a checkpoint of version 2",
    }
    for name, told in later.items():
        file = run / name
        good = file.read_bytes()
        record = json.loads(good) | {"version": 2}
        if record.pop("crc32", None) is not None:
            record["crc32"] = zlib.crc32(json.dumps(record).encode())
        file.write_text(json.dumps(record))
        with pytest.raises(StoreError, match=told):
            tg.resume(run, epochs=6, **QUIET)
        file.write_bytes(good)
    assert len(tg.resume(run, epochs=6, **QUIET).history) == 6
