"""Fused attention in Triton: tensors in, tensors out; the kernels are in gpu_gat and gpu_gatv2.

Nothing of size [E, K] is made. Bytes gathered, at w bytes a number: as on the CPU (see cpu.py).

Legend: P destinations, S sources, E edges, K heads, F features, D edge features, Q parts.
"""

# Triton types constants as constexpr, and gives no type to what a kernel is called with.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from math import gcd
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tiergnn.kernels.aggregate.gpu import merge_sums, on
from tiergnn.kernels.aggregate.shapes import power_of_two, vector_of
from tiergnn.kernels.attention import Options, gpu_gat, gpu_gatv2
from tiergnn.kernels.attention.gpu_softmax import merge_kernel
from tiergnn.kernels.block import Block
from tiergnn.kernels.tasks import Tasks, launches

WIDEST = 256  # columns of a tile
LOADS = 4  # of rows that a thread has on their way at once
WARP = 32
PROGRAMS = 2048  # that share the gradients which all edges add to
SHARED_BYTES = 256 * 2**20  # of their sums, at most


class Tile(NamedTuple):
    """``unroll`` * ``lanes`` edges of each of ``rows`` tasks; ``width`` columns of ``heads``."""

    heads: int
    width: int
    rows: int
    unroll: int
    lanes: int


class Launch(NamedTuple):
    """One launch of a kernel over tasks: its grid, what says which tasks, and its constants."""

    grid: tuple[int, int]
    given: dict[str, Any]


def on_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """Triton launches on the current device, which must be that of the block."""

    @wraps(function)
    def call(block: Block, *args: Any, **options: Any) -> Any:
        with on(block.col):
            return function(block, *args, **options)

    return call


