"""Values cast to the dtype of a table, refused where it cannot hold them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tiergnn.errors import GraphError
from tiergnn.graph.edges import to_bfloat16
from tiergnn.graph.table import STORED


def cast_rows(
    block: np.ndarray, logical: str, what: str, place: Callable[[int], str], *, start: int = 0
) -> np.ndarray:
    """Stored bits of [r, D] values as ``logical``.

    Fractions are rounded to the nearest; whole numbers must be held exactly and finite ones stay
    finite. ``place`` says where row ``start + i`` is. Raises GraphError naming the first bad value.
    """
    if block.dtype.kind in "biu":
        exact = np.ones((), np.bool_)
    else:
        exact = block == np.floor(block)
    if logical in ("int8", "uint8", "bool"):
        exact = np.ones((), np.bool_)
    with np.errstate(over="ignore", invalid="ignore"):
        if logical == "bfloat16":
            out = to_bfloat16(block.astype(np.float64))
            held = (out.astype(np.uint32) << 16).view(np.float32)
        else:
            out = held = block.astype(STORED[logical])
        bad = (exact & (held != block)) | (np.isfinite(block) & ~np.isfinite(held))
    if bad.any():
        row, column = np.unravel_index(int(np.argmax(bad)), bad.shape)
        raise GraphError(
            f"{what} {block[row, column]} in column {column} does not fit {logical}",
            culprit=place(start + int(row)),
            hint="a wider dtype, such as float64",
        )
    return out


def narrowest(low: int, high: int) -> str:
    """The smallest table dtype that holds every whole number from ``low`` to ``high``."""
    if low >= 0 and high <= 255:
        return "uint8"
    if low >= -128 and high <= 127:
        return "int8"
    return "float32" if max(-low, high) <= 2**24 else "float64"
