"""Slices beside each other in a block, and back, by Triton: to the bit what copies give."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.blocks import rand
from tests.kernels.device import DEVICE, INTERPRETED, SUITE
from tiergnn.errors import ConfigError
from tiergnn.kernels import backend
from tiergnn.kernels.columns import join, split

pytestmark = SUITE
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@pytest.mark.parametrize("to", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("rows", "slices", "width"),
    [(1, 1, 1), (37, 3, 5), (130, 8, 4), (65, 2, 150), (0, 2, 4)],
    ids=str,
)
def test_there_and_back(rows, slices, width, dtype, to):
    if INTERPRETED and torch.bfloat16 in (dtype, to):
        pytest.skip("the interpreter cuts bfloat16 off where a GPU rounds it")
    parts = rand(slices, rows, width).to(dtype).to(DEVICE)
    whole = torch.full((rows, slices * width + 7), float("nan"), dtype=to, device=DEVICE)
    with backend.use("gpu"):
        join(parts, whole[:, 3:-4])
    want = parts.transpose(0, 1).reshape(rows, slices * width).to(to)
    assert torch.equal(whole[:, 3:-4], want)
    assert whole[:, :3].isnan().all()
    assert whole[:, -4:].isnan().all()

    back = torch.empty(slices, rows, width, dtype=dtype, device=DEVICE)
    with backend.use("gpu"):
        split(whole[:, 3:-4], back)
    assert torch.equal(back, parts.to(to).to(dtype))


@pytest.mark.parametrize("name", ["gpu", "reference"])
@pytest.mark.parametrize("turn", [join, lambda slices, block: split(block, slices)])
@pytest.mark.parametrize("shape", [(4, 14), (4, 16), (3, 15), (5, 15), (15,)], ids=str)
def test_what_does_not_fit_is_told(turn, shape, name):
    with backend.use(name), pytest.raises(ConfigError, match=r"needs \[4, 15\]"):
        turn(torch.ones(3, 4, 5, device=DEVICE), torch.ones(shape, device=DEVICE))
    with backend.use(name), pytest.raises(ConfigError, match=r"slices need \[K, P, W\]"):
        turn(torch.ones(4, 15, device=DEVICE), torch.ones(shape, device=DEVICE))
