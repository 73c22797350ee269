"""Rows moved by index: gathered, written, or added to rows; converted between float widths.

What executors bring rows with: from several tables to one buffer, from a buffer to its places, and
sums of parts into the rows that they belong to. No atomics; results do not depend on the number of
threads. What is written must not share memory with what is read.

Bytes: M * (D * (element read + element written) + index), and M * D * element that is added to.

Legend: N rows, M indices, D columns, U rows that are added to.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tiergnn.errors import ConfigError
from tiergnn.kernels import backend
from tiergnn.kernels.arguments import FLOATS as FLOATS
from tiergnn.kernels.arguments import check_floats, check_index, check_within, told
from tiergnn.kernels.gather.moves import Groups as Groups
from tiergnn.kernels.gather.moves import (
    add_up,
    check_places,
    check_reach,
    check_rows,
    move,
    write,
)
from tiergnn.kernels.gather.ops import gather_op
from tiergnn.kernels.table import Places, RowTable, places_of


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
    is read in place. Differentiable in x, once, without ``out``: rows that came twice are added up
    as ``accumulate_rows`` does. Raises ConfigError for shapes, dtypes or devices that do not fit,
    and, on the CPU, for an index beyond x; a GPU would have to be waited for.
    """
    table = x if isinstance(x, RowTable) else RowTable((x,))
    if isinstance(index, Places):
        places = index
    else:
        check_index(index)
        several = len(table.tables) > 1
        places = places_of(index, table.sizes) if several else Places(index, 0)
    name = backend.choose(places.at.device)
    shape = (places.at.numel(), *table.shape[1:])
    if out is None:
        like = table.tables[0].new_empty(0, *table.shape[1:], dtype=dtype)
        check_rows("x", table.dtype, table.shape, like)
        for rows in table.tables:
            check_reach("x", rows, places.at)
        return gather_op(list(table.tables), *places, dtype, name)
    check_rows("x", table.dtype, table.shape, out)
    _check_written(out, *table.tables)
    if tuple(out.shape) != shape or (dtype is not None and out.dtype != dtype):
        raise ConfigError(f"out needs {dtype or out.dtype} {list(shape)}, has {told(out)}")
    check_places(places, table.sizes)
    move(table.tables, places, out, None, add=False, name=name)
    return out


def scatter_rows(rows: Tensor, index: Tensor | Groups, out: Tensor) -> Tensor:
    """out[index[m]] = rows[m] for rows [M, D]; of rows that come twice the last one stays.

    Returns out, which has the index's device or is pinned. Not differentiable. Raises ConfigError
    as ``gather`` does.
    """
    groups = _groups(rows, index, out)
    write(rows, groups, out, backend.choose(groups.row.device))
    return out


def accumulate_rows(rows: Tensor, index: Tensor | Groups, out: Tensor) -> Tensor:
    """out[index[m]] += rows[m] for rows [M, D], in float32 (float64 for float64), rounded once.

    Rows that come twice are summed first, in order, as ``aggregate`` sums (hubs are cut into even
    tasks), then added. Returns out. Not differentiable. Raises ConfigError as ``gather`` does.
    """
    groups = _groups(rows, index, out)
    add_up(rows, groups, out, backend.choose(groups.row.device))
    return out


def _groups(rows: Tensor, index: Tensor | Groups, out: Tensor) -> Groups:
    check_floats("rows", rows, "float rows [M, ...]")
    if not isinstance(index, Groups):
        check_index(index)
        check_within(index, out.shape[0], "out")
        index = Groups.of(index)
    elif index.row.device.type == "cpu" and index.row.numel():
        low, high = int(index.row[0]), int(index.row[-1])  # they ascend
        if low < 0 or high >= out.shape[0]:
            raise ConfigError(f"groups name rows {low}..{high}, out has {out.shape[0]}")
    check_rows("rows", rows.dtype, rows.shape, out)
    _check_written(out, rows)
    if rows.shape[0] != index.num_indices:
        raise ConfigError(f"{index.num_indices} indices need as many rows, have {rows.shape[0]}")
    return index


def _check_written(out: Tensor, *rows: Tensor) -> None:
    if torch.is_grad_enabled() and any(t.requires_grad for t in (out, *rows)):
        raise ConfigError(
            "rows that are written to a given place are not differentiable",
            hint="torch.no_grad(), or detach(); gather without out is",
        )