def tile_of(heads: int, width: int, vector: int, longest: int) -> Tile:
    """The tile for tasks of at most ``longest`` edges; rows load ``vector`` numbers at a time.

    Each thread loads LOADS times: neighbouring edges of one long task, or one edge each of as
    many short ones.
    """
    columns = min(power_of_two(width), WIDEST)
    group = min(power_of_two(heads), WIDEST // columns)
    threads = max(1, columns * group // gcd(vector, width))  # that load one row
    lanes = max(1, WARP // threads)
    loads = max(1, LOADS * WARP // (threads * lanes))
    if longest <= loads * lanes:
        return Tile(group, columns, loads, 1, lanes)
    return Tile(group, columns, 1, loads, lanes)


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
    h, src, dst, edge, loop = _dense(h_SKF, src_SK, dst_PK, edge_EK, loop_PK)
    out = h_SKF.new_empty(block.num_dst, *h_SKF.shape[1:])
    best, inverse, steep_total = (torch.empty_like(dst) for _ in range(3))
    state = (best, inverse, src.new_empty(out.shape), steep_total) if train else ()
    kept = state or (None,) * 4
    if not out.numel():
        return out, state
    tasks = block.plan("aggregate", "gpu")
    parts = _softmax_parts(tasks, out, src.dtype, train)
    for launch in _launches(tasks, h):
        gpu_gat.forward_kernel[launch.grid](
            h,
            src,
            dst,
            edge,
            loop,
            block.col,
            block.eid,
            block.dst_gid,
            out,
            *kept,
            *parts,
            rowptr=block.rowptr,
            **launch.given,
            **_edge_options(block, options, src.dtype),
            TRAIN=train,
        )
    _merge_softmax(tasks, parts, (out, *kept), train)
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
    h, src, dst, edge, loop = _dense(h_SKF, src_SK, dst_PK, edge_EK, loop_PK)
    grad, out = _dense(grad_PKF, out_PKF)
    best, inverse, steep, steep_total = state
    grad_dst = torch.empty_like(dst)
    stats = _stats(grad, out, best, inverse, options, dst, steep, steep_total, grad_dst)
    grad_h, grad_src = torch.empty_like(h), torch.empty_like(src)
    grad_edge = torch.zeros_like(edge) if needs[3] and edge is not None else None
    grad_loop = torch.zeros_like(loop) if needs[4] and loop is not None else None
    if not h.numel():
        return grad_h, grad_src.zero_(), grad_dst.zero_(), grad_edge, grad_loop
    rowptr_t, dst_t, edge_t = block.transposed
    tasks = block.plan("aggregate", "gpu", True)
    parts = _parts(tasks, grad_h, src.dtype), _parts(tasks, grad_src, src.dtype)
    has_position = edge is not None or options.threshold > 0
    for launch in _launches(tasks, grad):
        gpu_gat.backward_kernel[launch.grid](
            h,
            src,
            edge,
            loop,
            grad,
            stats,
            dst_t,
            edge_t if has_position else None,
            block.eid,
            block.dst_gid,
            grad_h,
            grad_src,
            grad_edge,
            grad_loop,
            *parts,
            rowptr=rowptr_t,
            num_dst=block.num_dst,
            **launch.given,
            **_edge_options(block, options, src.dtype),
        )
    _merge(tasks, parts[0], grad_h)
    _merge(tasks, parts[1], grad_src)
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
    src, dst, att, edge, weight, loop = _dense(
        src_SKF, dst_PKF, att_KF, edge_ED, weight_DKF, loop_PD
    )
    out = torch.empty_like(dst)
    state = tuple(att.new_empty(dst.shape[:2]) for _ in range(2))
    if not out.numel():
        return out, state
    tasks = block.plan("aggregate", "gpu")
    parts = _softmax_parts(tasks, out, att.dtype, False)
    for launch in _launches(tasks, src):
        gpu_gatv2.forward_kernel[launch.grid](
            src,
            dst,
            att,
            edge,
            weight,
            loop,
            block.col,
            block.eid,
            block.dst_gid,
            out,
            *state,
            *parts,
            rowptr=block.rowptr,
            **launch.given,
            **_edge_options(block, options, att.dtype),
            D=0 if weight is None else weight.shape[0],
        )
    _merge_softmax(tasks, parts, (out, *state, None, None), False)
    return out, state


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
    src, dst, att, edge, weight, loop = _dense(
        src_SKF, dst_PKF, att_KF, edge_ED, weight_DKF, loop_PD
    )
    grad, out = _dense(grad_PKF, out_PKF)
    wide = att.dtype
    num_attrs = 0 if weight is None else weight.shape[0]
    stats = _stats(grad, out, *state, options)
    constants = _edge_options(block, options, wide) | {"D": num_attrs}
    grad_src = grad_dst = grad_att = grad_edge = grad_weight = grad_loop = None
    if needs[0]:
        grad_src = torch.empty_like(src)
        rowptr_t, dst_t, edge_t = block.transposed
        tasks = block.plan("aggregate", "gpu", True)
        part = _parts(tasks, grad_src, wide)
        has_position = num_attrs > 0 or options.threshold > 0
        for launch in _launches(tasks, grad):
            gpu_gatv2.source_kernel[launch.grid](
                src,
                dst,
                att,
                edge,
                weight,
                loop,
                grad,
                stats,
                dst_t,
                edge_t if has_position else None,
                block.eid,
                block.dst_gid,
                grad_src,
                part,
                rowptr=rowptr_t,
                num_dst=block.num_dst,
                **launch.given,
                **constants,
            )
        _merge(tasks, part, grad_src)
    if any(needs[1:]):
        grad_dst = torch.empty_like(dst)
        tasks = block.plan("aggregate", "gpu")
        runs = list(_launches(tasks, src))
        part = _parts(tasks, grad_dst, wide)
        blocks = runs[0].grid[1] if runs else 1
        grad_edge = _share_of_blocks(edge, blocks, needs[3])
        grad_loop = _share_of_blocks(loop, blocks, needs[5])
        shared_size = (1 + num_attrs) * att.numel()
        most = min(PROGRAMS, max(1, SHARED_BYTES // max(8 * shared_size, 1)))
        programs = min(most, max((launch.grid[0] for launch in runs), default=0))
        shared = torch.zeros(
            programs, 1 + num_attrs, *att.shape, dtype=torch.float64, device=att.device
        )
        for launch in runs:
            gpu_gatv2.destination_kernel[min(launch.grid[0], most), blocks](
                src,
                dst,
                att,
                edge,
                weight,
                loop,
                grad,
                stats,
                block.col,
                block.eid,
                block.dst_gid,
                grad_dst,
                part,
                grad_edge,
                grad_loop,
                shared,
                rowptr=block.rowptr,
                **launch.given,
                **constants,
            )
        _merge(tasks, part, grad_dst)
        sums = shared.sum(0).to(wide)
        grad_att = sums[0].clone()
        if num_attrs:
            grad_weight = sums[1:].clone()
            grad_edge = None if grad_edge is None else grad_edge.sum(-1)
            grad_loop = None if grad_loop is None else grad_loop.sum(-1)
    return grad_src, grad_dst, grad_att, grad_edge, grad_weight, grad_loop


def _dense(*tensors: Tensor | None) -> list[Any]:
    return [None if t is None else t.detach().contiguous() for t in tensors]


def _launches(tasks: Tasks, x: Tensor) -> Iterator[Launch]:
    """The launches over all tasks of a kernel that gathers rows of x [.., K, F]."""
    heads, width = x.shape[1:]
    if not x.numel():
        return
    vector = vector_of(x.view(x.shape[0], -1), heads * width)
    shapes = launches(tasks, lambda longest: tile_of(heads, width, vector, longest))
    for span, tile in shapes:
        grid_columns = triton.cdiv(heads, tile.heads) * triton.cdiv(width, tile.width)
        yield Launch(
            (triton.cdiv(span.last - span.first, tile.rows), grid_columns),
            {
                "row": tasks.row,
                "start": tasks.start,
                "size": tasks.size,
                "first": span.first,
                "last": span.last,
                "num_parts": tasks.num_parts,
                "K": heads,
                "F": width,
                "HEADS": tile.heads,
                "WIDTH": tile.width,
                "ROWS": tile.rows,
                "UNROLL": tile.unroll,
                "LANES": tile.lanes,
                "num_warps": 1,
            },
        )


def _edge_options(block: Block, options: Options, wide: torch.dtype) -> dict[str, Any]:
    key = options.key0 | options.key1 << 32
    return {
        "num_graph_edges": block.num_graph_edges,
        "key": key - (key >> 63 << 64),  # as a signed number of 64 bits
        "threshold": options.threshold,
        "site": options.site,
        "SLOPE": options.negative_slope,
        "SCALE": options.scale,
        "DROPOUT": options.threshold > 0,
        "SELF_LOOP": options.self_loop,
        "SUM": tl.float64 if wide == torch.float64 else tl.float32,
    }


def _stats(
    grad_PKF: Tensor,
    out_PKF: Tensor,
    best_PK: Tensor,
    inverse_PK: Tensor,
    options: Options,
    dst_PK: Tensor | None = None,
    steep_PKF: Tensor | None = None,
    steep_total_PK: Tensor | None = None,
    grad_dst_PK: Tensor | None = None,
) -> Tensor:
    """What ``rows_kernel`` says of every row, [P, 3K], or with dst [P, 4K]; writes grad_dst."""
    num_dst, heads, width = grad_PKF.shape
    stats = best_PK.new_empty(num_dst, (3 if dst_PK is None else 4) * heads)
    if grad_PKF.numel():
        tile = tile_of(heads, width, 1, 1)
        grid = triton.cdiv(num_dst, tile.rows), triton.cdiv(heads, tile.heads)
        gpu_gat.rows_kernel[grid](
            dst_PK,
            grad_PKF,
            out_PKF,
            best_PK,
            inverse_PK,
            steep_PKF,
            steep_total_PK,
            stats,
            grad_dst_PK,
            num_dst,
            K=heads,
            F=width,
            SLOPE=options.negative_slope,
            SUM=tl.float64 if stats.dtype == torch.float64 else tl.float32,
            HEADS=tile.heads,
            WIDTH=tile.width,
            ROWS=tile.rows,
            num_warps=1,
        )
    return stats


def _softmax_parts(
    tasks: Tasks, out_PKF: Tensor, dtype: torch.dtype, train: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Room for what tasks that share a row have come to: maximum, totals and sums of rows."""
    if not tasks.num_parts:
        return None, None, None
    _, heads, width = out_PKF.shape
    kinds, make = 2 if train else 1, {"dtype": dtype, "device": out_PKF.device}
    return (
        torch.empty(tasks.num_parts, heads, **make),
        torch.empty(kinds, tasks.num_parts, heads, **make),
        torch.empty(kinds, tasks.num_parts, heads, width, **make),
    )


def _merge_softmax(
    tasks: Tasks,
    parts: tuple[Tensor | None, ...],
    outputs: tuple[Tensor | None, ...],
    train: bool,
) -> None:
    """Finish the rows that several tasks share: out and what is kept for backward."""
    out = outputs[0]
    assert out is not None
    while tasks.merge is not None:
        before, order, acc = tasks.num_parts, tasks.order, parts[2]
        assert acc is not None
        tasks = tasks.merge
        next_parts = _softmax_parts(tasks, out, torch.float64, train)
        for launch in _launches(tasks, acc[0]):
            merge_kernel[launch.grid](
                *parts, order, *outputs, *next_parts, num_before=before, **launch.given, TRAIN=train
            )
        parts = next_parts


def _parts(tasks: Tasks, out: Tensor, dtype: torch.dtype) -> Tensor | None:
    """Room for the sums of tasks that share a row of out, [Q, ...]."""
    if not tasks.num_parts:
        return None
    return torch.empty(tasks.num_parts, *out.shape[1:], dtype=dtype, device=out.device)


def _merge(tasks: Tasks, part: Tensor | None, out: Tensor) -> None:
    """Add up the parts of rows of out that several tasks share."""
    if part is not None:
        merge_sums(tasks, part.flatten(1), None, out.flatten(1))


def _share_of_blocks(rows_ED: Tensor | None, blocks: int, needed: bool) -> Tensor | None:
    """Room for every block of columns' share of the gradient of edge features."""
    if rows_ED is None or not needed:
        return None
    return rows_ED.new_zeros(*rows_ED.shape, blocks)
