"""The graph operations that layers are made of: where a model is cut.

Each is an ordinary function of tensors and a Block. Called while a model is traced, it becomes one
node of the trace instead. A *graph operation* reads gathered rows (those of its sources) and own
rows (those of its destinations); a *structure* function reads nothing but the block and rows of
its edges, so that any part computes its own; a *statistic* reads own rows of the whole graph.

Legend: V nodes, P destinations, S sources, E edges, D columns, K heads, F features a head.
"""

from __future__ import annotations

from typing import Any, NamedTuple, overload

import torch
from torch import Tensor
from torch.fx import Proxy

from tiergnn.errors import ConfigError, unknown
from tiergnn.kernels.aggregate import aggregate, aggregate_grad
from tiergnn.kernels.attention import edge_mean, gat_attention, gatv2_attention
from tiergnn.kernels.block import Block
from tiergnn.kernels.dropout import Key
from tiergnn.kernels.epilogue import epilogue
from tiergnn.kernels.product import linear_rows
from tiergnn.kernels.table import RowTable
from tiergnn.models.dropouts import draw_key
from tiergnn.models.operation import kept, operation

FILLS = ("mean", "add", "sum", "max", "min")


class Columns(NamedTuple):
    """Of which columns the rows are that a graph operation gathers first: ``first`` and on, of
    ``total``. A slice of attention's columns is that of whole heads."""

    first: int
    total: int


@operation(kind="graph", gathers=("x",))
def propagate(
    x: Tensor | RowTable,
    block: Block,
    weight: Tensor | None = None,
    *,
    reduce: str = "sum",
    skip_loops: bool = False,
    columns: Columns | None = None,
    adjoint: bool = False,
) -> Tensor:
    """out[i] = reduce over in-edges (j, i) of weight * x[j]: x [S, ...] -> [P, ...].

    skip_loops leaves out the edges from a row to itself. ``adjoint``: the gradient [S, ...] of the
    sum or mean of such rows from that of the result, x [P, ...]. Raises what ``kernels.aggregate``
    raises.
    """
    if skip_loops:
        if weight is None:
            block = block.without_loops
        elif (loops := _loops(block)) is not None:
            weight = weight.masked_fill(loops, 0)
    flat = x
    if len(x.shape) != 2:
        flat = _flat(x) if isinstance(x, Tensor) else RowTable([_flat(t) for t in x.tables])
    if weight is not None and weight.dim() == 2 and columns is not None:
        weight = _of_columns(weight, columns, flat.shape[1])
    if adjoint and block.reverses is not None:
        assert isinstance(flat, Tensor)
        assert weight is None
        if reduce == "mean":
            flat = flat / block.reverses[:, int(skip_loops), None].clamp(min=1)
        out = aggregate(block, flat)
    elif adjoint:
        assert isinstance(flat, Tensor)
        out = aggregate_grad(block, flat, mean=reduce == "mean", weight_E=weight)
        out = block.straight(out)
    else:
        flat = block.turned(flat) if isinstance(flat, Tensor) else flat
        out = aggregate(block, flat, reduce=reduce, weight_E=weight)
    return out if len(x.shape) == 2 else out.reshape(out.shape[0], *x.shape[1:])


def _flat(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], x.shape[1:].numel())


