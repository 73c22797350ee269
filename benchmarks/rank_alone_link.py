"""The link to the host, which stands for the links to peers: its rates, and a machine of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from staged_gpu import as_measured, link_rates
from tiergnn.hardware.machine import Curve, Link, Machine, cache_of
from tiergnn.hardware.presets import resolve
from tiergnn.kernels.aggregate import aggregate
from tiergnn.kernels.block import Block
from tiergnn.kernels.gather import gather
from tiergnn.kernels.table import RowTable
from tiergnn.transport.alone import Shelf

RANKS = 8
WIDTHS = (64, 128, 256, 512, 1024, 2560)  # bytes of a row
READS = ("in_place", "cached", "pulled")
_DEGREE = 16
_CACHED_BYTES = 2**22  # of a table that the device's cache holds
_HELD_BYTES, _HELD_WIDTH = 2**26, 256  # of one that it holds in part


def rates_of(device: torch.device, shelf: Shelf, num_bytes: int) -> dict[str, Any]:
    """Bytes a second: copies, alone and from where absent ranks' rows lie (``bulk``); rows that
    sums read in place at random, of a table that no cache holds and of one that it does, and rows
    pulled in order. ``cache_bytes``: of the device's cache, as such reads find it."""
    found: dict[str, Any] = {**link_rates(device), **{way: {} for way in READS}}
    memory = shelf.take(num_bytes)
    room = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    found["bulk"] = _best(device, (num_bytes, lambda: room.copy_(memory, non_blocking=True)))
    for width in WIDTHS:
        rows = _rows(memory, num_bytes, width)
        found["in_place"][width] = _best(device, _in_place(rows, len(rows) // 2, device))
        few = _rows(memory, min(_CACHED_BYTES, num_bytes), width)
        found["cached"][width] = _best(device, _in_place(few, len(rows) // 2, device))
        found["pulled"][width] = _best(device, _pulled(rows, device))
    held = _rows(memory, min(_HELD_BYTES, num_bytes), _HELD_WIDTH)
    reads = num_bytes // _HELD_WIDTH
    far_s, near_s = (1 / found[way][_HELD_WIDTH] for way in ("in_place", "cached"))
    taken_s = 1 / _best(device, _in_place(held, reads, device))
    hit = (far_s - taken_s) / (far_s - near_s) if near_s < far_s else 0.0
    span = held.numel() * held.element_size()
    found["cache_bytes"] = int(cache_of(hit, span)) if 0 < hit < 1 else 0
    shelf.clear()
    return found


def _rows(memory: Tensor, num_bytes: int, width: int) -> Tensor:
    return memory[: num_bytes // width * width].view(torch.float32).view(-1, width // 4)


def _in_place(rows: Tensor, reads: int, device: torch.device) -> tuple[int, Callable[[], Any]]:
    num_edges = max(_DEGREE, reads // _DEGREE * _DEGREE)
    generator = torch.Generator(device=device).manual_seed(0)
    size = (num_edges,)
    col = torch.randint(len(rows), size, generator=generator, device=device, dtype=torch.int32)
    block = Block(
        rowptr=torch.arange(0, num_edges + 1, _DEGREE, device=device), col=col, num_src=len(rows)
    )
    table = RowTable([torch.empty(0, rows.shape[1], device=device), rows])

    def call() -> None:
        with torch.no_grad():
            aggregate(block, table)

    return num_edges * rows.shape[1] * 4, call


def _pulled(rows: Tensor, device: torch.device) -> tuple[int, Callable[[], Any]]:
    index = torch.arange(len(rows), dtype=torch.int32, device=device)
    out = torch.empty(rows.shape, device=device)
    table = RowTable([out[:0], rows])
    places = table.places(index)
    return out.nbytes, lambda: gather(table, places, out=out)


def _best(device: torch.device, what: tuple[int, Callable[[], Any]]) -> float:
    num_bytes, call = what
    taken = []
    for _ in range(4):
        settle(device)
        start = time.perf_counter()
        call()
        settle(device)
        taken.append(time.perf_counter() - start)
    return num_bytes / min(taken[1:])


def settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def machine_of(name: str, rates: dict[str, Any]) -> Machine:
    """Eight of this device, each with its link to the host; peers are behind the same link."""
    machine = as_measured(resolve(name), rates)
    of_rows = {
        way: Curve(tuple(sorted((float(width), rate) for width, rate in rates[way].items())))
        for way in READS
    }
    in_place = Link(
        Bps=of_rows["in_place"],
        pulled_Bps=of_rows["pulled"],
        cached_Bps=of_rows["cached"],
        wire="h2d",
    )
    links = machine.links | {
        "zero_copy": in_place,
        "peer": in_place,
        "peer_copy": Link(Bps=Curve.flat(rates["h2d"]), wire="h2d"),
    }
    cache_bytes = rates["cache_bytes"] or machine.device.cache_bytes
    device = replace(machine.device, cache_bytes=cache_bytes)
    return replace(machine, device=device, num_devices=RANKS, links=links)
