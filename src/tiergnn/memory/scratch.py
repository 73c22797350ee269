"""A run's own folder on the disk: locked while it lives, gone when it ends, whatever ends it.

``FOLDER/tiergnn-scratch-PID-xxxxxxxx`` holds one file a table. A run that was killed leaves its
folder; the next one finds that nobody holds its lock, and removes it.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import logging
import os
import re
import secrets
import shutil
import signal
import threading
from pathlib import Path
from types import FrameType, TracebackType
from urllib.parse import quote

import torch

from tiergnn.errors import PlanError
from tiergnn.graph.staging import store_errors
from tiergnn.hardware.disk import file_system
from tiergnn.hardware.finding import Finding
from tiergnn.memory.disk import DiskRows
from tiergnn.memory.engine import Engine
from tiergnn.memory.records import Records
from tiergnn.units import format_bytes

_NAME = re.compile(r"tiergnn-scratch-\d+-[0-9a-f]{8}")
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EBADF)
log = logging.getLogger("tiergnn")


class Scratch:
    """Tables of this run under ``folder``, at most ``capacity_bytes`` of them at once.

    Removed by ``close``, at the end of the process, and on SIGTERM. Raises StoreError when the
    folder cannot be written, PlanError when the tables exceed the capacity.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        capacity_bytes: int | None = None,
        engine: Engine | None = None,
        direct: bool = True,
    ):
        self._capacity, self._direct = capacity_bytes, direct
        self._changes = threading.Lock()
        self._tables: dict[str, DiskRows] = {}
        self._held_bytes = self._peak_bytes = self._written_bytes = 0
        self._pid = os.getpid()
        folder = Path(os.path.realpath(folder))
        with store_errors("make a scratch folder", folder):
            folder.mkdir(parents=True, exist_ok=True)
            remove_stale(folder)
            self.path, self._handle = _make(folder)
        self._own_engine = engine is None
        self.engine = engine or Engine()
        _alive.add(self)
        _listen()

    def __enter__(self) -> Scratch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def held_bytes(self) -> int:
        """What the tables take of the disk now."""
        return self._held_bytes

    @property
    def peak_bytes(self) -> int:
        return self._peak_bytes

    @property
    def written_bytes(self) -> int:
        """Written to the disk in all, in whole sectors; of tables that are gone as well."""
        with self._changes:
            alive = sum(table.io.write_bytes for table in self._tables.values())
            return self._written_bytes + alive

    def table(self, name: str, num_rows: int, width: int, dtype: torch.dtype) -> DiskRows:
        """A new table of zeros, its place on the disk taken at once; ``close`` gives it back."""
        with self._changes:
            if name in self._tables:
                raise PlanError(f"table {name} is there already")
            wanted = Records.own(num_rows, width * dtype.itemsize).file_bytes
            room = self._capacity
            if room is not None and self._held_bytes + wanted > room:
                raise PlanError(
                    f"the disk tier needs {format_bytes(wanted)} more for {name}, has "
                    f"{format_bytes(room - self._held_bytes)} left of {format_bytes(room)}",
                    hint="a larger disk budget, or more host memory",
                )
            table = DiskRows.create(
                self.path / f"{quote(name, safe='@~.,+=')}.rows",
                num_rows,
                width,
                dtype,
                engine=self.engine,
                name=name,
                direct=self._direct,
                on_close=lambda: self._forget(name),
            )
            self._tables[name] = table
            self._held_bytes += table.file_bytes
            self._peak_bytes = max(self._peak_bytes, self._held_bytes)
        return table

    def finding(self) -> Finding:
        """Which way rows take to the disk and back, for doctor, reports and the log."""
        probe = self.table("~probe", 1, 1, torch.uint8)
        direct = probe.direct
        probe.close()
        kind = file_system(str(self.path))
        data = (
            ("folder", str(self.path.parent)),
            ("file_system", kind),
            ("direct", direct),
            ("threads", self.engine.num_threads),
            ("slab_bytes", self.engine.slab_bytes),
        )
        how = f"{self.engine.num_threads} threads, {format_bytes(self.engine.slab_bytes)} slabs"
        if kind in ("tmpfs", "ramfs"):
            value, remedy = (
                f"memory, not a disk: {self.path.parent} is {kind}",
                "a folder on a disk",
            )
        elif direct:
            value, remedy = f"O_DIRECT past the page cache, {how}, at {self.path.parent}", None
        else:
            value = f"buffered, pages given back after each request, {how}, at {self.path.parent}"
            remedy = "a folder on a local ext4 or XFS disk: this one refuses O_DIRECT"
        return Finding(
            group="disk",
            name="scratch I/O",
            value=value,
            status="warn" if remedy else "ok",
            remedy=remedy,
            data=data,
        )

    def close(self) -> None:
        """Close the tables and remove the folder. Twice is as once; in a fork it does nothing."""
        if self not in _alive or os.getpid() != self._pid:
            return
        _alive.discard(self)
        for table in list(self._tables.values()):
            table.close()
        self.remove()
        os.close(self._handle)
        if self._own_engine:
            self.engine.close()
        if not _alive:
            _stop_listening()

    def remove(self) -> None:
        """Remove the folder with all that is in it, whoever still uses it."""
        if os.getpid() == self._pid:
            shutil.rmtree(self.path, ignore_errors=True)

    def _forget(self, name: str) -> None:
        with self._changes:
            table = self._tables.pop(name)
            self._held_bytes -= table.file_bytes
            self._written_bytes += table.io.write_bytes


def remove_stale(folder: Path) -> list[Path]:
    """Remove scratch folders that no living process holds; gives those that are gone."""
    gone = []
    for path in sorted(folder.iterdir()):
        if not _NAME.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
            continue
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            continue  # another's, or just removed
        try:
            if _lock(handle):
                shutil.rmtree(path)
                gone.append(path)
                log.info("removed %s: the run that made it is dead", path)
        except FileNotFoundError:
            pass  # by another run
        except OSError as error:
            log.warning("%s of a dead run cannot be removed: %s", path, error)
        finally:
            os.close(handle)
    return gone


def _make(folder: Path) -> tuple[Path, int]:
    """A new folder and the handle that holds its lock."""
    while True:
        path = folder / f"tiergnn-scratch-{os.getpid()}-{secrets.token_hex(4)}"
        path.mkdir(mode=0o700)
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # another run swept it before it was locked,
        if _lock(handle) is not False and os.fstat(handle).st_nlink > 0:
            return path, handle
        os.close(handle)  # or is about to


def _lock(handle: int) -> bool | None:
    """Whether the lock of a folder is ours now; None on a file system without such locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return True


# Scratch folders of this process, removed with it.

_alive: set[Scratch] = set()


@atexit.register
def _close_all() -> None:
    for scratch in list(_alive):
        scratch.close()


def _listen() -> None:
    """SIGTERM, where nobody handles it, removes the folders first. Only the main thread can."""
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)


def _stop_listening() -> None:
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGTERM) is _terminate:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(signum: int, frame: FrameType | None) -> None:
    for scratch in list(_alive):
        scratch.remove()
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)
