"""Rates of copies, of operations in order, of matrix products and of launches.

What is measured on a clock has a name there, so that all of it can be measured several times.

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
from tiergnn.hardware.measure_rows import LEAST_FRAC
from tiergnn.kernels import memory
from tiergnn.kernels.aggregate import aggregate
from tiergnn.kernels.block import Block
from tiergnn.kernels.dropout import step_key
from tiergnn.kernels.epilogue import epilogue
from tiergnn.kernels.moments import moments_beside
from tiergnn.kernels.product import linear_rows

DTYPES = ("float32", "float64", "bfloat16", "float16")
_FORMS, _TURNS = 3, 3  # of products, see ``measure_matmul``; rows that take turns
_SMALL, _COLUMNS, _LAYERS = 16, 64, 8
_PASSES = 4  # of rows in a layer of ``_norm``: moments, an epilogue, and the gradients of both
_PASSED = 10  # rows that these read and write for each row
_DEEP = 4  # layers of rows at most, which lie where a step's do: written some passes ago
_Operation = Callable[[Tensor], Tensor]


def measure_stream(clock: Clock, effort: Effort) -> float:
    """Bytes a second, read and written, of a copy between two tensors that no cache holds."""
    source = torch.ones(effort.copy_bytes // 4, device=clock.device)
    target = torch.ones_like(source)

    def case() -> Call:
        if clock.is_cuda:  # a kernel, as all that streams there: a copy that is recorded is slower
            return clock.of_device(lambda: torch.clamp_min(source, 0.0, out=target))
        return lambda: target.copy_(source)

    return 2 * source.nbytes / clock.times({"": case}, "stream")[""]


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

        return clock.of_device(call, count)

    cases = {size: partial(case, size) for size in effort.tensor_bytes}
    taken = clock.times(cases, "in order")
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
    """Likewise of our own kernels on rows, beyond the seconds of a launch: the mean of those of
    normalised layers, forward and backward."""

    def case(num_bytes: int) -> Call:
        x_ND = torch.ones(num_bytes // 4 // _COLUMNS, _COLUMNS, device=clock.device)
        gain, bias = (torch.ones(_COLUMNS, device=clock.device) for _ in range(2))
        given = [t.requires_grad_() for t in (x_ND, gain, bias)]
        grad = torch.ones_like(x_ND)

        def call() -> None:
            h = x_ND
            for _ in range(_deep(effort, num_bytes)):
                values, h = moments_beside(h)
                h = epilogue(h, shift=values[1], gain=gain, bias=bias, act="relu")
            torch.autograd.grad(h, given, grad)

        return clock.of_device(call)

    points = []
    cases = {size: partial(case, size) for size in effort.tensor_bytes}
    for size, taken_s in sorted(clock.times(cases, "rowwise").items()):
        each_s = taken_s / (_deep(effort, size) * _PASSES)
        moved = size * _PASSED / _PASSES
        points.append((moved, moved / max(each_s - launch_s, each_s / 2)))
    return Curve(tuple(points))


def _deep(effort: Effort, num_bytes: int) -> int:
    """Layers whose rows, with the gradients of one, are within what may be held."""
    return max(1, min(_DEEP, effort.most_bytes // num_bytes - 4))


def measure_totals(clock: Clock, effort: Effort) -> Curve:
    """Bytes a second that torch's sums over rows read, by how many one reads."""

    def case(num_bytes: int) -> Call:
        shape = num_bytes // 4 // _COLUMNS, _COLUMNS
        count = _count(effort, num_bytes)
        turns = cycle([torch.ones(shape, device=clock.device) for _ in range(count)])
        return clock.of_device(lambda: next(turns).sum(0), count)

    taken = clock.times({size: partial(case, size) for size in effort.tensor_bytes}, "totals")
    return Curve(tuple((float(size), size / taken[size]) for size in sorted(taken)))


