"""Where compiled code finds the rows and columns of a tensor.

Legend: N rows, D columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
from torch import Tensor


def njit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """numba.njit as kernels want it: kept on disk, without the GIL, division as NumPy does it."""
    settings = {"cache": True, "nogil": True, "error_model": "numpy"} | options
    decorate = numba.njit(**settings)
    return decorate if function is None else decorate(function)


class Columns(NamedTuple):
    """Some columns of a tensor [N, D] as compiled code finds them."""

    address: int
    stride: int  # bytes from row to row

    @classmethod
    def of(cls, x: Tensor, first: int) -> Columns:
        """The columns of x from ``first`` on. The caller keeps x alive."""
        size = x.element_size()
        return cls(x.data_ptr() + first * size, x.stride(0) * size)


def dense(x: Tensor) -> Tensor:
    """x itself when its rows are contiguous (whatever lies between them), else a copy."""
    x = x.detach()
    return x if x.stride(1) == 1 or x.shape[1] <= 1 else x.contiguous()
