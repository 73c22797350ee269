"""An older run steps aside while a new one begins in its folder, and comes back if it does not.

The old files wait in ``.replaced`` until the new run has its first checkpoint. Its run.json is the
last to go there, the first to come back and the last to be removed: so whenever a process dies, the
next one that holds the folder knows from it whose the files in their places are.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from tiergnn.files import unwritable

PLACE = ".replaced"
_LAST = "run.json"


def has_begun(folder: Path) -> bool:
    """Whether the run in its place has a checkpoint to go on from."""
    return any((folder / "checkpoints").glob("epoch-*.json"))


def move_aside(folder: Path, names: Iterable[str]) -> None:
    """Move those of ``names`` that are there. Raises StoreError, with all of them where they were.

    Blocks; for a folder that is held and ``settled``.
    """
    item = folder / PLACE
    try:
        item.mkdir()
        for name in [*(name for name in names if name != _LAST), _LAST]:
            item = folder / name
            if os.path.lexists(item):
                os.rename(item, folder / PLACE / name)
    except OSError as error:
        settle(folder, names)
        raise unwritable(item, error) from error


def settle(folder: Path, names: Iterable[str]) -> None:
    """Remove what stepped aside when its successor has begun; else put it back in its place."""
    aside = folder / PLACE
    if not aside.exists():
        return
    moved_whole = (aside / _LAST).exists()
    if moved_whole and has_begun(folder):
        for item in [path for path in aside.iterdir() if path.name != _LAST]:
            _remove(item)
    else:
        if moved_whole:
            remove(folder, names)
        with contextlib.suppress(FileNotFoundError):
            os.rename(aside / _LAST, folder / _LAST)
        for item in aside.iterdir():
            os.rename(item, folder / item.name)
    _remove(aside)


def remove(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        _remove(folder / name)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
