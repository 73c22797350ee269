"""AbsentRanks: what the other ranks of a partition would tell a rank that is alone.

Legend: P own rows, N ranks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tiergnn import frozen
from tiergnn.graph.shape import Layout
from tiergnn.runtime.own_part import READ
from tiergnn.runtime.ranked import COUNTS, COUNTS_LEAVING, LOSSES
from tiergnn.runtime.source_classes import Reach
from tiergnn.transport.alone import Absent


class AbsentRanks(Absent):
    """Of a rank whose leaving edges are ``out``. ``layout`` has all parts as they are counted, with
    ``leaving``. Rows of tensors that others give are zeros, and so are their shares of the loss."""

    def __init__(self, layout: Layout, out: Reach):
        self._layout, self._rank = layout, out.part
        self._read = read_by(out)

    def say(self, own: Any, what: str, size: int) -> list[Any]:
        parts = self._layout.parts
        said: list[Any]
        if what == READ:
            said = [list(part.halo_of) for part in parts]
        elif what == COUNTS:
            said = [frozen.encode(replace(part, loops=0)) for part in parts]
        elif what == COUNTS_LEAVING:
            assert self._layout.leaving is not None
            leaving = self._layout.leaving
            said = [frozen.encode(replace(part, loops=0, labelled=0)) for part in leaving]
        elif what == LOSSES:
            said = [[0.0, False] for _ in parts]
        else:
            return super().say(own, what, size)
        said[self._rank] = own
        return said

    def give(self, like: Tensor, what: str, size: int) -> list[Tensor] | None:
        return list(self._read) if what == READ else None


def read_by(out: Reach) -> list[Tensor]:
    """Own rows that each rank reads, int64, ascending; none of its own."""
    num_ranks = len(out.starts) - 1
    owner = np.searchsorted(out.starts, out.block.col.numpy(), side="right") - 1
    there = np.zeros((num_ranks, out.num_rows), np.bool_)
    there[owner, out.block.edge_dst.numpy()] = True
    there[out.part] = False
    return [torch.from_numpy(np.flatnonzero(each)) for each in there]
