"""Models as PyG users write them. NETS: name -> maker of a model from x [V, 6] to [V, 4]."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
import torch_geometric.nn as pyg
from torch import nn
from torch.nn import functional as F
from torch_geometric.data import Data

WIDTH, CLASSES, EDGE_WIDTH = 6, 4, 3
DEGREES = torch.tensor([1, 5, 9, 3])


class Loop(nn.Module):
    """A loop over a ModuleList, with F.dropout and a log_softmax."""

    def __init__(self, make=pyg.GCNConv, hidden=10, layers=3):
        super().__init__()
        widths = [WIDTH, *[hidden] * (layers - 1), CLASSES]
        self.convs = nn.ModuleList(make(a, b) for a, b in pairwise(widths))

    def forward(self, x, edge_index):
        for conv in self.convs[:-1]:
            x = F.relu(conv(x, edge_index))
            x = F.dropout(x, p=0.5, training=self.training)
        return F.log_softmax(self.convs[-1](x, edge_index), dim=-1)


class Attention(nn.Module):
    """GAT as in PyG's examples: ELU, heads, dropout of inputs and coefficients."""

    def __init__(self, conv=pyg.GATConv, **options):
        super().__init__()
        self.conv1 = conv(WIDTH, 5, heads=3, dropout=0.6, **options)
        self.conv2 = conv(15, CLASSES, heads=2, concat=False, dropout=0.6, **options)

    def forward(self, x, edge_index):
        x = F.dropout(x, p=0.6, training=self.training)
        x = F.elu(self.conv1(x, edge_index))
        x = F.dropout(x, p=0.6, training=self.training)
        return self.conv2(x, edge_index)


class Deep(nn.Module):
    """BatchNorm, residuals projected and plain, a skip from the input, several widths."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, 8)
        self.convs = nn.ModuleList([pyg.SAGEConv(8, 8), pyg.SAGEConv(8, 12), pyg.GCNConv(12, 5)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(8), pyg.BatchNorm(12), nn.LayerNorm(5)])
        self.skips = nn.ModuleList([nn.Identity(), nn.Linear(8, 12), nn.Linear(12, 5)])
        self.last = nn.Linear(5 + WIDTH, CLASSES)
        self.drop = nn.Dropout(0.3)

    def forward(self, x, edge_index):
        start = x
        x = self.first(x).relu()
        for conv, norm, skip in zip(self.convs, self.norms, self.skips, strict=True):
            x = self.drop(F.leaky_relu(norm(conv(x, edge_index) + skip(x)), 0.1))
        return self.last(torch.cat([x, start], dim=1))


class Jumping(nn.Module):
    """Jumping knowledge by PyG's module."""

    def __init__(self, mode):
        super().__init__()
        self.convs = nn.ModuleList([pyg.GCNConv(WIDTH, 8), pyg.GCNConv(8, 8), pyg.GCNConv(8, 8)])
        self.jump = pyg.JumpingKnowledge(mode, 8, 3)
        self.lin = nn.Linear(24 if mode == "cat" else 8, CLASSES)

    def forward(self, x, edge_index):
        xs = []
        for conv in self.convs:
            x = conv(x, edge_index).relu()
            xs += [x]
        return self.lin(self.jump(xs))


class Perceptron(nn.Module):
    """GIN whose perceptron has a BatchNorm, then a PyG MLP inside."""

    def __init__(self, train_eps=False):
        super().__init__()
        first = nn.Sequential(nn.Linear(WIDTH, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 7))
        self.conv1 = pyg.GINConv(first, train_eps=train_eps)
        self.conv2 = pyg.GINConv(pyg.MLP([7, 9, CLASSES], dropout=0.4), eps=0.3)

    def forward(self, x, edge_index):
        x = F.relu(self.conv1(x, edge_index))
        return self.conv2(x, edge_index)


