"""Launching Triton kernels without asking anew, each time, which compiled form is meant."""

from __future__ import annotations

from typing import Any

import torch
from triton.runtime.jit import JITFunction

_compiled: dict[tuple[Any, ...], Any] = {}


def launch(
    kernel: Any,
    grid: tuple[int, int],
    given: dict[str, Any],
    *,
    num_warps: int = 1,
    num_stages: int = 3,
) -> None:
    """Enqueue ``kernel`` on the current stream with those of ``given`` that it has a name for.

    A compiled form is found by what Triton compiles for: dtypes of tensors and whether their
    addresses are multiples of 16, what is None, constants, and the width of numbers, none of which
    may be specialised further (``do_not_specialize``). Finding it takes a fifth of Triton's time.
    """
    values = [given[name] for name in kernel.arg_names]
    if not isinstance(kernel, JITFunction):  # interpreted
        kernel[grid](*values)
        return
    kinds = [
        value if param.is_constexpr else _kind(value)
        for param, value in zip(kernel.params, values, strict=True)
    ]
    key = kernel, num_warps, num_stages, *kinds
    compiled = _compiled.get(key)
    if compiled is None:
        compiled = kernel[grid](*values, num_warps=num_warps, num_stages=num_stages)
        if compiled is not None:
            _compiled[key] = compiled
    else:
        compiled[*grid, 1](*values)


def _kind(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, value.device, value.data_ptr() % 16 == 0
    if isinstance(value, int):
        return -(2**31) <= value < 2**31
    return value
