"""Slices and blocks of rows: what goes over and comes back is what was there."""

from __future__ import annotations

import pytest
import torch

from tiergnn.runtime.transfers import move_pieces


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_slices_of_unequal_widths_and_a_block_of_rows(dtype):
    widths = (*[5] * 3, *[4] * 12, 11)
    block = torch.randn(37, sum(widths))
    homes = [torch.zeros(100, width, dtype=dtype) for width in widths]
    rows = [home[20:57] for home in homes]
    assert move_pieces(rows, block, into=False) == 37 * sum(widths) * dtype.itemsize
    torch.testing.assert_close(torch.cat(rows, 1), block.to(dtype), rtol=0, atol=0)
    assert all(not home[:20].any() and not home[57:].any() for home in homes)
    back = torch.zeros(37, sum(widths) + 2)
    move_pieces(rows, back[:, 1:-1], into=True)
    torch.testing.assert_close(back[:, 1:-1], block.to(dtype).float(), rtol=0, atol=0)
    assert not back[:, 0].any()
    assert not back[:, -1].any()
