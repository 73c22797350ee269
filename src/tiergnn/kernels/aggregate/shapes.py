"""How large the tiles of the GPU kernels are: a plain function of widths, types and degrees."""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

from torch import Tensor

VECTOR_BYTES = 16  # of the widest load
LINE_BYTES = 128  # of a cache line: what one tile takes of a row
_WARP = 32


class Shape(NamedTuple):
    """A tile of a warp: ``block`` columns of ``unroll * lanes`` edges of ``rows`` tasks each."""

    block: int
    rows: int
    unroll: int
    lanes: int


def shape_of(columns: int, itemsize: int, vector: int, longest: int, loads: int) -> Shape:
    """The tile for tasks of at most ``longest`` edges; rows load ``vector`` elements at a time.

    Each thread loads ``loads`` times: neighbouring edges of one long task, or one edge each of as
    many short ones. Blocks of a cache line keep the rows of hubs in the caches: all tasks of one
    block of columns run before those of the next.
    """
    block = min(power_of_two(columns), LINE_BYTES // itemsize)
    threads = max(1, block // vector)  # that load one row
    lanes = max(1, _WARP // threads)
    loads = max(1, loads * _WARP // (threads * lanes))
    if longest <= loads * lanes:
        return Shape(block, loads, 1, lanes)
    return Shape(block, 1, loads, lanes)


def vector_of(x: Tensor, columns: int) -> int:
    """Elements that one load can take of rows of x, by their address, stride and width."""
    size = x.element_size()
    return gcd(VECTOR_BYTES, x.data_ptr(), x.stride(0) * size, columns * size) // size


def power_of_two(number: int) -> int:
    """The least power of two that is at least ``number``."""
    return 1 << (number - 1).bit_length() if number > 1 else 1
