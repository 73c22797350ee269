"""Files that are whole or absent: written beside their place, synced, then renamed into it."""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tiergnn.errors import StoreError
from tiergnn.units import format_bytes

_PARTIAL = re.compile(r"\..*\.partial-\d+")


def write_whole(path: Path, data: bytes) -> None:
    """Put ``data`` at ``path`` so that a crash leaves the old file or the new one, never a mix.

    A link stays one, to the new file; devices and pipes are written to as they are.
    Raises StoreError, having removed what it wrote; the old file is untouched.
    """
    try:
        path = path.resolve(strict=False) if path.is_symlink() else path
        if not is_replaceable(path):
            with open(path, "wb") as file:
                file.write(data)
            return
    except OSError as error:
        raise unwritable(path, error, len(data)) from error
    partial = partial_of(path)
    try:
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise unwritable(path, error, len(data)) from error


def is_replaceable(path: Path) -> bool:
    """Whether a new file may take the place: nothing is there, or a file; no device, no pipe."""
    return path.is_file() or not path.exists()


def partial_of(path: Path) -> Path:
    """Where to write what will be ``path``; what killed writers of it left there is removed."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.partial-*"):
        if is_partial(left) and not _lives(int(left.name.rpartition("-")[2])):
            with contextlib.suppress(OSError):
                left.unlink()
    return path.with_name(f".{path.name}.partial-{os.getpid()}")


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # it is another user's
    return True


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_partial(path: Path) -> bool:
    """Whether this is what a killed ``write_whole`` left behind."""
    return _PARTIAL.fullmatch(path.name) is not None


def unwritable(path: Path, error: OSError, num_bytes: int = 0) -> StoreError:
    """The StoreError for a failed write: what was written, where, and the way out."""
    hint = {
        errno.ENOSPC: "free some disk space and try again; what was there before is intact",
        errno.EDQUOT: "free some of your disk quota and try again; what was there before is intact",
        errno.EACCES: "a folder that you may write to",
        errno.EROFS: "a folder that you may write to",
        errno.EPERM: "a folder that you may write to",
        errno.EFBIG: "a larger limit on the size of files (ulimit -f), or another disk",
        errno.EISDIR: "the name of a file; a folder is there",
        errno.ENOENT: "make its folder again; was the run moved or removed?",
    }.get(error.errno or 0, "see that the disk is sound and has room")
    what = f"{format_bytes(num_bytes)} " if num_bytes else ""
    return StoreError(
        f"cannot write {what}to {path.name}: {error.strerror or error}",
        culprit=str(path),
        hint=hint,
    )


def read_json(path: Path) -> Any:
    """The JSON of a file. Raises StoreError when it cannot be read or is not JSON."""
    try:
        return from_json(path.read_bytes())
    except OSError as error:
        raise StoreError(
            f"cannot read {path.name}: {error.strerror or error}", culprit=str(path)
        ) from error
    except ValueError as error:
        raise StoreError(
            f"{path.name} is not JSON: cut short or changed ({error})", culprit=str(path)
        ) from error


def from_json(text: str | bytes) -> Any:
    """What JSON says. Raises ValueError for text that is none, or deeper than can be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("lists or objects lie too deep in each other") from None


def json_bytes(value: Any, *, indent: int | None = None) -> bytes:
    """Strict JSON: numbers that are not finite become null."""
    return (json.dumps(_plain(value), allow_nan=False, indent=indent) + "\n").encode()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
