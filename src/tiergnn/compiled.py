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
    """Whether a file can be made in the folder, which is made where it is not there, as by Numba.

    Tried, since rights alone do not tell of what is mounted for reading.
    """
    probe = os.path.join(place, f".tiergnn-probe-{os.getpid()}")
    try:
        os.makedirs(place, exist_ok=True)
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT))
        os.unlink(probe)
    except OSError:
        return False
    return True
