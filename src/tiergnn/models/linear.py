"""Linear: torch's, with a lazy number of inputs and the initialisations that PyG's layers use.

Legend: D in-features, F out-features.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn.functional import linear
from torch.nn.parameter import Parameter, UninitializedParameter

from tiergnn.errors import ConfigError, unknown

INITIALIZERS = ("kaiming_uniform", "glorot")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def glorot(tensor: Tensor | None) -> None:
    """Fill [..., D, F] from U(-b, b), b = sqrt(6 / (D + F)) (Glorot and Bengio, 2010)."""
    if tensor is not None:
        bound = math.sqrt(6.0 / (tensor.size(-2) + tensor.size(-1)))
        nn.init.uniform_(tensor, -bound, bound)


def zeros(tensor: Tensor | None) -> None:
    """Fill with 0; None is left alone."""
    if tensor is not None:
        nn.init.zeros_(tensor)


def reset(module: Any) -> None:
    """Reset the parameters of a module, or else of its children."""
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()
    elif isinstance(module, nn.Module):
        for child in module.children():
            reset(child)


class Linear(nn.Module):
    """x [..., D] @ weight [F, D] transposed + bias [F], with the names of PyG's Linear.

    in_channels -1: weight gets its shape from the first input, or from a state_dict.
    Initialised as torch.nn.Linear unless ``weight_initializer`` is "glorot".
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        bias: bool = True,
        weight_initializer: str | None = None,
    ) -> None:
        super().__init__()
        if weight_initializer not in (None, *INITIALIZERS):
            raise unknown("weight_initializer", weight_initializer, INITIALIZERS)
        if out_channels < 0 or in_channels < -1:
            raise ConfigError(
                f"a layer needs widths of 0 or more, had {in_channels} -> {out_channels}",
                hint="in_channels=-1 takes the width of the first input",
            )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.weight_initializer = weight_initializer
        self.weight: Parameter
        if in_channels >= 0:
            self.weight = Parameter(torch.empty(out_channels, in_channels))
        else:
            self.weight = UninitializedParameter()  # pyright: ignore[reportAttributeAccessIssue]
        if bias:
            self.bias = Parameter(torch.empty(out_channels))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if isinstance(self.weight, UninitializedParameter):
            return
        if self.weight_initializer == "glorot":
            glorot(self.weight)
        else:
            nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1.0 / math.sqrt(self.in_channels) if self.in_channels > 0 else 0.0
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        ensure(self, x)
        return linear(x, self.weight, self.bias)

    def materialize(self, width: int) -> None:
        """Give a lazy weight its shape [F, width] and its first values."""
        self.in_channels = width
        self.weight.materialize((self.out_channels, width))  # pyright: ignore[reportAttributeAccessIssue]
        self.reset_parameters()

    def _load_from_state_dict(
        self, state_dict: Any, prefix: Any, *args: Any, **kwargs: Any
    ) -> None:
        stored = state_dict.get(prefix + "weight")
        lazy = isinstance(self.weight, UninitializedParameter)
        if lazy and stored is not None and not isinstance(stored, UninitializedParameter):
            self.materialize(stored.size(-1))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, bias={self.bias is not None}"


def ensure(lin: Any, x: Any) -> None:
    """Give the weight of a lazy Linear, ours or PyG's, its shape by the rows it will be given."""
    if not isinstance(lin._parameters.get("weight"), UninitializedParameter):
        return
    width = x.shape[-1]
    with x.tracer.pause() if issubclass(type(x), Proxy) else nullcontext():
        if isinstance(lin, Linear):
            lin.materialize(width)
        else:  # PyG's, whose pre-forward hook this is
            lin.initialize_parameters(lin, (torch.empty(0, width),))


def is_linear(m: nn.Module) -> bool:
    """Whether a module is PyG's Linear."""
    return type(m).__module__ == "torch_geometric.nn.dense.linear" and type(m).__name__ == "Linear"


def is_plain(module: nn.Module) -> bool:
    """Whether a module is x weight^T and nothing else: it may be done after a sum as well."""
    return is_product(module) and module.bias is None


def is_product(module: nn.Module) -> bool:
    """Whether a module is x weight^T + bias and nothing else."""
    if type(module) not in (nn.Linear, Linear) and not is_linear(module):
        return False
    changed = "forward" in vars(module) or any(getattr(module, name) for name in _HOOKS)
    return not changed and {"weight", "bias"} <= set(module._parameters)
