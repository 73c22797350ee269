"""Bytes, seconds, counts and rates: read from text, printed for people."""

from __future__ import annotations

import re
from numbers import Integral

from tiergnn.errors import ConfigError

_BYTES = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgtp", start=1):
    _BYTES |= {
        f"{_letter}b": 1000**_power,
        f"{_letter}ib": 1024**_power,
        _letter: 1024**_power,
    }
_NUMBER = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)


_WAY = "512MiB, 1.5GiB or 2GB"
_LEAST_BARE = 4096


def parse_bytes(text: str | int) -> int:
    """``"1.5GiB"`` -> 1610612736. A bare number is bytes; ``K M G`` alone are powers of 1024.

    Raises ConfigError when the text is not a number of bytes that a machine can have, or has no
    unit and as bytes is less than any run takes: MiB or GiB were meant.
    """
    known = isinstance(text, str | Integral)  # a bool is no number in text
    match = _NUMBER.fullmatch(str(text)) if known else None
    if match is None or match[2].lower() not in _BYTES:
        raise ConfigError(f"{text!r} is not a number of bytes", hint=_WAY)
    whole = isinstance(text, Integral)
    num_bytes = int(text) if whole else float(match[1]) * _BYTES[match[2].lower()]
    if num_bytes >= 2**63:
        raise ConfigError(f"{text!r} is more than 64 bits can count", hint=_WAY)
    if not whole and not match[2] and 0 < num_bytes < _LEAST_BARE:
        raise ConfigError(
            f"{match[1]} bytes? No run fits in those; a number without a unit is bytes",
            hint=f"{match[1]}MiB or {match[1]}GiB; {match[1]}B for bytes all the same",
        )
    return int(num_bytes)


def format_bytes(num_bytes: float) -> str:
    """1610612736 -> ``"1.5 GiB"``."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def format_needed(needed: int, room: int) -> tuple[str, str]:
    """What is needed and what there is, which is less: in bytes, too, where they read alike."""
    texts = format_bytes(needed), format_bytes(room)
    if texts[0] != texts[1]:
        return texts
    return f"{texts[0]} ({needed:,} bytes)", f"{texts[1]} ({room:,} bytes)"


def format_seconds(seconds: float) -> str:
    """0.0123 -> ``"12.3 ms"``; 75 -> ``"1 min 15 s"``; 7322 -> ``"2 h 2 min"``."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def format_count(count: int) -> str:
    """1234567 -> ``"1,234,567"``."""
    return f"{count:,}"


def format_rate(bytes_per_second: float) -> str:
    """5.54e10 -> ``"55.4 GB/s"``: rates are decimal, as vendors state them."""
    value = float(bytes_per_second)
    for unit in ("B/s", "kB/s", "MB/s", "GB/s", "TB/s"):
        if abs(value) < 1000 or unit == "TB/s":
            return f"{value:.3g} {unit}"
        value /= 1000
    raise AssertionError("unreachable")
