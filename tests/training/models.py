"""Small models as PyG users write them, and graphs to train them on."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

from tiergnn.graph import generate
from tiergnn.graph.csr import Graph


class Net(nn.Module):
    """Two convolutions with dropout between them."""

    def __init__(self, conv, width, classes, *, hidden=8, dropout=0.0, **options):
        super().__init__()
        heads = options.get("heads", 1)
        self.conv1 = conv(width, hidden, **options)
        self.conv2 = conv(hidden * heads, classes)
        self.dropout = dropout

    def forward(self, x, edge_index):
        x = F.dropout(x, self.dropout, training=self.training)
        x = self.conv1(x, edge_index).relu()
        x = F.dropout(x, self.dropout, training=self.training)
        return self.conv2(x, edge_index)


CONVS = {"gcn": GCNConv, "sage": SAGEConv, "gat": GATConv}


def net(graph: Graph, kind: str = "gcn", *, seed: int = 0, **options) -> Net:
    assert graph.x is not None
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Net(CONVS[kind], graph.x.width, graph.num_classes or graph.y.shape[1], **options)


def community(num_nodes: int = 120, seed: int = 0, **options) -> Graph:
    """A small stochastic block model with features, labels and splits."""
    return generate.sbm(num_nodes, seed=seed, **options)


def weights(model: nn.Module) -> list[np.ndarray]:
    exact = (v.double() if v.is_floating_point() else v for v in model.state_dict().values())
    return [value.detach().cpu().numpy().copy() for value in exact]


def same_bits(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
