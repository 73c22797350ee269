"""Hot: the rows of a graph that stay on the device, one part's after the other, and who reads them.

Legend: V nodes, R hot rows, H rows that one part reads of others.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tiergnn.graph.partition import Partition


class Hot:
    """``mask`` bool [V] says which rows these are; None: none."""

    def __init__(self, partition: Partition, mask: np.ndarray | None):
        order, ptr = partition.order, partition.part_ptr
        self._mask = np.zeros(order.size, np.bool_) if mask is None else mask
        there = self._mask[order]
        at = np.flatnonzero(there)
        self.gids = torch.from_numpy(order[at].astype(np.int64))  # [R]
        # Of each node, its number among the hot rows; where there are none nobody asks.
        self._number = (np.cumsum(there) - 1)[partition.position] if at.size else at
        self._ptr = np.searchsorted(at, ptr).tolist()
        self._rows = torch.from_numpy(at - np.repeat(ptr[:-1], np.diff(self._ptr)))

    def first(self, halo: np.ndarray) -> np.ndarray | None:
        """An order of nodes [H] in which hot ones come first; None: as they are."""
        return np.argsort(~self._mask[halo], kind="stable") if self.gids.numel() else None

    def among(self, gid: np.ndarray) -> np.ndarray:
        """The numbers of those nodes that are hot."""
        return self._number[gid[self._mask[gid]]] if self.gids.numel() else self._number

    def of(self, part: int) -> tuple[int, int, Tensor]:
        """The numbers of a part's first hot row and of the one after its last, and which of its
        own rows they are, ascending."""
        low, high = self._ptr[part], self._ptr[part + 1]
        return low, high, self._rows[low:high]
