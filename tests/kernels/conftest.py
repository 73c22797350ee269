"""More uninitialised memory is poisoned than for every test: what tensors make like themselves."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def poison_like(monkeypatch):
    """Fill Tensor.new_empty with NaN, so that an element nobody wrote is seen."""
    make = torch.Tensor.new_empty

    def new_empty(*args, **kwargs):
        out = make(*args, **kwargs)
        if out.is_floating_point() and not out.is_meta:
            with torch.no_grad():
                out.fill_(float("nan"))
        return out

    monkeypatch.setattr(torch.Tensor, "new_empty", new_empty)
