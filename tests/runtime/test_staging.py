"""Rows on their way to a device and back: what goes over and comes back is what was there."""

from __future__ import annotations

import pytest
import torch

from tiergnn.runtime.staging import Staging

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
TYPES = [torch.float32, torch.bfloat16]


SMALL = 1024  # bytes of a piece: a few rows, so that buffers are taken in turns


def pinned(rows: torch.Tensor, device: str) -> torch.Tensor:
    return rows.pin_memory() if device == "cuda" else rows


def keep_busy(device: str) -> None:
    """Work on the current stream, which what is queued behind it has to await."""
    if device == "cuda":
        torch.cuda._sleep(20_000_000)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_slices_of_unequal_widths_and_a_block_of_rows(device, dtype):
    widths = (*[5] * 3, *[4] * 12, 11)
    values = torch.randn(370, sum(widths))
    homes = [pinned(torch.zeros(1000, width, dtype=dtype), device) for width in widths]
    rows = [home[200:570] for home in homes]
    staging, lane = Staging(torch.device(device), SMALL), _lane(device)
    block = torch.zeros(values.shape, device=device)
    with lane:
        keep_busy(device)
        block.copy_(values)
        staging.split(block, rows)
        block.zero_()  # comes after what was read
    _settle(device)
    torch.testing.assert_close(torch.cat(rows, 1), values.to(dtype), rtol=0, atol=0)
    assert all(not home[:200].any() and not home[570:].any() for home in homes)
    back = torch.zeros(370, sum(widths) + 2, device=device)
    _settle(device)
    with lane:
        keep_busy(device)
        staging.join(rows, back[:, 1:-1])
        found = back.clone()  # comes after what was written
    _settle(device)
    torch.testing.assert_close(found[:, 1:-1].cpu(), values.to(dtype).float(), rtol=0, atol=0)
    assert not found[:, 0].any()
    assert not found[:, -1].any()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_rows_are_cast_or_decoded_on_the_device(device, dtype):
    stored = pinned(torch.randn(500, 3, 4).to(dtype), device)
    sizes = [7, 0, 90, 1, 1, 300, 101]  # longer than a piece, and shorter
    tiles = stored.split(sizes)
    staging, lane = Staging(torch.device(device), SMALL), _lane(device)
    rows, doubled = (torch.zeros(stored.shape, device=device) for _ in range(2))
    away = pinned(torch.zeros(stored.shape, dtype=dtype), device)
    _settle(device)
    with lane:
        for _ in range(3):  # buffers that are used again wait for who used them before
            keep_busy(device)
            staging.bring(tiles, rows)
            staging.bring([stored], doubled, lambda some: some.float() * 2)
            staging.send(rows, away.split(sizes))
        rows.zero_()
    _settle(device)
    torch.testing.assert_close(away, stored, rtol=0, atol=0)
    torch.testing.assert_close(doubled.cpu(), stored.float() * 2, rtol=0, atol=0)


@pytest.mark.parametrize("device", DEVICES)
def test_no_rows_are_no_work(device):
    staging = Staging(torch.device(device))
    rows, stored = torch.zeros(0, 4, device=device), torch.zeros(0, 4, dtype=torch.bfloat16)
    staging.bring([stored], rows)
    staging.send(rows, [stored])
    staging.join([stored, stored], torch.zeros(0, 8, device=device))
    staging.split(torch.zeros(0, 8, device=device), [stored, stored])
    assert rows.numel() == stored.numel() == 0


def _lane(device: str):
    return torch.cuda.stream(torch.cuda.Stream() if device == "cuda" else None)


def _settle(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
