"""A folder written beside its place and moved there whole: a half-written one is never seen.

The temporary sibling ``PATH.partial-*`` is locked while its writer lives; the next writer of PATH
removes those whose writer has died.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import glob
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from tiergnn.errors import StoreError

_TOKEN = "[0-9a-f]" * 8  # what secrets.token_hex(4) makes: no folder of the user's is swept
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)  # a file system without flock
_HINTS = {
    errno.ENOSPC: "free some space, or choose a folder on another disk",
    errno.EDQUOT: "free some of your quota, or choose a folder on another disk",
    errno.EFBIG: "raise the file size limit (ulimit -f), or choose another file system",
    errno.EACCES: "check who owns it and its permissions, or choose another folder",
    errno.EPERM: "check who owns it and its permissions, or choose another folder",
    errno.EROFS: "choose a folder on a disk that is mounted for writing",
    errno.ENOENT: "check the path",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
}


@contextmanager
def store_errors(action: str, path: str | Path) -> Iterator[None]:
    """Turn an OSError inside into the one StoreError: what failed, where, why, the way out."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise StoreError(
            f"cannot {action}: {reason}", culprit=str(path), hint=_HINTS.get(error.errno or 0)
        ) from error


def fsync_path(path: Path) -> None:
    """Force a file, or the entries of a folder, to the disk. Blocks."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class StagedFolder:
    """A context manager: fill ``folder``, then ``publish()``; leaving without it removes the rest.

    path: where the folder will be; its parents are made. What is there stays untouched until
    ``publish``, and is replaced only with ``overwrite`` and only when it holds a file ``marker``
    (or nothing): a folder of something else is never removed.
    Raises StoreError at once when path is taken.
    """

    def __init__(self, path: str | Path, *, marker: str, overwrite: bool = False):
        self.path = Path(os.path.realpath(path))
        self._marker = marker
        self._overwrite = overwrite
        self._lock: int | None = None

    def __enter__(self) -> StagedFolder:
        self._refuse_taken()
        with store_errors("make a folder for writing", self.path.parent):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._sweep()
            while self._lock is None:
                self.folder = self.path.with_name(
                    f"{self.path.name}.partial-{secrets.token_hex(4)}"
                )
                self.folder.mkdir()
                try:
                    self._lock = _lock(self.folder)
                except OSError as error:
                    if error.errno not in _NO_LOCKS:
                        raise
                    self._lock = os.open(self.folder, os.O_RDONLY)  # nobody will sweep here
        return self

    def publish(self) -> None:
        """Sync every folder inside, move the whole to its place and sync that. Blocks."""
        self._refuse_taken()
        with store_errors("move the finished folder to its place", self.path):
            for folder, _, _ in os.walk(self.folder):
                fsync_path(Path(folder))
            if self.path.exists() and any(self.path.iterdir()):
                old = _exchange(self.folder, self.path)
            else:
                old = None
                os.rename(self.folder, self.path)
            self._release()
            fsync_path(self.path.parent)
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)  # what stays is swept by the next writer

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if self._lock is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._release()

    def _release(self) -> None:
        assert self._lock is not None
        os.close(self._lock)
        self._lock = None

    def _refuse_taken(self) -> None:
        with store_errors("look at the folder to write", self.path):
            if not self.path.exists():
                return
            if not self.path.is_dir():
                raise StoreError("a file stands where the folder should be", culprit=str(self.path))
            if not any(self.path.iterdir()):
                return
            ours = (self.path / self._marker).exists()
        if ours and not self._overwrite:
            raise StoreError(
                "the folder exists already",
                culprit=str(self.path),
                hint="another path, or overwrite=True (--overwrite)",
            )
        if not ours:
            raise StoreError(
                f"the folder holds something else: there is no {self._marker} in it",
                culprit=str(self.path),
                hint="another path: only a folder that tiergnn wrote is overwritten",
            )

    def _sweep(self) -> None:
        """Remove what dead writers left; a replaced folder only while its successor stands."""
        name = glob.escape(self.path.name)
        for left in self.path.parent.glob(f"{name}.partial-{_TOKEN}"):
            lock = None
            with suppress(OSError):
                lock = _lock(left)
            if lock is not None:
                shutil.rmtree(left, ignore_errors=True)
                os.close(lock)
        if self.path.exists():
            for left in replaced_folders(self.path):
                shutil.rmtree(left, ignore_errors=True)


def _lock(folder: Path) -> int | None:
    """A handle that holds the lock of a folder; None when another has it or it is gone."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), os.stat(folder)):
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        os.close(handle)
        raise
    os.close(handle)
    return None


def _exchange(new: Path, path: Path) -> Path:
    """Put ``new`` at ``path``; returns where the old folder went.

    Linux swaps the two in one step. Elsewhere the old folder steps aside first: a crash between
    leaves it whole as ``PATH.replaced-*``.
    """
    if _swap(new, path):
        return new
    old = path.with_name(f"{path.name}.replaced-{secrets.token_hex(4)}")
    os.rename(path, old)
    try:
        os.rename(new, path)
    except OSError:
        os.rename(old, path)
        raise
    return old


def _swap(a: Path, b: Path) -> bool:
    """Atomically swap two names by Linux's renameat2; False where that cannot be done."""
    if not sys.platform.startswith("linux"):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None, use_errno=True)
        return libc.renameat2(here, os.fsencode(a), here, os.fsencode(b), exchange) == 0
    return False


def replaced_folders(path: str | Path) -> list[Path]:
    """Whole older folders that a crash between two moves left beside ``path``."""
    path = Path(path)
    return sorted(path.parent.glob(f"{glob.escape(path.name)}.replaced-{_TOKEN}"))
