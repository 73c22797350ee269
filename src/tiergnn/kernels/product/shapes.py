"""How large the tiles of products are: a plain function of widths, from what was fastest."""

from __future__ import annotations

from typing import NamedTuple

from tiergnn.kernels.aggregate.shapes import power_of_two

LEAST_ROWS = 256  # of a product: few enough that stages are metered as they are run later
_WIDEST = 128  # columns of a tile
_LEAST = 16  # columns of a tile: what a tensor core multiplies


class Tile(NamedTuple):
    """``rows`` x ``columns`` of the result, from ``depth`` of what is summed over at a time."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


def rows_tile(inner: int, outer: int) -> Tile:
    """The tile of a product [P, inner] x [inner, outer]."""
    columns = max(_LEAST, min(power_of_two(outer), _WIDEST))
    depth = 32 if inner > 16 else 16
    return Tile(64, columns, depth, 4, 3) if columns > 64 else Tile(128, columns, depth, 8, 3)
