"""Node classification on an OGB data set: `dataset[0]` is (graph, labels), and `get_idx_split()`.

The object below is made here, in the shape of ogb.nodeproppred.NodePropPredDataset; put that class
in its place to train on ogbn-arxiv.
"""

import argparse

import numpy as np

import tiergnn as tg


class MadeDataset:
    """What NodePropPredDataset offers, over a generated graph."""

    task_type = "multiclass classification"
    num_classes = 6

    def __init__(self, num_nodes):
        made = tg.generate.sbm(num_nodes, self.num_classes, degree=12, seed=3)
        sources, targets = made.col, np.repeat(np.arange(num_nodes), made.in_degree)
        self.graph = {
            "edge_index": np.stack([sources, targets]),
            "edge_feat": None,
            "node_feat": made.x.decode(),
            "num_nodes": num_nodes,
        }
        self.labels = made.y[:, None]
        self.idx_split = {
            "train": made.splits["train"],
            "valid": made.splits["val"],
            "test": made.splits["test"],
        }

    def get_idx_split(self):
        return self.idx_split

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return self.graph, self.labels


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--num_nodes", type=int, default=2000)
parser.add_argument("--epochs", type=int, default=30)
parser.add_argument("--out", default=None, help="run folder; nothing is written without it")
args = parser.parse_args()

dataset = MadeDataset(args.num_nodes)
graph = tg.Graph.from_pyg(dataset)  # edges, features, labels and splits
model = {"name": "sage", "hidden_channels": 32, "num_layers": 2, "dropout": 0.3}
run = tg.train(graph, model, epochs=args.epochs, out=args.out, progress=False)

print(graph)
for split, metrics in run.metrics.items():
    print(f"{split} accuracy {metrics['accuracy']:.4f}")
