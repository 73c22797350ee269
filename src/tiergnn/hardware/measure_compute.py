"""Rates of copies, of operations in order, of matrix products, of attention and of launches.

Legend: N rows, D columns, E edges, K heads, F columns of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from typing import NamedTuple

import torch
from torch import Tensor

from tiergnn.hardware.clock import Call, Clock
from tiergnn.hardware.effort import Effort
from tiergnn.hardware.machine import AROUND, Curve
from tiergnn.hardware.measure_rows import DEGREE, random_rowptr
from tiergnn.kernels import memory
from tiergnn.kernels.aggregate import aggregate
from tiergnn.kernels.attention import gat_attention
from tiergnn.kernels.block import Block
from tiergnn.kernels.dropout import step_key
from tiergnn.kernels.epilogue import epilogue
from tiergnn.kernels.product import linear_rows

DTYPES = ("float32", "float64", "bfloat16", "float16")
_FORMS, _TURNS = 3, 3  # of products, see ``measure_matmul`` and ``_product``
_SMALL, _WIDE, _LAYERS = 16, 256, 8
_HEADS = ((1, 16), (4, 16), (16, 8))  # heads and their columns
_LEAST_FRAC = 0.02  # of what takes longer: of less than that nothing can be said


def measure_stream(clock: Clock, effort: Effort) -> float:
    """Bytes a second, read and written, of a copy between two tensors that no cache holds."""
    source = torch.ones(effort.copy_bytes // 4, device=clock.device)
    target = torch.ones_like(source)
    return 2 * source.nbytes / clock.seconds(lambda: target.copy_(source))


def measure_elementwise(clock: Clock, effort: Effort) -> Curve:
    """Likewise of an operation between others of its size, by the bytes that it reads and writes:
    what it reads was written some operations ago."""

    def case(num_bytes: int) -> Call:
        count = _count(effort, num_bytes)
        rows = [torch.ones(num_bytes // 4, device=clock.device) for _ in range(count)]
        at = 0

        def call() -> None:
            nonlocal at
            at = (at + 1) % count
            torch.clamp_min(rows[at - 1], 0.0, out=rows[at])

        return call

    taken = clock.times({size: partial(case, size) for size in effort.tensor_bytes})
    return Curve(tuple((2.0 * size, 2 * size / taken[size]) for size in sorted(taken)))


@contextmanager
def memory_kept() -> Iterator[None]:
    """Tensors use memory again inside the block, as in runs that have room."""
    memory.keep_large()
    try:
        yield
    finally:
        memory.no_large()


def measure_rowwise(clock: Clock, effort: Effort, launch_s: float) -> Curve:
    """Likewise of one of our own kernels on rows, beyond the seconds of a launch."""

    def case(num_bytes: int) -> Call:
        shape = num_bytes // 4 // _SMALL, _SMALL
        rows = [torch.ones(shape, device=clock.device) for _ in range(_count(effort, num_bytes))]
        at = 0

        def call() -> None:
            nonlocal at
            at = (at + 1) % len(rows)
            rows[at] = epilogue(rows[at - 1], act="relu")

        return call

    taken = clock.times({size: partial(case, size) for size in effort.tensor_bytes})
    beyond = {size: max(s - launch_s, s / 10) for size, s in taken.items()}
    return Curve(tuple((2.0 * size, 2 * size / beyond[size]) for size in sorted(beyond)))


def _count(effort: Effort, num_bytes: int) -> int:
    """Tensors of which each operation reads the last and writes the next."""
    return max(2, min(AROUND, effort.most_bytes // (2 * num_bytes)))


def measure_fresh(clock: Clock, effort: Effort) -> float | None:
    """Bytes a second of pages that the system hands out anew for a large tensor.

    None on CUDA, whose memory torch keeps.
    """
    if clock.is_cuda:
        return None
    held = torch.ones(effort.copy_bytes // 4)
    taken = clock.times({"held": lambda: partial(held.fill_, 1.0),
                         "fresh": lambda: partial(torch.ones, held.numel())})  # fmt: skip
    return held.nbytes / _beyond(taken["fresh"], taken["held"])


def measure_draws(clock: Clock, effort: Effort) -> float:
    """Numbers drawn for dropout a second, beside the pass over rows that draws them."""
    x_ND = torch.ones(max(1, effort.copy_bytes // 8 // 4 // _WIDE), _WIDE, device=clock.device)
    key = step_key(0, 0, clock.device)

    def case(p: float) -> Call:
        return lambda: epilogue(x_ND, act="relu", p=p, key=key)

    taken = clock.times({p: partial(case, p) for p in (0.0, 0.5)})
    return x_ND.numel() / _beyond(taken[0.5], taken[0.0])


def measure_attention(clock: Clock, effort: Effort) -> Curve:
    """Rows of heads weighed by attention a second, beside gathering them, by the number of heads:
    the mean of forward and backward."""
    edges, device = effort.attend_edges, clock.device
    num_rows = edges // DEGREE
    generator = torch.Generator(device=device).manual_seed(0)
    col = torch.randint(num_rows, (edges,), generator=generator, device=device, dtype=torch.int32)
    block = Block(rowptr=random_rowptr(edges, generator), col=col, num_src=num_rows)

    def case(heads: int, columns: int, attends: bool) -> Call:
        rows = torch.ones(num_rows, heads, columns, device=device, requires_grad=True)
        scores = torch.ones(num_rows, heads, device=device, requires_grad=True)

        def call() -> None:
            if attends:
                out = gat_attention(block, rows, scores, scores)
            else:
                out = aggregate(block, rows.flatten(1)).view_as(rows)
            torch.autograd.grad(out, rows, torch.ones_like(out))

        return call

    cases = [(*sizes, attends) for sizes in _HEADS for attends in (True, False)]
    taken = clock.times({key: partial(case, *key) for key in cases})
    points = []
    for heads, columns in _HEADS:
        beside = _beyond(taken[heads, columns, True], taken[heads, columns, False])
        points.append((float(heads), 2 * edges * heads / beside))
    return Curve(tuple(points))


def _beyond(whole_s: float, part_s: float) -> float:
    """What the whole takes beyond a part that was timed by itself."""
    return max(whole_s - part_s, _LEAST_FRAC * whole_s)


class ProductRates(NamedTuple):
    """dtype -> operations a second by the narrowest size of a product."""

    of_rows: dict[str, Curve]
    outer: dict[str, Curve]  # that sum over rows


def measure_matmul(clock: Clock, effort: Effort, bytes_s: Callable[[float], float]) -> ProductRates:
    """Of rows it is the mean of a product that makes wide rows of narrow ones and one that makes
    narrow rows of wide ones; the third is the gradient of the weight.

    ``bytes_s`` gives the seconds that so many bytes of a product are priced at by themselves.
    """
    cases = {
        (name, width, form): partial(_product, clock, effort, getattr(torch, name), width, form)
        for name in DTYPES
        for width in effort.narrowest
        for form in range(_FORMS)
    }
    taken = clock.times(cases)
    rates = ProductRates({}, {})
    for name in DTYPES:
        of_rows, outer = [], []
        for width in effort.narrowest:
            dtype = getattr(torch, name)
            num_rows, other = _sizes(effort, dtype, width)
            moved = num_rows * (width + other) * dtype.itemsize
            widen_s, narrow_s, outer_s = (
                max(taken_s - bytes_s(moved), taken_s / 4)
                for taken_s in (taken[name, width, form] for form in range(_FORMS))
            )
            operations = 2.0 * num_rows * width * other
            of_rows.append((float(width), 2 * operations / (widen_s + narrow_s)))
            outer.append((float(width), operations / outer_s))
        rates.of_rows[name], rates.outer[name] = Curve(tuple(of_rows)), Curve(tuple(outer))
    return rates


def _sizes(effort: Effort, dtype: torch.dtype, width: int) -> tuple[int, int]:
    """Rows and the other width of a product, so that it takes the effort's operations."""
    other = max(effort.other_width, width)
    few = 1 if dtype == torch.float32 else 8  # of the others a shorter look does
    num_rows = int(effort.matmul_flops / few / (2 * width * other))
    return max(other, min(num_rows, effort.product_bytes // (other * dtype.itemsize))), other


def _product(clock: Clock, effort: Effort, dtype: torch.dtype, width: int, form: int) -> Call:
    """Of rows that other products were made of since they were read last."""
    num_rows, other = _sizes(effort, dtype, width)

    def ones(*shape: int) -> Tensor:
        return torch.ones(*shape, dtype=dtype, device=clock.device)

    turns = cycle([(ones(num_rows, width), ones(num_rows, other)) for _ in range(_TURNS)])
    widen, narrower = ones(other, width), ones(width, other)

    def call() -> Tensor:
        narrow, wide = next(turns)
        if form == 2:
            return narrow.T @ wide
        return linear_rows(wide, narrower) if form else linear_rows(narrow, widen)

    return call


class LaunchSeconds(NamedTuple):
    """Of one small operation of torch's, of one of ours (half of them over a graph), and on CUDA of
    either in a recorded graph."""

    plain_s: float
    graph_s: float
    replayed_s: float | None


def measure_launch(clock: Clock) -> LaunchSeconds:
    """All within training, autograd counted: as a mean over forward and backward."""
    rowptr = torch.arange(0, _SMALL + 1, device=clock.device)
    col = torch.arange(_SMALL, device=clock.device, dtype=torch.int32)
    block = Block(rowptr=rowptr, col=col, num_src=_SMALL)
    x_ND = torch.ones(_SMALL, _SMALL, device=clock.device, requires_grad=True)
    weight = torch.ones(_SMALL, _SMALL, device=clock.device)

    def chain(*, graph: bool) -> Tensor:
        h = x_ND
        for _ in range(_LAYERS):
            h = epilogue(aggregate(block, h), act="relu") if graph else torch.relu(h @ weight)
        return torch.autograd.grad(h, x_ND, torch.ones_like(h))[0]

    plain_s, graph_s = (clock.seconds(partial(chain, graph=graph)) for graph in (False, True))
    # A layer is two operations forward (a product or a sum, an activation) and two backward.
    count = 4 * _LAYERS
    replayed_s = None
    if clock.is_cuda:
        chains = (_recorded(partial(chain, graph=graph)) for graph in (False, True))
        replayed_s = sum(clock.seconds(graph.replay) for graph in chains) / (2 * count)
    return LaunchSeconds(plain_s / count, graph_s / count, replayed_s)


def _recorded(call: Call) -> torch.cuda.CUDAGraph:
    """What was run before, so that nothing is compiled meanwhile."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        call()
    return graph
