"""Compiling what a call would launch, for a GPU that need not be there."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from triton.runtime.jit import JITFunction

NAMES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.bool: "i1",
}
OPTIONS = ("num_warps", "num_stages")
# One of them tells of what cannot be compiled; the other only where the two differ.
ARCHS = (pytest.param(80, marks=pytest.mark.slow), 90)


@contextmanager
def compiled_ahead(arch: int) -> Iterator[dict[str, list[str]]]:
    """Inside, a launch compiles its kernel for ``sm_<arch>`` and computes nothing.

    Gives the PTX of each kernel, by its name, one text a launch.
    """
    found: dict[str, list[str]] = {}

    def run(self, *args, grid, warmup, **kwargs):
        assert all(count > 0 for count in grid)
        options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
        bound = inspect.signature(self.fn).bind(*args, **kwargs).arguments
        types, constants, attributes = {}, {}, {}
        for place, param in enumerate(self.params):
            value = bound[param.name]
            if param.is_constexpr or value is None:
                types[param.name], constants[param.name] = "constexpr", value
            elif isinstance(value, torch.Tensor):
                types[param.name] = f"*{NAMES[value.dtype]}"
                if value.data_ptr() % 16 == 0:
                    attributes[(place,)] = [["tt.divisibility", 16]]
            elif isinstance(value, int):
                types[param.name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            else:
                types[param.name] = "fp32"
        source = ASTSource(self, types, constants, attributes)
        kernel = compile(source, target=GPUTarget("cuda", arch, 32), options=options)
        found.setdefault(self.fn.__name__, []).append(kernel.asm["ptx"])

    with mock.patch.object(JITFunction, "run", run):
        yield found
