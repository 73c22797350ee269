"""Rows moved by index: gathered, written, or added to rows; converted between float widths.

What executors bring rows with: from several tables to one buffer, from a buffer to its places, and
sums of parts into the rows that they belong to. Not differentiable: executors pass gradients along
by the same three. No atomics; results do not depend on the number of threads. What is written must
not share memory with what is read.

Bytes: M * (D * (element read + element written) + index), and M * D * element that is added to.

Legend: N rows, M indices, D columns, U rows that are added to.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tiergnn.errors import ConfigError
from tiergnn.kernels import backend
from tiergnn.kernels.table import Places, RowTable

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


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


def gather(
    x: Tensor | RowTable,
    index: Tensor | Places,
    *,
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """out[m] = x[index[m]], [M, D] in the dtype of ``out``, else ``dtype``, else that of x.

    index is int32 or int64 within the rows of x, or their ``Places`` in a RowTable, translated once
    for indices that are used again. x may lie in pinned host memory while the index is on a GPU: it
    is read in place. Raises ConfigError for shapes, dtypes or devices that do not fit, and, on the
    CPU, for an index beyond x; a GPU would have to be waited for.
    """
    table = x if isinstance(x, RowTable) else RowTable((x,))
    if isinstance(index, Places):
        places = index
    else:
        _check_index(index, table.shape[0], "x")
        places = table.places(index) if len(table.tables) > 1 else Places(index, 0)
    shape = (places.at.numel(), *table.shape[1:])
    if out is None:
        out = torch.empty(shape, dtype=dtype or table.dtype, device=places.at.device)
    _check_rows("x", table.dtype, table.shape, out)
    if tuple(out.shape) != shape or (dtype is not None and out.dtype != dtype):
        raise ConfigError(f"out needs {dtype or out.dtype} {list(shape)}, has {_describe(out)}")
    _move(table.tables, places, out, None, add=False)
    return out


def scatter_rows(rows: Tensor, index: Tensor | Groups, out: Tensor) -> Tensor:
    """out[index[m]] = rows[m] for rows [M, D]; of rows that come twice the last one stays.

    Returns out, which has the index's device or is pinned. Raises ConfigError as ``gather`` does.
    """
    groups = _groups(rows, index, out)
    order = groups.order
    if groups.start is not None and order is not None:
        order = order[groups.start[1:] - 1]
    _move((rows,), Places(order, 0) if order is not None else None, out, groups.row, add=False)
    return out


def accumulate_rows(rows: Tensor, index: Tensor | Groups, out: Tensor) -> Tensor:
    """out[index[m]] += rows[m] for rows [M, D], in float32 (float64 for float64), rounded once.

    Rows that come twice are summed first, in order, as ``aggregate`` sums (hubs are cut into even
    tasks), then added. Returns out. Raises ConfigError as ``gather`` does.
    """
    groups = _groups(rows, index, out)
    order = groups.order
    if groups.start is not None and order is not None:
        rows, order = _sums(rows.detach(), groups.start, order, out.dtype), None
    _move((rows,), Places(order, 0) if order is not None else None, out, groups.row, add=True)
    return out


def _sums(rows: Tensor, start: Tensor, order: Tensor, dtype: torch.dtype) -> Tensor:
    """Sums [U, D] of rows that go to one place."""
    name = backend.choose(start.device)
    module = backend.load("aggregate", name)
    wide = torch.promote_types(torch.float32, torch.promote_types(rows.dtype, dtype))
    flat = rows.flatten(1).to(start.device, wide)
    plan = module.plan(start)
    sums = module.weighted_sum(start, order, plan, flat, None, None, False)
    return sums.view(-1, *rows.shape[1:])


def _move(
    tables: tuple[Tensor, ...],
    places: Places | None,
    out: Tensor,
    target: Tensor | None,
    *,
    add: bool,
) -> None:
    """out[target[m]] (+)= the row at places[m]; None: m. Targets come once each."""
    index = target if places is None else places.at
    assert index is not None
    if not index.numel() or not out.numel():
        return
    if not _in_rows(out):
        raise ConfigError(f"out needs contiguous rows, has strides {out.stride()}")
    flat = out.detach().view(out.shape[0], -1) if out.dim() != 2 else out.detach()
    module = backend.load("gather", backend.choose(index.device))
    at, shift = (None, 0) if places is None else places
    module.move(tuple(_rows(t) for t in tables), at, shift, flat, target, add)


def _rows(table: Tensor) -> Tensor:
    return table.detach().flatten(1) if table.dim() != 2 else table.detach()


def _in_rows(out: Tensor) -> bool:
    if out.dim() != 2:
        return out.is_contiguous()
    return out.shape[1] <= 1 or out.stride(1) == 1


def _groups(rows: Tensor, index: Tensor | Groups, out: Tensor) -> Groups:
    if not isinstance(index, Groups):
        _check_index(index, out.shape[0], "out")
        index = Groups.of(index)
    _check_rows("rows", rows.dtype, rows.shape, out)
    if rows.shape[0] != index.num_indices:
        raise ConfigError(f"{index.num_indices} indices need as many rows, have {rows.shape[0]}")
    return index


def _check_rows(name: str, dtype: torch.dtype, shape: tuple[int, ...], out: Tensor) -> None:
    if dtype not in FLOATS or out.dtype not in FLOATS:
        raise ConfigError(f"rows of floats are moved, {name} has {dtype}, out has {out.dtype}")
    if len(shape) < 2 or tuple(shape[1:]) != tuple(out.shape[1:]):
        raise ConfigError(f"{name} has rows of shape {list(shape[1:])}, out {list(out.shape[1:])}")
    if out.requires_grad and torch.is_grad_enabled():
        raise ConfigError("moving rows is not differentiable", hint="torch.no_grad(), or detach()")


def _check_index(index: Tensor, num_rows: int, name: str) -> None:
    if index.dim() != 1 or index.dtype not in (torch.int32, torch.int64):
        raise ConfigError(f"index needs int32 or int64 [M], has {_describe(index)}")
    if index.device.type == "cpu" and index.numel():
        low, high = (int(bound) for bound in index.aminmax())
        if low < 0 or high >= num_rows:
            raise ConfigError(
                f"index needs 0..{num_rows - 1}, the rows of {name}; has {low}..{high}"
            )


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
