"""Neighbour aggregation: sum, mean or maximum over in-edges, with optional edge weights.

Legend: P destinations, S sources, E edges, D columns, K heads.
"""

from __future__ import annotations

from torch import Tensor

from tiergnn.errors import ConfigError, unknown
from tiergnn.kernels import backend
from tiergnn.kernels.aggregate.ops import max_op, sum_op
from tiergnn.kernels.aggregate.reference import wide
from tiergnn.kernels.aggregate.table_ops import table_op
from tiergnn.kernels.arguments import FLOATS, check_device, check_floats, check_numbers, told
from tiergnn.kernels.block import Block
from tiergnn.kernels.table import RowTable

REDUCTIONS = ("sum", "mean", "max")


def aggregate(
    block: Block, x_SD: Tensor | RowTable, *, reduce: str = "sum", weight_E: Tensor | None = None
) -> Tensor:
    """out[i] = reduce over the in-edges (j, i) of weight * x[j], [P, D] in the dtype of x.

    x [S, D] of float64, 32, 16 or bfloat16, in one tensor or a RowTable, each row read where it
    lies: the gradient comes back table by table. weight [E] is one number an edge, in the order of
    the block's edges, as ``block.edge_weight`` is; [E, K] one for each of K equal groups of columns
    (heads; K = D: one a column). A row without in-edges gets exactly 0. The mean divides by the
    number of in-edges, whatever their weights. Sums in a fixed order, in float32 (float64 for
    float64) with float64 partial sums, and rounds once. Differentiable in x and weight (once for a
    RowTable and for maxima); the gradient of a maximum is split evenly among ties.
    Raises ConfigError for an unknown reduction, a wrong shape, dtype or device, GraphError for a
    block that contradicts itself (see ``Block``).
    """
    if reduce not in REDUCTIONS:
        raise unknown("reduce", reduce, REDUCTIONS)
    _check_block(block)
    weight_E = _checked(block, "x", x_SD, block.num_src, weight_E)
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

    In the order and with the bits of backward. Differentiable as a sum. Raises what ``aggregate``
    raises.
    """
    _check_block(block)
    weight_E = _checked(block, "grad", grad_PD, block.num_dst, weight_E)
    name = backend.choose(block.device)
    return sum_op(block.handle, True, mean, grad_PD, weight_E, name)


def _check_block(block: Block) -> None:
    if not isinstance(block, Block):
        raise ConfigError(
            f"aggregation needs a Block, had {type(block).__name__}",
            hint="Block.from_graph(tiergnn.Graph.from_pyg(data))",
        )


def _checked(
    block: Block, name: str, rows: Tensor | RowTable, num_rows: int, weight_E: Tensor | None
) -> Tensor | None:
    """The weights as floats, once they and the rows are known to fit."""
    if not isinstance(rows, RowTable):
        check_floats(name, rows, "float rows [N, D]", 2)
    elif len(rows.shape) != 2 or rows.dtype not in FLOATS:
        raise ConfigError(f"{name} needs tables of float rows [N, D], has {told(rows)}")
    if rows.shape[0] != num_rows:
        raise ConfigError(f"{name} needs shape [{num_rows}, D], has {list(rows.shape)}")
    check_device(name, rows, block.device)
    if weight_E is None:
        return None
    check_numbers("edge weights", weight_E)
    check_device("edge weights", weight_E, block.device)
    if not _fits(weight_E, block.num_edges, rows.shape[1]):
        raise ConfigError(
            f"edge weights need shape [{block.num_edges}] or [{block.num_edges}, K] where K divides"
            f" {rows.shape[1]} columns, have {list(weight_E.shape)}"
        )
    return weight_E if weight_E.dtype in FLOATS else weight_E.to(wide(rows.dtype))


def _fits(weight: Tensor, num_edges: int, columns: int) -> bool:
    if weight.dim() not in (1, 2) or weight.shape[0] != num_edges:
        return False
    heads = weight.shape[1] if weight.dim() == 2 else 1
    return columns % heads == 0 if heads else columns == 0
