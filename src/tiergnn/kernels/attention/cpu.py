"""Fused attention on the CPU: tensors in, tensors out; the loops are in cpu_gat and cpu_gatv2.

Half-precision rows are widened to float32 once a call, [S, K, F]; nothing of size [E, K] is made.
README.md has the derivations, and the bytes and flops of every pass.

Legend: P destinations, S sources, E edges, K heads, F features, D edge features, T tasks;
C columns of one head rounded up to whole vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from tiergnn.kernels import simd
from tiergnn.kernels.attention import Options, cpu_gat, cpu_gatv2
from tiergnn.kernels.attention.cpu_rows import Rows, cut, join_sums, num_tasks
from tiergnn.kernels.attention.cpu_softmax import Parts, state_size
from tiergnn.kernels.block import Block
from tiergnn.kernels.dropout import key_words
from tiergnn.kernels.span import Span
from tiergnn.kernels.threads import spread

_EDGE_BYTES = 64  # as many in order take about as long as an edge
SHARED_BYTES = 32 * 2**20  # of one sum a task of gradients that all edges add to


def gat_forward(
    block: Block,
    h_SKF: Tensor,
    src_SK: Tensor,
    dst_PK: Tensor,
    edge_EK: Tensor | None,
    loop_PK: Tensor | None,
    options: Options,
    *,
    train: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """out [P, K, F] in the dtype of h, and what ``gat_backward`` wants to be given again."""
    x = _gat_inputs(h_SKF, src_SK, dst_PK, edge_EK, loop_PK)
    rows = _rows(block)
    out_PKF = src_SK.new_empty(block.num_dst, x.heads, x.width)
    best_PK, inverse_PK, steep_PK = (torch.empty_like(dst_PK) for _ in range(3))
    state = (best_PK, inverse_PK, torch.empty_like(out_PKF), steep_PK) if train else ()
    kept = state or (dst_PK.new_empty(0),) * 4
    outputs = cpu_gat.Outputs(Span(out_PKF), *map(Span, kept), keep=train)
    parts = _parts(rows, x.heads, x.width)
    sizes = cpu_gat.scratch(x.heads, x.width)
    _run(cpu_gat.forward, rows, (x, _numbers(options), outputs, parts), sizes, src_SK.dtype)
    cpu_gat.forward_join(rows.num_tasks, x, outputs, parts, _doubles(sizes[2]))
    return out_PKF.to(h_SKF.dtype), state


def gat_backward(
    block: Block,
    grad_PKF: Tensor,
    out_PKF: Tensor,
    state: tuple[Tensor, ...],
    h_SKF: Tensor,
    src_SK: Tensor,
    dst_PK: Tensor,
    edge_EK: Tensor | None,
    loop_PK: Tensor | None,
    options: Options,
    needs: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """Gradients of the five tensors, None for edges and loops that ``needs`` leaves out."""
    wide = src_SK.dtype
    x = _gat_inputs(h_SKF, src_SK, dst_PK, edge_EK, loop_PK)
    heads, width = x.heads, x.width
    grad = _span(grad_PKF, wide)
    outputs = cpu_gat.Outputs(_span(out_PKF, wide), *map(Span, state), keep=True)
    stats_P4K = src_SK.new_empty(block.num_dst, 4 * heads)
    grad_dst_PK = torch.empty(dst_PK.shape, dtype=wide)
    numbers = _numbers(options)
    given = x, numbers, grad, outputs, Span(stats_P4K), Span(grad_dst_PK)
    spread(
        lambda first, last: cpu_gat.destinations(first, last, *given),
        block.num_dst,
        2 * grad_PKF.nbytes,
    )

    rows = _rows(block, transposed=True)
    grad_h_SKF = torch.empty(h_SKF.shape, dtype=wide)
    grad_src_SK = torch.empty(src_SK.shape, dtype=wide)
    grad_edge_EK = _zeros(edge_EK, needs[3])
    grad_loop_PK = _zeros(loop_PK, needs[4])
    grads = cpu_gat.Grads(
        h=Span(grad_h_SKF),
        src=Span(grad_src_SK),
        edge=_span(grad_edge_EK, wide),
        loop=_span(grad_loop_PK, wide),
        needs_edge=needs[3],
        needs_loop=needs[4],
    )
    score_at = heads * simd.padded(width)
    size = score_at + simd.padded(heads)
    slots = _slots(rows, size)
    sizes = cpu_gat.scratch(heads, width)
    given = x, numbers, grad, Span(stats_P4K), grads, *slots
    _run(cpu_gat.backward, rows, given, sizes, wide)
    total = _doubles(size)
    join_sums(rows.num_tasks, *slots, size, 0, heads, width, grads.h, total)
    join_sums(rows.num_tasks, *slots, size, score_at, 1, heads, grads.src, total)
    return grad_h_SKF.to(h_SKF.dtype), grad_src_SK, grad_dst_PK, grad_edge_EK, grad_loop_PK


def gatv2_forward(
    block: Block,
    src_SKF: Tensor,
    dst_PKF: Tensor,
    att_KF: Tensor,
    edge_ED: Tensor | None,
    weight_DKF: Tensor | None,
    loop_PD: Tensor | None,
    options: Options,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """out [P, K, F] in the dtype of src, and what ``gatv2_backward`` wants to be given again."""
    x = _gatv2_inputs(src_SKF, dst_PKF, att_KF, edge_ED, weight_DKF, loop_PD)
    rows = _rows(block)
    out_PKF = att_KF.new_empty(block.num_dst, x.heads, x.width)
    state = tuple(att_KF.new_empty(block.num_dst, x.heads) for _ in range(2))
    outputs = cpu_gatv2.Outputs(Span(out_PKF), *map(Span, state))
    parts = _parts(rows, x.heads, x.width)
    sizes = cpu_gatv2.scratch(x.heads, x.width, x.attrs)
    _run(cpu_gatv2.forward, rows, (x, _numbers(options), outputs, parts), sizes, att_KF.dtype)
    cpu_gatv2.forward_join(rows.num_tasks, x, outputs, parts, _doubles(sizes[2]))
    return out_PKF.to(src_SKF.dtype), state


def gatv2_backward(
    block: Block,
    grad_PKF: Tensor,
    out_PKF: Tensor,
    state: tuple[Tensor, ...],
    src_SKF: Tensor,
    dst_PKF: Tensor,
    att_KF: Tensor,
    edge_ED: Tensor | None,
    weight_DKF: Tensor | None,
    loop_PD: Tensor | None,
    options: Options,
    needs: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """Gradients of the six tensors, None for those that ``needs`` leaves out."""
    wide = att_KF.dtype
    x = _gatv2_inputs(src_SKF, dst_PKF, att_KF, edge_ED, weight_DKF, loop_PD)
    heads, width = x.heads, x.width
    size = heads * simd.padded(width)
    inner_PK = (grad_PKF.to(wide) * out_PKF.to(wide)).sum(-1)
    stats_P3K = torch.cat([*state, inner_PK], 1)
    given = x, _numbers(options), _span(grad_PKF, wide), Span(stats_P3K)
    sizes = cpu_gatv2.scratch(heads, width, x.attrs)
    total = _doubles(size)
    grad_src = grad_dst = grad_att = grad_edge = grad_weight = grad_loop = None
    if needs[0]:
        rows = _rows(block, transposed=True)
        slots = _slots(rows, size)
        grad_src_SKF = torch.empty(src_SKF.shape, dtype=wide)
        _run(cpu_gatv2.sources, rows, (*given, Span(grad_src_SKF), *slots), sizes, wide)
        join_sums(rows.num_tasks, *slots, size, 0, heads, width, Span(grad_src_SKF), total)
        grad_src = grad_src_SKF.to(src_SKF.dtype)
    if any(needs[1:]):
        shared_size = (1 + x.attrs) * size
        rows = _rows(block, most=max(1, SHARED_BYTES // max(8 * shared_size, 1)))
        slots = _slots(rows, size)
        grad_dst_PKF = torch.empty(dst_PKF.shape, dtype=wide)
        grad_edge, grad_loop = _zeros(edge_ED, needs[3]), _zeros(loop_PD, needs[5])
        shared = torch.zeros(rows.num_tasks, 1 + x.attrs, heads, size // heads, dtype=torch.float64)
        grads = cpu_gatv2.Grads(
            dst=Span(grad_dst_PKF),
            edge=_span(grad_edge, wide),
            loop=_span(grad_loop, wide),
            shared=Span(shared),
            needs_edge=needs[3],
            needs_loop=needs[5],
        )
        _run(cpu_gatv2.destinations, rows, (*given, grads, *slots), sizes, wide)
        join_sums(rows.num_tasks, *slots, size, 0, heads, width, grads.dst, total)
        grad_dst = grad_dst_PKF.to(dst_PKF.dtype)
        sums = shared.sum(0)[..., :width].to(wide)
        grad_att = sums[0].clone()
        grad_weight = sums[1:].clone() if x.attrs else None
    return grad_src, grad_dst, grad_att, grad_edge, grad_weight, grad_loop


def _run(
    kernel: Callable[..., Any],
    rows: Rows,
    given: tuple[Any, ...],
    sizes: tuple[int, int, int],
    dtype: torch.dtype,
) -> None:
    """Call a kernel over all tasks of the rows, each call with scratch of its own."""

    def work(first: int, last: int) -> None:
        ints = Span(torch.zeros(sizes[0], dtype=torch.int64))
        floats = Span(torch.zeros(sizes[1], dtype=dtype))
        kernel(first, last, rows, *given, ints, floats, _doubles(sizes[2]))

    if rows.num_tasks:
        spread(work, rows.num_tasks, rows.num_edges * _EDGE_BYTES)


def _numbers(options: Options) -> Any:
    """The options as loops take them: the key as an array of its two words."""
    words = [0, 0] if options.key is None else key_words(options.key)
    return options._replace(key=np.array(words))  # pyright: ignore[reportArgumentType]


def _gat_inputs(
    h_SKF: Tensor, src_SK: Tensor, dst_PK: Tensor, edge_EK: Tensor | None, loop_PK: Tensor | None
) -> cpu_gat.Inputs:
    wide = src_SK.dtype
    return cpu_gat.Inputs(
        h=_span(h_SKF, wide),
        src=_span(src_SK, wide),
        dst=_span(dst_PK, wide),
        edge=_span(edge_EK, wide),
        loop=_span(loop_PK, wide),
        heads=h_SKF.shape[1],
        width=h_SKF.shape[2],
        scored=edge_EK is not None,
    )


def _gatv2_inputs(
    src_SKF: Tensor,
    dst_PKF: Tensor,
    att_KF: Tensor,
    edge_ED: Tensor | None,
    weight_DKF: Tensor | None,
    loop_PD: Tensor | None,
) -> cpu_gatv2.Inputs:
    wide, width = att_KF.dtype, src_SKF.shape[2]
    behind = (0, simd.padded(width) - width)
    return cpu_gatv2.Inputs(
        src=_span(src_SKF, wide),
        dst=_span(dst_PKF, wide),
        att=_span(pad(att_KF, behind), wide),
        edge=_span(edge_ED, wide),
        weight=_span(None if weight_DKF is None else pad(weight_DKF, behind), wide),
        loop=_span(loop_PD, wide),
        heads=src_SKF.shape[1],
        width=width,
        attrs=0 if weight_DKF is None else weight_DKF.shape[0],
    )


def _span(tensor: Tensor | None, dtype: torch.dtype) -> Span:
    """The tensor's values, copied only when they lie or are stored otherwise; None: nothing."""
    if tensor is None:
        return Span(torch.zeros(0, dtype=dtype))
    return Span(tensor.detach().to(dtype).contiguous())