def _of_columns(weight: Tensor, columns: Columns, count: int) -> Tensor:
    """Of weights [E, K] those of ``count`` columns; one a column where groups are cut."""
    each = columns.total // max(1, weight.shape[1])
    first, last = columns.first, columns.first + count
    if first % each == 0 and last % each == 0:
        return weight[:, first // each : last // each]
    return weight[:, torch.arange(first, last, device=weight.device) // each]


def mean_of_sum(total: Tensor, block: Block, skip_loops: bool) -> Tensor:
    """The mean over in-edges [P, ...] from their sum; a row without in-edges stays 0."""
    counted = block.without_loops if skip_loops else block
    shape = (block.num_dst, *[1] * (total.dim() - 1))
    return total / counted.in_degree.clamp(min=1).to(total.dtype).view(shape)


@operation(kind="graph", gathers=("h", "score_src"))
def attend_gat(
    h: Tensor,
    score_src: Tensor,
    score_dst: Tensor,
    block: Block,
    *,
    score_edge: Tensor | None = None,
    score_loop: Tensor | None = None,
    negative_slope: float = 0.2,
    self_loop: bool = True,
    p: float = 0.0,
    key: Key | None = None,
    site: int = 0,
    columns: Columns | None = None,
) -> Tensor:
    """GAT's softmax over in-edges: h [S, K, F] -> [P, K, F]. See ``kernels.attention``.

    Of the other tensors the heads of h are taken, where it has some of them only.
    """
    heads = _Heads.of(columns, h)
    return gat_attention(
        block,
        block.turned(h),
        block.turned(heads.take(score_src)),
        heads.take(score_dst),
        score_edge_EK=heads.take(score_edge),
        score_loop_PK=heads.take(score_loop),
        negative_slope=negative_slope,
        self_loop=self_loop,
        p=p,
        key=draw_key(p) if key is None else key,
        site=site,
        head=heads.first,
    )


@operation(kind="graph", gathers=("x_src",))
def attend_gatv2(
    x_src: Tensor,
    x_dst: Tensor,
    att: Tensor,
    block: Block,
    *,
    edge_attr: Tensor | None = None,
    edge_weight: Tensor | None = None,
    loop_attr: Tensor | None = None,
    negative_slope: float = 0.2,
    self_loop: bool = True,
    p: float = 0.0,
    key: Key | None = None,
    site: int = 0,
    columns: Columns | None = None,
) -> Tensor:
    """GATv2's softmax over in-edges: x_src [S, K, F] -> [P, K, F]. See ``kernels.attention``.

    Of the other tensors the heads of x_src are taken, where it has some of them only.
    """
    heads = _Heads.of(columns, x_src)
    return gatv2_attention(
        block,
        block.turned(x_src),
        heads.take(x_dst),
        heads.take(att, 0),
        edge_attr_ED=edge_attr,
        edge_weight_DKF=heads.take(edge_weight),
        loop_attr_PD=loop_attr,
        negative_slope=negative_slope,
        self_loop=self_loop,
        p=p,
        key=draw_key(p) if key is None else key,
        site=site,
        head=heads.first,
    )


class _Heads(NamedTuple):
    """The heads of a slice."""

    first: int
    number: int

    @classmethod
    def of(cls, columns: Columns | None, x: Tensor) -> _Heads:
        """Those of x [S, K, F]."""
        return cls(0 if columns is None else columns.first // max(1, x.shape[2]), x.shape[1])

    @overload
    def take(self, x: Tensor, dim: int = 1) -> Tensor: ...
    @overload
    def take(self, x: None, dim: int = 1) -> None: ...
    def take(self, x: Tensor | None, dim: int = 1) -> Tensor | None:
        """Of what has all heads, or these alone already, these."""
        if x is None or x.shape[dim] == self.number:
            return x
        return x.narrow(dim, self.first, self.number)


# Graph operations that work on every column, or head, by itself.
COLUMNWISE = (propagate, attend_gat, attend_gatv2)


@operation(kind="structure")
def gcn_scale(
    block: Block,
    weight: Tensor | None = None,
    *,
    fill: float = 1.0,
    self_loops: bool = True,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """deg ** -0.5 of every row, 0 where deg is 0: [P, 1], in ``dtype`` or float32 if wider.

    deg is the sum of a row's in-edge weights (1 each without weights), a row having exactly one
    self-loop when ``self_loops``: its own last one, else one that weighs ``fill`` (1 without
    weights, as in PyG's gcn_norm). Kept with the block unless the weights need a gradient.
    """
    wide = torch.promote_types(dtype, torch.float32)
    if weight is None:
        return kept(
            block,
            ("gcn", self_loops, wide),
            None,
            lambda: _inverse_sqrt_degree(
                (block.without_loops.in_degree + 1 if self_loops else block.in_degree).to(wide)
            ),
        )
    if weight.requires_grad:
        return _inverse_sqrt_degree(_degree(block, weight.to(wide), fill, self_loops))
    return kept(
        block,
        ("gcn", self_loops, wide, fill),
        weight,
        lambda: _inverse_sqrt_degree(_degree(block, weight.to(wide), fill, self_loops)),
    )


def _degree(block: Block, weight: Tensor, fill: float, self_loops: bool) -> Tensor:
    ones = torch.ones(block.num_src, 1, dtype=weight.dtype, device=weight.device)
    degree = propagate(ones, block, weight, skip_loops=self_loops)[:, 0]
    return degree + block.loop_weight(weight, fill=fill) if self_loops else degree


def _inverse_sqrt_degree(degree: Tensor) -> Tensor:
    # The inner where keeps the gradient of a degree of 0 from being 0 * inf.
    none = degree == 0
    return torch.where(none, 0.0, torch.where(none, 1.0, degree).pow(-0.5))[:, None]


@operation(kind="structure")
def loop_scale(block: Block, weight: Tensor, *, fill: float = 1.0) -> Tensor:
    """The weight of every row's one self-loop, [P, 1]: its own last one's, else ``fill``."""
    loop = block.loop_weight(weight, fill=fill)
    assert isinstance(loop, Tensor)
    return loop[:, None]


@operation(kind="structure")
def loop_attr(block: Block, edge_attr: Tensor, *, fill: float | str | Tensor = "mean") -> Tensor:
    """The features [P, D] that PyG gives the self-loop it adds to every row, from [E, D].

    A number or a tensor [D] fills every row; a name reduces the row's in-edges other than loops,
    0 where there are none. Raises ConfigError for an unknown name.
    """
    shape = (block.num_dst, *edge_attr.shape[1:])
    if isinstance(fill, Tensor):
        return fill.to(edge_attr.device, edge_attr.dtype).expand(shape)
    if not isinstance(fill, str):
        return edge_attr.new_full(shape, fill)
    if fill not in FILLS:
        raise unknown("fill_value", fill, FILLS)
    if fill in ("mean", "add", "sum"):
        mean = edge_mean(block, edge_attr)
        count = block.without_loops.in_degree.to(mean.dtype)[:, None]
        return mean if fill == "mean" else mean * count
    edges = torch.nonzero(block.col != block.edge_dst).flatten()
    rows = block.edge_dst[edges][:, None].expand(-1, edge_attr.shape[1])
    zero = edge_attr.new_zeros(shape)
    return zero.scatter_reduce(0, rows, edge_attr[edges], "a" + fill, include_self=False)


def own(x: Any, block: Any) -> Any:
    """Of the rows of sources [S, ...], the destinations' [P, ...], which are the first."""
    if issubclass(type(block), Proxy) or x.shape[0] == block.num_dst:
        return x
    return x[: block.num_dst]


def gcn_propagate(
    x: Any,
    block: Any,
    weight: Any = None,
    *,
    fill: float = 1.0,
    self_loops: bool = True,
    bias: Any = None,
) -> Any:
    """D^-1/2 (A + I) D^-1/2 x + bias, as two scalings of rows around a plain sum: [P, D].

    Each row has exactly one self-loop as in ``gcn_scale``; self_loops=False takes the edges as
    they are. A row's degree comes from its own in-edges, so that a part needs no other's.
    """
    check_square(block, "a symmetric normalisation")
    scale = gcn_scale(block, weight, fill=fill, self_loops=self_loops, dtype=x.dtype)
    scaled = scale_rows(x, scale)
    out = propagate(scaled, block, weight, skip_loops=self_loops)
    loop = loop_scale(block, weight, fill=fill) if self_loops and weight is not None else None
    other = scaled if self_loops else None
    return finish_rows(out, other=other, loop=loop, scale=scale, bias=bias)


@operation(kind="rows")
def scale_rows(x: Tensor, scale: Tensor) -> Tensor:
    """x [P, D] * scale [P, 1], in the dtype of x."""
    return (x * scale).to(x.dtype)


@operation(kind="rows")
def score_rows(x: Tensor, fold: Tensor) -> Tensor:
    """x [P, D] @ fold [K, D] transposed, in the dtype of fold under autocast, too: what a softmax
    is taken of wants its precision."""
    with torch.autocast(x.device.type, enabled=False):
        return linear_rows(x.to(fold.dtype), fold)


@operation(kind="rows")
def finish_rows(
    x: Tensor,
    block: Block | None = None,
    *,
    other: Tensor | None = None,
    loop: Tensor | None = None,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    gain: Tensor | None = None,
    bias: Tensor | None = None,
    act: str = "none",
    slope: float = 0.0,
    p: float = 0.0,
    key: Key | None = None,
    site: int = 0,
    post: Tensor | None = None,
) -> Tensor:
    """What follows a graph operation, in one pass over rows [P, D]: see ``kernels.epilogue``.

    Dropout is by the ids of the block's rows in the graph, or of rows 0..P-1 without a block.
    """
    return epilogue(
        x,
        other=other,
        loop=loop,
        scale=scale,
        shift=shift,
        gain=gain,
        bias=bias,
        act=act,
        slope=slope,
        p=p,
        key=draw_key(p) if key is None else key,
        site=site,
        gid=None if block is None else block.dst_gid,
        post=post,
    )


def check_square(block: Any, what: str) -> None:
    """Raise ConfigError when a Block has sources that are not destinations."""
    if isinstance(block, Block) and block.num_src != block.num_dst:
        raise ConfigError(
            f"{what} needs the degrees of all {block.num_src} sources, "
            f"the block has {block.num_dst} rows",
            hint="call the layer on the whole graph, or trace the model",
        )


def _loops(block: Block) -> Tensor | None:
    """bool [E]: which edges are self-loops; None when there are none."""

    def find() -> Tensor | None:
        loops = block.col == block.edge_dst
        # What is recorded cannot wait for an answer.
        recording = block.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        return loops if recording or bool(loops.any()) else None

    return kept(block, ("loops",), None, find)
