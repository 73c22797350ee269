"""What the ready models share: layers with norm, activation, dropout and shortcuts between them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tiergnn.models.linear import Linear

ACTIVATIONS = {"relu": F.relu, "elu": F.elu, "leaky_relu": F.leaky_relu, "tanh": torch.tanh}
NORMS = ("none", "batch", "layer")
JUMPS = ("none", "cat", "max", "sum", "last")


class Stack(nn.Module):
    """Convolutions with norm, activation, dropout, residual and jumping knowledge between them.

    ``input_dropout`` (None: as ``dropout``) drops input features. ``residual`` adds a layer's input
    to its output, projected where widths differ. ``jk`` joins the outputs of all layers before a
    last linear layer ("last": of the last layer alone).
    """

    def __init__(
        self,
        convs: list[nn.Module],
        widths: list[int],
        out_channels: int,
        *,
        dropout: float,
        input_dropout: float | None,
        act: str,
        norm: str,
        residual: bool,
        jk: str,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.input_dropout = dropout if input_dropout is None else input_dropout
        self.act = ACTIVATIONS[act]
        self.jk = jk
        self.convs = nn.ModuleList(convs)
        hidden = widths[1:] if jk != "none" else widths[1:-1]
        self.norms = nn.ModuleList(_norm(norm, width) for width in hidden)
        self.residuals = nn.ModuleList(
            nn.Identity() if before == after else Linear(before, after, bias=False)
            for before, after in (pairwise(widths) if residual else ())
        )
        if jk != "none":
            joined = sum(widths[1:]) if jk == "cat" else widths[-1]
            self.lin = Linear(joined, out_channels)

    def reset_parameters(self) -> None:
        for module in self.modules():
            if module is not self and hasattr(module, "reset_parameters"):
                module.reset_parameters()  # pyright: ignore[reportCallIssue]

    def forward(
        self,
        x: Tensor,
        edge_index: Any,
        edge_weight: Tensor | None = None,
        edge_attr: Tensor | None = None,
    ) -> Tensor:
        """x [V, in_channels] -> [V, out_channels], without a softmax."""
        x = F.dropout(x, p=self.input_dropout, training=self.training)
        outputs = []
        for i, conv in enumerate(self.convs):
            start = x
            x = conv(x, edge_index, *self.edge_inputs(edge_weight, edge_attr))
            if self.residuals:
                x = x + self.residuals[i](start)
            if i < len(self.norms):
                x = self.act(self.norms[i](x))
                x = F.dropout(x, p=self.dropout, training=self.training)
                outputs.append(x)
        if self.jk == "none":
            return x
        if self.jk == "cat":
            x = torch.cat(outputs, dim=-1)
        elif self.jk == "max":
            x = torch.stack(outputs, dim=-1).max(dim=-1).values
        elif self.jk == "sum":
            x = torch.stack(outputs, dim=-1).sum(dim=-1)
        return self.lin(x)

    def edge_inputs(self, edge_weight: Any, edge_attr: Any) -> tuple[Any, ...]:
        """What of the edges the model's layers take."""
        return ()


def _norm(name: str, width: int) -> nn.Module:
    if name == "none":
        return nn.Identity()
    return nn.BatchNorm1d(width) if name == "batch" else nn.LayerNorm(width)


def layer_widths(
    in_channels: int, hidden_channels: int, out_channels: int, num_layers: int, jk: str
) -> list[int]:
    """The width before the first layer and after each."""
    if jk == "none":
        return [in_channels, *[hidden_channels] * (num_layers - 1), out_channels]
    return [in_channels, *[hidden_channels] * num_layers]
