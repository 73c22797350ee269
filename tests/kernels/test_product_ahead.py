"""The kernels of products compile for sm_80 and sm_90, for tensor cores, within their memory."""

from __future__ import annotations

from unittest import mock

import pytest

pytest.importorskip("triton")

from tests.kernels import ahead
from tests.kernels.blocks import rand
from tiergnn.kernels.product import gpu

MULTIPLIES = {80: "mma.sync.aligned.m16n8k8.row.col.f32.tf32", 90: "wgmma.mma_async"}
SHARED_BYTES = {80: 163 * 2**10, 90: 227 * 2**10}  # of one block of threads
SHAPES = ((100, 256), (256, 47), (602, 16))


@pytest.fixture(autouse=True)
def for_a_gpu(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(gpu, "is_interpreted", lambda device: False)


@pytest.mark.parametrize("arch", sorted(MULTIPLIES))
@pytest.mark.parametrize(("inner", "outer"), SHAPES)
def test_products(arch, inner, outer):
    rows = 300
    x, grad = rand(rows, inner).float(), rand(rows, outer).float()
    weight, bias = rand(outer, inner).float(), rand(outer).float()
    made = []

    def compile(*args, **kwargs):
        made.append(real(*args, **kwargs))
        return made[-1]

    real = ahead.compile
    with mock.patch.object(ahead, "compile", compile), ahead.compiled_ahead(arch) as found:
        gpu.product(x, weight, bias)
        gpu.product_grad_rows(grad, weight)
    assert {name: len(texts) for name, texts in found.items()} == {
        "split_kernel": 2,
        "rows_kernel": 2,
    }
    for text in found["rows_kernel"]:
        assert MULTIPLIES[arch] in text
    assert max(kernel.metadata.shared for kernel in made) <= SHARED_BYTES[arch]
