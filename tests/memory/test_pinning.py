"""Pinned memory: nothing of nothing, once however often asked, in chunks, or one warning."""

from __future__ import annotations

import gc
import logging
import threading
import weakref

import pytest
import torch

from tests.memory.contract import rand
from tiergnn.memory.pinning import PAGE_BYTES, Pinning, Pins, page_bytes, process_pinning
from tiergnn.memory.ram import RamRows


class Cuda:
    """What CUDA does with registrations, with a limit on locked bytes."""

    def __init__(self, limit_bytes: int = 10**9, longest_bytes: int = 10**9):
        self.ranges: dict[int, int] = {}
        self.calls = 0
        self._limit_bytes, self._longest_bytes = limit_bytes, longest_bytes

    def register(self, address: int, num_bytes: int) -> int:
        self.calls += 1
        if num_bytes == 0 or num_bytes > self._longest_bytes:
            return 1
        if any(a < address + num_bytes and address < a + n for a, n in self.ranges.items()):
            return 712
        if sum(self.ranges.values()) + num_bytes > self._limit_bytes:
            return 2
        self.ranges[address] = num_bytes
        return 0

    def unregister(self, address: int) -> int:
        return 713 if self.ranges.pop(address, None) is None else 0

    def pinning(self, **options) -> Pinning:
        return Pinning(self.register, self.unregister, **options)


def test_zero_bytes_are_not_registered():
    cuda = Cuda()
    store = RamRows(0, 37, torch.float32, pinning=cuda.pinning())
    assert (cuda.calls, store.pinned) == (0, False)
    store.close()


def test_two_users_of_one_tensor():
    cuda = Cuda()
    pinning, data = cuda.pinning(), rand(500, 16)
    first = RamRows(500, 16, torch.float32, data=data, pinning=pinning)
    second = RamRows(500, 16, torch.float32, data=data, pinning=pinning)
    assert first.pinned
    assert second.pinned
    assert (cuda.calls, pinning.pinned_bytes) == (1, 32_000)
    first.close()
    assert cuda.ranges
    second.close()
    assert (cuda.ranges, pinning.pinned_bytes) == ({}, 0)


def test_what_somebody_else_registered_is_theirs():
    cuda, data = Cuda(), rand(500, 16)
    cuda.register(data.data_ptr(), 32_000)
    store = RamRows(500, 16, torch.float32, data=data, pinning=cuda.pinning())
    assert store.pinned
    store.close()
    part = RamRows(500, 16, torch.float32, data=rand(1000, 16)[:500], pinning=cuda.pinning())
    part.close()
    assert cuda.ranges == {data.data_ptr(): 32_000}
    cuda.ranges[data.data_ptr()] = 16_000  # only the first half of it
    store = RamRows(500, 16, torch.float32, data=data, pinning=cuda.pinning())
    assert not store.pinned


def test_chunks_end_between_rows_and_pages():
    cuda = Cuda(longest_bytes=400_000)
    store = RamRows(
        5000, 37, torch.float32, pinning=cuda.pinning(chunk_bytes=400_000)
    )  # 148 bytes a row: chunks of a multiple of 37 pages
    starts = sorted(cuda.ranges)
    assert len(starts) > 1
    assert all((start - starts[0]) % (37 * PAGE_BYTES) == 0 for start in starts)
    assert sum(cuda.ranges.values()) == store.num_bytes
    values = rand(5000, 37)
    store.write(slice(None), values)
    store.read(slice(3, 4999), out := torch.empty(4996, 37))
    assert torch.equal(out, values[3:4999])
    store.close()
    assert cuda.ranges == {}


@pytest.mark.parametrize("chunk_bytes", [2**30, 2**16])
def test_too_little_locked_memory_is_one_warning_with_the_limit(caplog, monkeypatch, chunk_bytes):
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda which: (64 * 1024, 64 * 1024))
    cuda = Cuda(limit_bytes=100_000)
    pinning = cuda.pinning(chunk_bytes=chunk_bytes)
    with caplog.at_level(logging.WARNING, "tiergnn"):
        stores = [RamRows(5000, 16, torch.float32, pinning=pinning) for _ in range(3)]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    text = caplog.text
    assert "64.0 KiB" in text
    assert "ulimit -l" in text
    assert cuda.ranges == {}  # chunks that were done are given back
    for store in stores:
        assert not store.pinned
        store.write(slice(0, 1), torch.ones(1, 16))
        store.close()


def test_without_cuda_nothing_is_registered_and_nothing_said(caplog):
    pinning = Pinning(None, None)
    assert pinning.pin(torch.ones(10)) == ()
    pinning.unpin(torch.ones(10))
    assert caplog.records == []


def test_pages():
    memory = page_bytes(100_000)
    assert memory.data_ptr() % PAGE_BYTES == 0
    assert not memory.any()
    assert page_bytes(0).numel() == 0


@pytest.mark.gpu
def test_rows_cross_between_chunks_and_a_gpu():
    values = rand(100_000, 37)
    pinning = process_pinning()
    store = RamRows(100_000, 37, torch.float32, pinning=pinning)
    assert store.pinned
    assert store.data.is_pinned()
    store.write(slice(None), values.cuda())
    out = torch.empty(100_000, 37, device="cuda")
    store.read(slice(None), out)
    torch.cuda.synchronize()
    assert torch.equal(out.cpu(), values)
    store.close()


def test_what_nobody_closes_is_given_back_with_its_owner():
    cuda = Cuda()
    pinning = cuda.pinning()
    owner = Pins(pinning)
    memory = page_bytes(PAGE_BYTES)
    owner.add(memory)
    alive = weakref.ref(memory)
    del memory
    assert alive() is not None  # or other memory would come to lie where it was registered
    assert pinning.pinned_bytes == PAGE_BYTES
    del owner
    gc.collect()
    assert (cuda.ranges, pinning.pinned_bytes) == ({}, 0)
    assert alive() is None


@pytest.mark.parametrize("busy", ["register", "unregister"])
def test_the_garbage_collector_gives_back_in_the_midst_of_other_calls(busy):
    """What lies in a circle goes when the collector comes by, which may be anywhere."""
    cuda = Cuda()

    def collected(call):
        def collect(*args):
            gc.collect()
            return call(*args)

        return collect

    setattr(cuda, busy, collected(getattr(cuda, busy)))
    pinning = cuda.pinning()
    garbage, kept = [], page_bytes(2 * PAGE_BYTES)

    def work() -> None:
        owner = Pins(pinning)
        owner.add(kept)
        garbage.append(Pins(pinning))
        garbage[0].add(page_bytes(PAGE_BYTES))
        vars(garbage[0])["circle"] = garbage[0]
        garbage.clear()
        other = Pins(pinning)
        other.add(page_bytes(3 * PAGE_BYTES))
        owner.close()
        other.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert (cuda.ranges, pinning.pinned_bytes) == ({}, 0)


def test_threads_pin_and_unpin_at_once():
    cuda = Cuda()
    pinning, shared = cuda.pinning(), page_bytes(PAGE_BYTES)

    def work() -> None:
        for _ in range(300):
            owner = Pins(pinning)
            owner.add(shared)
            owner.add(page_bytes(2 * PAGE_BYTES))
            owner.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (cuda.ranges, pinning.pinned_bytes) == ({}, 0)
