"""The run folder: what a run was made of, what it did, and what it can go on from.

run.json         the graph, the model, every option, the number of threads, versions
log.jsonl        one line an epoch
checkpoints/     see training.checkpoint
splits.npz       ids of the splits, when the caller gave them
result.json      losses, metrics, times and bytes of a finished run
plan.json        the plan that it was made by, when there was one
partition/       the parts of its ranks, when there were several
timeline.json    when each action of its last measured epoch ran
tensorboard/     when asked for
.replaced/       an older run, until this one has its first checkpoint: see training.aside
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tiergnn.errors import ConfigError, StoreError, shell_word
from tiergnn.files import is_partial, json_bytes, read_json, unwritable, write_whole
from tiergnn.planner.plan import Plan
from tiergnn.schedule.timeline import Timeline
from tiergnn.training import aside

FORMAT = "tiergnn-run"
VERSION = 1
# What a file system without locks, or without locks of folders, answers.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EBADF)
_OURS = (
    "run.json",
    "log.jsonl",
    "result.json",
    "plan.json",
    "timeline.json",
    "partition",
    "splits.npz",
    "checkpoints",
    "tensorboard",
)
_RECORD = ("graph", "model", "options", "versions")  # what every record has, each an object


class RunFolder:
    """Paths and records of one run."""

    def __init__(self, path: Path):
        self.path = path

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def log(self) -> Path:
        return self.path / "log.jsonl"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def partition(self) -> Path:
        return self.path / "partition"

    @property
    def timeline(self) -> Path:
        return self.path / "timeline.json"

    @classmethod
    @contextlib.contextmanager
    def create(
        cls,
        path: str | Path,
        record: Mapping[str, Any],
        splits: Mapping[str, np.ndarray] | None,
        *,
        overwrite: bool,
    ) -> Iterator[RunFolder]:
        """A new folder with ``run.json`` in it, held (see ``held``) while entered.

        Raises ConfigError when something is there already, and StoreError. A run that ends before
        its first checkpoint leaves nothing behind, and one that it was to replace as it was.
        """
        folder = cls(Path(path).absolute())
        if folder.path.exists() and not folder.path.is_dir():
            raise ConfigError("the run folder is a file", culprit=str(folder.path))
        is_new = not folder.path.exists()
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(folder.path, error) from error
        with folder.held():
            folder._make_room(overwrite)
            try:
                # First: a folder with anything of ours in it is known as a run.
                folder.rewrite({"format": FORMAT, "version": VERSION, **record})
                if splits is not None:
                    buffer = io.BytesIO()
                    np.savez(buffer, allow_pickle=False, **splits)
                    write_whole(folder.path / "splits.npz", buffer.getvalue())
                yield folder
            finally:
                folder._leave(is_new)

    @classmethod
    def open(cls, path: str | Path) -> tuple[RunFolder, dict[str, Any]]:
        """The folder and its ``run.json``. Raises StoreError when it is not a run folder."""
        folder = cls(Path(path).absolute())
        if (folder.path / aside.PLACE).exists() and not aside.has_begun(folder.path):
            with contextlib.suppress(StoreError), folder.held():
                pass  # which puts back what a replacement that was killed had moved
        file = folder.path / "run.json"
        if not file.exists():
            what = "has no run.json" if folder.path.is_dir() else "does not exist"
            raise StoreError(
                f"not a run folder: it {what}",
                culprit=str(folder.path),
                hint="the folder that train wrote: out='runs/NAME' (--out runs/NAME)",
            )
        record = read_json(file)
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise StoreError("run.json is not the record of a run", culprit=str(file))
        if record.get("version") != VERSION:
            raise StoreError(
                f"a run of version {record.get('version')}, this tiergnn reads {VERSION}",
                culprit=str(file),
                hint="the tiergnn that wrote it",
            )
        if "crc32" in record and record.pop("crc32") != _crc(record):
            raise StoreError(
                "run.json does not fit its checksum: it was changed or damaged",
                culprit=str(file),
                hint="the file as it was; where a change is meant, take its crc32 out, too",
            )
        for name in _RECORD:
            if not isinstance(record.get(name), dict):
                raise StoreError(
                    f"run.json lacks {name!r}, or has something else there",
                    culprit=str(file),
                    hint="the file as it was, or a new run",
                )
        return folder, record

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Inside, no other process trains in this folder. Raises StoreError when one does.

        What a replacement that was killed left half done is settled first.
        """
        try:
            handle = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise unwritable(self.path, error) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(handle)
            raise StoreError(
                "another process is training in this run folder",
                culprit=str(self.path),
                hint="wait for it or stop it; then resume",
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(handle)
                raise unwritable(self.path, error) from error
        try:
            try:
                aside.settle(self.path, _OURS)
            except OSError as error:
                raise unwritable(self.path / aside.PLACE, error) from error
            yield
        finally:
            os.close(handle)  # which gives the lock back, as the end of the process would

    def splits(self) -> dict[str, np.ndarray]:
        """The ids that the caller gave. Raises StoreError."""
        path = self.path / "splits.npz"
        try:
            with np.load(path, allow_pickle=False) as saved:
                return {name: saved[name] for name in saved.files}
        except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
            raise StoreError(
                f"cannot read splits.npz: {error}",
                culprit=str(path),
                hint="the file as it was, or a new run",
            ) from error

    def read_plan(self) -> Plan | None:
        """None where there is none. Raises StoreError."""
        with _stored():
            return Plan.load(self.plan) if self.plan.exists() else None

    def read_timeline(self) -> Timeline | None:
        """None where there is none. Raises StoreError."""
        with _stored():
            return Timeline.load(self.timeline) if self.timeline.exists() else None

    def replan(self, plan: Plan | None) -> None:
        """Another plan than the run was begun by, for ranks of their own parts."""
        shutil.rmtree(self.partition, ignore_errors=True)
        if plan is None:
            self.plan.unlink(missing_ok=True)
        else:
            plan.save(self.plan)

    def rewrite(self, record: Mapping[str, Any]) -> None:
        """Write ``run.json``, whole or not at all, with its checksum."""
        plain = json.loads(json_bytes(record))
        sealed = {**plain, "crc32": _crc(plain)}
        write_whole(self.path / "run.json", json_bytes(sealed, indent=1))

    def finish(self, result: Mapping[str, Any]) -> None:
        write_whole(self.path / "result.json", json_bytes(result, indent=1))

    def _make_room(self, overwrite: bool) -> None:
        """For a folder that is held."""
        try:
            found = [item.name for item in self.path.iterdir() if not is_partial(item)]
        except OSError as error:
            raise unwritable(self.path, error) from error
        if not found:
            return
        if "run.json" in found and not {"checkpoints", "log.jsonl", "result.json"} & {*found}:
            aside.remove(self.path, _OURS)  # killed before its first checkpoint: nothing is lost
            return
        if "run.json" not in found:
            raise ConfigError(
                f"the run folder holds other files: {', '.join(sorted(found)[:3])}",
                culprit=str(self.path),
                hint="a new or an empty folder",
            )
        if not overwrite:
            raise ConfigError(
                "there is a run in this folder already",
                culprit=str(self.path),
                hint=f"go on with it: tiergnn resume {shell_word(self.path)}; "
                "or overwrite=True (--overwrite)",
            )
        aside.move_aside(self.path, _OURS)

    def _leave(self, is_new: bool) -> None:
        """At the end, however it came: what has not begun goes, and what it replaced comes back."""
        try:
            replaced = (self.path / aside.PLACE).exists()
            aside.settle(self.path, _OURS)
            if not replaced and not aside.has_begun(self.path):
                aside.remove(self.path, _OURS)
                if is_new:
                    shutil.rmtree(self.path)
        except OSError as error:
            raise unwritable(self.path, error) from error


@contextlib.contextmanager
def _stored() -> Iterator[None]:
    """What a file of the folder says is stored data, not what the user asked for now."""
    try:
        yield
    except ConfigError as error:
        raise StoreError(error.problem, culprit=error.culprit, hint=error.hint) from error


def _crc(record: Mapping[str, Any]) -> int:
    """Of plain values: the same before writing and after reading, however it is laid out."""
    return zlib.crc32(json.dumps(record).encode())
