"""Rows on the CPU: where compiled code finds them, and the memory that new ones get.

Legend: N rows, D columns.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numba
import torch
from torch import Tensor

_HUGE_BYTES = 32 * 2**20  # from here on the allocator gives a tensor pages of its own


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


def new_rows(num_rows: int, num_columns: int, dtype: torch.dtype) -> Tensor:
    """torch.empty [N, D]; large ones ask Linux for huge pages, which fault and translate faster."""
    out = torch.empty(num_rows, num_columns, dtype=dtype)
    num_bytes = out.numel() * out.itemsize
    if num_bytes >= _HUGE_BYTES and (advise := _madvise()) is not None:
        page = mmap.PAGESIZE
        first = -(-out.data_ptr() // page) * page
        last = (out.data_ptr() + num_bytes) // page * page
        # Advice: where the kernel cannot follow it, it says so and nothing changes.
        advise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_HUGEPAGE)
    return out


@cache
def _madvise() -> Callable[..., int] | None:
    if not (sys.platform == "linux" and hasattr(mmap, "MADV_HUGEPAGE")):
        return None
    return ctypes.CDLL(None, use_errno=True).madvise