class OfData(nn.Module):
    """forward(data), edge weights handed on when there are any."""

    def __init__(self):
        super().__init__()
        self.conv1 = pyg.GCNConv(WIDTH, 8)
        self.conv2 = pyg.GCNConv(8, CLASSES, improved=True)

    def forward(self, data):
        x, edge_index, edge_weight = data.x, data.edge_index, data.edge_weight
        x = F.relu(self.conv1(x, edge_index, edge_weight), inplace=True)
        x = F.dropout(x, training=self.training)
        return self.conv2(x, edge_index, edge_weight).log_softmax(dim=1)


class Weighted(nn.Module):
    """Edge weights and edge features by keyword, learned from the features."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(EDGE_WIDTH, 1)
        self.conv1 = pyg.GCNConv(WIDTH, 8)
        self.conv2 = pyg.GATConv(8, 4, heads=2, edge_dim=EDGE_WIDTH)
        self.conv3 = pyg.GATv2Conv(8, CLASSES, edge_dim=EDGE_WIDTH, fill_value="max")

    def forward(self, x, edge_index, edge_weight, edge_attr):
        gate = self.gate(edge_attr).sigmoid().squeeze(-1)
        x = self.conv1(x, edge_index, edge_weight=edge_weight.abs() * gate + 0.1).relu_()
        x = self.conv2(x, edge_index, edge_attr=edge_attr).relu()
        return self.conv3(x, edge_index, edge_attr)


class Shared(nn.Module):
    """One layer used twice, modes of its own, GCNII-like skips from the first features."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, 8)
        self.conv = pyg.GCNConv(8, 8, bias=False)
        self.scale = nn.Parameter(torch.tensor([0.7]))
        self.last = nn.Linear(8, CLASSES)

    def forward(self, x, adj_t):
        x = x0 = F.gelu(self.first(x))
        for _ in range(3):
            if self.training:
                x = F.dropout(x, 0.2)
            x = 0.9 * F.relu(self.conv(x, adj_t)) * self.scale + 0.1 * x0
        x += x0
        return self.last(x)


class Stacked(nn.Module):
    """Stacks of layer outputs, attention over them, views, splits and normalisation of rows."""

    def __init__(self):
        super().__init__()
        self.conv1 = pyg.SAGEConv(WIDTH, 8, aggr="max")
        self.conv2 = pyg.SAGEConv(8, 8, aggr="sum", normalize=True)
        self.query = nn.Parameter(torch.randn(8))

    def forward(self, x, edge_index):
        a = self.conv1(x, edge_index)
        b = self.conv2(F.normalize(a, dim=-1), edge_index)
        both = torch.stack([a, b], dim=1)
        share = (both @ self.query).softmax(dim=-1).unsqueeze(-1)
        x = (both * share).sum(1).view(x.size(0), 2, CLASSES)
        left, right = x.unbind(1)
        return torch.where(left > 0, left, right - x.new_ones(x.shape[0], CLASSES)).clamp(max=3)


class Dropped(nn.Module):
    """Dropout of parameters, of edge weights and of edge features, all of them by row."""

    def __init__(self):
        super().__init__()
        self.conv1 = pyg.GCNConv(WIDTH, 8)
        self.conv2 = pyg.GATConv(8, CLASSES, edge_dim=EDGE_WIDTH)
        self.mix = nn.Parameter(torch.randn(8, 8))
        self.drop = nn.Dropout(0.25)

    def forward(self, x, edge_index, edge_weight, edge_attr):
        edge_weight = F.dropout(edge_weight, 0.3, self.training)
        x = self.conv1(x, edge_index, edge_weight).tanh()
        x = x @ F.dropout(self.mix, p=0.5, training=self.training)
        return self.conv2(x, edge_index, self.drop(edge_attr))


class Mean(pyg.MessagePassing):
    """A layer of the user's own, which we do not have."""

    def __init__(self, width, out):
        super().__init__(aggr="mean")
        self.lin = nn.Linear(2 * width, out)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_i, x_j):
        return self.lin(torch.cat([x_i, x_j - x_i], dim=-1)).relu()


