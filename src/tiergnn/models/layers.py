"""PyG's convolutions on tiergnn's kernels: the same arguments, parameter names and numbers.

A layer is called as PyG's is, ``layer(x, edge_index, ...)``, with an ``edge_index`` [2, E] in any
order or with a Block (rows of edges are then in the block's order). ``in_channels`` -1 takes the
width of the first input. Options of PyG's that are not here raise ConfigError. A GCN's, SAGE's or
SGC's dense product runs on the side of the aggregation that makes gathered rows narrower, or after
an aggregation that can be prepared (``models/prepare``), which changes nothing but rounding.

Legend: V nodes, P destinations, S sources, E edges, D in-features, F out-features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parameter import Parameter

from tiergnn.errors import ConfigError, unknown
from tiergnn.models import counts, dropouts
from tiergnn.models import functional as ops
from tiergnn.models.attention import GATConv, GATv2Conv
from tiergnn.models.bipartite import Sides, sides_of
from tiergnn.models.edges import edges_of
from tiergnn.models.fixed import is_free_to_aggregate
from tiergnn.models.linear import Linear, ensure, is_plain, is_product, reset, zeros
from tiergnn.models.options import check_options

__all__ = ["APPNP", "GATConv", "GATv2Conv", "GCNConv", "GINConv", "Linear", "SAGEConv", "SGConv"]

AGGREGATIONS = ("mean", "max", "sum", "add")


class GCNConv(nn.Module):
    """D^-1/2 (A + I) D^-1/2 x W + b (Kipf and Welling, ICLR 2017).

    Each node has exactly one self-loop: its own last one with its weight, else one that weighs 1
    (2 when ``improved`` and there are edge weights, as in PyG 2.8). ``normalize=False`` is the
    plain weighted sum. What depends on the graph alone is always kept, ``cached`` or not.
    """

    bias: Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        improved: bool = False,
        cached: bool = False,
        add_self_loops: bool | None = None,
        normalize: bool = True,
        bias: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        check_options(self, options)
        if add_self_loops and not normalize:
            raise ConfigError(
                "GCNConv adds self-loops only where it normalises",
                hint="normalize=True, or self-loops in the graph itself",
            )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.improved = improved
        self.cached = cached
        self.add_self_loops = normalize if add_self_loops is None else add_self_loops
        self.normalize = normalize
        self.lin = Linear(in_channels, out_channels, bias=False, weight_initializer="glorot")
        self.register_parameter("bias", Parameter(torch.empty(out_channels)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.lin.reset_parameters()
        zeros(self.bias)

    def forward(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        """x [V, D], edge_weight [E] -> [V, F]."""
        _check_single(self, x)
        edges = edges_of(edge_index, x.shape[0])
        weight = edges.rows(edge_weight)
        narrow_first = self.out_channels <= x.shape[-1] and not is_free_to_aggregate(x)
        narrow_first = narrow_first or not is_plain(self.lin)
        if narrow_first:
            x = self.lin(x)
        bias = self.bias if narrow_first else None
        if self.normalize:
            out = ops.gcn_propagate(
                x,
                edges.block,
                weight,
                fill=2.0 if self.improved else 1.0,
                self_loops=self.add_self_loops,
                bias=bias,
            )
        else:
            out = ops.propagate(x, edges.block, weight)
            out = out if bias is None else out + bias
        if not narrow_first:
            out = self.lin(out)
            out = out if self.bias is None else out + self.bias
        return out

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}"


class SAGEConv(nn.Module):
    """W_l aggregate(x_j) + W_r x_i (Hamilton, Ying, Leskovec, NeurIPS 2017).

    aggr: mean, max, sum or add. ``x`` may be a pair (x_src, x_dst) of a bipartite graph.
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        aggr: str = "mean",
        normalize: bool = False,
        root_weight: bool = True,
        project: bool = False,
        bias: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        check_options(self, options)
        if aggr not in AGGREGATIONS:
            raise unknown("aggr of SAGEConv", aggr, AGGREGATIONS)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.aggr = aggr
        self.normalize = normalize
        self.root_weight = root_weight
        self.project = project
        width_src, width_dst = (
            (in_channels, in_channels) if isinstance(in_channels, int) else in_channels
        )
        if project:
            if width_src <= 0:
                raise ConfigError(
                    "SAGEConv(project=True) needs its in_channels", hint="the width of x"
                )
            self.lin = Linear(width_src, width_src)
        self.lin_l = Linear(width_src, out_channels, bias=bias)
        if root_weight:
            self.lin_r = Linear(width_dst, out_channels, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for lin in self.children():
            reset(lin)

    def forward(
        self,
        x: Tensor | tuple[Tensor, Tensor | None],
        edge_index: Any,
        size: tuple[int, int] | None = None,
    ) -> Tensor:
        """x [V, D], or a pair of [S, D] and [P, D'] (or None), of a graph of ``size`` -> [P, F]."""
        sides: Sides = sides_of(x, edge_index, size)
        x_src = self.lin(sides.x_src).relu() if self.project else sides.x_src
        reduce = "sum" if self.aggr == "add" else self.aggr
        narrow_first = self.out_channels < x_src.shape[-1] and not is_free_to_aggregate(x_src)
        if reduce != "max" and narrow_first and is_product(self.lin_l):
            ensure(self.lin_l, x_src)
            out = ops.propagate(F.linear(x_src, self.lin_l.weight), sides.block, reduce=reduce)
            if self.lin_l.bias is not None:
                out = out + self.lin_l.bias
        else:
            out = self.lin_l(ops.propagate(x_src, sides.block, reduce=reduce))
        if self.root_weight and sides.x_dst is not None:
            out = out + self.lin_r(sides.x_dst)
        return F.normalize(out, p=2.0, dim=-1) if self.normalize else out

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, aggr={self.aggr}"


class GINConv(nn.Module):
    """nn((1 + eps) x_i + sum of x_j) (Xu, Hu, Leskovec, Jegelka, ICLR 2019).

    ``nn`` maps rows to rows. ``eps`` is a buffer, or a parameter when ``train_eps``.
    """

    eps: Tensor

    def __init__(
        self,
        nn: Callable[[Tensor], Tensor],
        eps: float = 0.0,
        train_eps: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        check_options(self, options)
        self.nn = nn
        self.initial_eps = eps
        if train_eps:
            self.eps = Parameter(torch.empty(1))
        else:
            self.register_buffer("eps", torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        reset(self.nn)
        self.eps.data.fill_(self.initial_eps)

    def forward(
        self,
        x: Tensor | tuple[Tensor, Tensor | None],
        edge_index: Any,
        size: tuple[int, int] | None = None,
    ) -> Tensor:
        """x [V, D], or a pair of [S, D] and [P, D] (or None), of a graph of ``size`` -> [P, F]."""
        sides = sides_of(x, edge_index, size)
        out = ops.propagate(sides.x_src, sides.block)
        if sides.x_dst is not None:
            out = out + (1 + self.eps) * sides.x_dst
        return self.nn(out)


class SGConv(nn.Module):
    """(D^-1/2 (A + I) D^-1/2)^K x W + b (Wu et al., ICML 2019); loops and degrees as in GCNConv.

    ``cached`` is accepted and changes no number.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        K: int = 1,
        cached: bool = False,
        add_self_loops: bool = True,
        bias: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        check_options(self, options)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.K = K
        self.cached = cached
        self.add_self_loops = add_self_loops
        self.lin = Linear(in_channels, out_channels, bias=bias)

    def reset_parameters(self) -> None:
        self.lin.reset_parameters()

    def forward(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        """x [V, D], edge_weight [E] -> [V, F]."""
        _check_single(self, x)
        edges = edges_of(edge_index, x.shape[0])
        weight = edges.rows(edge_weight)
        narrow_first = self.out_channels < x.shape[-1] and not is_free_to_aggregate(x)
        narrow_first = narrow_first and self.K > 0 and is_product(self.lin)
        if narrow_first:
            ensure(self.lin, x)
            x = F.linear(x, self.lin.weight)
        for hop in range(self.K):
            last = narrow_first and hop == self.K - 1
            x = ops.gcn_propagate(
                x,
                edges.block,
                weight,
                self_loops=self.add_self_loops,
                bias=self.lin.bias if last else None,
            )
        return x if narrow_first else self.lin(x)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, K={self.K}"


class APPNP(nn.Module):
    """K times x <- (1 - alpha) D^-1/2 (A + I) D^-1/2 x + alpha x0 (Gasteiger et al., ICLR 2019).

    Loops and degrees are as in GCNConv. ``dropout`` drops normalised edges, self-loops included,
    anew and cumulatively at each of the K steps, as PyG does. ``cached`` changes no number.
    """

    def __init__(
        self,
        K: int,
        alpha: float,
        dropout: float = 0.0,
        cached: bool = False,
        add_self_loops: bool = True,
        normalize: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        check_options(self, options)
        self.K = K
        self.alpha = alpha
        self.dropout = dropout
        self.cached = cached
        self.add_self_loops = add_self_loops
        self.normalize = normalize

    def reset_parameters(self) -> None:
        """Nothing to reset: there are no parameters."""

    def forward(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        """x [V, D], edge_weight [E] -> [V, D]."""
        _check_single(self, x)
        edges = edges_of(edge_index, x.shape[0])
        block, weight = edges.block, edges.rows(edge_weight)
        p = self.dropout if self.training else 0.0
        if p and not self.normalize and weight is None:
            raise ConfigError(
                "APPNP(normalize=False) drops edge weights, and there are none",
                hint="normalize=True, or edge_weight",
            )
        ops.check_square(block, "APPNP")
        loops = self.normalize and self.add_self_loops
        scale = loop = None
        if self.normalize:
            scale = ops.gcn_scale(block, weight, self_loops=loops, dtype=x.dtype)
        if loops and weight is not None:
            loop = ops.loop_scale(block, weight)
        elif loops and p:
            loop = counts.row_ones(block, dtype=x.dtype)
        if p and weight is None:
            weight = counts.edge_ones(block, dtype=x.dtype)
        start = x
        for _ in range(self.K):
            if p:
                weight = dropouts.drop_edges(weight, block, p=p)
                loop = None if loop is None else dropouts.drop_loops(loop, block, p=p)
            if scale is not None:
                x = ops.scale_rows(x, scale)
            out = ops.propagate(x, block, weight, skip_loops=loops)
            if loops:
                out = out + (x if loop is None else x * loop)
            if scale is not None:
                out = ops.scale_rows(out, scale)
            x = torch.add(out * (1 - self.alpha), start, alpha=self.alpha)
        return x

    def extra_repr(self) -> str:
        return f"K={self.K}, alpha={self.alpha}"


def _check_single(layer: nn.Module, x: Any) -> None:
    if isinstance(x, (tuple, list)):
        raise ConfigError(
            f"{type(layer).__name__} works on one set of nodes, had a pair of feature matrices",
            hint="SAGEConv, GINConv, GATConv and GATv2Conv take pairs",
        )


LAYERS: Mapping[str, type[nn.Module]] = {
    layer.__name__: layer
    for layer in (GCNConv, SAGEConv, GINConv, GATConv, GATv2Conv, SGConv, APPNP)
}
"""Name -> layer; a PyG layer of the same name runs as this one when a model is traced."""
