"""Terms: own rows that are added with a sum over in-edges, and their part of its gradient.

Legend: P destinations, S sources, D columns.
"""

from __future__ import annotations

from torch import Tensor

from tiergnn.kernels.block import Block


def add_own(total: Tensor, own: Tensor, loop: Tensor | None, block: Block) -> Tensor:
    """total + loop * own, rows [P, D], in the place of ``total``."""
    if loop is None:
        return total.add_(own)
    return total.addcmul_(own, loop.to(total.dtype))


def add_own_grad(total: Tensor, grad: Tensor, loop: Tensor | None, block: Block) -> Tensor:
    """The gradient [S, D] of gathered rows, with what ``add_own`` gave the block's own rows of that
    of its result, grad [P, D]; in the place of ``total``."""
    own = total[block.turn : block.turn + block.num_dst]
    add_own(own, grad, loop, block)
    return total
