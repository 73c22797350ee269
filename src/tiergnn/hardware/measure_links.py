"""Rates of links: host memory, copies to and from a CUDA device, rows read in place, ranks.

Legend: N rows, D columns.
"""

from __future__ import annotations

import logging
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from tiergnn.hardware.clock import Call, Clock
from tiergnn.hardware.effort import MIB, Effort
from tiergnn.hardware.machine import Curve, Link
from tiergnn.kernels.aggregate import aggregate
from tiergnn.kernels.block import Block

_log = logging.getLogger("tiergnn")
_DEGREE = 16
_PIECES = (64 * 1024, MIB, 16 * MIB, 128 * MIB)  # of copies and collectives


def host_links(clock: Clock, effort: Effort) -> dict[str, Link]:
    """What the host's own cores move: copies, and rows gathered at random by index_select."""
    assert not clock.is_cuda
    source = torch.ones(effort.copy_bytes // 4)
    target = torch.empty_like(source)
    copy_Bps = source.nbytes / clock.seconds(lambda: target.copy_(source))

    def gather(row_bytes: int) -> Call:
        x_ND = source[: source.numel() // (row_bytes // 4) * (row_bytes // 4)].view(
            -1, row_bytes // 4
        )
        num_rows = max(1, effort.copy_bytes // 4 // row_bytes)
        rows = torch.randint(x_ND.shape[0], (num_rows,), generator=_seeded())
        out_ND = target[: num_rows * x_ND.shape[1]].view(num_rows, -1)
        return lambda: torch.index_select(x_ND, 0, rows, out=out_ND)

    taken = clock.times({row: partial(gather, row) for row in effort.row_bytes})
    points = []
    for row in effort.row_bytes:
        num_bytes = max(1, effort.copy_bytes // 4 // row) * row
        points.append((float(row), num_bytes / taken[row]))
    return {
        "host_copy": Link(Bps=Curve.flat(copy_Bps)),
        "host_gather": Link(Bps=Curve(tuple(points))),
    }


def device_links(clock: Clock, effort: Effort) -> dict[str, Link]:
    """Pinned and pageable copies each way and both at once; rows read in place from the host."""
    assert clock.is_cuda
    num_bytes = effort.copy_bytes
    device_in = torch.empty(num_bytes // 4, device=clock.device)
    device_out = torch.ones_like(device_in)
    pageable = torch.ones(num_bytes // 4)
    pinned_in = torch.ones(num_bytes // 4, pin_memory=True)
    pinned_out = torch.empty(num_bytes // 4, pin_memory=True)
    sides = torch.cuda.Stream(clock.device), torch.cuda.Stream(clock.device)

    def h2d(count: int) -> Call:
        return lambda: device_in[:count].copy_(pinned_in[:count], non_blocking=True)

    def d2h(count: int) -> Call:
        return lambda: pinned_out[:count].copy_(device_out[:count], non_blocking=True)

    def both() -> None:
        with torch.cuda.stream(sides[0]):
            device_in.copy_(pinned_in, non_blocking=True)
        with torch.cuda.stream(sides[1]):
            pinned_out.copy_(device_out, non_blocking=True)

    links = {}
    for name, copy in (("h2d", h2d), ("d2h", d2h)):
        sizes = [size for size in _PIECES if size < num_bytes] + [num_bytes]
        taken = clock.times({size: partial(copy, size // 4) for size in sizes})
        links[name] = _copies(taken)
    # Until the slower way is done: the share of its rate alone that each keeps beside the other.
    alone_s = max(num_bytes / link.Bps.at(num_bytes) for link in links.values())
    duplex_frac = min(1.0, alone_s / clock.seconds(both))
    links = {
        name: Link(Bps=link.Bps, latency_s=link.latency_s, duplex_frac=duplex_frac)
        for name, link in links.items()
    }
    pageable_s = clock.seconds(lambda: device_in.copy_(pageable))
    links["pageable"] = Link(Bps=Curve.flat(num_bytes / pageable_s), latency_s=20e-6)
    in_place = _zero_copy(clock, effort, pinned_in)
    return links | ({} if in_place is None else {"zero_copy": in_place})


def _copies(taken: dict[int, float]) -> Link:
    """Copies by size as a latency and a rate: seconds are latency + bytes / rate."""
    sizes = sorted(taken)
    latency_s = min(taken[sizes[0]], taken[sizes[-1]] / 2)
    rate = sizes[-1] / (taken[sizes[-1]] - latency_s)
    latency_s = max(0.0, latency_s - sizes[0] / rate)
    return Link(Bps=Curve.flat(rate), latency_s=latency_s)


class _Mapped:
    """Pinned host memory as a CUDA array: a device may read it where it lies."""

    def __init__(self, pinned: Tensor):
        self.__cuda_array_interface__ = {
            "data": (pinned.data_ptr(), False),
            "shape": tuple(pinned.shape),
            "typestr": "<f4",
            "version": 3,
        }


def _zero_copy(clock: Clock, effort: Effort, pinned: Tensor) -> Link | None:
    """Rows of pinned host memory that our aggregation reads in place, by width.

    None, with a warning, where a kernel cannot read it.
    """
    try:
        mapped = torch.as_tensor(_Mapped(pinned), device=clock.device)
        if mapped.data_ptr() != pinned.data_ptr():
            raise RuntimeError("it was copied to the device")
    except (RuntimeError, TypeError, ValueError) as error:
        _log.warning("rows in pinned memory cannot be read in place: %s", error)
        return None
    # A link is a hundred times slower than the memory that the effort is made for.
    read_bytes = min(max(MIB, effort.read_bytes // 64), pinned.nbytes)

    def gather(row_bytes: int) -> Call:
        block, width = _random_rows(clock, pinned.nbytes, read_bytes, row_bytes)
        x_ND = mapped[: block.num_src * width].view(block.num_src, width)

        def call() -> None:
            with torch.no_grad():
                aggregate(block, x_ND)

        return call

    taken = clock.times({row: partial(gather, row) for row in effort.row_bytes})
    points = []
    for row in effort.row_bytes:
        num_edges = max(_DEGREE, read_bytes // row // _DEGREE * _DEGREE)
        points.append((float(row), num_edges * row / taken[row]))
    return Link(Bps=Curve(tuple(points)))


def _random_rows(
    clock: Clock, table_bytes: int, read_bytes: int, row_bytes: int
) -> tuple[Block, int]:
    """Sums over 16 random rows each of a table; and the table's width in float32 columns."""
    num_edges = max(_DEGREE, read_bytes // row_bytes // _DEGREE * _DEGREE)
    num_src = table_bytes // row_bytes
    generator = torch.Generator(device=clock.device).manual_seed(0)
    shape = (num_edges,)
    col = torch.randint(num_src, shape, generator=generator, device=clock.device, dtype=torch.int32)
    rowptr = torch.arange(0, num_edges + 1, _DEGREE, device=clock.device)
    return Block(rowptr=rowptr, col=col, num_src=num_src), row_bytes // 4


def peer_links(clock: Clock, effort: Effort, *, num_hosts: int) -> dict[str, Link]:
    """Bytes a second that a rank sends to all others at once, while they all do.

    A collective: every rank of the initialised process group calls it at the same time. Over
    several hosts the link is "network", else "peer_copy".
    """
    world = dist.get_world_size()
    sizes = [size for size in _PIECES if size <= max(_PIECES[0], effort.copy_bytes)]
    taken = {}
    for size in sizes:
        count = max(1, size // 4 // world) * world
        sent, got = (torch.ones(count, device=clock.device) for _ in range(2))
        dist.all_to_all_single(got, sent)
        runs = []
        for _ in range(5):
            dist.barrier()
            runs.append(clock.once(partial(dist.all_to_all_single, got, sent)))
        longest = torch.tensor(sorted(runs)[1], dtype=torch.float64, device=clock.device)
        dist.all_reduce(longest, dist.ReduceOp.MAX)
        taken[4 * count * (world - 1) // world] = float(longest)
    return {"peer_copy" if num_hosts == 1 else "network": _copies(taken)}


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)
