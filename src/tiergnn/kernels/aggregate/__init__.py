"""Neighbour aggregation: sum, mean or maximum over in-edges, with optional edge weights.

Legend: P destinations, S sources, E edges, D columns.
"""

from __future__ import annotations

from torch import Tensor

from tiergnn.errors import ConfigError, unknown
from tiergnn.kernels import backend
from tiergnn.kernels.aggregate.ops import max_op, sum_op
from tiergnn.kernels.block import Block

REDUCTIONS = ("sum", "mean", "max")


def aggregate(
    block: Block, x_SD: Tensor, *, reduce: str = "sum", weight_E: Tensor | None = None
) -> Tensor:
    """out[i] = reduce over the in-edges (j, i) of weight * x[j], [P, D] in the dtype of x.

    x [S, D] of float64, 32, 16 or bfloat16; weight [E], one number an edge. A row without in-edges
    gets exactly 0. The mean divides by the number of in-edges, whatever their weights. Sums in a
    fixed order, in float32 (float64 for float64) with float64 partial sums, and rounds once.
    Differentiable in x and weight; the gradient of a maximum is split evenly among ties.
    Raises ConfigError for an unknown reduction, a wrong shape, dtype or device.
    """
    if reduce not in REDUCTIONS:
        raise unknown("reduce", reduce, REDUCTIONS)
    check_rows(block, x_SD, weight_E)
    name = backend.choose(x_SD.device)
    if reduce == "max":
        return max_op(block.handle, x_SD, weight_E, name)[0]
    return sum_op(block.handle, False, reduce == "mean", x_SD, weight_E, name)


def check_rows(block: Block, x_SD: Tensor, weight_E: Tensor | None) -> None:
    """Raise ConfigError unless x and weight fit the block."""
    if x_SD.dim() != 2 or x_SD.shape[0] != block.num_src:
        raise ConfigError(f"x needs shape [{block.num_src}, D], has {list(x_SD.shape)}")
    if not x_SD.is_floating_point():
        raise ConfigError(f"x needs float rows, has {x_SD.dtype}", hint="x.float()")
    if weight_E is not None and weight_E.shape != (block.num_edges,):
        raise ConfigError(
            f"edge weights need shape [{block.num_edges}], have {list(weight_E.shape)}"
        )
    for name, tensor in (("x", x_SD), ("edge weights", weight_E)):
        if tensor is not None and tensor.device != block.device:
            raise ConfigError(
                f"the graph is on {block.device}, {name} on {tensor.device}",
                hint="move both to one device",
            )
