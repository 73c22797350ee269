"""Where Numba keeps what it compiled, which it will not do without."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path


def ensure_place() -> None:
    """Where no place of Numba's can be written to, a temporary one for this process, and a word.

    Its places, in its order: $NUMBA_CACHE_DIR, beside our source, the user's cache folder.
    """
    home = os.environ.get("HOME", "")
    places = [
        os.environ.get("NUMBA_CACHE_DIR", ""),
        str(Path(__file__).parent),
        os.environ.get("XDG_CACHE_HOME") or (os.path.join(home, ".cache") if home else ""),
    ]
    if any(_may_write(place) for place in places if place):
        return
    try:
        place = tempfile.mkdtemp(prefix="tiergnn-compiled-")
    except OSError:
        return  # Numba says what it misses when something is compiled
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    os.environ["NUMBA_CACHE_DIR"] = place
    if "numba" in sys.modules:  # which has read the environment already
        sys.modules["numba"].config.CACHE_DIR = place
    logging.getLogger("tiergnn").warning(
        "what is compiled is not kept for next time, none of these can be written to: %s; "
        "NUMBA_CACHE_DIR=FOLDER is one that can",
        ", ".join(place for place in places if place),
    )


def _may_write(place: str) -> bool:
    """Whether the folder, or the nearest one above it that is there, lets us write."""
    path = Path(place)
    while not path.exists() and path != path.parent:
        path = path.parent
    return path.is_dir() and os.access(path, os.W_OK | os.X_OK)
