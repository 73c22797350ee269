"""Caches: always what the store below would give, and exactly the moves of their policy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.memory.contract import RowStoreContract, rand, run_random
from tiergnn.errors import PlanError, StoreError
from tiergnn.memory.cache import BlockCache
from tiergnn.memory.engine import Engine
from tiergnn.memory.faults import FaultPlan, Faulty
from tiergnn.memory.hot import HotRows
from tiergnn.memory.policy import Belady, Hotness, Lru, simulate
from tiergnn.memory.ram import RamRows
from tiergnn.memory.scratch import Scratch


@pytest.fixture(scope="module")
def engine():
    engine = Engine(num_threads=2, slab_bytes=2**20)
    yield engine
    engine.close()


class _Over(RowStoreContract):
    """A cache over a store on the disk."""

    @pytest.fixture
    def make(self, tmp_path, engine):
        with Scratch(tmp_path, engine=engine) as scratch:
            count = iter(range(1000))
            yield lambda r, d, t: self.over(scratch.table(f"t{next(count)}", r, d, t))


class TestBlocksLru(_Over):
    def over(self, below):
        return BlockCache(below, Lru(), block_rows=100, capacity=3)


class TestBlocksHotness(_Over):
    def over(self, below):
        return BlockCache(below, Hotness(np.arange(100)), block_rows=64, capacity=4)


class TestNoRoom(_Over):
    def over(self, below):
        return BlockCache(below, Lru(), block_rows=200, capacity=0)


class TestHotRows(_Over):
    def over(self, below):
        rows = torch.arange(0, below.num_rows, 3)
        return HotRows(below, rows.flip(0))


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_a_cache_is_what_lies_below(data):
    """After a flush, below holds what a plain tensor holds; before it, the cache does."""
    below = RamRows(data.draw(st.integers(1, 90)), 3, torch.float32)
    policy = data.draw(st.sampled_from([Lru(), Hotness(list(range(90)))]))
    blocks = data.draw(st.integers(1, 20))
    store = BlockCache(below, policy, block_rows=blocks, capacity=data.draw(st.integers(0, 6)))
    want = run_random(store, data)
    store.flush()
    assert torch.equal(below.data, want)


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_reads_writes_and_hits_are_the_simulated_ones(data):
    blocks, capacity = 8, data.draw(st.integers(0, 5))
    trace = data.draw(st.lists(st.integers(0, blocks - 1), min_size=1, max_size=40))
    over = data.draw(st.lists(st.booleans(), min_size=len(trace), max_size=len(trace)))
    kind = data.draw(st.sampled_from(["lru", "hot", "belady"]))

    def policy():
        counts = np.bincount(trace, minlength=blocks)
        return {"lru": Lru, "hot": lambda: Hotness(counts), "belady": lambda: Belady(trace, over)}[
            kind
        ]()

    below = RamRows(blocks * 5, 2, torch.float32)
    store = BlockCache(below, policy(), block_rows=5, capacity=capacity)
    want = torch.zeros(blocks * 5, 2)
    for step, (block, writing) in enumerate(zip(trace, over, strict=True)):
        rows = slice(5 * block, 5 * block + 5)
        if writing:
            want[rows] = step
            store.write(rows, want[rows])
        else:
            store.read(rows, out := torch.empty(5, 2))
            assert torch.equal(out, want[rows])
    store.close()
    found = simulate(policy(), trace, capacity, over)
    counted = below.counters.read()
    assert counted["read_calls"] == found.reads
    assert counted["write_calls"] == found.writes
    assert store.counters.hits == 5 * found.hits
    assert store.counters.misses == 5 * (len(trace) - found.hits)
    assert torch.equal(below.data, want)


def test_belady_over_a_disk_saves_a_quarter_of_the_reads_of_lru(tmp_path, engine):
    blocks, capacity, rounds = 12, 6, 5
    trace = list(range(blocks)) * rounds
    moved = {}
    with Scratch(tmp_path, engine=engine) as scratch:
        for name, policy in (("lru", Lru()), ("belady", Belady(trace))):
            table = scratch.table(name, blocks * 256, 16, torch.float32)
            store = BlockCache(table, policy, block_rows=256, capacity=capacity)
            for block in trace:
                out = torch.empty(256, 16)
                store.read(slice(256 * block, 256 * block + 256), out)
            moved[name] = table.counters.read_bytes
    assert moved["lru"] == blocks * rounds * 256 * 64
    assert moved["belady"] <= 0.75 * moved["lru"]


def test_pinned_blocks_stay():
    below = RamRows(100, 2, torch.float32, data=rand(100, 2))
    store = BlockCache(below, Lru(), block_rows=10, capacity=3)
    store.pin(slice(0, 20))
    store.pin(slice(10, 20))
    for block in range(2, 10):
        store.read(slice(10 * block, 10 * block + 10), torch.empty(10, 2))
    before = below.counters.read_calls
    store.read(slice(0, 20), torch.empty(20, 2))
    assert below.counters.read_calls == before
    store.pin(slice(90, 100))
    with pytest.raises(PlanError, match="3 of 3 blocks in memory are"):
        store.pin(slice(50, 60))
    store.read(slice(50, 60), torch.empty(10, 2))  # goes past the cache
    store.unpin(slice(10, 20))
    store.unpin(slice(0, 20))
    store.read(slice(50, 60), torch.empty(10, 2))
    store.read(slice(50, 60), torch.empty(10, 2))
    assert below.counters.read_calls == before + 2


def test_a_block_that_cannot_be_written_back_is_not_lost(tmp_path):
    plan = FaultPlan(writes={0: "enospc"})
    engine = Engine(num_threads=1, slab_bytes=2**20, calls=Faulty(plan).calls)
    with Scratch(tmp_path, engine=engine) as scratch:
        table = scratch.table("h1.p0", 100, 3, torch.float32)
        store = BlockCache(table, Lru(), block_rows=50, capacity=1)
        values = rand(50, 3)
        store.write(slice(0, 50), values)
        with pytest.raises(StoreError, match="h1\\.p0"):
            store.read(slice(50, 100), torch.empty(50, 3))
        store.read(slice(0, 50), out := torch.empty(50, 3))
        assert torch.equal(out, values)
        store.flush()
        table.read(slice(0, 50), out)
        assert torch.equal(out, values)
    engine.close()


def test_hot_rows_are_read_from_memory():
    below = RamRows(50, 3, torch.float32, data=rand(50, 3))
    want = below.data.clone()
    store = HotRows(below, torch.tensor([7, 7, 40, 3]))
    before = below.counters.read_bytes
    store.gather(torch.tensor([3, 8, 40, 40]), out := torch.empty(4, 3))
    assert torch.equal(out, want[[3, 8, 40, 40]])
    assert (store.counters.hits, store.counters.misses) == (3, 1)
    assert below.counters.read_bytes == before + 12
    assert store.held_bytes == 3 * (12 + 8)


def test_a_cache_that_is_larger_than_its_table():
    below = RamRows(25, 3, torch.float32, data=rand(25, 3))
    store = BlockCache(below, Lru(), block_rows=10, capacity=1000)
    assert store.capacity == 3
    for _ in range(2):
        store.read(slice(None), out := torch.empty(25, 3))
        assert torch.equal(out, below.data)
    assert below.counters.read_bytes == 25 * 12
    every = HotRows(below, torch.arange(25))
    every.gather(torch.arange(24, -1, -1), out)
    assert torch.equal(out, below.data.flip(0))
    assert every.counters.misses == 0
