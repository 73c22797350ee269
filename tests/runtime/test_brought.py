"""Blocks on their way to another device: in-edges first, out-edges when backward asks for them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from weakref import ref

import numpy as np
import pytest
import torch

from tiergnn.graph.csr import from_edges
from tiergnn.kernels import tasks
from tiergnn.kernels.block import Block
from tiergnn.packed import packed_bytes
from tiergnn.runtime.brought import (
    add_out_edges,
    less_loops,
    moved,
    pinned,
    sort_edges,
    topology_bytes,
)

META = torch.device("meta")  # another device than the CPU, on every machine


def tasks_of(block, flipped):
    return block.plans.get(("aggregate", "gpu", flipped, (0, block.num_src)))


def arrays_of(made):
    merged = [] if made.merge is None else arrays_of(made.merge)
    return [made.row, made.start, made.size, made.order, *merged]


@pytest.fixture(params=[False, True], ids=["no tasks", "tasks"])
def block(request):
    src = np.arange(1200) % 30  # a hub, whose row is cut, and loops
    made = Block.from_graph(from_edges(src, np.where(src % 2, src, 3), num_nodes=30))
    _ = made.without_loops
    sort_edges(made, out=True, tasks=request.param)
    return made


def test_in_edges_go_alone_and_out_edges_follow(block):
    there = moved(block, META, out=False)
    for edges in (there, there.without_loops):
        assert edges.device == META
        assert "transposed" not in vars(edges)
        assert tasks_of(edges, True) is None
    add_out_edges(there, block)
    for edges, own in ((there, block), (there.without_loops, block.without_loops)):
        assert [a.device for a in edges.transposed] == [META] * 3
        assert [a.shape for a in edges.transposed] == [a.shape for a in own.transposed]
    brought = there.transposed
    add_out_edges(there, block)
    assert there.transposed is brought  # once


def test_a_block_without_loops_is_its_own(block):
    bare = less_loops(block, edge_ids=False)
    _ = bare.transposed
    assert less_loops(bare, edge_ids=False) is bare
    assert bare.eid is None
    there = moved(bare, META)
    assert there.without_loops is there
    assert "transposed" in vars(there)
    seen = ref(there)
    del there
    assert seen() is None  # its memory is free as soon as nobody reads it


def test_memory_to_be_pinned_has_all_of_a_block(block):
    size = topology_bytes(block, out=False) + topology_bytes(block, out=True)
    assert pinned(block)[1].numel() == pytest.approx(size, abs=64 * 20)
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


@pytest.mark.parametrize("block", [True], indirect=True)
def test_tasks_are_those_made_on_the_spot_wherever_a_block_goes(block):
    """In one piece each, whose size the counts alone decide; copies share no memory."""
    there = moved(block, META, out=False)
    add_out_edges(there, block)
    copy, memory = pinned(block)
    ours = (memory.data_ptr(), memory.data_ptr() + memory.numel())
    for edges, far, near in (
        (block, there, copy),
        (block.without_loops, there.without_loops, copy.without_loops),
    ):
        for flipped in (False, True):
            rowptr = edges.transposed.rowptr_t if flipped else edges.rowptr
            want = tasks.cut_rows(rowptr)
            assert (want.merge is not None) == (not flipped)
            for made in (tasks_of(edges, flipped), tasks_of(near, flipped)):
                assert made.spans == want.spans
                assert all(map(torch.equal, arrays_of(made), arrays_of(want)))
            meta = tasks_of(far, flipped)
            assert meta.memory.device == META
            assert meta.memory.numel() == packed_bytes(rowptr.numel() - 1, edges.num_edges)
            assert [a.shape for a in arrays_of(meta)] == [a.shape for a in arrays_of(want)]
            assert ours[0] <= tasks_of(near, flipped).memory.data_ptr() < ours[1]


def test_ids_are_moved_once(block):
    gid = torch.arange(30)
    both = replace(block, dst_gid=gid[:30], src_gid=gid)
    there = moved(both, META)
    assert there.dst_gid is not None
    assert there.dst_gid.shape == gid.shape
    assert there.dst_gid._base is there.src_gid
    added = topology_bytes(both, out=False) - topology_bytes(replace(block), out=False)
    assert added == 8 * 30


@pytest.mark.parametrize(
    ("some", "least"), [("not slow", 2), pytest.param("slow", 4, marks=pytest.mark.slow)]
)
def test_steps_make_no_tasks(some, least):
    """On the CPU, with the GPU's kernels interpreted, which takes a process of its own."""
    pytest.importorskip("triton")
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:xdist", "-m", some, "test_tasks_gpu.py"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= least