def _zeros(like: Tensor | None, needed: bool) -> Tensor | None:
    return torch.zeros(like.shape, dtype=like.dtype) if needed and like is not None else None


def _doubles(count: int) -> Span:
    return Span(torch.zeros(count, dtype=torch.float64))


def _rows(block: Block, *, transposed: bool = False, most: int | None = None) -> Rows:
    """The block's rows, or its out-edges, cut into tasks (at most ``most``)."""
    none = torch.zeros(0, dtype=torch.int64)
    rowptr, col, edge = block.rowptr, block.col, torch.zeros(0, dtype=torch.int32)
    if transposed:
        rowptr, col, edge = block.transposed
    num_rows = rowptr.numel() - 1
    tasks = num_tasks(num_rows, block.num_edges)
    if most is not None:
        tasks = min(tasks, most)
    cuts = torch.zeros(2 * tasks + 2, dtype=torch.int64)
    if tasks:
        cut(Span(rowptr), num_rows, tasks, Span(cuts))
    assert block.num_graph_edges is not None
    return Rows(
        cuts=Span(cuts),
        rowptr=Span(rowptr),
        col=Span(col),
        edge=Span(edge),
        eid=Span(none if block.eid is None else block.eid.contiguous()),
        gid=Span(none if block.dst_gid is None else block.dst_gid.contiguous()),
        num_tasks=tasks,
        num_rows=num_rows,
        num_edges=block.num_edges,
        num_dst=block.num_dst,
        num_graph_edges=block.num_graph_edges,
        has_edge=transposed,
        has_eid=block.eid is not None,
        has_gid=block.dst_gid is not None,
    )


def _parts(rows: Rows, heads: int, width: int) -> Parts:
    return Parts(*_slots(rows, state_size(heads, width)))


def _slots(rows: Rows, size: int) -> tuple[Span, Span]:
    """Two slots a task: the row that each is for, -1 for none, and ``size`` numbers."""
    count = 2 * rows.num_tasks
    row = torch.full((count,), -1, dtype=torch.int64)
    return Span(row), Span(torch.empty(count * size, dtype=torch.float64))
