"""PyG Data to graphs and back: cases A10, A12 and A22 at the door."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data

from tests.graph.same import assert_same
from tests.graph.six_nodes import DST, SRC, WANT
from tests.odd import ODD_GRAPHS, edge_lists
from tiergnn.errors import GraphError
from tiergnn.graph.csr import Graph, from_edges
from tiergnn.graph.edges import to_bfloat16
from tiergnn.graph.ids import NodeIds
from tiergnn.graph.table import STORED, Table

pytestmark = pytest.mark.filterwarnings("error")  # nothing may warn unless a test says so
few = settings(max_examples=30, deadline=None)


@pytest.mark.parametrize("graph", ODD_GRAPHS)
def test_odd_graphs_go_there_and_back(graph):
    assert_same(Graph.from_pyg(graph.to_pyg()), graph)


@few
@given(edges=edge_lists(), data=st.data())
def test_any_edges_go_there_and_back(edges, data):
    num = edges.num_nodes
    names = data.draw(st.sampled_from(["train", "train.0", "val.1", "a_b"]))
    graph = edges.graph(
        splits={names: np.arange(num // 2), "test": np.arange(num)},
        edge_weight=np.arange(edges.src.size, dtype=np.float64),
    )
    assert_same(Graph.from_pyg(graph.to_pyg()), graph)


SCALED = [(dtype, scale) for dtype in ("int8", "uint8") for scale in (0.5, [0.5, 1, 2])]


@pytest.mark.parametrize(("dtype", "scale"), [*((dtype, None) for dtype in STORED), *SCALED])
def test_a22_every_stored_dtype_there_and_back(dtype, scale):
    rng = np.random.default_rng(0)
    data = (rng.random((100, 3)) * 200 - 50).astype(STORED[dtype])
    scale = None if scale is None else np.array(scale, np.float32)
    table = Table(data=data, dtype=dtype, scale=scale)
    node = np.arange(100)
    graph = from_edges(node, node[::-1], 100, x=table, edge_attr=table)
    data = graph.to_pyg()
    assert str(data.x.dtype) == f"torch.{dtype}"
    assert data.x.element_size() == STORED[dtype].itemsize
    assert_same(Graph.from_pyg(data), graph)


def test_a22_torch_and_table_decode_alike():
    values = torch.tensor([[1.5, -2.0, 3e38], [0.1, 1e-3, 7.0]])
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        graph = Graph.from_pyg(Data(x=values.to(dtype), edge_index=torch.zeros(2, 0).long()))
        np.testing.assert_array_equal(graph.x.decode(), values.to(dtype).double().numpy())
        assert graph.x.data.nbytes == 6 * values.to(dtype).element_size()


@pytest.mark.parametrize("y_dtype", [torch.int32, torch.int64, torch.float32])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("edge_dtype", [torch.int16, torch.int32, torch.int64])
def test_a22_labels_and_ids_of_any_width(y_dtype, columns, edge_dtype):
    y = torch.tensor([0, 2, 1, -1, 0, 1]).to(y_dtype)
    data = Data(edge_index=torch.stack([SRC, DST]).to(edge_dtype), y=y[:, None] if columns else y)
    graph = Graph.from_pyg(data, task="class")
    assert graph.y.tolist() == [0, 2, 1, -1, 0, 1]
    assert (graph.task, graph.num_classes) == ("class", 3)
    np.testing.assert_array_equal(graph.col, WANT.col)
    unasked = Graph.from_pyg(data)
    assert unasked.task == ("real" if y_dtype == torch.float32 else "class")
    assert f"task={unasked.task}" in repr(unasked)


def test_a22_a_fraction_is_no_class():
    data = Data(edge_index=torch.stack([SRC, DST]), y=torch.tensor([0, 0.5, 1, 1, 0, 0]))
    with pytest.raises(ValueError, match=r"y\[1, 0\] is 0.5, which is not a whole number"):
        Graph.from_pyg(data, task="class")


@pytest.mark.parametrize(
    ("y", "task", "num_classes"),
    [
        (torch.tensor([[1, 0], [0, 1], [-1, 0]]), None, 2),
        (torch.tensor([[1.0, 0], [0, 1], [torch.nan, 0]]), "multilabel", 2),
        (torch.tensor([[1], [0], [1]]), "multilabel", 1),
        (torch.tensor([[1.5, 2], [3, 4], [5, torch.nan]]), None, None),
        (torch.tensor([0, 1, -1]), None, 9),
    ],
)
def test_every_task_goes_there_and_back(y, task, num_classes):
    data = Data(edge_index=torch.zeros(2, 0).long(), y=y)
    asked = num_classes if num_classes == 9 else None
    graph = Graph.from_pyg(data, task=task, num_classes=asked)
    assert graph.num_classes == num_classes
    assert_same(Graph.from_pyg(graph.to_pyg()), graph)


@pytest.mark.parametrize("names", [[30, -1, 7], ["anna", "", "Øre"]])
def test_node_ids_go_there_and_back(names):
    graph = from_edges(np.array([0]), np.array([2]), 3, node_ids=NodeIds.from_names(names))
    assert_same(Graph.from_pyg(graph.to_pyg()), graph)


def test_to_pyg_shares_no_memory(tmp_path):
    for graph in (WANT, WANT.save(tmp_path / "graph")):
        data = graph.to_pyg()
        data.edge_weight.zero_()
        assert graph.edge_weight.max() > 0


def test_from_pyg_shares_features():
    x = torch.zeros(6, 2)
    graph = Graph.from_pyg(Data(x=x, edge_index=torch.stack([SRC, DST])))
    x[3, 1] = 7
    assert graph.x.data[3, 1] == 7


@pytest.mark.parametrize("kind", ["x", "edge_attr", "edge_weight", "y"])
@pytest.mark.parametrize("form", ["strided", "requires_grad", "expanded"])
def test_a12_tensors_of_any_kind(kind, form):
    rows = torch.arange(16.0).reshape(8, 2)[:, :1] if kind != "x" else torch.arange(12.0)[::2]
    value = rows.reshape(-1)[: 8 if kind.startswith("edge") else 6].clone()
    if form == "strided":
        value = torch.stack([value, value], dim=1).t()[0]
    elif form == "requires_grad":
        value = value.requires_grad_()
    else:
        value = value[:1].expand(value.numel())
    data = Data(edge_index=torch.stack([SRC, DST]), num_nodes=6, **{kind: value})
    graph = Graph.from_pyg(data)
    got = getattr(graph, kind)
    got = got.data[:, 0] if isinstance(got, Table) else got.reshape(-1)
    want = value.detach().numpy()
    if kind.startswith("edge"):
        want = want[np.lexsort((SRC, DST))]
    np.testing.assert_array_equal(got, want)


def test_a10_edge_rows_follow_their_edges():
    rng = torch.Generator().manual_seed(0)
    edge_index = torch.randint(0, 300, (2, 2000), generator=rng)
    attr = (1000 * edge_index[0] + edge_index[1]).double()
    data = Data(edge_index=edge_index, edge_attr=attr, x=torch.arange(300.0)[:, None])
    back = Graph.from_pyg(data).to_pyg()
    assert back.edge_attr.shape == (2000, 1)
    expected = 1000 * back.edge_index[0] + back.edge_index[1]
    assert torch.equal(back.edge_attr[:, 0], expected.double())
    assert torch.equal(back.x, data.x)


def test_edge_attr_is_no_weight_unless_it_says_so():
    both = torch.stack([SRC, DST])
    attr = Graph.from_pyg(Data(edge_index=both, num_nodes=6, edge_attr=torch.ones(8)))
    assert (attr.edge_weight, attr.edge_attr.width) == (None, 1)
    weight = Graph.from_pyg(Data(edge_index=both, num_nodes=6, edge_weight=torch.ones(8, 1)))
    assert weight.edge_attr is None
    assert weight.edge_weight.shape == (8,)


def test_options_reach_the_edges():
    data = Data(edge_index=torch.tensor([[0, 0, 1, 2], [1, 1, 1, 0]]), num_nodes=4)
    assert Graph.from_pyg(data, undirected=True).num_edges == 7
    assert Graph.from_pyg(data, self_loops="add").num_edges == 7
    assert Graph.from_pyg(data, self_loops="remove").num_edges == 3
    assert Graph.from_pyg(data, duplicates="sum").edge_weight.tolist() == [1, 2, 1]
    with pytest.raises(GraphError, match="edge 0 -> 1 is given twice, at positions 0 and 1"):
        Graph.from_pyg(data, duplicates="refuse")


def test_masks_become_splits():
    mask = torch.tensor([[1, 0], [0, 1], [1, 1]]).bool()
    data = Data(
        edge_index=torch.zeros(2, 0).long(),
        num_nodes=3,
        train_mask=mask,
        valid_mask=mask[:, 0],
        test_mask=mask[:, 1].to(torch.uint8),
    )
    graph = Graph.from_pyg(data)
    assert {name: ids.tolist() for name, ids in graph.splits.items()} == {
        "train.0": [0, 2],
        "train.1": [1, 2],
        "val": [0, 2],
        "test": [1, 2],
    }
    back = graph.to_pyg()
    assert torch.equal(back.train_mask, mask)
    assert torch.equal(back.val_mask, mask[:, 0])


def test_splits_given_replace_masks_and_take_ids():
    data = Data(edge_index=torch.zeros(2, 0).long(), train_mask=torch.ones(4).bool())
    graph = Graph.from_pyg(
        data, splits={"train": torch.tensor([2, 0]), "valid": np.array([3]), "test": [1]}
    )
    assert {name: ids.tolist() for name, ids in graph.splits.items()} == {
        "train": [0, 2],
        "val": [3],
        "test": [1],
    }


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"train_mask": torch.tensor([0, 1, 2])}, "train_mask must be boolean"),
        ({"train_mask": torch.tensor([0.0, 1.0, 0.0])}, "train_mask must be boolean"),
        ({"train_mask": torch.ones(2).bool()}, "num_nodes says 3 nodes, train_mask says 2"),
        ({"x": torch.zeros(3, 1).to_sparse()}, r"x is a sparse tensor(.|\n)*x.to_dense\(\)"),
        ({"x": torch.full((3, 1), 2**53 + 1)}, r"x\[0, 0\] is 9007199254740993, which no float"),
        ({"x": torch.zeros(3, 1, 1)}, "a table needs 2 dimensions"),
        ({"x": [object()] * 3}, "x needs numbers, has list"),
        ({"edge_weight": torch.zeros(3)}, r"edge_weight needs numbers \[8\]"),
        ({"edge_attr": torch.zeros(3, 1)}, "edge_attr has 3 rows"),
    ],
)
def test_contradictions_are_refused(fields, what):
    fields = {"num_nodes": 3, "edge_index": torch.zeros(2, 8).long()} | fields
    with pytest.raises(GraphError, match=what):
        Graph.from_pyg(fields)


def test_attributes_without_a_place_are_named():
    data = Data(edge_index=torch.stack([SRC, DST]), num_nodes=6, pos=torch.zeros(6, 3), name="a")
    with pytest.warns(UserWarning, match="no place for (pos, name|name, pos): left out") as seen:
        Graph.from_pyg(data)
    assert len(seen) == 1
    assert seen[0].filename == __file__
    batch = Batch.from_data_list([Data(edge_index=torch.stack([SRC, DST]), num_nodes=6)] * 2)
    with pytest.warns(UserWarning, match="batch"):
        assert Graph.from_pyg(batch).num_nodes == 12


def test_bfloat16_weights_and_labels_are_read_exactly():
    data = Data(
        edge_index=torch.stack([SRC, DST]),
        edge_weight=torch.arange(8).bfloat16(),
        y=torch.arange(6).bfloat16(),
    )
    graph = Graph.from_pyg(data)
    assert graph.edge_weight.dtype == np.float32
    assert graph.y[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    bits = to_bfloat16(np.arange(6.0))[:, None]
    data.x = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)[:, 0]
    assert Graph.from_pyg(data).x.decode()[:, 0].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.gpu
def test_tensors_on_a_gpu_are_read_and_left_there():
    graph = Graph.from_pyg(WANT.to_pyg().to("cuda"))
    assert_same(graph, WANT)
    x = torch.randn(6, 3, device="cuda").bfloat16()
    got = Graph.from_pyg(Data(x=x, edge_index=torch.stack([SRC, DST]).cuda()))
    np.testing.assert_array_equal(got.x.decode(), x.float().cpu().numpy())


@pytest.mark.parametrize("name", ["x", "edge_attr"])
@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([0, 255], "uint8"),
        ([-128, 127], "int8"),
        ([-1, 128], "float32"),
        ([0, 2**24], "float32"),
        ([0, 2**24 + 1], "float64"),
        ([-(2**53), 5], "float64"),
    ],
)
@pytest.mark.parametrize("given", [torch.int64, torch.int32, torch.int16])
def test_whole_numbers_are_kept_exactly_in_the_narrowest_width(name, values, dtype, given):
    """PyG's data sets hold categories and counts as int64."""
    if max(map(abs, values)) > torch.iinfo(given).max:
        given = torch.int64
    rows = torch.tensor(values, dtype=given)[:, None]
    edges = torch.tensor([[0, 1], [1, 0]])  # in-edges of node 0 come first
    kept = getattr(Graph.from_pyg({"edge_index": edges, "num_nodes": 2, name: rows}), name)
    assert kept.dtype == dtype
    want = rows if name == "x" else rows.flip(0)
    assert kept.data.tolist() == want.tolist()


def test_no_rows_of_whole_numbers():
    empty = torch.zeros(0, 3, dtype=torch.int64)
    data = {"edge_index": torch.zeros(2, 0, dtype=torch.int64), "num_nodes": 0, "x": empty}
    assert Graph.from_pyg(data).x.data.shape == (0, 3)
