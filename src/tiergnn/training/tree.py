"""Trees of tensors and plain values as JSON beside a flat table of tensors: no pickle.

A ``state_dict`` of any optimizer or scheduler is such a tree. What JSON has no word for is written
as an object with one key that starts with ``$``: ``{"$tensor": name}``, ``{"$tuple": [...]}``,
``{"$float": "inf"}``, ``{"$items": [[key, value], ...]}`` for a dict whose keys are not plain text.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tiergnn.errors import ConfigError

_DICTS = {"$items": dict, "$ordered": OrderedDict, "$counter": Counter}


def encode(value: Any, tensors: dict[str, Tensor], path: str = "") -> Any:
    """The JSON form of ``value``; its tensors are added to ``tensors`` under their paths.

    Raises ConfigError naming the path of what cannot be written (a function, an open file).
    """
    if isinstance(value, Tensor):
        while path in tensors:  # {"a.b": ...} beside {"a": {"b": ...}}
            path += "'"
        tensors[path] = value.detach()
        return {"$tensor": path}
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, list | tuple):
        items = [encode(item, tensors, f"{path}.{i}") for i, item in enumerate(value)]
        if type(value) is tuple:
            return {"$tuple": items}
        if type(value) is list:
            return items
    if isinstance(value, dict) and type(value) in _DICTS.values():
        plain = type(value) is dict and all(
            isinstance(key, str) and not key.startswith("$") for key in value
        )
        if plain:
            return {key: encode(item, tensors, f"{path}.{key}") for key, item in value.items()}
        tag = next(name for name, kind in _DICTS.items() if kind is type(value))
        pairs = [
            [encode(key, tensors, f"{path}.key{i}"), encode(item, tensors, f"{path}.{key}")]
            for i, (key, item) in enumerate(value.items())
        ]
        return {tag: pairs}
    if isinstance(value, np.generic):
        return encode(value.item(), tensors, path)
    if isinstance(value, torch.device | torch.dtype):
        return {"$torch": str(value)}
    raise ConfigError(
        f"a checkpoint cannot keep a {type(value).__module__}.{type(value).__qualname__}",
        culprit=path.lstrip("."),
        hint="an optimizer and a scheduler whose state_dict holds tensors, numbers and text",
    )


def decode(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The tree that ``encode`` was given. Raises ValueError on an unknown tag."""
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    tag = next(iter(value), "")
    if len(value) != 1 or not tag.startswith("$"):
        return {key: decode(item, tensors) for key, item in value.items()}
    body = value[tag]
    if tag == "$tensor":
        return tensors[body]
    if tag == "$tuple":
        return tuple(decode(item, tensors) for item in body)
    if tag == "$float":
        return float(body)
    if tag == "$torch":
        kind = body.removeprefix("torch.")
        return getattr(torch, kind) if body != kind else torch.device(body)
    if tag in _DICTS:
        return _DICTS[tag]({decode(k, tensors): decode(item, tensors) for k, item in body})
    raise ValueError(f"unknown tag {tag!r}")
