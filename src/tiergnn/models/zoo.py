"""Ready models, by name: what ``tiergnn train --model`` offers.

``build("gcn", 1433, 7)`` and ``build("gat", 1433, 7)`` are the networks of the original papers
(Kipf and Welling, ICLR 2017; Velickovic et al., ICLR 2018).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from tiergnn.errors import unknown
from tiergnn.models import layers
from tiergnn.models.domains import checked
from tiergnn.models.layers import GATConv, GATv2Conv, GCNConv, GINConv, Linear, SAGEConv, SGConv
from tiergnn.models.stack import Stack, layer_widths


class GCN(Stack):
    """GCNConv layers; as in the paper: 16 hidden channels, dropout 0.5 on inputs and hidden."""

    @checked
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        hidden_channels: int = 16,
        num_layers: int = 2,
        dropout: float = 0.5,
        input_dropout: float | None = None,
        act: str = "relu",
        norm: str = "none",
        residual: bool = False,
        jk: str = "none",
        improved: bool = False,
        add_self_loops: bool = True,
    ) -> None:
        widths = layer_widths(in_channels, hidden_channels, out_channels, num_layers, jk)
        options = {"improved": improved, "add_self_loops": add_self_loops}
        super().__init__(
            [GCNConv(a, b, **options) for a, b in pairwise(widths)],
            widths,
            out_channels,
            dropout=dropout,
            input_dropout=input_dropout,
            act=act,
            norm=norm,
            residual=residual,
            jk=jk,
        )

    def edge_inputs(self, edge_weight: Any, edge_attr: Any) -> tuple[Any, ...]:
        return (edge_weight,)


class SAGE(Stack):
    """SAGEConv layers; ``aggr`` is mean, max or sum."""

    @checked
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        hidden_channels: int = 256,
        num_layers: int = 2,
        dropout: float = 0.5,
        input_dropout: float | None = 0.0,
        act: str = "relu",
        norm: str = "none",
        residual: bool = False,
        jk: str = "none",
        aggr: str = "mean",
    ) -> None:
        widths = layer_widths(in_channels, hidden_channels, out_channels, num_layers, jk)
        super().__init__(
            [SAGEConv(a, b, aggr=aggr) for a, b in pairwise(widths)],
            widths,
            out_channels,
            dropout=dropout,
            input_dropout=input_dropout,
            act=act,
            norm=norm,
            residual=residual,
            jk=jk,
        )


class GIN(Stack):
    """GINConv layers over a two-layer perceptron each, with BatchNorm inside as in the paper."""

    @checked
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        hidden_channels: int = 64,
        num_layers: int = 2,
        dropout: float = 0.5,
        input_dropout: float | None = 0.0,
        act: str = "relu",
        norm: str = "none",
        residual: bool = False,
        jk: str = "none",
        train_eps: bool = False,
    ) -> None:
        widths = layer_widths(in_channels, hidden_channels, out_channels, num_layers, jk)
        super().__init__(
            [
                GINConv(
                    nn.Sequential(
                        Linear(a, hidden_channels),
                        nn.BatchNorm1d(hidden_channels),
                        nn.ReLU(),
                        Linear(hidden_channels, b),
                    ),
                    train_eps=train_eps,
                )
                for a, b in pairwise(widths)
            ],
            widths,
            out_channels,
            dropout=dropout,
            input_dropout=input_dropout,
            act=act,
            norm=norm,
            residual=residual,
            jk=jk,
        )


class GAT(Stack):
    """GATConv layers; as in the paper: 8 heads of 8, ELU, dropout 0.6 on inputs and attention.

    ``hidden_channels`` is the width of one head; hidden layers join their heads, an output layer
    averages ``out_heads``. ``attention_dropout`` None is as ``dropout``.
    """

    conv: type[GATConv] | type[GATv2Conv] = GATConv

    @checked
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        hidden_channels: int = 8,
        num_layers: int = 2,
        heads: int = 8,
        out_heads: int = 1,
        dropout: float = 0.6,
        input_dropout: float | None = None,
        attention_dropout: float | None = None,
        act: str = "elu",
        norm: str = "none",
        residual: bool = False,
        jk: str = "none",
        add_self_loops: bool = True,
        edge_dim: int | None = None,
    ) -> None:
        widths = layer_widths(in_channels, hidden_channels * heads, out_channels, num_layers, jk)
        options: dict[str, Any] = {
            "dropout": dropout if attention_dropout is None else attention_dropout,
            "add_self_loops": add_self_loops,
            "edge_dim": edge_dim,
        }
        convs: list[nn.Module] = [
            self.conv(before, hidden_channels, heads=heads, **options) for before in widths[:-1]
        ]
        if jk == "none":
            convs[-1] = self.conv(
                widths[-2], out_channels, heads=out_heads, concat=False, **options
            )
        super().__init__(
            convs,
            widths,
            out_channels,
            dropout=dropout,
            input_dropout=input_dropout,
            act=act,
            norm=norm,
            residual=residual,
            jk=jk,
        )
        self.edge_dim = edge_dim

    def edge_inputs(self, edge_weight: Any, edge_attr: Any) -> tuple[Any, ...]:
        return () if self.edge_dim is None else (edge_attr,)


class GATv2(GAT):
    """GAT with GATv2Conv layers."""

    conv = GATv2Conv


class SGC(nn.Module):
    """One linear layer after K propagations (Wu et al., ICML 2019)."""

    @checked
    def __init__(
        self, in_channels: int, out_channels: int, *, K: int = 2, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.conv = SGConv(in_channels, out_channels, K=K)

    def reset_parameters(self) -> None:
        self.conv.reset_parameters()

    def forward(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        """x [V, in_channels] -> [V, out_channels], without a softmax."""
        x = F.dropout(x, p=self.dropout, training=self.training)
        return self.conv(x, edge_index, edge_weight)


class APPNP(nn.Module):
    """A perceptron whose outputs are propagated (Gasteiger et al., ICLR 2019).

    ``dropout`` drops inputs and hidden rows, ``edge_dropout`` edges at each of the K steps.
    """

    @checked
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        hidden_channels: int = 64,
        num_layers: int = 2,
        K: int = 10,
        alpha: float = 0.1,
        dropout: float = 0.5,
        edge_dropout: float = 0.5,
    ) -> None:
        super().__init__()
        widths = layer_widths(in_channels, hidden_channels, out_channels, num_layers, "none")
        self.dropout = dropout
        self.lins = nn.ModuleList(Linear(a, b) for a, b in pairwise(widths))
        self.propagate = layers.APPNP(K, alpha, dropout=edge_dropout)

    def reset_parameters(self) -> None:
        for lin in self.lins:
            lin.reset_parameters()  # pyright: ignore[reportCallIssue]

    def forward(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        """x [V, in_channels] -> [V, out_channels], without a softmax."""
        for i, lin in enumerate(self.lins):
            x = lin(F.dropout(x, p=self.dropout, training=self.training))
            if i < len(self.lins) - 1:
                x = F.relu(x)
        return self.propagate(x, edge_index, edge_weight)


MODELS: dict[str, type[nn.Module]] = {
    "gcn": GCN,
    "sage": SAGE,
    "gin": GIN,
    "gat": GAT,
    "gatv2": GATv2,
    "sgc": SGC,
    "appnp": APPNP,
}


def options_of(name: str) -> dict[str, Any]:
    """The options of a ready model and their defaults. Raises ConfigError for an unknown name."""
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    parameters = inspect.signature(MODELS[name]).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def build(name: str, in_channels: int, out_channels: int, **options: Any) -> nn.Module:
    """A ready model: ``build("gcn", 1433, 7, hidden_channels=64)``; see ``options_of``.

    The model's ``config`` holds these arguments, so that ``from_config`` builds it again. Raises
    ConfigError for an unknown name or option, listing the known ones, and for a value out of its
    domain.
    """
    known = options_of(name)
    for option in options:
        if option not in known:
            raise unknown(f"option of {name}", option, known)
    model = MODELS[name](in_channels, out_channels, **options)  # pyright: ignore[reportCallIssue]
    config = {"name": name, "in_channels": in_channels, "out_channels": out_channels}
    model.config = {**config, "options": options}  # pyright: ignore[reportArgumentType]
    return model


def from_config(config: Mapping[str, Any]) -> nn.Module:
    """The model that ``build`` gave this ``config`` (its parameters are new)."""
    return build(config["name"], config["in_channels"], config["out_channels"], **config["options"])
