"""What ops are given: looked at before compiled code reads it, and told where it does not fit.

Kernels walk plain addresses, so what is too short, on another device or of another dtype would be
read all the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tiergnn.errors import ConfigError

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_WHOLE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_WORDS = 2**32


def told(x: Any) -> str:
    """A tensor's dtype and shape, as errors name it: float32 [3, 4]."""
    return f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}"


def check_dense(name: str, x: Any, form: str) -> None:
    """Raise ConfigError unless x is a tensor whose elements lie at strides."""
    if not isinstance(x, Tensor):
        hint = "torch.as_tensor" if hasattr(x, "__array__") or isinstance(x, list) else None
        raise ConfigError(f"{name} needs a tensor of {form}, had {type(x).__name__}", hint=hint)
    if x.layout != torch.strided:
        layout = str(x.layout).removeprefix("torch.")
        raise ConfigError(f"{name} needs a dense tensor of {form}, had {layout}", hint="to_dense()")


def check_floats(name: str, x: Any, form: str, dims: int | None = None) -> None:
    """Raise ConfigError unless x is a tensor of ``dims`` dimensions and of a float dtype of ours.

    ``form`` says so, as in "float rows [P, D]".
    """
    check_dense(name, x, form)
    fits = dims is None or x.dim() == dims
    if x.dtype not in FLOATS or not fits:
        hint = "float()" if fits and not x.is_complex() else None
        raise ConfigError(f"{name} needs {form}, has {told(x)}", hint=hint)


def check_numbers(name: str, x: Any) -> None:
    """Raise ConfigError unless x is a tensor of floats as above, or of whole numbers."""
    check_dense(name, x, "real numbers")
    if x.dtype not in FLOATS and x.dtype not in _WHOLE:
        raise ConfigError(f"{name} needs real numbers of 16 to 64 bits, has {told(x)}")


def check_device(name: str, x: Any, device: torch.device, other: str = "the graph") -> None:
    """Raise ConfigError unless x is on ``device``, where ``other`` is."""
    if x.device != device:
        raise ConfigError(
            f"{other} is on {device}, {name} on {x.device}", hint="move both to one device"
        )


def check_ids(name: str, ids: Any, num_rows: int, device: torch.device) -> None:
    """Raise ConfigError unless ids are int64 [num_rows] on the device."""
    check_dense(name, ids, f"int64 [{num_rows}]")
    if ids.dtype != torch.int64 or tuple(ids.shape) != (num_rows,):
        raise ConfigError(f"{name} need int64 [{num_rows}], have {told(ids)}")
    check_device(name, ids, device, "what they name")


def check_draws(key: Any, *, site: int, head: int = 0, of: str = "dropout") -> None:
    """Raise ConfigError unless random numbers can be drawn under key, by site and head."""
    if key is None:
        raise ConfigError(f"{of} needs a key", hint="dropout.step_key(seed, step)")
    if not isinstance(key, Tensor) or key.dtype != torch.int64 or tuple(key.shape) != (1,):
        had = told(key) if isinstance(key, Tensor) else type(key).__name__
        raise ConfigError(
            f"a key of {of} is int64 [1], had {had}", hint="dropout.step_key(seed, step)"
        )
    for name, number in (("site", site), ("head", head)):
        if not 0 <= number < _WORDS:
            raise ConfigError(f"{name} of {of} needs 0..2**32 - 1, has {number}")


def check_index(index: Any) -> None:
    """Raise ConfigError unless index is int32 or int64 [M]."""
    check_dense("index", index, "int32 or int64 [M]")
    if index.dim() != 1 or index.dtype not in (torch.int32, torch.int64):
        raise ConfigError(f"index needs int32 or int64 [M], has {told(index)}")


def check_within(index: Tensor, num_rows: int, of: str) -> None:
    """Raise ConfigError for an index in host memory beyond the rows.

    A GPU would have to be waited for.
    """
    if index.device.type == "cpu" and index.numel():
        low, high = (int(bound) for bound in index.aminmax())
        if low < 0 or high >= num_rows:
            raise ConfigError(f"index needs 0..{num_rows - 1}, the rows of {of}; has {low}..{high}")
