"""The kernels of moments compile for sm_80 and sm_90 on a machine without a GPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from tests.kernels.ahead import ARCHS, compiled_ahead
from tests.kernels.blocks import rand
from tiergnn.kernels.moments import gpu


@pytest.fixture(autouse=True)
def not_interpreted(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.mark.parametrize("arch", ARCHS)
def test_moments(arch):
    """And back; wide rows are read and written 16 bytes at a time."""
    cases = [
        (64, torch.float32), (256, torch.bfloat16), (63, torch.float16), (3, torch.float64)
    ]  # fmt: skip
    with compiled_ahead(arch) as found:
        for width, dtype in cases:
            x = rand(9, width).to(dtype)
            values = rand(3, width).to(torch.promote_types(dtype, torch.float32))
            gpu.moments(x)
            gpu.moments_grad(x, values, values)
            gpu.moments_grad(x, values, values, x, x)
    assert len(found["moments_kernel"]) == len(found["merge_kernel"]) == len(cases)
    assert len(found["moments_grad_kernel"]) == 2 * len(cases)
    for text in (*found["moments_kernel"][:2], *found["moments_grad_kernel"][:4]):
        assert "ld.global.v4.b32" in text
    for text in found["moments_grad_kernel"][:4]:
        assert "st.global.v4.b32" in text
