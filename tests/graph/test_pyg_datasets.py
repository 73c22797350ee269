"""Data sets of OGB and PyG, and what is no graph."""

from __future__ import annotations

import inspect
import warnings

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData, InMemoryDataset

from tests.graph.six_nodes import DST, SRC, WANT
from tiergnn.errors import GraphError
from tiergnn.graph.csr import Graph
from tiergnn.graph.pyg import from_pyg

pytestmark = pytest.mark.filterwarnings("error")  # nothing may warn unless a test says so


def ogb_graph():
    return {
        "edge_index": np.stack([SRC.numpy(), DST.numpy()]),
        "edge_feat": None,
        "node_feat": np.arange(12, dtype=np.float32).reshape(6, 2),
        "num_nodes": 6,
    }


class OgbDataset:
    """A data set as OGB's: one (graph, labels) pair, splits, and what is asked."""

    num_classes = 4
    task_type = "multiclass classification"

    def __init__(self, labels):
        self.labels = labels

    def __len__(self):
        return 1

    def __getitem__(self, at):
        return ogb_graph(), self.labels

    def get_idx_split(self):
        return {"train": torch.tensor([4, 1]), "valid": np.array([0]), "test": np.array([5, 2])}


def test_ogb_pair_and_splits():
    labels = np.array([[0], [2], [1], [0], [1], [2]])
    graph = Graph.from_pyg((ogb_graph(), labels), splits=OgbDataset(labels).get_idx_split())
    np.testing.assert_array_equal(graph.col, WANT.col)
    np.testing.assert_array_equal(graph.x.data, ogb_graph()["node_feat"])
    assert graph.y.tolist() == labels[:, 0].tolist()
    assert list(graph.splits) == ["train", "val", "test"]
    assert graph.splits["train"].tolist() == [1, 4]


def test_ogb_dataset_says_what_is_asked():
    # As in papers100M: classes in floats, most of them missing.
    labels = np.array([[0], [2], [np.nan], [0], [1], [np.nan]], np.float32)
    graph = Graph.from_pyg(OgbDataset(labels))
    assert (graph.task, graph.num_classes) == ("class", 4)
    assert graph.y.tolist() == [0, 2, -1, 0, 1, -1]
    assert graph.splits["val"].tolist() == [0]
    proteins = OgbDataset(np.eye(6, 4, dtype=np.int64))
    proteins.task_type = "binary classification"
    assert Graph.from_pyg(proteins).task == "multilabel"
    assert Graph.from_pyg((ogb_graph(), None)).y is None


def test_edge_feat_and_extra_arrays_of_ogb():
    extra = {**ogb_graph(), "edge_feat": np.ones((8, 3), np.float32), "node_year": np.zeros(6)}
    with pytest.warns(UserWarning, match="a Graph has no place for node_year: left out"):
        graph = Graph.from_pyg((extra, None))
    assert graph.edge_attr.width == 3


def test_the_method_takes_what_the_function_takes():
    method = dict(inspect.signature(Graph.from_pyg).parameters)
    assert method == dict(inspect.signature(from_pyg).parameters)


class One(InMemoryDataset):
    def __init__(self, graphs):
        super().__init__()
        self.data, self.slices = self.collate(graphs)


@pytest.mark.filterwarnings("ignore")
def test_a_pyg_dataset_of_one_graph():
    data = Data(x=torch.zeros(6, 1), edge_index=torch.stack([SRC, DST]), y=torch.arange(6))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one, two = One([data]), One([data, data])
        assert Graph.from_pyg(one).num_edges == 8
        with pytest.raises(GraphError, match=r"holds 2 graphs, a Graph is one(.|\n)*dataset\[0\]"):
            Graph.from_pyg(two)


def test_heterogeneous_graphs_are_refused_with_a_way_out():
    hetero = HeteroData()
    hetero["paper"].x = torch.zeros(2, 1)
    with pytest.raises(GraphError, match=r"several kinds(.|\n)*data.to_homogeneous\(\)"):
        Graph.from_pyg(hetero)


@pytest.mark.parametrize(
    ("thing", "what"),
    [
        (3, "cannot read a graph from int"),
        ((1, 2, 3), "cannot read a graph from a tuple of 3"),
        (Data(x=torch.zeros(2, 1)), "neither edge_index nor adj_t"),
    ],
)
def test_what_is_no_graph(thing, what):
    with pytest.raises(GraphError, match=what):
        Graph.from_pyg(thing)
