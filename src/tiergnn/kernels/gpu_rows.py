"""Where Triton kernels find rows: in one tensor, or in several by a table of their addresses.

Legend: B tables, M places.
"""

# Triton types constants as constexpr, and gives no type to what a kernel is called with.
# pyright: reportArgumentType=false, reportOperatorIssue=false

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tiergnn.kernels.addresses import addresses_of
from tiergnn.kernels.aggregate.shapes import VECTOR_BYTES
from tiergnn.kernels.table import stride_of, uniform

_BETWEEN_GPUS = 2  # times as many programs: half of the multiprocessors, 0.5 MB on its way
_ELEMENTS = {
    torch.float64: tl.float64,
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
}


@triton.jit
def places_at(
    x,
    place,
    live,
    STRIDE: tl.constexpr,
    SHIFT: tl.constexpr,
    ELEMENT: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """Pointers to the first number of the rows at ``place``.

    x is a tensor, or with SHIFT the addresses of tables, which begin and whose rows stand at
    multiples of VECTOR bytes. What is not ``live`` points to somewhere that is not read.
    """
    if SHIFT == 0:
        rows = x + place.to(tl.int64) * STRIDE
    else:
        table = place >> SHIFT
        row = (place - (table << SHIFT)).to(tl.int64)
        address = tl.load(x + table, mask=live, other=0)
        rows = address.to(tl.pointer_type(ELEMENT)) + row * STRIDE
        # Nothing is known of an address that was cast.
        if len(place.shape) == 1:
            rows = tl.multiple_of(rows, [VECTOR])
        else:
            rows = tl.multiple_of(rows, [VECTOR, VECTOR])
    return rows


def table_of(
    tables: tuple[Tensor, ...], shift: int, device: torch.device, columns: int
) -> dict[str, Any]:
    """What ``places_at`` is given for rows of ``columns`` numbers; the caller keeps the tables."""
    dtype, size = tables[0].dtype, tables[0].element_size()
    if not shift:
        given = {"x": tables[0], "STRIDE": tables[0].stride(0), "SHIFT": 0}
        return given | {"ELEMENT": None, "VECTOR": 1}
    tables = uniform(tables)
    stride, addresses = stride_of(tables), tuple(table.data_ptr() for table in tables)
    return {
        "x": addresses_of(addresses, device),
        "STRIDE": stride,
        "SHIFT": shift,
        "ELEMENT": _ELEMENTS[dtype],
        "VECTOR": vector_bytes(addresses, stride * size, columns * size),
    }


def most_programs(tables: tuple[Tensor, ...], device: torch.device, each: float) -> int | None:
    """How many programs may read these tables at a time, of a kernel of which ``each`` for every
    multiprocessor keep the link to the host busy; None: any number, where all are on the device.

    A link needs few bytes on their way. Programs that wait for it on all multiprocessors would hold
    up the sums of rows that are there, which are to be made meanwhile: a kernel that uses shared
    memory does not begin on a multiprocessor before those have left it that use none.
    """
    beyond = {table.device.type for table in tables if table.device != device and table.numel()}
    if not beyond:
        return None
    most = int(each * _multiprocessors(device))
    return max(1, most) * (1 if "cpu" in beyond else _BETWEEN_GPUS)


def beside(grid: tuple[int, int], most: int | None) -> tuple[int, int]:
    """A grid of no more programs than that."""
    programs, blocks = grid
    return grid if most is None else (min(programs, max(1, most // blocks)), blocks)


@lru_cache(maxsize=64)
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":  # interpreted
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count


def vector_bytes(addresses: tuple[int, ...], stride_bytes: int, row_bytes: int) -> int:
    """Bytes that one load can take of rows of all tables."""
    return gcd(VECTOR_BYTES, stride_bytes, row_bytes, *addresses)
