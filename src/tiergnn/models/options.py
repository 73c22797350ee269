"""The options that all of PyG's convolutions share, of which ours have the default only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from tiergnn.errors import ConfigError, unknown

# Option -> the values that mean what our layers do.
_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "aggr": ("add", "sum"),
    "aggr_kwargs": (None,),
    "flow": ("source_to_target",),
    "node_dim": (-2, 0),
    "decomposed_layers": (1,),
}
_HINTS = {
    "flow": "reverse the edges when the graph is ingested",
    "aggr": "SAGEConv, which has mean, max and sum",
}


def check_options(layer: nn.Module, options: Mapping[str, Any]) -> None:
    """Raise ConfigError for an option that a layer does not have or cannot follow."""
    name = type(layer).__name__
    for option, value in options.items():
        if option not in _DEFAULTS:
            raise unknown(f"option of {name}", option, _DEFAULTS)
        if value not in _DEFAULTS[option]:
            raise ConfigError(
                f"{name} has {option}={_DEFAULTS[option][0]!r} only, had {value!r}",
                hint=_HINTS.get(option),
            )


def unlike_ours(conv: nn.Module, aggregations: tuple[str, ...]) -> str | None:
    """Which option keeps a PyG layer from running as ours; None when none does."""
    for option, allowed in {**_DEFAULTS, "aggr": aggregations}.items():
        value = getattr(conv, option, allowed[0])
        if value not in allowed and option != "decomposed_layers":  # which changes no number
            return f"{option}={value!r}"
    hooks = [n for n, value in vars(conv).items() if "ward" in n and "hooks" in n and value]
    return f"{hooks[0].strip('_').replace('_', ' ')}" if hooks else None
