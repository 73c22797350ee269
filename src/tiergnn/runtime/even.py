"""Elementwise functions whose last bits do not follow the number of threads.

torch cuts a large tensor into one share a thread, and computes what of a share does not fill whole
vectors by a scalar form of the function, which for curved functions differs in the last bit. Here
a tensor is lengthened until every share is whole vectors, so that no element meets that form.

Legend: n elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tiergnn.models.rowlocal import words

_SHARED = 32768  # elements from which torch shares a tensor among threads
_GELU_SHARED = 16384  # gelu has a bound of its own, above which all threads take part
_VECTORS = 64  # elements that a loop of torch's takes at once divide this, whatever the dtype

CURVED = words(
    "acosh acos asin asinh atanh celu cosh elu exp2 expit gelu logit log_sigmoid logsigmoid mish "
    "rsqrt selu sigmoid silu sinh softplus special_expit special_exp2 special_logit"
)
PAIRED = words("atan2 arctan2 logaddexp logaddexp2 pow float_power hypot")


def even(func: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """func(x, ...) of a function that works on each element; tensors among args broadcast to x."""
    inplace = kwargs.pop("inplace", False)
    if func.__name__ == "pow" and not isinstance(args[0], Tensor) and args[0] in (1, 2, 3):
        return func(x, *args, **kwargs)  # products
    pair = [arg for arg in args if isinstance(arg, Tensor)]
    shape = torch.broadcast_shapes(x.shape, *(arg.shape for arg in pair))
    count = shape.numel()
    length = _length(count, func.__name__ == "gelu")

    def lengthened(values: Tensor) -> Tensor:
        flat = values.expand(shape).reshape(-1)
        flat = flat.clone() if inplace else flat
        return flat if length == count else F.pad(flat, (0, length - count), value=0.5)

    given = [lengthened(arg) if isinstance(arg, Tensor) else arg for arg in args]
    out = func(lengthened(x), *given, **kwargs)[:count].reshape(shape)
    return x.copy_(out) if inplace else out


def _length(count: int, gelu: bool) -> int:
    """The least n >= count of which every thread gets whole vectors."""
    threads = torch.get_num_threads()
    while True:
        shares = min(threads, -(-count // _SHARED))
        if gelu:
            shares = threads if count > _GELU_SHARED else 1
        step = max(1, shares) * _VECTORS
        longer = -(-count // step) * step
        if longer == count:
            return count
        count = longer
