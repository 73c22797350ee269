"""Fused attention in Triton: tensors in, tensors out; the kernels are in gpu_gat and gpu_gatv2.

Nothing of size [E, K] is made. README.md has the derivations, and the bytes and flops of passes.

Legend: P destinations, S sources, E edges, K heads, F features, D edge features.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tiergnn.kernels.attention import gpu_gat, gpu_gat_grad, gpu_gatv2, gpu_gatv2_grad
from tiergnn.kernels.attention.gpu_launch import (
    OUTPUTS,
    aligned,
    dense,
    edge_options,
    launches_of,
    merge_parts,
    merge_softmax,
    narrow,
    on_device,
    parts_of,
    pitch_of,
    records_of,
    share_of_blocks,
    softmax_parts,
    spaced,
    stats_of,
)
from tiergnn.kernels.attention.ops import Options
from tiergnn.kernels.block import Block
from tiergnn.kernels.launch import launch

PROGRAMS = 2048  # that share the gradients which all edges add to
SHARED_BYTES = 256 * 2**20  # of their sums, at most


@on_device
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
    h, src, dst, edge, loop = dense(h_SKF, src_SK, dst_PK, edge_EK, loop_PK)
    out = h.new_empty(block.num_dst, *h.shape[1:])
    best, inverse, steep_total = (torch.empty_like(dst) for _ in range(3))
    state = (best, inverse, src.new_empty(out.shape), steep_total) if train else ()
    kept = state or (None,) * 4
    if not out.numel():
        return out, state
    h = spaced(h, pitch_of(block, h))
    tasks = block.plan("aggregate", "gpu")
    parts = softmax_parts(tasks, out, src.dtype, train)
    outputs = dict(zip(OUTPUTS, (out, *kept), strict=True))
    given = {
        "h": h,
        "src": src,
        "dst": dst,
        "edge": edge,
        "loop": loop,
        "col": block.col,
        "rowptr": block.rowptr,
        "F": out.shape[2],
        "PITCH": h.shape[2],
        "TRAIN": train,
        **outputs,
        **parts,
        **edge_options(block, options, src.dtype),
    }
    for grid, run in launches_of(tasks, h):
        launch(gpu_gat.forward_kernel, grid, run | given)
    merge_softmax(tasks, parts, outputs, train)
    return out, state


@on_device
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
    h, src, dst, edge, loop = dense(h_SKF, src_SK, dst_PK, edge_EK, loop_PK)
    grad, out = dense(grad_PKF, out_PKF)
    pitch = pitch_of(block, grad)
    slope = options.negative_slope
    record, grad_dst, grad = records_of(dst, grad, out, state, slope, pitch)
    grad_h, grad_src = torch.empty_like(h), torch.empty_like(src)
    grad_edge = torch.zeros_like(edge) if needs[3] and edge is not None else None
    grad_loop = torch.zeros_like(loop) if needs[4] and loop is not None else None
    if not h.numel():
        return grad_h, grad_src.zero_(), grad_dst.zero_(), grad_edge, grad_loop
    rowptr_t, dst_t, edge_t = block.transposed
    tasks = block.plan("aggregate", "gpu", True)
    part_h, part_src = (parts_of(tasks, rows, src.dtype) for rows in (grad_h, grad_src))
    given = {
        "h": h,
        "src": src,
        "edge": edge,
        "loop": loop,
        "grad": grad,
        "record": record,
        "col": dst_t,
        "position": edge_t if edge is not None or options.threshold else None,
        "grad_h": grad_h,
        "grad_src": grad_src,
        "grad_edge": grad_edge,
        "grad_loop": grad_loop,
        "part_h": part_h,
        "part_src": part_src,
        "rowptr": rowptr_t,
        "num_dst": block.num_dst,
        "F": h.shape[2],
        "PITCH": pitch,
        "RECORD": record.shape[1],
        **edge_options(block, options, src.dtype),
    }
    for grid, run in launches_of(tasks, grad):
        launch(gpu_gat_grad.backward_kernel, grid, run | given)
    merge_parts(tasks, part_h, grad_h)
    merge_parts(tasks, part_src, grad_src)
    return grad_h, grad_src, grad_dst, grad_edge, grad_loop


@on_device
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
    src, dst, att, edge, weight, loop = dense(
        src_SKF, dst_PKF, att_KF, edge_ED, weight_DKF, loop_PD
    )
    width = src.shape[2]
    src, dst, att, weight = aligned(block, src, dst, att, weight)
    out = torch.empty_like(dst)
    state = tuple(att.new_empty(dst.shape[:2]) for _ in range(2))
    if not out.numel():
        return narrow(out, width), state
    tasks = block.plan("aggregate", "gpu")
    parts = softmax_parts(tasks, out, att.dtype, False)
    outputs = dict(zip(OUTPUTS, (out, *state, None, None), strict=True))
    given = {
        "src": src,
        "dst": dst,
        "att": att,
        "edge": edge,
        "weight": weight,
        "loop": loop,
        "col": block.col,
        "rowptr": block.rowptr,
        "D": 0 if weight is None else weight.shape[0],
        **outputs,
        **parts,
        **edge_options(block, options, att.dtype),
    }
    for grid, run in launches_of(tasks, src):
        launch(gpu_gatv2.forward_kernel, grid, given | run)
    merge_softmax(tasks, parts, outputs, False)
    return narrow(out, width), state


@on_device
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
    src, dst, att, edge, weight, loop = dense(
        src_SKF, dst_PKF, att_KF, edge_ED, weight_DKF, loop_PD
    )
    width, wide = src.shape[2], att.dtype
    src, dst, att, weight, grad, out = aligned(
        block, src, dst, att, weight, *dense(grad_PKF, out_PKF)
    )
    num_attrs = 0 if weight is None else weight.shape[0]
    best, inverse = state
    stats = stats_of(grad, out, best, inverse)
    given = {
        "src": src,
        "dst": dst,
        "att": att,
        "edge": edge,
        "weight": weight,
        "loop": loop,
        "grad": grad,
        "stats": stats,
        "D": num_attrs,
        **edge_options(block, options, wide),
    }
    grad_src = grad_dst = grad_att = grad_edge = grad_weight = grad_loop = None
    if needs[0]:
        grad_src = torch.empty_like(src)
        rowptr_t, dst_t, edge_t = block.transposed
        tasks = block.plan("aggregate", "gpu", True)
        part = parts_of(tasks, grad_src, wide)
        flipped = given | {
            "col": dst_t,
            "position": edge_t if num_attrs or options.threshold else None,
            "grad_src": grad_src,
            "part_src": part,
            "rowptr": rowptr_t,
            "num_dst": block.num_dst,
        }
        for grid, run in launches_of(tasks, grad):
            launch(gpu_gatv2_grad.source_kernel, grid, flipped | run)
        merge_parts(tasks, part, grad_src)
        grad_src = narrow(grad_src, width)
    if any(needs[1:]):
        grad_dst = torch.empty_like(dst)
        tasks = block.plan("aggregate", "gpu")
        runs = list(launches_of(tasks, src))
        part = parts_of(tasks, grad_dst, wide)
        blocks = runs[0][0][1] if runs else 1
        grad_edge = share_of_blocks(edge, blocks, needs[3])
        grad_loop = share_of_blocks(loop, blocks, needs[5])
        shared_size = (1 + num_attrs) * att.numel()
        most = min(PROGRAMS, max(1, SHARED_BYTES // max(8 * shared_size, 1)))
        programs = min(most, max((grid[0] for grid, _ in runs), default=0))
        shared = torch.zeros(
            programs, 1 + num_attrs, *att.shape, dtype=torch.float64, device=att.device
        )
        given |= {
            "col": block.col,
            "grad_dst": grad_dst,
            "part_dst": part,
            "grad_edge": grad_edge,
            "grad_loop": grad_loop,
            "shared": shared,
            "rowptr": block.rowptr,
        }
        for grid, run in runs:
            launch(gpu_gatv2_grad.destination_kernel, (min(grid[0], most), blocks), given | run)
        merge_parts(tasks, part, grad_dst)
        grad_dst = narrow(grad_dst, width)
        sums = shared.sum(0)[..., :width].to(wide)
        grad_att = sums[0].clone()
        if num_attrs:
            grad_weight = sums[1:].clone()
            grad_edge = None if grad_edge is None else grad_edge.sum(-1)
            grad_loop = None if grad_loop is None else grad_loop.sum(-1)
    return grad_src, grad_dst, grad_att, grad_edge, grad_weight, grad_loop
