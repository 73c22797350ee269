"""Attention over in-edges: GAT's and GATv2's scores, softmax, dropout and weighted sum as one op.

No tensor of edges x heads x features exists, whatever the backend, save in the reference.

Legend: P destinations, S sources, E edges, K heads, F features, D edge features. A *loop* row
belongs to the one virtual self-loop that every destination has when ``self_loop`` is on.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tiergnn.errors import ConfigError
from tiergnn.kernels import backend
from tiergnn.kernels.arguments import (
    FLOATS,
    check_device,
    check_draws,
    check_floats,
    check_numbers,
    told,
)
from tiergnn.kernels.attention import reference
from tiergnn.kernels.attention.ops import Options, edge_mean_op, gat_op, gatv2_op, needs_grad
from tiergnn.kernels.block import Block
from tiergnn.kernels.dropout import Key, scale, threshold


def gat_attention(
    block: Block,
    h_SKF: Tensor,
    score_src_SK: Tensor,
    score_dst_PK: Tensor,
    *,
    score_edge_EK: Tensor | None = None,
    score_loop_PK: Tensor | None = None,
    negative_slope: float = 0.2,
    p: float = 0.0,
    key: Key | None = None,
    site: int = 0,
    head: int = 0,
    self_loop: bool = True,
) -> Tensor:
    """out[i,k] = sum over in-edges (j, i) of alpha[i,j,k] * h[j,k], [P, K, F] in the dtype of h.

    alpha[i,:,k] is the softmax over the in-edges of i of leaky_relu(score_src[j,k] + score_dst[i,k]
    + score_edge[edge,k]) (Velickovic et al., ICLR 2018; what edges carry is in the order of the
    block's edges, as ``block.edge_attr`` is), dropped out with probability p by the
    edge's ``eid`` and the head under ``key`` and ``site``. A row without edges gets exactly 0.
    ``head`` is the number of the first head here among those of the layer, by which it is dropped.

    self_loop: every destination attends to itself once. Stored self-loops are then ignored, and the
    virtual one scores ``score_loop`` (None: the mean of the row's other edges' ``score_edge``, as
    PyG's fill_value="mean"); its id for dropout is num_graph_edges + the row's id in the graph.

    Sums in float32 (float64 for float64 rows), in a fixed order. Differentiable once, in every
    tensor. Raises ConfigError for shapes, dtypes, devices or options that do not fit, GraphError
    for a block that contradicts itself (see ``Block``).
    """
    _check_block(block)
    options = _options(block, negative_slope, p, key, site, head, self_loop)
    check_floats("h", h_SKF, "floats [S, K, F]", 3)
    num_heads = h_SKF.shape[1]
    _check("h", h_SKF, block, (block.num_src, *h_SKF.shape[1:]))
    wide = torch.float64 if h_SKF.dtype == torch.float64 else torch.float32
    _check("score_src", score_src_SK, block, (block.num_src, num_heads))
    _check("score_dst", score_dst_PK, block, (block.num_dst, num_heads))
    score_edge_EK, score_loop_PK = _edge_rows(
        block, ("score_edge", score_edge_EK), ("score_loop", score_loop_PK), num_heads, self_loop
    )
    src_SK, dst_PK = score_src_SK.to(wide), score_dst_PK.to(wide)
    edge_EK, loop_PK = _cast(score_edge_EK, wide), _cast(score_loop_PK, wide)
    name = backend.choose(h_SKF.device)
    if name == "reference":
        return reference.gat_attention(block, h_SKF, src_SK, dst_PK, edge_EK, loop_PK, options)
    tensors = h_SKF, src_SK, dst_PK, edge_EK, loop_PK
    return gat_op(block.handle, *tensors, *options, needs_grad(*tensors), name)[0]


def gatv2_attention(
    block: Block,
    x_src_SKF: Tensor,
    x_dst_PKF: Tensor,
    att_KF: Tensor,
    *,
    edge_attr_ED: Tensor | None = None,
    edge_weight_DKF: Tensor | None = None,
    loop_attr_PD: Tensor | None = None,
    negative_slope: float = 0.2,
    p: float = 0.0,
    key: Key | None = None,
    site: int = 0,
    head: int = 0,
    self_loop: bool = True,
) -> Tensor:
    """out[i,k] = sum over in-edges (j, i) of alpha[i,j,k] * x_src[j,k], [P, K, F].

    The logit of an edge is <att[k], leaky_relu(x_src[j,k] + x_dst[i,k] + edge_attr[edge] @
    edge_weight[:,k])> (Brody, Alon, Yahav, ICLR 2022). ``edge_weight`` [D, K, F] projects edge
    features inside the kernel, so that [E, K, F] never exists. ``loop_attr`` [P, D] are the
    features of the virtual self-loops (None: the mean of the row's other edges' features).
    Everything else is as in ``gat_attention``.
    """
    _check_block(block)
    options = _options(block, negative_slope, p, key, site, head, self_loop)
    check_floats("x_src", x_src_SKF, "floats [S, K, F]", 3)
    num_heads = x_src_SKF.shape[1]
    _check("x_src", x_src_SKF, block, (block.num_src, *x_src_SKF.shape[1:]))
    wide = torch.float64 if x_src_SKF.dtype == torch.float64 else torch.float32
    width = x_src_SKF.shape[2]
    _check("x_dst", x_dst_PKF, block, (block.num_dst, num_heads, width))
    _check("att", att_KF, block, (num_heads, width))
    if (edge_attr_ED is None) != (edge_weight_DKF is None):
        raise ConfigError("edge_attr and edge_weight go together, had one of them")
    num_attr = 0
    if edge_weight_DKF is not None:
        check_numbers("edge_weight", edge_weight_DKF)
        num_attr = edge_weight_DKF.shape[0] if edge_weight_DKF.dim() else 0
        _check("edge_weight", edge_weight_DKF, block, (num_attr, num_heads, width))
    edge_attr_ED, loop_attr_PD = _edge_rows(
        block, ("edge_attr", edge_attr_ED), ("loop_attr", loop_attr_PD), num_attr, self_loop
    )
    nodes = x_src_SKF, x_dst_PKF.to(x_src_SKF.dtype), att_KF.to(wide)
    edges = _cast(edge_attr_ED, wide), _cast(edge_weight_DKF, wide), _cast(loop_attr_PD, wide)
    name = backend.choose(x_src_SKF.device)
    if name == "reference":
        return reference.gatv2_attention(block, *nodes, *edges, options)
    return gatv2_op(block.handle, *nodes, *edges, *options, name)[0]


def edge_mean(block: Block, value_ED: Tensor) -> Tensor:
    """The mean of value over every row's in-edges that are not self-loops, [P, D]; 0 where none.

    What PyG's fill_value="mean" gives a self-loop. Differentiable. Raises ConfigError for what are
    not float rows of the block's edges.
    """
    _check_block(block)
    check_floats("value", value_ED, f"floats [{block.num_edges}, D]", 2)
    _check("value", value_ED, block, (block.num_edges, value_ED.shape[1]))
    return edge_mean_op(block.handle, value_ED, backend.choose(value_ED.device))


def _options(
    block: Block,
    slope: float,
    p: float,
    key: Key | None,
    site: int,
    head: int,
    self_loop: bool,
) -> Options:
    if threshold(p):
        check_draws(key, site=site, head=head, of="attention dropout")
    key = None if key is None else key.to(block.device)
    return Options(slope, self_loop, threshold(p), scale(p), key, site, head)


def _edge_rows(
    block: Block,
    stored: tuple[str, Tensor | None],
    loop: tuple[str, Tensor | None],
    width: int,
    self_loop: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """The checked rows of edges and of virtual loops, these from those when they are not given."""
    (name, stored_EX), (loop_name, loop_PX) = stored, loop
    if stored_EX is not None:
        _check(name, stored_EX, block, (block.num_edges, width))
        stored_EX = stored_EX if stored_EX.dtype in FLOATS else stored_EX.float()
    if loop_PX is not None:
        if stored_EX is None or not self_loop:
            raise ConfigError(f"{loop_name} needs {name} and self_loop=True")
        _check(loop_name, loop_PX, block, (block.num_dst, width))
    elif stored_EX is not None and self_loop:
        loop_PX = edge_mean(block, stored_EX)
    return stored_EX, loop_PX


def _check_block(block: Block) -> None:
    if not isinstance(block, Block):
        raise ConfigError(
            f"attention needs a Block, had {type(block).__name__}",
            hint="Block.from_graph(tiergnn.Graph.from_pyg(data))",
        )


def _check(name: str, tensor: Tensor, block: Block, shape: tuple[int, ...]) -> None:
    check_numbers(name, tensor)
    if tuple(tensor.shape) != shape:
        raise ConfigError(f"{name} needs shape {list(shape)}, has {told(tensor)}")
    check_device(name, tensor, block.device)


def _cast(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if tensor is None else tensor.to(dtype)
