"""How large the tiles of products are: a plain function of widths."""

from __future__ import annotations

from typing import NamedTuple

from tiergnn.kernels.aggregate.shapes import power_of_two

LEAST_ROWS = 256  # of a product: few enough that stages are metered as they are run later
PROGRAMS = 264  # that add up a gradient of a weight, each a share of the rows
_WIDEST = 128  # columns of a tile
_LEAST = 16  # columns of a tile: what a tensor core multiplies
_LEAST_LEFT = 64  # the same of the left operand
_SHORT = 256  # numbers that tensor cores may add up throughout: what they cut off is below 1e-5


class Tile(NamedTuple):
    """``rows`` x ``columns`` of the result, from ``depth`` of what is summed over at a time.

    ``parts``: 2 of tf32 or 3 of bfloat16, that each number is split into. ``apart``: what is
    summed over is added up in float32 by every ``depth``, not by the tensor cores throughout.
    """

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    parts: int = 2
    apart: bool = True


def rows_tile(inner: int, outer: int) -> Tile:
    """The tile of a product [P, inner] x [inner, outer]."""
    columns = columns_of(outer, _LEAST)
    depth = 32 if inner > 16 else 16
    # Two programs fit a processor: one loads and stores while the other multiplies.
    return Tile(128, columns, depth, 8, 2, apart=columns <= 64 or inner > _SHORT)


def weight_tile(left: int, right: int) -> Tile:
    """The tile of a sum over rows of [left, P] x [P, right], left >= right."""
    rows, columns = columns_of(left, _LEAST_LEFT), columns_of(right, _LEAST)
    return Tile(rows, columns, 32, 8 if rows > _LEAST_LEFT else 4, 2 if columns > 64 else 3)


def columns_of(width: int, least: int) -> int:
    """Columns of a tile for ``width`` of them: a power of two."""
    return max(least, min(power_of_two(width), _WIDEST))


def shares_of(num_rows: int, tiles: int, depth: int) -> tuple[int, int]:
    """Programs that share the rows for each of ``tiles`` of a weight, and the rows of each.

    Depends on the shapes alone: so does the order in which rows are added up. The number of
    programs does not depend on that of rows, nor does the memory for what each has found.
    """
    shares = max(1, PROGRAMS // tiles)
    return shares, -(-num_rows // (shares * depth)) * depth
