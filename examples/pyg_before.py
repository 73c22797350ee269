"""Node classification as PyG users write it. pyg_after.py is the same script on tiergnn."""

import argparse

import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv


class Net(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels, dropout):
        super().__init__()
        self.conv1 = GCNConv(in_channels, hidden_channels)
        self.conv2 = GCNConv(hidden_channels, out_channels)
        self.dropout = dropout

    def forward(self, x, edge_index):
        x = self.conv1(x, edge_index).relu()
        x = F.dropout(x, self.dropout, training=self.training)
        return self.conv2(x, edge_index)


def citations(num_nodes, num_classes=4):
    """A graph whose nodes mostly cite their own class, with noisy features; any Data will do."""
    torch.manual_seed(1)
    y = torch.arange(num_nodes) % num_classes
    chance = torch.where(y[:, None] == y[None, :], 16.0, 2.0) / num_nodes
    edge_index = (torch.rand(num_nodes, num_nodes) < chance).nonzero().t()
    x = F.one_hot(y).float() + 2 * torch.randn(num_nodes, num_classes)
    fold = torch.rand(num_nodes)
    masks = {"train_mask": fold < 0.2, "val_mask": (fold >= 0.2) & (fold < 0.5)}
    return Data(x=x, y=y, edge_index=edge_index, test_mask=fold >= 0.5, **masks)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--num_nodes", type=int, default=800)
parser.add_argument("--hidden_channels", type=int, default=16)
parser.add_argument("--dropout", type=float, default=0.5)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--epochs", type=int, default=50)
args = parser.parse_args()

data = citations(args.num_nodes)
torch.manual_seed(0)
model = Net(data.num_features, args.hidden_channels, int(data.y.max()) + 1, args.dropout)

optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=5e-4)
for _ in range(args.epochs):
    model.train()
    optimizer.zero_grad()
    out = model(data.x, data.edge_index)
    loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
    loss.backward()
    optimizer.step()

model.eval()
pred = model(data.x, data.edge_index).argmax(dim=-1)
accuracy = (pred == data.y)[data.test_mask].float().mean().item()
print(f"last loss {loss.item():.6f}, test accuracy {accuracy:.4f}")
