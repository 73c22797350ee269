"""Where nothing can be written, what is compiled goes to a folder of the process alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CODE = """
import logging, os, sys
logging.basicConfig(format="%(message)s")
if sys.argv[1] == "first":
    import numba
real = os.open
def refuse(path, *args, **kwargs):
    if ".tiergnn-probe" in str(path) and not str(path).startswith(sys.argv[2]):
        raise PermissionError(13, "Permission denied")
    return real(path, *args, **kwargs)
os.open = refuse
import tiergnn
from numba import config
print(config.CACHE_DIR)
"""


def told(first: str, writable: str, **env: str) -> tuple[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA_CACHE")}
    done = subprocess.run(
        [sys.executable, "-c", CODE, first, writable],
        capture_output=True,
        text=True,
        env={**kept, **env},
        check=True,
    )
    return done.stdout.strip(), done.stderr


def test_a_place_that_can_be_written_is_left_to_numba(tmp_path):
    package = str(Path(__file__).parents[1] / "src")
    for writable, env in (
        (package, {}),
        (str(tmp_path), {"NUMBA_CACHE_DIR": str(tmp_path / "new")}),
        (str(tmp_path), {"XDG_CACHE_HOME": str(tmp_path)}),
        (str(tmp_path), {"HOME": str(tmp_path), "XDG_CACHE_HOME": ""}),
    ):
        place, said = told("later", writable, **env)
        assert place == env.get("NUMBA_CACHE_DIR", "")
        assert said == ""


def test_without_one_there_is_a_temporary_one_and_a_word():
    for first in ("first", "later"):
        place, said = told(first, "/nowhere", HOME="/proc/home", XDG_CACHE_HOME="")
        assert "tiergnn-compiled-" in place
        assert not Path(place).exists()  # it went with its process
        assert "none of these can be written to" in said
        assert "/proc/home/.cache" in said
