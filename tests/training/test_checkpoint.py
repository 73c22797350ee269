"""Checkpoints: whole or absent, whatever happens while one is written or afterwards."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import zlib

import pytest
import torch
from safetensors.torch import load_file

from tiergnn import files
from tiergnn.errors import ConfigError, StoreError
from tiergnn.training.checkpoint import VERSION, Checkpoint, Checkpoints, check_fits


def make(epoch, best_epoch=None):
    best_epoch = epoch if best_epoch is None else best_epoch
    return Checkpoint(
        epoch=epoch,
        weights={"lin.weight": torch.full((2, 3), float(epoch)), "lin.bias": torch.zeros(3)[::2]},
        best_epoch=best_epoch,
        best={"lin.weight": torch.full((2, 3), float(best_epoch)), "lin.bias": torch.zeros(2)},
        state={
            "progress": {"epoch": epoch, "history": [{"loss": 0.1}]},
            "optimizer": {"state": {0: {"step": torch.tensor(float(epoch)), "lr": 0.1}}},
        },
    )


@pytest.fixture
def kept(tmp_path):
    store = Checkpoints(tmp_path / "checkpoints")
    for epoch in (1, 2, 3):
        store.save(make(epoch, best_epoch=min(epoch, 2)))
    return store.folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_was_saved_comes_back(kept):
    got, want = Checkpoints(kept).load(), make(3, 2)
    assert (got.epoch, got.best_epoch) == (3, 2)
    for name, tensor in want.weights.items():
        assert torch.equal(got.weights[name], tensor)
    assert torch.equal(got.best["lin.weight"], want.best["lin.weight"])
    assert got.state["progress"] == want.state["progress"]
    assert got.state["optimizer"]["state"][0]["step"] == 3.0


def test_last_and_best_are_kept_and_no_more(kept):
    assert names(kept) == sorted(
        f"epoch-{epoch}.{kind}"
        for epoch in (2, 3)
        for kind in ("json", "state.safetensors", "weights.safetensors")
    )
    store = Checkpoints(kept)
    store.load()
    for epoch in (4, 5, 6):
        store.save(make(epoch, best_epoch=2))
    assert "epoch-2.weights.safetensors" in names(kept)
    assert "epoch-2.json" not in names(kept)
    assert len(names(kept)) == 7
    best, state = Checkpoints(kept).load_best()
    assert best["lin.weight"][0, 0] == 2
    assert state["progress"]["epoch"] == 6


def test_weights_are_a_plain_state_dict(kept):
    assert set(load_file(kept / "epoch-3.weights.safetensors")) == {"lin.weight", "lin.bias"}


def test_best_weights_that_no_checkpoint_wrote(tmp_path):
    store = Checkpoints(tmp_path / "c")
    store.save(make(4, best_epoch=3))
    assert Checkpoints(tmp_path / "c").load().best["lin.weight"][0, 0] == 3


DAMAGE = {
    "cut short": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "flipped bit": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "grown": lambda data: data + b"\0",
    "other": lambda data: b'{"format": "other"}',
}


@pytest.mark.parametrize("kind", ["json", "state.safetensors", "weights.safetensors"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_passed_over_with_one_warning(kept, caplog, kind, damage):
    path = kept / f"epoch-3.{kind}"
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    if damage == "grown" and kind == "json":
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    with caplog.at_level(logging.WARNING, "tiergnn"):
        assert Checkpoints(kept).load().epoch == 2
    assert len(caplog.records) == 1
    assert str(path) in caplog.text


@pytest.mark.parametrize("kind", ["state.safetensors", "weights.safetensors"])
def test_a_missing_file_is_passed_over(kept, caplog, kind):
    (kept / f"epoch-3.{kind}").unlink()
    assert Checkpoints(kept).load().epoch == 2
    assert f"epoch-3.{kind} is missing" in caplog.text


def test_any_flipped_bit_is_seen(kept):
    """Every 19th byte of the newest checkpoint's files, one at a time."""
    for kind in ("json", "state.safetensors", "weights.safetensors"):
        path = kept / f"epoch-3.{kind}"
        data = path.read_bytes()
        for position in range(0, len(data), 19):
            path.write_bytes(data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :])
            assert Checkpoints(kept).load().epoch == 2
        path.write_bytes(data)
    assert Checkpoints(kept).load().epoch == 3


def test_nothing_sound_is_one_error_that_names_what_was_found(kept):
    for path in kept.glob("*.json"):
        path.write_bytes(b"{")
    with pytest.raises(StoreError) as error:
        Checkpoints(kept).load()
    assert "epoch-3.json" in str(error.value)
    assert "epoch-2.json" in str(error.value)
    assert "overwrite" in str(error.value)


@pytest.mark.parametrize("folder", ["missing", "empty"])
def test_no_checkpoints_at_all(tmp_path, folder):
    if folder == "empty":
        (tmp_path / folder).mkdir()
    with pytest.raises(StoreError, match="no sound checkpoint"):
        Checkpoints(tmp_path / folder).load()


