"""What was measured, remembered: a machine in the user's cache folder, with what it depends on."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tiergnn import frozen
from tiergnn.errors import ConfigError, StoreError
from tiergnn.hardware.machine import Machine

FORMAT = "tiergnn-measured"
VERSION = 1
_log = logging.getLogger("tiergnn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """``fingerprint`` is all that the figures depend on: hardware, versions, settings."""

    fingerprint: Mapping[str, str]
    machine: Machine


def cache_file(fingerprint: Mapping[str, str]) -> Path:
    """Where a machine of this fingerprint is kept: in $XDG_CACHE_HOME/tiergnn, or ~/.cache."""
    text = "\n".join(f"{key}={value}" for key, value in sorted(fingerprint.items()))
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "tiergnn" / f"machine-{name}.json"


def recall(fingerprint: Mapping[str, str]) -> Machine | None:
    """The machine that was measured under this fingerprint; None where none is to be had.

    A file that holds something else is passed over with a warning that names it.
    """
    path = cache_file(fingerprint)
    if not path.exists():
        return None
    try:
        found = frozen.load(Measured, path, FORMAT, VERSION)
    except (ConfigError, StoreError) as error:
        _log.warning("measuring again: %s", error)
        return None
    if dict(found.fingerprint) != dict(fingerprint):
        _log.warning("measuring again: %s is of another machine", path)
        return None
    return found.machine


def remember(fingerprint: Mapping[str, str], machine: Machine) -> None:
    """Keep a machine for the next time; warns where that cannot be done. Never half a file."""
    path = cache_file(fingerprint)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=path.stem, dir=path.parent)
        os.close(handle)
        try:
            frozen.save(name, FORMAT, VERSION, Measured(fingerprint=fingerprint, machine=machine))
            os.replace(name, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name)
    except OSError as error:
        _log.warning("what was measured is not kept for next time: %s", error)
