"""The folder in which an ingest works, and its journal: what is done survives a kill.

``OUT.ingest-work/journal.jsonl`` holds one JSON object a line. The first says of what source and
which options it is; each other one says how far a phase has come. A line counts only when it is
whole, and is written after the data it speaks of are on the disk.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

from tiergnn.errors import StoreError
from tiergnn.files import from_json
from tiergnn.graph.runs import write_all
from tiergnn.graph.staging import fsync_path, store_errors

CHECKPOINT_BYTES = 2**26  # written since the last line of the journal, before it takes another
_JOURNAL = "journal.jsonl"
log = logging.getLogger("tiergnn")


class Workspace:
    """``OUT.ingest-work``, locked for this process. Raises StoreError."""

    def __init__(self, out: Path, key: dict[str, Any], *, resume: bool = True):
        """key: the source and the options, as JSON; work of another key is thrown away."""
        out = Path(os.path.realpath(out))
        self.path = out.with_name(f"{out.name}.ingest-work")
        self.entries: list[dict[str, Any]] = []
        self._since = 0
        first = {"journal": 1, "key": key}
        with store_errors("make a folder to work in", self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._journal = os.open(self.path / _JOURNAL, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._journal)
            raise StoreError(
                "another ingest is writing there", culprit=str(out), hint="wait for it to end"
            ) from None
        with store_errors("read the journal", self.path / _JOURNAL):
            found = self._read()
            if found and (found[0] != json.loads(json.dumps(first)) or not resume):
                log.warning(
                    "%s is of %s: starting over",
                    self.path,
                    "an earlier ingest" if not resume else "another source or other options",
                )
                found = []
            if found:
                self.entries = found
            else:
                self._clear()
                self.note(first)
                fsync_path(self.path)
        if len(self.entries) > 1:
            log.warning("taking up the interrupted ingest in %s", self.path)

    def note(self, entry: dict[str, Any]) -> None:
        """Add a line to the journal. What it speaks of must be synced. Blocks until on the disk."""
        line = json.dumps(entry).encode() + b"\n"
        with store_errors("write the journal", self.path / _JOURNAL):
            os.lseek(self._journal, 0, os.SEEK_END)
            write_all(self._journal, line)
            os.fdatasync(self._journal)
        self.entries.append(entry)
        self._since = 0

    def is_due(self, num_bytes: int) -> bool:
        """Count ``num_bytes`` written; True when enough came together for a line of the journal."""
        self._since += num_bytes
        return self._since >= CHECKPOINT_BYTES

    def last(self, phase: str) -> dict[str, Any] | None:
        """What the journal says last of ``phase``, in this process or an interrupted one."""
        return next((e for e in reversed(self.entries) if e.get("phase") == phase), None)

    def all(self, phase: str) -> list[dict[str, Any]]:
        return [e for e in self.entries if e.get("phase") == phase]

    def close(self) -> None:
        os.close(self._journal)

    def remove(self) -> None:
        """Close, and delete everything."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.close()

    def _clear(self) -> None:
        for item in self.path.iterdir():
            if item.name == _JOURNAL:
                os.ftruncate(self._journal, 0)
            elif item.is_dir():
                shutil.rmtree(item)
            else:
                item.unlink()

    def _read(self) -> list[dict[str, Any]]:
        """The whole lines; a torn one and what follows is cut off."""
        os.lseek(self._journal, 0, os.SEEK_SET)
        with open(self.path / _JOURNAL, "rb") as file:
            data = file.read()
        entries, good = [], 0
        for line in data.splitlines(keepends=True):
            try:
                entry = from_json(line)
            except ValueError:
                break
            if not line.endswith(b"\n") or not isinstance(entry, dict):
                break
            entries.append(entry)
            good += len(line)
        os.ftruncate(self._journal, good)
        return entries
