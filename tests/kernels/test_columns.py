"""Slices beside each other in a block, and back, on the CPU: the bits of torch's copies."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.blocks import BACKENDS, rand
from tiergnn.errors import ConfigError
from tiergnn.kernels import backend
from tiergnn.kernels.columns import join, split

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
WIDTHS = [(1,), (16, 16, 16, 16), (5, 5, 3), (130, 7), (300,), (0, 4), (8,) * 8]


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("to", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("rows", [0, 1, 37, 5001])
def test_there_and_back(rows, widths, dtype, to, name):
    """Slices and block are themselves columns of wider rows, whose others stay as they are."""
    parts = [rand(rows, width + 2, seed=i).to(dtype)[:, 1:-1] for i, width in enumerate(widths)]
    whole = torch.full((rows, sum(widths) + 7), float("nan"), dtype=to)
    with backend.use(name):
        join(parts, whole[:, 3:-4])
    assert torch.equal(whole[:, 3:-4], torch.cat(parts, 1).to(to))
    assert whole[:, :3].isnan().all()
    assert whole[:, -4:].isnan().all()

    around = [torch.full((rows, width + 2), float("nan"), dtype=dtype) for width in widths]
    with backend.use(name):
        split(whole[:, 3:-4], [each[:, 1:-1] for each in around])
    for each, part in zip(around, parts, strict=True):
        assert torch.equal(each[:, 1:-1], part.to(to).to(dtype))
        assert each[:, [0, -1]].isnan().all()


@pytest.mark.parametrize("name", BACKENDS)
def test_what_is_not_of_floats_is_copied_as_well(name):
    parts, block = [torch.arange(8).view(4, 2), torch.ones(4, 1).long()], torch.zeros(4, 3)
    with backend.use(name):
        join(parts, block)
    assert block.tolist() == [[0, 1, 1], [2, 3, 1], [4, 5, 1], [6, 7, 1]]


@pytest.mark.parametrize("turn", [join, lambda slices, block: split(block, slices)])
@pytest.mark.parametrize(
    ("slices", "wrong"),
    [
        ([torch.ones(4, 5), torch.ones(4, 1)], r"needs \[4, 6\]"),
        ([torch.ones(4, 5), torch.ones(3, 2)], "of one dtype"),
        ([torch.ones(4, 5), torch.ones(4, 2).double()], "of one dtype"),
        ([torch.ones(4, 5), torch.ones(4)], "of one dtype"),
    ],
)
def test_what_does_not_fit_is_told(turn, slices, wrong):
    with pytest.raises(ConfigError, match=wrong):
        turn(slices, torch.ones(4, 7))
