"""Attention's GPU kernels compile for sm_80 and sm_90 on a machine without one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from tests.kernels.ahead import compiled_ahead
from tests.kernels.blocks import ragged
from tests.kernels.test_attention import KEY, OPS
from tiergnn.kernels.attention import (
    gpu,
    gpu_gat,
    gpu_gat_grad,
    gpu_gatv2,
    gpu_gatv2_grad,
    gpu_softmax,
)
from tiergnn.kernels.attention.ops import Options
from tiergnn.kernels.dropout import threshold
from tiergnn.kernels.tasks import MOST

RAGGED = ragged([3, 4 * MOST, *[0] * 9], 40)
# Short rows and parts to merge, over in-edges and over out-edges.
BLOCK = replace(RAGGED, col=RAGGED.col * (torch.arange(RAGGED.num_edges) % 2).int())
GIVEN = {"gat": 5, "gatv2": 6}  # tensors of each op


@pytest.fixture(autouse=True)
def not_interpreted(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def launch(kind: str, arch: int, dtype: torch.dtype, *, edges: bool, p: float):
    """The PTX of everything that one forward and one backward launch, by kernel."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    _, make = OPS[kind]
    tensors = list(make(BLOCK, 4, 8, edges=edges).values())
    rows = 1 if kind == "gat" else 2  # stored in dtype; the rest is computed in the wide one
    tensors = [t.to(dtype if i < rows else wide) for i, t in enumerate(tensors)]
    if edges:
        last = tensors[3]
        tensors.append(last.new_zeros(BLOCK.num_dst, last.shape[1]))
    tensors += [None] * (GIVEN[kind] - len(tensors))
    options = Options(0.2, True, threshold(p), 1 / (1 - p), *KEY, 1, int(edges))
    with compiled_ahead(arch) as found:
        train = {"train": True} if kind == "gat" else {}
        out, state = getattr(gpu, f"{kind}_forward")(BLOCK, *tensors, options, **train)
        needs = tuple(t is not None for t in tensors)
        getattr(gpu, f"{kind}_backward")(BLOCK, out, out, state, *tensors, options, needs)
    return found


@pytest.mark.parametrize("kind", OPS)
@pytest.mark.parametrize(
    ("arch", "dtype", "edges", "p"),
    [(90, torch.float32, True, 0.5), (80, torch.bfloat16, False, 0.0)],
    ids=str,
)
def test_compiles(kind, arch, dtype, edges, p):
    found = launch(kind, arch, dtype, edges=edges, p=p)
    gat, gatv2 = (gpu_gat, gpu_gat_grad), (gpu_gatv2, gpu_gatv2_grad)
    modules = [gpu_softmax, *(gat if kind == "gat" else gatv2)]
    own = {name for module in modules for name in vars(module) if name.endswith("_kernel")}
    assert own | {"sum_kernel"} == set(found)
    assert len(found["forward_kernel"]) == 2  # parts, and short rows
    for texts in found.values():
        assert all(f".target sm_{arch}" in text for text in texts)


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPS)
@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("edges", [False, True])
def test_compiles_for_every_dtype(kind, arch, dtype, edges):
    assert launch(kind, arch, dtype, edges=edges, p=0.5)