def _sequential():
    return pyg.Sequential(
        "x, edge_index",
        [
            (nn.Dropout(p=0.5), "x -> x"),
            (pyg.GCNConv(WIDTH, 8), "x, edge_index -> x1"),
            nn.ReLU(inplace=True),
            (pyg.GCNConv(8, 8), "x1, edge_index -> x2"),
            nn.ReLU(inplace=True),
            (lambda x1, x2: [x1, x2], "x1, x2 -> xs"),
            (pyg.JumpingKnowledge("cat", 8, num_layers=2), "xs -> x"),
            nn.Linear(16, CLASSES),
        ],
    )


def call(net, name, x, edge_index, weight, attr):
    """The net outside of a trace, as its user calls it."""
    if name == "data":
        return net(Data(x=x, edge_index=edge_index, edge_weight=weight))
    if name in ("weighted", "dropped"):
        return net(x, edge_index, weight, attr)
    if name == "basic gatv2":
        return net(x, edge_index, edge_attr=attr)
    return net(x, edge_index)


def inputs_of(name, x, weight, attr):
    """What a graph gives the net."""
    if name in ("data", "weighted", "dropped", "basic gatv2"):
        return {"x": x, "edge_weight": weight, "edge_attr": attr}
    return {"x": x}


NETS: dict[str, Callable[[], nn.Module]] = {
    "gcn": Loop,
    "gcn narrow": lambda: Loop(hidden=3),
    "sage": lambda: Loop(pyg.SAGEConv),
    "sage project": lambda: Loop(lambda a, b: pyg.SAGEConv(a, b, aggr="sum", project=True)),
    "graph": lambda: Loop(pyg.GraphConv),
    "own layer": lambda: Loop(Mean),
    "gat": Attention,
    "gat no loops": lambda: Attention(add_self_loops=False, residual=True),
    "gatv2": lambda: Attention(pyg.GATv2Conv),
    "gatv2 shared": lambda: Attention(pyg.GATv2Conv, share_weights=True),
    "transformer": lambda: Attention(pyg.TransformerConv, beta=True),
    "deep": Deep,
    "jumping cat": lambda: Jumping("cat"),
    "jumping max": lambda: Jumping("max"),
    "jumping lstm": lambda: Jumping("lstm"),
    "gin": Perceptron,
    "gin eps": lambda: Perceptron(train_eps=True),
    "data": OfData,
    "weighted": Weighted,
    "dropped": Dropped,
    "shared": Shared,
    "stacked": Stacked,
    "sequential": _sequential,
    "basic gcn": lambda: pyg.models.GCN(WIDTH, 8, 3, CLASSES, 0.3, norm="BatchNorm", jk="cat"),
    "basic sage": lambda: pyg.models.GraphSAGE(WIDTH, 8, 2, CLASSES, 0.3, norm="GraphNorm"),
    "basic gin": lambda: pyg.models.GIN(WIDTH, 8, 2, CLASSES, 0.3, jk="lstm", act="elu"),
    "basic gat": lambda: pyg.models.GAT(WIDTH, 8, 3, CLASSES, 0.3, heads=2, norm="LayerNorm"),
    "basic gatv2": lambda: pyg.models.GAT(WIDTH, 8, 2, CLASSES, v2=True, edge_dim=EDGE_WIDTH),
    "basic pna": lambda: pyg.models.PNA(
        WIDTH, 8, 2, CLASSES, aggregators=["mean", "max"], scalers=["identity"], deg=DEGREES
    ),
    "sgc": lambda: pyg.Sequential(
        "x, edge_index", [(pyg.SGConv(WIDTH, CLASSES, K=3), "x, edge_index -> x")]
    ),
    "appnp": lambda: pyg.Sequential(
        "x, edge_index",
        [
            (nn.Linear(WIDTH, CLASSES), "x -> x"),
            (pyg.APPNP(4, 0.1, dropout=0.3), "x, edge_index -> x"),
        ],
    ),
}
