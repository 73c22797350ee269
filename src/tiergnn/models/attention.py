"""GATConv and GATv2Conv on the fused attention kernels; see ``layers``.

Legend: P destinations, S sources, E edges, D edge features, K heads, F features a head.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import Parameter
from torch.nn.utils.parametrize import is_parametrized

from tiergnn.errors import ConfigError, unknown
from tiergnn.models import counts
from tiergnn.models import functional as ops
from tiergnn.models.bipartite import Sides, sides_of
from tiergnn.models.linear import Linear, ensure, glorot, is_plain, zeros
from tiergnn.models.options import check_options


class GATConv(nn.Module):
    """Attention over in-edges (Velickovic et al., ICLR 2018), [P, K*F] or the mean of heads [P, F].

    Each node attends to itself once when ``add_self_loops``; ``fill_value`` gives that loop's edge
    features: mean, add, sum, max, min of the node's in-edges, a number or a tensor [D].
    ``dropout`` drops attention coefficients in training.
    """

    lin_edge: Linear | None
    res: Linear | None
    bias: Parameter | None

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        edge_dim: int | None = None,
        fill_value: float | Tensor | str = "mean",
        bias: bool = True,
        residual: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        check_options(self, options)
        _check_fill(fill_value)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.heads = heads
        self.concat = concat
        self.negative_slope = negative_slope
        self.dropout = dropout
        self.add_self_loops = add_self_loops
        self.edge_dim = edge_dim
        self.fill_value = fill_value
        self.residual = residual
        self.lin = self.lin_src = self.lin_dst = None
        if isinstance(in_channels, int):
            self.lin = _projection(in_channels, heads * out_channels)
        else:
            self.lin_src = _projection(in_channels[0], heads * out_channels)
            self.lin_dst = _projection(in_channels[1], heads * out_channels)
        self.att_src = Parameter(torch.empty(1, heads, out_channels))
        self.att_dst = Parameter(torch.empty(1, heads, out_channels))
        self.lin_edge = None
        self.register_parameter("att_edge", None)
        if edge_dim is not None:
            self.lin_edge = _projection(edge_dim, heads * out_channels)
            self.att_edge = Parameter(torch.empty(1, heads, out_channels))
        _add_output(self, in_channels, bias, residual)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for lin in self.children():
            lin.reset_parameters()  # pyright: ignore[reportCallIssue]
        for att in (self.att_src, self.att_dst, self.att_edge):
            glorot(att)
        zeros(self.bias)

    def forward(
        self,
        x: Tensor | tuple[Tensor, Tensor | None],
        edge_index: Any,
        edge_attr: Tensor | None = None,
        size: tuple[int, int] | None = None,
        return_attention_weights: bool | None = None,
    ) -> Tensor:
        """x [V, D], or a pair (x_src, x_dst or None); edge_attr [E, edge_dim] -> [P, K*F or F]."""
        sides = _attention_sides(self, x, edge_index, size, return_attention_weights)
        lin_src: Any = self.lin or self.lin_src
        lin_dst: Any = self.lin or self.lin_dst
        h_src = lin_src(sides.x_src).view(-1, self.heads, self.out_channels)
        shared = lin_src is lin_dst and not isinstance(x, (tuple, list))
        if shared and is_plain(lin_src):
            folds = [_fold(lin_src, att, sides.x_src) for att in (self.att_src, self.att_dst)]
            both = ops.score_rows(sides.x_src, torch.cat(folds)).chunk(2, dim=1)
            score_src, score_dst = (score.contiguous() for score in both)  # as kernels read them
            score_dst = ops.own(score_dst, sides.block)
        else:
            score_src = _scores(lin_src, self.att_src, sides.x_src, h_src)
            if sides.x_dst is None:
                score_dst = score_src.new_zeros((counts.num_rows(sides.block), self.heads))
            else:
                h_dst = ops.own(h_src, sides.block) if shared else None
                score_dst = _scores(lin_dst, self.att_dst, sides.x_dst, h_dst)
        score_edge, score_loop = self._edge_scores(sides, edge_attr)
        out = ops.attend_gat(
            h_src,
            score_src,
            score_dst,
            sides.block,
            score_edge=score_edge,
            score_loop=score_loop,
            negative_slope=self.negative_slope,
            self_loop=self.add_self_loops,
            p=self.dropout if self.training else 0.0,
        )
        return _output(self, out, sides.x_dst)

    def _edge_scores(self, sides: Sides, edge_attr: Any) -> tuple[Any, Any]:
        """<att_edge, W e> of edges [E, K] and of self-loops [P, K], as e @ (W, att) [D, K]."""
        if edge_attr is not None and self.lin_edge is None:
            warnings.warn("GATConv without edge_dim does not use edge_attr", stacklevel=3)
        if edge_attr is None or self.lin_edge is None:
            return None, None
        edge_attr = _columns(sides.edges.rows(edge_attr))
        fold = _fold(self.lin_edge, self.att_edge, edge_attr).t()
        if not self.add_self_loops or self.fill_value == "mean":
            return edge_attr @ fold, None
        loop = ops.loop_attr(sides.block, edge_attr, fill=self.fill_value)
        return edge_attr @ fold, loop @ fold

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, heads={self.heads}"


class GATv2Conv(nn.Module):
    """GAT whose score is <att, leaky_relu(W_l x_j + W_r x_i + W_e e)> (Brody et al., ICLR 2022).

    Options are GATConv's; ``share_weights`` makes W_r the same as W_l.
    """

    lin_edge: Linear | None
    res: Linear | None
    bias: Parameter | None

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        edge_dim: int | None = None,
        fill_value: float | Tensor | str = "mean",
        bias: bool = True,
        share_weights: bool = False,
        residual: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        check_options(self, options)
        _check_fill(fill_value)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.heads = heads
        self.concat = concat
        self.negative_slope = negative_slope
        self.dropout = dropout
        self.add_self_loops = add_self_loops
        self.edge_dim = edge_dim
        self.fill_value = fill_value
        self.residual = residual
        self.share_weights = share_weights
        width_src, width_dst = (
            (in_channels, in_channels) if isinstance(in_channels, int) else in_channels
        )
        self.lin_l = _projection(width_src, heads * out_channels, bias)
        self.lin_r = (
            self.lin_l if share_weights else _projection(width_dst, heads * out_channels, bias)
        )
        self.att = Parameter(torch.empty(1, heads, out_channels))
        self.lin_edge = None
        if edge_dim is not None:
            self.lin_edge = _projection(edge_dim, heads * out_channels)
        _add_output(self, in_channels, bias, residual)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for lin in self.children():
            lin.reset_parameters()  # pyright: ignore[reportCallIssue]
        glorot(self.att)
        zeros(self.bias)

    def forward(
        self,
        x: Tensor | tuple[Tensor, Tensor],
        edge_index: Any,
        edge_attr: Tensor | None = None,
        return_attention_weights: bool | None = None,
    ) -> Tensor:
        """x [V, D], or a pair (x_src, x_dst); edge_attr [E, edge_dim] -> [P, K*F or F]."""
        sides = _attention_sides(self, x, edge_index, None, return_attention_weights)
        if sides.x_dst is None:
            raise ConfigError("GATv2Conv needs features of destinations, had None")
        heads = (self.heads, self.out_channels)
        x_src = self.lin_l(sides.x_src).view(-1, *heads)
        if self.share_weights and not isinstance(x, (tuple, list)):
            x_dst = ops.own(x_src, sides.block)
        else:
            x_dst = self.lin_r(sides.x_dst).view(-1, *heads)
        weight = loop = None
        if edge_attr is not None:
            if self.lin_edge is None:
                raise ConfigError(
                    "GATv2Conv gets edge_attr and was made without edge_dim",
                    hint="GATv2Conv(..., edge_dim=WIDTH), or no edge_attr for it",
                )
            edge_attr = _columns(sides.edges.rows(edge_attr))
            ensure(self.lin_edge, edge_attr)
            weight = self.lin_edge.weight.t().reshape(-1, *heads)
            if self.add_self_loops and self.fill_value != "mean":
                loop = ops.loop_attr(sides.block, edge_attr, fill=self.fill_value)
        out = ops.attend_gatv2(
            x_src,
            x_dst,
            self.att.view(*heads),
            sides.block,
            edge_attr=edge_attr,
            edge_weight=weight,
            loop_attr=loop,
            negative_slope=self.negative_slope,
            self_loop=self.add_self_loops,
            p=self.dropout if self.training else 0.0,
        )
        return _output(self, out, sides.x_dst)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, heads={self.heads}"


def _fold(lin: Any, att: Tensor, x: Any) -> Tensor:
    """(W, att) of every head [K, D]: with it x @ fold.t() is <att, W x> of rows x, without W x."""
    ensure(lin, x)
    _, heads, width = att.shape
    return (lin.weight.view(heads, width, -1) * att.view(heads, width, 1)).sum(1)


def _scores(lin: Any, att: Tensor, x: Any, h: Any = None) -> Any:
    """<att, h> of rows h = lin(x) [.., K, F]: [.., K]."""
    if is_plain(lin):
        return ops.score_rows(x, _fold(lin, att, x))
    h = lin(x).view(-1, *att.shape[1:]) if h is None else h
    return (h * att).sum(dim=-1)


def _projection(width: int, out_channels: int, bias: bool = False) -> Linear:
    return Linear(width, out_channels, bias=bias, weight_initializer="glorot")


def _add_output(layer: Any, in_channels: int | tuple[int, int], bias: bool, residual: bool) -> None:
    """The residual projection and the bias, of the width of what the layer returns."""
    width = layer.out_channels * (layer.heads if layer.concat else 1)
    layer.res = None
    if residual:
        own_width = in_channels if isinstance(in_channels, int) else in_channels[1]
        layer.res = _projection(own_width, width)
    layer.register_parameter("bias", Parameter(torch.empty(width)) if bias else None)


def _output(layer: Any, out: Any, x_dst: Any) -> Any:
    """out [P, K, F] as one row a destination, with the residual of x_dst and the bias."""
    joined = layer.concat or layer.heads == 1  # of one head, its mean is a pass for nothing
    out = out.flatten(1) if joined else out.mean(dim=1)
    if layer.res is not None and x_dst is not None:
        out = out + layer.res(x_dst)
    return out if layer.bias is None else out + layer.bias


def _attention_sides(
    layer: Any, x: Any, graph: Any, size: tuple[int, int] | None, weights: bool | None
) -> Sides:
    if weights is not None:
        raise ConfigError(
            f"{type(layer).__name__} never holds its attention weights",
            hint="PyG's layer with the same state_dict, on a graph that is small enough",
        )
    edges = layer.lin_edge
    if edges is not None and not (is_plain(edges) or is_parametrized(edges)):
        raise ConfigError(
            f"lin_edge of {type(layer).__name__} is more than a product: its weight alone is read",
            hint="what it does besides, done to edge_attr before the layer",
        )
    sides = sides_of(x, graph, size)
    pair = isinstance(x, (tuple, list)) and x[1] is not None
    if layer.add_self_loops and pair and x[0].shape[0] is not None:
        _check_loops(x)
    return sides


def _check_loops(x: Any) -> None:
    sizes = x[0].shape[0], x[1].shape[0]
    if all(isinstance(size, int) for size in sizes) and sizes[0] < sizes[1]:
        raise ConfigError(
            f"self-loops of {sizes[1]} destinations over {sizes[0]} sources",
            hint="add_self_loops=False",
        )


def _columns(edge_attr: Any) -> Any:
    """Edge features [E] as one column [E, 1]."""
    return edge_attr.unsqueeze(-1) if edge_attr.dim() == 1 else edge_attr


def _check_fill(fill_value: float | Tensor | str) -> None:
    if isinstance(fill_value, str) and fill_value not in ops.FILLS:
        raise unknown("fill_value", fill_value, ops.FILLS)
