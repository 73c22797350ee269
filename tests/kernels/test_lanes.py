"""Vector values: 16-bit floats are read and rounded as torch does, and tails stay untouched."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tiergnn.kernels.lanes import load, store
from tiergnn.kernels.rows import njit
from tiergnn.kernels.tile import ELEMENTS, Tile, tiles

HALVES = (torch.float16, torch.bfloat16)


@njit(cache=False)
def copy(tile, x, x_bytes, to_tile, out, out_bytes, width, count):
    """Moves ``count`` numbers from one element to another."""
    for at in range(0, count, width):
        left = min(width, count - at)
        store(to_tile, out + at * out_bytes, left, load(tile, x + at * x_bytes, left))


def moved(x: torch.Tensor, dtype: torch.dtype, *, width: int = 16, masked: bool = True):
    out = torch.full((x.numel() + 4,), -7.0).to(dtype)
    tile, to_tile = (Tile(ELEMENTS[kind], width, masked) for kind in (x.dtype, dtype))
    copy(
        tile, x.data_ptr(), x.itemsize, to_tile, out.data_ptr(), out.itemsize, width, x.numel()
    )  # fmt: skip
    assert torch.equal(out[-4:], torch.full((4,), -7.0).to(dtype))
    return out[:-4]


@pytest.mark.parametrize("dtype", HALVES)
def test_every_half_is_read_exactly(dtype):
    x = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
    torch.testing.assert_close(moved(x, torch.float32), x.float(), rtol=0, atol=0, equal_nan=True)
    numbers = x[~x.isnan()]
    signs = torch.signbit(moved(numbers, torch.float32))
    assert torch.equal(signs, torch.signbit(numbers))


@pytest.mark.parametrize("dtype", HALVES)
def test_every_half_is_written_exactly(dtype):
    x = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
    numbers = x[~x.isnan()]
    assert torch.equal(moved(numbers.float(), dtype).view(torch.int16), numbers.view(torch.int16))
    assert moved(x[x.isnan()].float(), dtype).isnan().all()


@pytest.mark.parametrize("dtype", HALVES)
def test_rounding_is_to_nearest_ties_to_even(dtype):
    """Every midpoint of two neighbours, the numbers beside it, and bits at random."""
    x = torch.arange(2**15 - 1, dtype=torch.int32).to(torch.int16).view(dtype).double()
    middle = ((x[1:] + x[:-1]) / 2).float()
    middle = middle[middle.isfinite()].numpy()
    beside = [np.nextafter(middle, np.float32(to)) for to in (0, np.inf)]
    rng = np.random.Generator(np.random.Philox(0))
    noise = rng.integers(0, 2**32, 100_003, np.uint32).view(np.float32)
    special = np.array([65519.9, 65520, 65536, 1e30, np.inf, 3.4e38, 2.0**-25, 0.0], np.float32)
    for values in (middle, *beside, noise[~np.isnan(noise)], special):
        both = torch.from_numpy(np.concatenate([values, -values]))
        assert torch.equal(moved(both, dtype).view(torch.int16), both.to(dtype).view(torch.int16))


def test_a_tile_without_mask_moves_whole_vectors():
    x = torch.randn(64, dtype=torch.float64)
    assert torch.equal(moved(x, torch.float64, width=32, masked=False), x)


@pytest.mark.parametrize("dtype", ELEMENTS)
def test_tiles_cover_every_column_once(dtype):
    for width in (0, 1, 15, 16, 17, 64, 100, 128, 130, 602):
        columns = []
        for tile, first, count in tiles(dtype, width):
            columns += range(first, first + count)
            assert tile.width >= count
            assert tile.masked == (count < tile.width)
            assert tile.width * (8 if dtype == torch.float64 else 4) <= 512
        assert columns == list(range(width))