def test_a_newer_version_is_not_passed_over(kept):
    path = kept / "epoch-3.json"
    record = json.loads(path.read_bytes())
    record["version"] = VERSION + 1
    record["crc32"] = zlib.crc32(
        json.dumps({k: v for k, v in record.items() if k != "crc32"}).encode()
    )
    path.write_text(json.dumps(record))
    with pytest.raises(StoreError, match=f"version {VERSION + 1}.*reads {VERSION}"):
        Checkpoints(kept).load()


def test_permission_denied_is_an_error_not_a_flaw(kept, monkeypatch):
    """Root may read anything, so the refusal is the file system's, injected."""
    read = type(kept).read_bytes

    def refuse(path):
        if path.name == "epoch-3.state.safetensors":
            raise PermissionError(errno.EACCES, "Permission denied")
        return read(path)

    monkeypatch.setattr(type(kept), "read_bytes", refuse)
    with pytest.raises(StoreError, match=r"cannot read epoch-3\.state\.safetensors: Permission"):
        Checkpoints(kept).load()


@pytest.mark.parametrize("failing", range(3))
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_earlier_checkpoint(kept, monkeypatch, call, failing):
    store = Checkpoints(kept)
    before = {path.name: path.read_bytes() for path in kept.iterdir()}
    store.load()
    calls = []

    def fail(*args):
        calls.append(args)
        if len(calls) > failing * (2 if call == "fsync" else 1):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args)

    real = getattr(os, call)
    monkeypatch.setattr(files.os, call, fail)
    with pytest.raises(StoreError) as error:
        store.save(make(4))
    monkeypatch.undo()
    assert "No space left on device" in str(error.value)
    assert "free some disk space" in str(error.value)
    after = {path.name: path.read_bytes() for path in kept.iterdir()}
    assert all(after[name] == data for name, data in before.items())
    assert not [name for name in after if "partial" in name]
    assert Checkpoints(kept).load().epoch == 3
    store.save(make(4))
    assert Checkpoints(kept).load().epoch == 4


def test_a_limit_on_file_size_is_an_error_too(kept):
    """A real short write by the system, not an injected one."""
    script = """
        import resource, sys, torch
        from tests.training.test_checkpoint import make
        from tiergnn.errors import StoreError
        from tiergnn.training.checkpoint import Checkpoints
        from pathlib import Path
        store = Checkpoints(Path(sys.argv[1]))
        store.load()
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        try:
            store.save(make(4))
        except StoreError as error:
            print(error)
    """
    out = run_python(script, kept)
    assert "File too large" in out.stdout
    assert Checkpoints(kept).load().epoch == 3


def run_python(script, *args):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))),
        check=False,
    )


KILLED = """
    import os, signal, sys
    from pathlib import Path
    from tests.training.test_checkpoint import make
    from tiergnn import files
    from tiergnn.training.checkpoint import Checkpoints

    call, count = sys.argv[2], int(sys.argv[3])
    real, calls = getattr(os, call), []

    def fatal(*args):
        calls.append(args)
        if len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args)

    store = Checkpoints(Path(sys.argv[1]))
    store.load()
    setattr(files.os, call, fatal)
    store.save(make(4))
"""


@pytest.mark.parametrize(
    ("call", "count", "epoch"), [("fsync", 1, 3), ("replace", 2, 3), ("fsync", 6, 4)]
)
def test_kill_9_at_any_point_of_a_write(kept, call, count, epoch):
    """fsync comes twice a file: of the file, then of its folder. The last is past the commit."""
    died = run_python(KILLED, kept, call, count)
    assert died.returncode == -signal.SIGKILL, died.stderr
    store = Checkpoints(kept)
    assert store.load().epoch == epoch
    store.save(make(5))
    assert not [name for name in names(kept) if "partial" in name]
    assert Checkpoints(kept).load().epoch == 5


def test_a_model_that_does_not_fit_is_told_apart():
    saved = {"a": torch.zeros(2), "b": torch.zeros(3)}
    check_fits(saved, {"a": torch.ones(2), "b": torch.ones(3)}, "here")
    with pytest.raises(ConfigError) as error:
        check_fits(saved, {"a": torch.zeros(4), "c": torch.zeros(1)}, "here")
    with pytest.raises(ConfigError, match="a is float64, in the checkpoint float32"):
        check_fits(saved, {"a": torch.zeros(2).double(), "b": torch.zeros(3)}, "here")
    for part in ("the model has no b", "the checkpoint has no c", "a is [4]", "[2]"):
        assert part in str(error.value)


def test_state_that_no_file_can_keep(tmp_path):
    bad = make(1)
    bad.state["optimizer"]["hook"] = print
    with pytest.raises(ConfigError, match=r"optimizer\.hook"):
        Checkpoints(tmp_path / "c").save(bad)
