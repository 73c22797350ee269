"""Sizes of the processor's caches, as Linux states them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_KIB = 1024
_USUAL = (1024 * _KIB, 32 * 1024 * _KIB)


class CacheReading(NamedTuple):
    """Bytes of a core's own last cache and of the last one of all; usual ones where unknown."""

    near_bytes: int
    last_bytes: int


def read_caches(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> CacheReading:
    sizes: dict[int, int] = {}  # level -> bytes
    for entry in sorted(folder.glob("index*")):
        with suppress(OSError, ValueError):
            if (entry / "type").read_text().strip() in ("Data", "Unified"):
                level = int((entry / "level").read_text())
                sizes[level] = _bytes((entry / "size").read_text().strip())
    levels = sorted(sizes)
    if not levels:
        return CacheReading(*_USUAL)
    last = sizes[levels[-1]]
    near = sizes[levels[-2]] if len(levels) > 1 else 0
    return CacheReading(near if near < last else 0, last)


def _bytes(text: str) -> int:
    """``"1024K"`` -> 1048576."""
    unit = {"K": _KIB, "M": _KIB**2, "G": _KIB**3}.get(text[-1:], 1)
    return int(text.rstrip("KMG")) * unit
