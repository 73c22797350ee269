"""How rows are moved: by backend, from tables in reach, to places that come once each.

Legend: N rows, M indices, D columns, U rows that are added to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tiergnn.errors import ConfigError
from tiergnn.kernels import backend
from tiergnn.kernels.arguments import FLOATS, check_within, told
from tiergnn.kernels.table import Places


@dataclass(frozen=True, eq=False)
class Groups:
    """Which of M indices name one row, so that rows that come twice are written once, in order.

    ``of`` is linear where the index ascends strictly, which is seen, and sorts it otherwise: make
    it once for an index that is used again.
    """

    row: Tensor  # [U] each row once, ascending
    start: Tensor | None  # int64 [U+1] its indices in ``order``; None: one each
    order: Tensor | None  # int64 [M] positions, those of a row as they came; None: as they are
    num_indices: int

    @staticmethod
    def of(index: Tensor) -> Groups:
        """The groups of an index [M]. Waits for the device."""
        count = index.numel()
        if count < 2 or bool((index[1:] > index[:-1]).all()):
            return Groups(index, None, None, count)
        ascending, order = torch.sort(index, stable=True)
        row, counts = torch.unique_consecutive(ascending, return_counts=True)
        if row.numel() == count:
            return Groups(row, None, order, count)
        start = torch.zeros(row.numel() + 1, dtype=torch.int64, device=index.device)
        torch.cumsum(counts, 0, out=start[1:])
        return Groups(row, start, order, count)


def write(rows: Tensor, groups: Groups, out: Tensor, name: str) -> None:
    """out[row] = the last of the rows [M, D] that each group names."""
    order = groups.order
    if groups.start is not None and order is not None:
        order = order[groups.start[1:] - 1]
    places = Places(order, 0) if order is not None else None
    move((rows,), places, out, groups.row, add=False, name=name)


def add_up(rows: Tensor, groups: Groups, out: Tensor, name: str) -> None:
    """out[row] += the sum of the rows [M, D] that each group names."""
    order = groups.order
    if groups.start is not None and order is not None:
        rows, order = _sums(rows.detach(), groups.start, order, out.dtype, name), None
    places = Places(order, 0) if order is not None else None
    move((rows,), places, out, groups.row, add=True, name=name)


def _sums(rows: Tensor, start: Tensor, order: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    """Sums [U, D] of rows that go to one place."""
    check_reach("rows", rows, order)
    module = backend.load("aggregate", name)
    wide = torch.promote_types(torch.float32, torch.promote_types(rows.dtype, dtype))
    flat = rows.flatten(1).to(start.device, wide)
    plan = module.plan(start)
    sums = module.weighted_sum(start, order, plan, flat, None, None, False)
    return sums.view(sums.shape[0], *rows.shape[1:])


def move(
    tables: Sequence[Tensor],
    places: Places | None,
    out: Tensor,
    target: Tensor | None,
    *,
    add: bool,
    name: str,
) -> None:
    """out[target[m]] (+)= the row at places[m]; None: m. Targets come once each."""
    index = target if places is None else places.at
    assert index is not None
    for what, rows in (*(("rows", table) for table in tables), ("out", out)):
        check_reach(what, rows, index)
    if not index.numel() or not out.numel():
        return
    if not _in_rows(out):
        raise ConfigError(f"out needs contiguous rows of their own, has strides {out.stride()}")
    if any(_overlap(table, out) for table in tables):
        raise ConfigError("rows and out share memory", hint="rows.clone()")
    flat = out.detach().view(out.shape[0], -1) if out.dim() != 2 else out.detach()
    at, shift = (None, 0) if places is None else places
    module = backend.load("gather", name)
    module.move(tuple(_rows(t) for t in tables), at, shift, flat, target, add)


def check_reach(name: str, rows: Tensor, index: Tensor) -> None:
    """Raise ConfigError for rows where whatever reads the index cannot read or write them.

    A CPU reads and writes host memory, a GPU its own, its peers' and pinned host memory.
    """
    where, there = index.device.type, rows.device.type
    if there == where or (there == "cpu" and (not rows.numel() or rows.is_pinned())):
        return
    raise ConfigError(
        f"the index is on {index.device}, {name} {told(rows)} on {rows.device}",
        hint="pin_memory()" if there == "cpu" else "move both to one device",
    )


def check_places(places: Places, sizes: tuple[int, ...]) -> None:
    """Raise ConfigError for places in host memory that are beyond tables of these sizes."""
    at, shift = places
    if not shift:
        check_within(at, sizes[0], "x")
    elif at.device.type == "cpu" and at.numel():
        table, row = at >> shift, at & ((1 << shift) - 1)
        within = (table >= 0) & (table < len(sizes))
        within &= row < torch.tensor(sizes)[table.clamp(0, len(sizes) - 1).long()]
        if not bool(within.all()):
            raise ConfigError(
                f"{int((~within).sum())} of {at.numel()} indices are beyond tables of "
                f"{list(sizes)} rows, or places in other tables"
            )


def check_rows(name: str, dtype: torch.dtype, shape: tuple[int, ...], out: Tensor) -> None:
    """Raise ConfigError unless rows of this dtype and shape can be moved to rows of out."""
    if dtype not in FLOATS or out.dtype not in FLOATS:
        raise ConfigError(f"rows of floats are moved, {name} has {dtype}, out has {out.dtype}")
    if len(shape) < 2 or tuple(shape[1:]) != tuple(out.shape[1:]):
        raise ConfigError(f"{name} has rows of shape {list(shape[1:])}, out {list(out.shape[1:])}")


def _rows(table: Tensor) -> Tensor:
    return table.detach().flatten(1) if table.dim() != 2 else table.detach()


def _in_rows(out: Tensor) -> bool:
    if out.dim() != 2:
        return out.is_contiguous()
    if out.shape[0] > 1 and out.stride(0) < out.shape[1]:
        return False
    return out.shape[1] <= 1 or out.stride(1) == 1


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Whether tensors without holes share memory; of others it is the caller's to know."""
    if not (a.numel() and b.numel() and a.is_contiguous() and b.is_contiguous()):
        return False
    first, second = a.data_ptr(), b.data_ptr()
    return first < second + b.nbytes and second < first + a.nbytes
