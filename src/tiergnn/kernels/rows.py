"""Where compiled code finds the rows and columns of a tensor, or of several.

Legend: N rows, D columns, B tables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import torch
from numba.core import types
from numba.extending import overload
from torch import Tensor

from tiergnn.kernels.span import Span
from tiergnn.kernels.table import stride_of


def njit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """numba.njit as kernels want it: kept on disk, without the GIL, division as NumPy does it."""
    settings = {"cache": True, "nogil": True, "error_model": "numpy"} | options
    decorate = numba.njit(**settings)
    return decorate if function is None else decorate(function)


class Bases(NamedTuple):
    """Where several tables begin; rows are known by their places (``kernels.table``)."""

    addresses: Span  # int64 [B]
    shift: int


class Columns(NamedTuple):
    """Some columns of a tensor [N, D], or of tables of such, as compiled code finds them."""

    address: int | Bases
    stride: int  # bytes from row to row

    @classmethod
    def of(cls, x: Tensor | tuple[Tensor, ...], first: int, shift: int = 0) -> Columns:
        """The columns of x from ``first`` on; tables if ``shift``. The caller keeps x alive."""
        tables = (x,) if isinstance(x, Tensor) else x
        size = tables[0].element_size()
        stride = stride_of(tables) * size if shift else tables[0].stride(0) * size
        addresses = [table.data_ptr() + first * size for table in tables]
        if not shift:
            return cls(addresses[0], stride)
        return cls(Bases(Span(torch.tensor(addresses)), shift), stride)


def row_at(x: Any, stride: Any, place: Any) -> Any:
    """The address of a row in compiled code. For one table it is a product and a sum."""
    raise NotImplementedError("only compiled code calls this")


@overload(row_at)
def _row_at(x, stride, place):
    if isinstance(x, types.Integer):
        return lambda x, stride, place: x + stride * place

    def in_tables(x, stride, place):
        table = place >> x.shift
        return x.addresses[table] + stride * (place - (table << x.shift))

    return in_tables


def dense(x: Tensor) -> Tensor:
    """x itself when its rows are contiguous (whatever lies between them), else a copy."""
    x = x.detach()
    return x if x.stride(1) == 1 or x.shape[1] <= 1 else x.contiguous()
