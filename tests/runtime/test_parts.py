"""Blocks on their way to another device: in-edges first, out-edges when backward asks for them."""

from __future__ import annotations

import pytest
import torch

from tests.runtime.staging import random_graph
from tiergnn.kernels.block import Block
from tiergnn.runtime.parts import add_out_edges, moved, pinned

META = torch.device("meta")  # another device than the CPU, on every machine


@pytest.fixture
def block():
    made = Block.from_graph(random_graph(30, 120, 0))  # with loops
    for edges in (made, made.without_loops):
        _ = edges.transposed
    return made


def test_in_edges_go_alone_and_out_edges_follow(block):
    there = moved(block, META, out=False)
    for edges in (there, there.without_loops):
        assert edges.device == META
        assert "transposed" not in vars(edges)
    add_out_edges(there, block)
    for edges, own in ((there, block), (there.without_loops, block.without_loops)):
        assert [a.device for a in edges.transposed] == [META] * 3
        assert [a.shape for a in edges.transposed] == [a.shape for a in own.transposed]
    brought = there.transposed
    add_out_edges(there, block)
    assert there.transposed is brought  # once


def test_a_block_without_loops_is_its_own(block):
    bare = block.without_loops
    vars(bare)["without_loops"] = bare
    there = moved(bare, META)
    assert there.without_loops is there
    assert "transposed" in vars(there)


def test_memory_to_be_pinned_has_all_of_a_block(block):
    known = torch.arange(60, dtype=torch.int32).view(30, 2)
    out = Block(
        rowptr=block.transposed.rowptr_t, col=block.transposed.dst_t, num_src=30, reverses=known
    )
    for one in (block, out):
        copy, memory = pinned(one)
        first, last = memory.data_ptr(), memory.data_ptr() + memory.numel()
        arrays = [copy.rowptr, copy.col, *([] if one is out else copy.transposed)]
        assert all(first <= a.data_ptr() < last for a in arrays if a.numel())
        assert torch.equal(copy.rowptr, one.rowptr)
        assert torch.equal(copy.col, one.col)
        for got, want in zip(copy.transposed, one.transposed, strict=True):
            assert torch.equal(got, want)
    assert copy.reverses is not None
    assert torch.equal(copy.reverses, known)
