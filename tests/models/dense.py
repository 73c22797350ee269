"""What the layers compute, on dense float64 adjacency matrices: the oracle of their tests."""

from __future__ import annotations

import torch
from torch.nn import functional as F


def adjacency(edge_index, num_nodes, weight=None):
    """A[i, j] = the sum of the weights of edges j -> i."""
    src, dst = edge_index
    weight = torch.ones(src.numel(), dtype=torch.float64) if weight is None else weight
    zero = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    return zero.index_put((dst, src), weight, accumulate=True)


def normalized(edge_index, num_nodes, weight=None, fill=1.0, self_loops=True):
    """D^-1/2 (A + I) D^-1/2, each node with exactly one loop: its last one, else ``fill``."""
    src, dst = edge_index
    if not self_loops:
        matrix = adjacency(edge_index, num_nodes, weight)
    else:
        other = src != dst
        matrix = adjacency(
            edge_index[:, other], num_nodes, None if weight is None else weight[other]
        )
        loops = [torch.tensor(fill if weight is not None else 1.0).double()] * num_nodes
        if weight is not None:
            for e in torch.nonzero(~other).flatten().tolist():
                loops[int(src[e])] = weight[e]
        if num_nodes:
            matrix = matrix + torch.diag(torch.stack(loops))
    degree = matrix.sum(1)
    scale = torch.where(degree == 0, 0.0, torch.where(degree == 0, 1.0, degree).pow(-0.5))
    return scale[:, None] * matrix * scale[None]


def gcn(state, x, edge_index, weight=None, **options):
    out = normalized(edge_index, len(x), weight, **options) @ (x @ state["lin.weight"].t())
    return out + state["bias"]


def sage(state, x, edge_index, aggr="mean"):
    count = adjacency(edge_index, len(x))
    if aggr == "max":
        wide = x[None].expand(len(x), *x.shape)
        best = wide.masked_fill(count[..., None] == 0, -torch.inf)
        best = best.amax(1) if len(x) else x
        out = torch.where(best == -torch.inf, 0.0, best)
    else:
        out = count @ x
        if aggr == "mean":
            out = out / count.sum(1).clamp(min=1)[:, None]
    out = out @ state["lin_l.weight"].t() + state["lin_l.bias"]
    return out + x @ state["lin_r.weight"].t()


def attention(scores, h, edge_index, self_loops):
    """Rows of softmax(scores [i, j, K]) over in-edges, duplicates counted, times h [j, K, F]."""
    num_nodes = len(h)
    if self_loops:
        edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    count = adjacency(edge_index, num_nodes)
    if self_loops:
        count = count + torch.eye(num_nodes, dtype=torch.float64)
    scores = scores.masked_fill(count[..., None] == 0, -torch.inf)
    alpha = torch.nan_to_num((scores + count.log()[..., None]).softmax(1))
    return torch.einsum("ijk,jkf->ikf", alpha, h)


def gat(state, x, edge_index, heads, self_loops=True):
    h = (x @ state["lin.weight"].t()).unflatten(1, (heads, -1))
    src, dst = (h * state["att_src"]).sum(-1), (h * state["att_dst"]).sum(-1)
    scores = F.leaky_relu(src[None] + dst[:, None], 0.2)
    return attention(scores, h, edge_index, self_loops).flatten(1) + state["bias"]


def gatv2(state, x, edge_index, heads, self_loops=True):
    left = (x @ state["lin_l.weight"].t() + state["lin_l.bias"]).unflatten(1, (heads, -1))
    right = (x @ state["lin_r.weight"].t() + state["lin_r.bias"]).unflatten(1, (heads, -1))
    scores = (F.leaky_relu(left[None] + right[:, None], 0.2) * state["att"]).sum(-1)
    return attention(scores, left, edge_index, self_loops).flatten(1) + state["bias"]


def gin(state, x, edge_index, eps):
    out = adjacency(edge_index, len(x)) @ x + (1 + eps) * x
    return out @ state["nn.weight"].t() + state["nn.bias"]


def sgc(state, x, edge_index, weight=None, K=1):
    matrix = normalized(edge_index, len(x), weight)
    for _ in range(K):
        x = matrix @ x
    return x @ state["lin.weight"].t() + state["lin.bias"]


def appnp(state, x, edge_index, weight=None, K=1, alpha=0.1):
    matrix, start = normalized(edge_index, len(x), weight), x
    for _ in range(K):
        x = (1 - alpha) * (matrix @ x) + alpha * start
    return x