def measure_adds(clock: Clock, effort: Effort) -> Curve:
    """Bytes a second of rows that torch adds to others by index, by the bytes of a row."""
    generator = torch.Generator(device=clock.device).manual_seed(0)

    def case(row_bytes: int) -> Call:
        num_rows = max(1, min(effort.attend_edges, effort.copy_bytes // 4 // row_bytes))
        table = torch.zeros(num_rows, row_bytes // 4, device=clock.device)
        rows = torch.ones_like(table)
        index = torch.randperm(num_rows, generator=generator, device=clock.device)
        return clock.of_device(lambda: table.index_add_(0, index, rows))

    taken = clock.times({row: partial(case, row) for row in effort.row_bytes}, "adds")
    points = []
    for row, seconds in sorted(taken.items()):
        num_rows = max(1, min(effort.attend_edges, effort.copy_bytes // 4 // row))
        points.append((float(row), num_rows * row / seconds))
    return Curve(tuple(points))


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
    cases = {
        "held": lambda: partial(held.fill_, 1.0),
        "fresh": lambda: partial(torch.ones, held.numel()),
    }
    taken = clock.times(cases, "fresh")
    return held.nbytes / beyond(taken["fresh"], taken["held"])


def measure_draws(clock: Clock, effort: Effort) -> float:
    """Numbers drawn for dropout a second, beside the pass over rows that draws them."""
    num_rows = max(1, effort.copy_bytes // 4 // 4 // _COLUMNS)
    x_ND = torch.ones(num_rows, _COLUMNS, device=clock.device)
    key = step_key(0, 0, clock.device)

    def case(p: float) -> Call:
        return clock.of_device(lambda: epilogue(x_ND, act="relu", p=p, key=key))

    taken = clock.times({p: partial(case, p) for p in (0.0, 0.5)}, "draws")
    return x_ND.numel() / beyond(taken[0.5], taken[0.0])


def beyond(whole_s: float, part_s: float) -> float:
    """What the whole takes beyond a part that was timed by itself."""
    return max(whole_s - part_s, LEAST_FRAC * whole_s)


class ProductRates(NamedTuple):
    """dtype -> operations a second by the narrowest size of a product."""

    of_rows: dict[str, Curve]
    outer: dict[str, Curve]  # that sum over rows


def measure_matmul(clock: Clock, effort: Effort, bytes_s: Callable[[float], float]) -> ProductRates:
    """Of rows it is the mean of a product that makes wide rows of narrow ones and one that makes
    narrow rows of wide ones; the third is the gradient of the weight.

    ``bytes_s`` gives the seconds that so many bytes of a product are priced at by themselves.
    """
    taken: dict[tuple[str, int, int], float] = {}
    for name in DTYPES:
        cases = {
            (name, width, form): partial(_product, clock, effort, getattr(torch, name), width, form)
            for width in _widths(effort, name)
            for form in range(_FORMS)
        }
        # Of the others a single round does.
        taken |= clock.times(cases, "products", once=name != DTYPES[0])
    rates = ProductRates({}, {})
    for name in DTYPES:
        of_rows, outer = [], []
        for width in _widths(effort, name):
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


def _widths(effort: Effort, name: str) -> tuple[int, ...]:
    return effort.narrowest if name == DTYPES[0] else effort.narrowest[::2]


def _sizes(effort: Effort, dtype: torch.dtype, width: int) -> tuple[int, int]:
    """Rows and the other width of a product, so that it takes the effort's operations."""
    other = max(effort.other_width, width)
    few = 1 if dtype == torch.float32 else 8  # of the others a shorter look does
    num_rows = int(effort.matmul_flops / few / (2 * width * other))
    return max(other, min(num_rows, effort.product_bytes // (other * dtype.itemsize))), other


def _product(clock: Clock, effort: Effort, dtype: torch.dtype, width: int, form: int) -> Call:
    """Of rows that other products were made of since they were read last, into other memory than
    the last product was."""
    num_rows, other = _sizes(effort, dtype, width)

    def ones(*shape: int) -> Tensor:
        return torch.ones(*shape, dtype=dtype, device=clock.device)

    turns = cycle([(ones(num_rows, width), ones(num_rows, other)) for _ in range(_TURNS)])
    widen, narrower = ones(other, width), ones(width, other)
    last: Tensor | None = None

    def call() -> None:
        nonlocal last
        narrow, wide = next(turns)
        if form == 2:
            last = narrow.T @ wide
        else:
            last = linear_rows(wide, narrower) if form else linear_rows(narrow, widen)

    return call


class LaunchSeconds(NamedTuple):
    """Of one small operation of torch's, of one of ours (half of them over a graph), and on CUDA of
    either in a recorded graph; on a CPU also of both between operations that fill its caches."""

    plain_s: float
    graph_s: float
    replayed_s: float | None = None
    cold_plain_s: float | None = None
    cold_graph_s: float | None = None

    @property
    def among_rows_s(self) -> float:
        """Of one of ours, as on rows that no cache holds, on the clock of ``Clock.of_device``."""
        if self.replayed_s is not None:
            return self.replayed_s
        return self.graph_s if self.cold_graph_s is None else self.cold_graph_s


def measure_launch(clock: Clock, effort: Effort) -> LaunchSeconds:
    """All within training, autograd counted: as a mean over forward and backward, or of forward."""
    rowptr = torch.arange(0, _SMALL + 1, device=clock.device)
    col = torch.arange(_SMALL, device=clock.device, dtype=torch.int32)
    block = Block(rowptr=rowptr, col=col, num_src=_SMALL)
    x_ND = torch.ones(_SMALL, _SMALL, device=clock.device, requires_grad=True)
    weight = torch.ones(_SMALL, _SMALL, device=clock.device)
    operations: dict[bool, tuple[_Operation, _Operation]] = {  # whether they are ours
        False: (lambda h: h @ weight, torch.relu),
        True: (lambda h: aggregate(block, h), lambda h: epilogue(h, act="relu")),
    }

    def chain(*, ours: bool) -> Tensor:
        h = x_ND
        for operation in operations[ours] * _LAYERS:
            h = operation(h)
        return torch.autograd.grad(h, x_ND, torch.ones_like(h))[0]

    chains = {ours: partial(chain, ours=ours) for ours in operations}
    taken = clock.times({ours: partial(_same, call) for ours, call in chains.items()}, "launches")
    # A layer is two operations forward (a product or a sum, an activation) and two backward.
    count = 4 * _LAYERS
    plain_s, graph_s = taken[False] / count, taken[True] / count
    if clock.is_cuda:
        replays = {ours: partial(_same, _recorded(call).replay) for ours, call in chains.items()}
        replayed_s = sum(clock.times(replays, "replays").values()) / (2 * count)
        return LaunchSeconds(plain_s, graph_s, replayed_s=replayed_s)

    rows = torch.ones(AROUND, effort.product_bytes // 4 // 4)

    def cold(ours: bool | None) -> Call:
        def call() -> None:
            h = x_ND
            for i, operation in enumerate(operations[bool(ours)] * _LAYERS):
                torch.clamp_min(rows[i % AROUND], 0.0, out=rows[(i + 1) % AROUND])
                h = h if ours is None else operation(h)

        return call

    taken = clock.times({ours: partial(cold, ours) for ours in (None, *operations)}, "cold")
    among = ((taken[ours] - taken[None]) / (2 * _LAYERS) for ours in operations)
    cold_s = map(max, (plain_s, graph_s), among)
    return LaunchSeconds(plain_s, graph_s, None, *cold_s)


def _same(call: Call) -> Call:
    return call


def _recorded(call: Call) -> torch.cuda.CUDAGraph:
    """What was run before, so that nothing is compiled meanwhile."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        call()
    return graph
