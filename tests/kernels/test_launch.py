"""A compiled kernel is launched again for what it was compiled for, and for nothing else."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

pytest.importorskip("triton")

import triton
from triton.runtime.jit import JITFunction

from tiergnn.kernels import launch as launches


@triton.jit(do_not_specialize=["count"])
def _kernel(x, extra, count, WIDTH: triton.language.constexpr):
    pass


class Compiled:
    def __init__(self):
        self.calls = []

    def __getitem__(self, grid):
        return lambda *values: self.calls.append((grid, values))


@pytest.fixture
def made(monkeypatch):
    """The kernels compiled, in order; each remembers its further launches."""
    made = []

    def run(self, *args, grid, warmup, **kwargs):
        made.append(Compiled())
        return made[-1]

    monkeypatch.setattr(launches, "_compiled", {})
    with mock.patch.object(JITFunction, "run", run):
        yield made


def test_what_is_compiled_for_is_told_apart(made):
    floats = torch.zeros(64)
    given = {"x": floats, "extra": None, "count": 3, "WIDTH": 8}
    others = [
        {"x": floats.double()},
        {"x": floats[1:]},
        {"extra": floats},
        {"count": 2**31},
        {"WIDTH": 16},
    ]
    for changed in ({}, *others):
        launches.launch(_kernel, (4, 2), given | changed)
    assert len(made) == 6
    assert not any(kernel.calls for kernel in made)
    same = {"x": torch.zeros(8), "extra": None, "count": 2**31 - 1, "WIDTH": 8}
    launches.launch(_kernel, (5, 1), same)
    assert len(made) == 6
    assert made[0].calls == [((5, 1, 1), tuple(same.values()))]
    launches.launch(_kernel, (5, 1), same, num_warps=2)
    assert len(made) == 7
