"""Neighbour aggregation: sum, mean or maximum over in-edges, with optional edge weights.

Legend: P destinations, S sources, E edges, D columns, K heads.
"""

from __future__ import annotations

from torch import Tensor

from tiergnn.errors import ConfigError, unknown
from tiergnn.kernels import backend
from tiergnn.kernels.aggregate.ops import max_op, sum_op
from tiergnn.kernels.aggregate.table_ops import table_op
from tiergnn.kernels.block import Block
from tiergnn.kernels.table import RowTable

REDUCTIONS = ("sum", "mean", "max")


def aggregate(
    block: Block, x_SD: Tensor | RowTable, *, reduce: str = "sum", weight_E: Tensor | None = None
) -> Tensor:
    """out[i] = reduce over the in-edges (j, i) of weight * x[j], [P, D] in the dtype of x.

    x [S, D] of float64, 32, 16 or bfloat16, in one tensor or a RowTable, each row read where it
    lies: the gradient comes back table by table. weight [E] is one number an edge; [E, K] one for
    each of K equal groups of columns (heads; K = D: one a column). A row without in-edges gets
    exactly 0. The mean divides by the number of in-edges, whatever their weights. Sums in a
    fixed order, in float32 (float64 for float64) with float64 partial sums, and rounds once.
    Differentiable in x and weight (once for a RowTable and for maxima); the gradient of a maximum
    is split evenly among ties.
    Raises ConfigError for an unknown reduction, a wrong shape, dtype or device.
    """
    if reduce not in REDUCTIONS:
        raise unknown("reduce", reduce, REDUCTIONS)
    check_rows(block, x_SD, weight_E)
    name = backend.choose(block.device)
    tables = list(x_SD.tables) if isinstance(x_SD, RowTable) else [x_SD]
    if len(tables) > 1:
        return table_op(block.handle, reduce, tables, weight_E, name)[0]
    if reduce == "max":
        return max_op(block.handle, tables[0], weight_E, name)[0]
    return sum_op(block.handle, False, reduce == "mean", tables[0], weight_E, name)


def aggregate_grad(
    block: Block, grad_PD: Tensor, *, mean: bool, weight_E: Tensor | None = None
) -> Tensor:
    """The gradient [S, D] of the rows x whose sum or mean ``aggregate`` gives, from its result's.

    In the order and with the bits of backward. Differentiable as a sum.
    """
    name = backend.choose(block.device)
    return sum_op(block.handle, True, mean, grad_PD, weight_E, name)


def check_rows(block: Block, x_SD: Tensor | RowTable, weight_E: Tensor | None) -> None:
    """Raise ConfigError unless x and weight fit the block."""
    if len(x_SD.shape) != 2 or x_SD.shape[0] != block.num_src:
        raise ConfigError(f"x needs shape [{block.num_src}, D], has {list(x_SD.shape)}")
    if not x_SD.dtype.is_floating_point:
        raise ConfigError(f"x needs float rows, has {x_SD.dtype}", hint="x.float()")
    if weight_E is not None and not _fits(weight_E, block.num_edges, x_SD.shape[1]):
        raise ConfigError(
            f"edge weights need shape [{block.num_edges}] or [{block.num_edges}, K] where K divides"
            f" {x_SD.shape[1]} columns, have {list(weight_E.shape)}"
        )
    for name, tensor in (("x", x_SD), ("edge weights", weight_E)):
        if tensor is not None and tensor.device != block.device:
            raise ConfigError(
                f"the graph is on {block.device}, {name} on {tensor.device}",
                hint="move both to one device",
            )


def _fits(weight: Tensor, num_edges: int, columns: int) -> bool:
    if weight.dim() not in (1, 2) or weight.shape[0] != num_edges:
        return False
    heads = weight.shape[1] if weight.dim() == 2 else 1
    return columns % heads == 0 if heads else columns == 0
