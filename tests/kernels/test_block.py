"""Blocks: the transposed CSR, loops, and sharing memory with a graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from tests.kernels.blocks import BLOCKS, ragged, rand
from tests.odd import edge_lists
from tiergnn.errors import GraphError
from tiergnn.graph.csr import Graph, from_edges
from tiergnn.graph.table import Table
from tiergnn.kernels.block import Block


def check_transposed(block: Block) -> None:
    rowptr_t, dst_t, edge_t = block.transposed
    order = torch.sort(block.col.long(), stable=True).indices
    assert torch.equal(edge_t.long(), order)
    assert torch.equal(dst_t.long(), block.edge_dst[order])
    counts = torch.bincount(block.col.long(), minlength=block.num_src)
    assert torch.equal(rowptr_t, torch.cat([torch.zeros(1).long(), counts.cumsum(0)]))
    assert dst_t.dtype == block.col.dtype
    assert edge_t.dtype == torch.int32


@pytest.mark.parametrize("block", BLOCKS)
def test_transposed(block):
    check_transposed(block)
    assert block.transposed is block.transposed  # made once


@settings(max_examples=40, deadline=None)
@given(edges=edge_lists())
def test_transposed_of_any_graph(edges):
    check_transposed(Block.from_graph(edges.graph()))


@settings(max_examples=40, deadline=None)
@given(edges=edge_lists())
def test_without_loops(edges):
    weight = rand(len(edges.src)).numpy()
    whole = Block.from_graph(edges.graph(edge_weight=weight))
    block = whole.without_loops
    keep = edges.src != edges.dst
    want = from_edges(edges.src[keep], edges.dst[keep], edges.num_nodes, edge_weight=weight[keep])
    assert np.array_equal(block.rowptr, want.rowptr)
    assert np.array_equal(block.col, want.col)
    assert block.num_graph_edges == len(edges.src)
    if keep.all():
        assert block is whole
    else:
        assert (block.eid, block.edge_weight, block.edge_attr) == (None, None, None)
        assert block.without_loops is block


def test_loops_keep_their_last_weight():
    graph = from_edges(
        np.array([0, 0, 1, 2, 2, 2]),
        np.array([0, 1, 0, 2, 2, 1]),
        4,
        edge_weight=np.array([5.0, 1, 2, 3, 4, 6]),
    )
    block = Block.from_graph(graph)
    weight = block.edge_weight.requires_grad_()
    loops = block.loop_weight(weight, fill=9.0)
    assert loops.tolist() == [5, 9, 4, 9]
    loops.sum().backward()
    assert weight.grad.tolist() == [float(w in (5, 4)) for w in weight.tolist()]
    assert block.loop_weight(fill=2.0) == 2.0
    empty = ragged([0, 0], 2)
    assert empty.loop_weight(torch.zeros(0), fill=1.0).tolist() == [1, 1]
    assert empty.loop_edge.tolist() == [-1, -1]


def test_from_graph_shares_memory():
    graph = from_edges(
        np.array([0, 1, 2]),
        np.array([1, 2, 0]),
        3,
        edge_weight=np.ones(3, np.float32),
        edge_attr=Table.from_array(np.arange(6, dtype=np.float32).reshape(3, 2)),
    )
    block = Block.from_graph(graph)
    assert block.col.data_ptr() == graph.col.ctypes.data
    assert block.rowptr.data_ptr() == graph.rowptr.ctypes.data
    assert block.edge_weight.data_ptr() == graph.edge_weight.ctypes.data
    assert block.edge_attr.data_ptr() == graph.edge_attr.data.ctypes.data
    assert (block.num_dst, block.num_src, block.num_edges) == (3, 3, 3)
    assert (block.num_graph_nodes, block.num_graph_edges) == (3, 3)
    assert block.to("cpu") is block


def test_from_graph_reads_a_read_only_file_without_warning(tmp_path, recwarn):
    graph = from_edges(np.array([0, 1, 2]), np.array([1, 2, 0]), 3).save(tmp_path / "graph")
    assert not graph.col.flags.writeable
    assert Block.from_graph(graph).col.tolist() == graph.col.tolist()
    assert not recwarn.list


@pytest.mark.parametrize(
    "table",
    [
        Table(data=np.array([[0x3F80, 0xC000]], np.uint16), dtype="bfloat16"),
        Table(data=np.array([[1.0, -2.0]], np.float16), dtype="float16"),
        Table(data=np.array([[1.0, -2.0]]), dtype="float64"),
        Table(data=np.array([[2, -4]], np.int8), dtype="int8", scale=np.float32(0.5).reshape(())),
    ],
    ids=lambda table: table.dtype,
)
def test_edge_features_of_every_dtype(table):
    graph = from_edges(np.array([0]), np.array([0]), 1, edge_attr=table)
    attr = Block.from_graph(graph).edge_attr
    assert attr.tolist() == [[1, -2]]
    assert attr.dtype == getattr(torch, table.dtype if "float" in table.dtype else "float32")


def test_a_graph_that_would_be_read_out_of_bounds_is_refused():
    """A folder's topology is read for the first time here."""
    folder = Path("somewhere")
    col = np.array([0, 5], np.int32)
    with pytest.raises(GraphError, match=r"col\[1\] is 5"):
        Block.from_graph(Graph(rowptr=np.array([0, 1, 2]), col=col, path=folder))
    with pytest.raises(GraphError, match="rowptr"):
        Block.from_graph(Graph(rowptr=np.array([0, 5, 2]), col=col % 2, path=folder))


def test_what_does_not_fit_is_refused():
    rowptr, col = torch.tensor([0, 1]), torch.tensor([0])
    with pytest.raises(GraphError, match=r"rowptr needs int64 \[P\+1\], has int32 \[2\]"):
        Block(rowptr=rowptr.int(), col=col, num_src=1)
    with pytest.raises(GraphError, match=r"col needs int32 or int64 \[E\], has float32 \[1\]"):
        Block(rowptr=rowptr, col=col.float(), num_src=1)
    with pytest.raises(GraphError, match="the first 1 sources are the destinations"):
        Block(rowptr=rowptr, col=col, num_src=0)
    with pytest.raises(GraphError, match=r"edge_weight needs 1 rows, has float32 \[3\]"):
        Block(rowptr=rowptr, col=col, num_src=1, edge_weight=torch.ones(3))
