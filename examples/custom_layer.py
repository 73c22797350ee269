"""A layer of one's own, written for PyG: it runs as it is, between fused layers and dropout."""

import argparse

import torch
from torch_geometric.nn import GCNConv, MessagePassing

import tiergnn as tg


class GatedConv(MessagePassing):
    """out[i] = W x[i] + sum over in-neighbours j of sigmoid(g . [x[i], x[j]]) * V x[j]."""

    def __init__(self, in_channels, out_channels):
        super().__init__(aggr="add")
        self.own = torch.nn.Linear(in_channels, out_channels)
        self.neighbour = torch.nn.Linear(in_channels, out_channels, bias=False)
        self.gate = torch.nn.Linear(2 * in_channels, 1)

    def forward(self, x, edge_index):
        # Bipartite layers get (rows of sources, rows of destinations); a plain tensor is both.
        x = (x, x) if isinstance(x, torch.Tensor) else x
        return self.own(x[1]) + self.propagate(edge_index, x=x)

    def message(self, x_i, x_j):
        return torch.sigmoid(self.gate(torch.cat([x_i, x_j], dim=-1))) * self.neighbour(x_j)


class Net(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels):
        super().__init__()
        self.first = GatedConv(in_channels, hidden_channels)
        self.norm = torch.nn.LayerNorm(hidden_channels)
        self.second = GCNConv(hidden_channels, out_channels)

    def forward(self, x, edge_index):
        x = self.norm(self.first(x, edge_index)).relu()
        x = torch.nn.functional.dropout(x, 0.3, self.training)
        return self.second(x, edge_index)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--num_nodes", type=int, default=1000)
parser.add_argument("--epochs", type=int, default=30)
args = parser.parse_args()

graph = tg.generate.sbm(args.num_nodes, num_classes=4, degree=10, seed=7)
torch.manual_seed(0)
model = Net(graph.x.width, 32, graph.num_classes)
x = torch.from_numpy(graph.x.decode())
print(tg.trace(model, {"x": x}, training=True))  # the stages that the model is cut into

run = tg.train(graph, model, epochs=args.epochs, progress=False)
print(f"test accuracy {run.metrics['test']['accuracy']:.4f}")
