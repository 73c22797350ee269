"""Memory of new rows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from tiergnn.kernels.rows import new_rows


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


@pytest.mark.skipif(sys.platform != "linux", reason="advice to Linux")
@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="Linux without huge pages"
)
def test_large_rows_ask_for_huge_pages():
    out = new_rows(2**20, 16, torch.float32)
    assert "hg" in flags_at(out.data_ptr() + out.nbytes // 2)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (3, 7), (2**18, 33)])
def test_rows_are_plain_tensors(shape):
    out = new_rows(*shape, torch.bfloat16)
    assert out.shape == shape
    assert out.dtype == torch.bfloat16
    assert out.is_contiguous()
