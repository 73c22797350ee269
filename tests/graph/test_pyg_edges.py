"""Edges of PyG in every form that they come in; ids that are refused: cases A06, A11, A12."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.transforms import ToSparseTensor

from tests.graph.six_nodes import DST, SRC, WANT
from tiergnn.errors import GraphError
from tiergnn.graph.csr import Graph

pytestmark = pytest.mark.filterwarnings("error")  # nothing may warn unless a test says so


def test_a06_isolated_nodes_stay():
    ring = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]])
    test = torch.zeros(10, dtype=torch.bool)
    test[9] = True
    told = {
        "x": Data(edge_index=ring, x=torch.zeros(10, 2)),
        "y": Data(edge_index=ring, y=torch.zeros(10).long()),
        "mask": Data(edge_index=ring, test_mask=test),
        "num_nodes": Data(edge_index=ring, num_nodes=10),
        "sparse size": Data(edge_index=EdgeIndex(ring, sparse_size=(10, 10))),
    }
    for what, data in told.items():
        assert Graph.from_pyg(data).num_nodes == 10, what
    assert Graph.from_pyg(told["mask"]).splits["test"].tolist() == [9]
    assert Graph.from_pyg(Data(edge_index=ring), num_nodes=10).num_nodes == 10
    with pytest.raises(GraphError, match=r"nothing tells the number of nodes(.|\n)*num_nodes=..."):
        Graph.from_pyg(Data(edge_index=ring))


def test_a06_what_tells_the_number_of_nodes_must_agree():
    data = Data(edge_index=torch.stack([SRC, DST]), x=torch.zeros(6, 1), y=torch.zeros(1))
    with pytest.raises(GraphError, match="x says 6 nodes, y says 1"):
        Graph.from_pyg(data)
    with pytest.raises(GraphError, match="num_nodes= says 7 nodes, x says 6"):
        Graph.from_pyg(Data(edge_index=torch.stack([SRC, DST]), x=torch.zeros(6, 1)), num_nodes=7)


@pytest.mark.parametrize(
    ("edges", "what"),
    [
        ([[3, 7], [9, 12]], r"edge_index\[0, 1\] is 7; with num_nodes=5 ids must be 0..4"),
        ([[0, 1], [2, -1]], r"edge_index\[1, 1\] is -1"),
        ([[0, 5], [1, 1]], r"edge_index\[0, 1\] is 5"),
        ([[1, 2, 5], [2, 3, 1]], "1-based"),
    ],
)
def test_a11_bad_ids_are_named(edges, what):
    with pytest.raises(ValueError, match=what):
        Graph.from_pyg(Data(edge_index=torch.tensor(edges), num_nodes=5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.bfloat16])
def test_a11_ids_are_whole_numbers(dtype):
    with pytest.raises(GraphError, match="edge_index needs whole numbers"):
        Graph.from_pyg(Data(edge_index=torch.zeros(2, 3, dtype=dtype), num_nodes=5))


def test_a11_values_of_adj_t_are_checked_too():
    with pytest.raises(GraphError, match="must be square, is 3 x 4"):
        Graph.from_pyg(Data(adj_t=torch.zeros(3, 4).to_sparse_coo()))


def test_a12_order_strides_width_and_container_do_not_matter():
    order = torch.tensor([5, 0, 7, 2, 1, 6, 3, 4])
    wide = torch.zeros(2, 24, dtype=torch.int64)
    wide[:, ::3] = torch.stack([SRC, DST])
    both = torch.stack([SRC, DST])
    forms = {
        "sorted": both[:, torch.argsort(DST * 6 + SRC)],
        "shuffled": both[:, order],
        "transposed view": torch.stack([SRC, DST], dim=1).t(),
        "int32": both.int(),
        "int16": both.short(),
        "strided slice": wide[:, ::3],
        "EdgeIndex": EdgeIndex(both, sparse_size=(6, 6)),
        "sorted EdgeIndex": EdgeIndex(both, sparse_size=(6, 6)).sort_by("col")[0],
        "EdgeIndex without size": EdgeIndex(both),
        "numpy": both.numpy(),
    }
    for form, edge_index in forms.items():
        ends = torch.as_tensor(np.asarray(edge_index)).long()
        weight = 10 * ends[0] + ends[1]
        graph = Graph.from_pyg(Data(edge_index=edge_index, num_nodes=6, edge_weight=weight.float()))
        np.testing.assert_array_equal(graph.rowptr, WANT.rowptr, err_msg=form)
        np.testing.assert_array_equal(graph.col, WANT.col, err_msg=form)
        np.testing.assert_array_equal(graph.edge_weight, WANT.edge_weight, err_msg=form)


def test_a12_edges_in_rows_are_refused():
    with pytest.raises(GraphError, match=r"has \[8, 2\](.|\n)*transpose it: edge_index.t\(\)"):
        Graph.from_pyg(Data(edge_index=torch.stack([SRC, DST], dim=1), num_nodes=6))
    with pytest.raises(GraphError, match=r"needs shape \[2, num_edges\], has \[3, 4\]"):
        Graph.from_pyg(Data(edge_index=torch.zeros(3, 4).long(), num_nodes=6))


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_coo])
@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("weighted", [False, True])
def test_adj_t(layout, weighted):
    weight = (10 * SRC + DST).float() if weighted else None
    data = Data(edge_index=torch.stack([SRC, DST]), x=torch.zeros(6, 1), edge_weight=weight)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = ToSparseTensor(layout=layout, attr="edge_weight")(data)
    assert "edge_index" not in data
    graph = Graph.from_pyg(data)
    np.testing.assert_array_equal(graph.col, WANT.col)
    np.testing.assert_array_equal(graph.rowptr, WANT.rowptr)
    if weighted:
        np.testing.assert_array_equal(graph.edge_weight, WANT.edge_weight)
    else:
        assert graph.edge_weight is None


class SparseTensor:
    """What torch_sparse's class answers, as far as it is asked."""

    def coo(self):
        return DST, SRC, torch.stack([10 * SRC + DST, SRC], dim=1).float()

    def sparse_sizes(self):
        return 6, 6


def test_adj_t_by_duck():
    graph = Graph.from_pyg(Data(adj_t=SparseTensor()))
    assert graph.num_nodes == 6
    np.testing.assert_array_equal(graph.edge_attr.data[:, 0], WANT.edge_weight)
    with pytest.raises(GraphError, match="other edge values are both given"):
        Graph.from_pyg(Data(adj_t=SparseTensor(), edge_attr=torch.zeros(8, 1)))


def test_duplicates_in_a_sparse_tensor_stay():
    adj = torch.sparse_coo_tensor(
        torch.tensor([[1, 1, 0], [0, 0, 2]]),
        torch.tensor([2.0, 3.0, 4.0]),
        (3, 3),
        check_invariants=True,
    )
    graph = Graph.from_pyg(Data(adj_t=adj))
    assert graph.col.tolist() == [2, 0, 0]
    assert graph.edge_weight.tolist() == [4, 2, 3]


def test_a_dense_adjacency_is_refused():
    with pytest.raises(GraphError, match="adj_t must be sparse, has Tensor"):
        Graph.from_pyg(Data(adj_t=torch.zeros(3, 3), num_nodes=3))
