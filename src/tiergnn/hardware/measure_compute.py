"""Rates of copies, of operations that make new tensors, of matrix products, and of launches.

Legend: N rows, D columns.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from tiergnn.hardware.clock import Call, Clock
from tiergnn.hardware.effort import Effort
from tiergnn.hardware.machine import Curve
from tiergnn.kernels.aggregate import aggregate
from tiergnn.kernels.block import Block
from tiergnn.kernels.product import linear_rows

DTYPES = ("float32", "float64", "bfloat16", "float16")
_OTHER = 256  # the products' other width
_FORMS = 3  # of products, see ``measure_matmul``
_SMALL, _LAYERS = 16, 8


def measure_stream(clock: Clock, effort: Effort) -> float:
    """Bytes a second, read and written, of a copy between two tensors that no cache holds."""
    source = torch.ones(effort.copy_bytes // 4, device=clock.device)
    target = torch.ones_like(source)
    return 2 * source.nbytes / clock.seconds(lambda: target.copy_(source))


def measure_elementwise(clock: Clock, effort: Effort) -> Curve:
    """Likewise of an operation that makes a new tensor, by the bytes that it reads and writes."""

    def case(num_bytes: int) -> Call:
        x_ND = torch.ones(num_bytes // 4 // _OTHER, _OTHER, device=clock.device)
        return lambda: torch.relu(x_ND)

    taken = clock.times({size: partial(case, size) for size in effort.tensor_bytes})
    return Curve(tuple((2.0 * size, 2 * size / taken[size]) for size in sorted(taken)))


def measure_matmul(clock: Clock, effort: Effort) -> dict[str, Curve]:
    """dtype -> operations a second by the narrowest size of a product.

    Of a narrow width it is the mean of what a layer does with it: a product that makes wide rows
    of narrow ones, one that makes narrow rows of wide ones, and the gradient of its weight.
    """
    cases = {
        (name, width, form): partial(_product, clock, effort, getattr(torch, name), width, form)
        for name in DTYPES
        for width in effort.narrowest
        for form in range(_FORMS)
    }
    taken = clock.times(cases)
    curves = {}
    for name in DTYPES:
        points = []
        for width in effort.narrowest:
            num_rows, other = _sizes(effort, getattr(torch, name), width)
            seconds = sum(taken[name, width, form] for form in range(_FORMS))
            points.append((float(width), _FORMS * 2 * num_rows * width * other / seconds))
        curves[name] = Curve(tuple(points))
    return curves


def _sizes(effort: Effort, dtype: torch.dtype, width: int) -> tuple[int, int]:
    """Rows and the other width of a product, so that it takes the effort's operations."""
    other = max(_OTHER, width)
    num_rows = int(effort.matmul_flops / (2 * width * other))
    return max(other, min(num_rows, effort.most_bytes // 8 // (other * dtype.itemsize))), other


def _product(clock: Clock, effort: Effort, dtype: torch.dtype, width: int, form: int) -> Call:
    num_rows, other = _sizes(effort, dtype, width)
    narrow = torch.ones(num_rows, width, dtype=dtype, device=clock.device)
    wide = torch.ones(num_rows, other, dtype=dtype, device=clock.device)
    if form == 0:
        widen = torch.ones(other, width, dtype=dtype, device=clock.device)
        return lambda: linear_rows(narrow, widen)
    if form == 1:
        narrower = torch.ones(width, other, dtype=dtype, device=clock.device)
        return lambda: linear_rows(wide, narrower)
    return lambda: narrow.T @ wide


def measure_launch(clock: Clock) -> tuple[float, float]:
    """Seconds of one small operation of torch's, and of one of our graph operations.

    Both within training, autograd counted: as a mean over forward and backward.
    """
    rowptr = torch.arange(0, _SMALL + 1, device=clock.device)
    col = torch.arange(_SMALL, device=clock.device, dtype=torch.int32)
    block = Block(rowptr=rowptr, col=col, num_src=_SMALL)
    x_ND = torch.ones(_SMALL, _SMALL, device=clock.device, requires_grad=True)
    weight = torch.ones(_SMALL, _SMALL, device=clock.device)

    def chain(*, graph: bool) -> Tensor:
        h = x_ND
        for _ in range(_LAYERS):
            h = aggregate(block, h) if graph else torch.relu(h @ weight)
        return torch.autograd.grad(h, x_ND, torch.ones_like(h))[0]

    plain_s, graph_s = (clock.seconds(partial(chain, graph=graph)) for graph in (False, True))
    # A plain layer is two operations forward (product, activation) and two backward.
    return plain_s / (4 * _LAYERS), graph_s / (2 * _LAYERS)
