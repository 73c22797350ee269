"""Blocks that the kernel suites test on, and a plain float64 oracle."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.odd import ODD_GRAPHS
from tiergnn.kernels.block import Block

BACKENDS = ("reference", "cpu")


def ragged(degrees: list[int], num_src: int, seed: int = 0, index=torch.int32) -> Block:
    """A block whose rows have the given in-degrees, and sources at random."""
    rowptr = torch.tensor([0, *np.cumsum(degrees, dtype=np.int64)], dtype=torch.int64)
    generator = torch.Generator().manual_seed(seed)
    col = torch.randint(0, num_src, (int(rowptr[-1]),), generator=generator)
    return Block(rowptr=rowptr, col=col.to(index), num_src=num_src)


BLOCKS = [
    pytest.param(Block.from_graph(param.values[0]), id=str(param.id)) for param in ODD_GRAPHS
] + [
    pytest.param(ragged([3, 0, 5, 1], 9), id="more sources than rows"),
    pytest.param(ragged([3, 0, 5, 1], 9, index=torch.int64), id="int64 columns"),
    pytest.param(ragged([0, 0, 0], 7), id="rows without edges"),
    pytest.param(Block(rowptr=torch.tensor([0]), col=torch.tensor([]).int(), num_src=4), id="0x4"),
]


def oracle(block: Block, x_SD: Tensor, reduce: str, weight_E: Tensor | None = None) -> Tensor:
    """By a dense table [P, most edges of a row, D], in the dtype of x."""
    degree_P = block.rowptr.diff()
    most = int(degree_P.max()) if degree_P.numel() else 0
    if not most or not x_SD.shape[1]:
        return x_SD.new_zeros(block.num_dst, x_SD.shape[1])
    place = torch.arange(most)
    filled = place < degree_P[:, None]
    edge = (block.rowptr[:-1, None] + place).clamp(max=block.num_edges - 1)
    messages = x_SD[block.col.long()[edge]]
    if weight_E is not None:
        messages = messages * weight_E[edge][..., None]
    if reduce != "max":
        out = torch.where(filled[..., None], messages, 0).sum(1)
        return out / degree_P.clamp(min=1)[:, None] if reduce == "mean" else out
    out = torch.where(filled[..., None], messages, -torch.inf).amax(1)
    return torch.where(degree_P[:, None] > 0, out, 0)


def rand(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def assert_close(got: Tensor, want: Tensor, *, rel: float, scale: Tensor | None = None) -> None:
    """|got - want| <= rel * scale, element by element; scale (default |want|) is a sum of sizes."""
    assert got.shape == want.shape
    assert not got.isnan().any()
    allowed = rel * (want if scale is None else scale).double().abs() + 1e-300
    error = (got.double() - want.double()).abs()
    assert bool((error <= allowed).all()), f"worst {(error / allowed).max() * rel:.3g}"
