"""Memory of large outputs: used again only when nobody can see it, and never hoarded."""

from __future__ import annotations

import gc
import os
import platform
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from tiergnn.kernels.memory import LARGE_BYTES, POOL, Pool, new_rows

ROWS = LARGE_BYTES // 64  # of 16 float32


@pytest.fixture
def pool():
    return Pool()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc's allocator")
@pytest.mark.parametrize(
    ("keeps", "size", "kept"),
    [
        ("", 0.5, False),
        ("keep_small", 0.5, True),
        ("keep_large", 0.5, True),
        ("keep_small", 2, False),
        ("keep_large", 2, True),
        ("keep_large(); memory.no_large", 2, False),
    ],
)
def test_tensors_are_of_memory_that_is_there(keeps, size, kept):
    """Pages that are taken anew while tensors come and go, of half of what is large or twice that.

    What the allocator gives back by itself depends on what lies behind it: it is told to give back
    all of them.
    """
    each = int(size * LARGE_BYTES)
    code = f"""
import resource, torch
from tiergnn.kernels import memory
{f"memory.{keeps}()" if keeps else ""}
def step():
    held = [torch.ones({each} // 4) for _ in range(6)]
for _ in range(8):  # by then they lie as they will
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    given = os.environ | {"THP_MEM_ALLOC_ENABLE": "0", "MALLOC_MMAP_THRESHOLD_": "1048576"}
    done = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, check=True)
    pages = 3 * 6 * each // 4096
    assert (int(done.stdout) < pages / 100) == kept


def test_memory_is_used_again_once_its_last_tensor_is_gone(pool):
    first = pool.take(1000)
    address, part = first.data_ptr(), first[10:20].view(5, 2)
    del first
    gc.collect()
    assert pool.take(1000).data_ptr() != address  # part still sees it
    assert pool.idle_bytes == 1000
    del part
    gc.collect()
    addresses = {tensor.data_ptr() for tensor in [pool.take(1000) for _ in range(2)]}
    assert address in addresses
    assert len(addresses) == 2


def test_numpy_and_autograd_keep_memory(pool):
    tensor = pool.take(4000).view(torch.float32)
    address, array = tensor.data_ptr(), tensor.numpy()
    weight = torch.ones(1000, requires_grad=True)
    product = weight * tensor
    del tensor, array
    gc.collect()
    assert pool.take(4000).data_ptr() != address
    del product
    gc.collect()
    assert pool.idle_bytes == 8000


def test_held_memory_never_exceeds_the_most_in_use(pool):
    held = [pool.take(size) for size in (100, 200, 300)]
    held.clear()
    assert pool.idle_bytes == 600
    for size in (150, 250, 350, 450, 550):
        tensor = pool.take(size)
        assert tensor.numel() == size
        assert pool.idle_bytes + size <= 600
        del tensor
    pool.release()
    assert pool.idle_bytes == 0
    tensor = pool.take(50)
    del tensor
    assert pool.idle_bytes == 50


def test_threads_never_share_a_memory(pool):
    failures = []

    def work(number: int) -> None:
        for _ in range(300):
            tensor = pool.take(64)
            tensor.fill_(number)
            if not bool((tensor == number).all()):
                failures.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    # A thread holds its last tensor until it has taken the next one.
    assert pool.idle_bytes <= 4 * 2 * 64


def flags_at(address: int) -> list[str]:
    """What Linux notes about the memory at an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head and not head.endswith(":"):
            first, last = (int(part, 16) for part in head.split("-"))
            inside = first <= address < last
        elif inside and head == "VmFlags:":
            return line.split()[1:]
    raise AssertionError("address is not mapped")


def test_what_cannot_be_had_is_not_counted(pool, monkeypatch):
    """Idle memory is given back first; then the error says how much was asked for."""
    once = [pool.take(64), pool.take(64)]
    del once
    gc.collect()
    idle, left = [], [OSError(12, "Cannot allocate memory")]

    def allocate(num_bytes):
        idle.append(pool.idle_bytes)
        if left:
            raise left.pop()
        return np.zeros(num_bytes, np.uint8)

    monkeypatch.setattr("tiergnn.kernels.memory._allocate", allocate)
    kept = pool.take(32)  # the second time
    assert idle == [64, 0]
    left.extend([OSError(), OSError()])
    with pytest.raises(MemoryError, match="no host memory for rows of 1,000 bytes"):
        pool.take(1000)
    assert pool._used_bytes == kept.numel()


@pytest.mark.skipif(sys.platform != "linux", reason="advice to Linux")
@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="Linux without huge pages"
)
def test_large_rows_ask_for_huge_pages():
    out = new_rows(ROWS, 16, torch.float32)
    assert "hg" in flags_at(out.data_ptr() + out.nbytes // 2)


def test_large_rows_are_plain_tensors():
    POOL.release()
    gc.collect()
    for dtype in (torch.float32, torch.bfloat16, torch.int32, torch.float64):
        out = new_rows(2 * ROWS, 16, dtype)
        assert out.shape == (2 * ROWS, 16)
        assert out.dtype == dtype
        assert out.is_contiguous()
        assert not out._is_view()
        out.requires_grad_(dtype.is_floating_point)
        del out
    address = new_rows(ROWS, 16, torch.float32).data_ptr()
    assert new_rows(ROWS, 16, torch.float32).data_ptr() == address
    POOL.release()


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (3, 7)])
def test_small_rows_come_from_torch(shape):
    out = new_rows(*shape, torch.bfloat16)
    assert out.shape == shape
    assert out.isnan().all()  # poisoned by conftest
