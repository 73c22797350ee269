"""What multiplies the rows of edges: nothing, a number an edge, or a number an edge and column.

A number an edge and head is a number an edge of each head's columns: its pieces are walked one by
one. Weights and their gradients are in the dtype of the sum.

Legend: E edges, D columns, K heads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.core import types
from numba.extending import overload

from tiergnn.kernels.lanes import load_as_is, prefetch_wide, store_as_is, total
from tiergnn.kernels.span import Span, address


class EdgeRows(NamedTuple):
    """Rows [E, D] of edges from one column on; with ``order`` those of other edges than e."""

    numbers: Span  # [E*D]
    first: int
    stride: int
    order: np.ndarray | None  # [E]


Factors = np.ndarray | EdgeRows | None


def factor(tile: Any, weight: Any, e: Any, count: Any) -> Any:
    """What multiplies the row of edge e in compiled code: a number, or lanes."""
    raise NotImplementedError("only compiled code calls this")


@overload(factor)
def _factor(tile, weight, e, count):
    if isinstance(weight, types.Array):
        return lambda tile, weight, e, count: weight[np.uintp(e)]
    if weight[3] == types.none:
        return lambda tile, weight, e, count: load_as_is(
            tile, address(weight.numbers, weight.first + weight.stride * e), count
        )

    def in_order(tile, weight, e, count):
        edge = weight.order[np.uintp(e)]
        return load_as_is(tile, address(weight.numbers, weight.first + weight.stride * edge), count)

    return in_order


def prefetch_factor(tile: Any, weight: Any, e: Any) -> Any:
    """Ask in compiled code for what is not read in order."""
    raise NotImplementedError("only compiled code calls this")


@overload(prefetch_factor)
def _prefetch_factor(tile, weight, e):
    if isinstance(weight, types.NamedTuple) and weight[3] != types.none:

        def ask(tile, weight, e):
            edge = weight.order[np.uintp(e)]
            prefetch_wide(tile, address(weight.numbers, weight.first + weight.stride * edge))

        return ask
    return lambda tile, weight, e: None


def put(tile: Any, out: Any, e: Any, count: Any, lanes: Any, further: Any) -> Any:
    """Write an edge's gradient in compiled code: the sum of the lanes, or the lanes.

    A sum is added to what is there when ``further``.
    """
    raise NotImplementedError("only compiled code calls this")


@overload(put)
def _put(tile, out, e, count, lanes, further):
    if isinstance(out, types.Array):

        def add_up(tile, out, e, count, lanes, further):
            value = total(lanes)
            out[e] = out[e] + value if further else value

        return add_up

    def write(tile, out, e, count, lanes, further):
        store_as_is(tile, address(out.numbers, out.first + out.stride * e), count, lanes)

    return write
