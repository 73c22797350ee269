"""What a model is given: a dtype, and examples of rows, by which it is traced and metered."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tiergnn.errors import unknown
from tiergnn.graph.csr import Graph
from tiergnn.training.options import DTYPES

_EXAMPLES = 16  # rows of the graph that are looked at


def example_rows(
    graph: Graph, width: int, device: torch.device, dtype: torch.dtype
) -> dict[str, Tensor]:
    """A few rows of what the graph gives, as the executor hands them to the model."""
    inputs = {"x": torch.ones(_EXAMPLES, width, device=device, dtype=dtype)}
    if graph.edge_weight is not None:
        inputs["edge_weight"] = torch.ones(_EXAMPLES, device=device, dtype=dtype)
    if graph.edge_attr is not None:
        inputs["edge_attr"] = torch.ones(
            _EXAMPLES, graph.edge_attr.width, device=device, dtype=dtype
        )
    return inputs


def dtype_of(model: nn.Module, name: str | None) -> torch.dtype:
    """The dtype to compute in: the one asked for, else that of the model's parameters."""
    if name is None:
        found = [p.dtype for p in model.parameters() if p.dtype.is_floating_point]
        name = str(found[0]).removeprefix("torch.") if found else "float32"
    if name not in DTYPES:
        raise unknown("dtype of a model's parameters", name, DTYPES)
    return getattr(torch, name)
