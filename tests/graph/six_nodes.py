"""Eight edges between six nodes, as tensors of PyG's order and as a Graph."""

from __future__ import annotations

import torch

from tiergnn.graph.csr import from_edges

SRC = torch.tensor([0, 5, 3, 3, 1, 4, 2, 0])
DST = torch.tensor([1, 0, 2, 1, 5, 5, 2, 4])
WANT = from_edges(SRC.numpy(), DST.numpy(), 6, edge_weight=(10 * SRC + DST).numpy())
