"""How the GPU's attention kernels are launched: over which tasks, by what tiles; what is merged.

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
from torch.nn.functional import pad

from tiergnn.kernels.aggregate.gpu import merge_sums, on
from tiergnn.kernels.aggregate.shapes import power_of_two, vector_of
from tiergnn.kernels.attention.gpu_gat_grad import record_kernel
from tiergnn.kernels.attention.gpu_gatv2_grad import rows_kernel
from tiergnn.kernels.attention.gpu_softmax import merge_kernel
from tiergnn.kernels.attention.ops import Options
from tiergnn.kernels.block import Block
from tiergnn.kernels.launch import launch
from tiergnn.kernels.tasks import Tasks, launches

WIDEST = 256  # columns of a tile
LOADS = 2  # of rows that a thread has on their way at once
WARP = 32
VECTOR_BYTES = 16  # of the widest load
SECTOR = 8  # float32 numbers of what memory reads at once
REUSE = 4  # edges a row from which on a copy of rows that align pays
BY_ROW, BY_ROW_WARPS = 1024, 4  # numbers of a tile of rows that are gone through in order


OUTPUTS: tuple[str, ...] = ("out", "out_best", "out_inverse", "out_steep", "out_steep_total")
PARTS: tuple[str, ...] = ("part_best", "part_total", "part_acc")


class Tile(NamedTuple):
    """``unroll`` * ``lanes`` edges of each of ``rows`` tasks; ``width`` columns of ``heads``."""

    heads: int
    width: int
    rows: int
    unroll: int
    lanes: int


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


def dense(*tensors: Tensor | None) -> list[Any]:
    return [None if t is None else t.detach().contiguous() for t in tensors]


def aligned(block: Block, *tensors: Tensor | None) -> list[Any]:
    """Tensors [.., F], whose heads are filled up with zeros to whole loads where that pays."""
    assert tensors[0] is not None
    per_load = VECTOR_BYTES // tensors[0].element_size()
    width = tensors[0].shape[-1]
    missing = -width % per_load
    if not missing or width < per_load or block.num_edges < REUSE * block.num_src:
        return list(tensors)
    return [None if t is None else pad(t, (0, missing)) for t in tensors]


def pitch_of(block: Block, x: Tensor) -> int:
    """Numbers from head to head of the copy of x [.., K, F] whose heads are whole loads.

    F where copying does not pay.
    """
    per_load, width = VECTOR_BYTES // x.element_size(), x.shape[-1]
    if width < per_load or block.num_edges < REUSE * x.shape[0]:
        return width
    return width + -width % per_load


def spaced(x: Tensor, pitch: int) -> Tensor:
    """x [.., K, F] with heads ``pitch`` numbers apart; what is between is not set."""
    if pitch == x.shape[-1]:
        return x
    out = x.new_empty(*x.shape[:-1], pitch)
    out[..., : x.shape[-1]] = x
    return out


def narrow(x: Tensor, width: int) -> Tensor:
    """The first ``width`` numbers of every head."""
    return x if x.shape[-1] == width else x[..., :width].contiguous()


def launches_of(tasks: Tasks, x: Tensor) -> Iterator[tuple[tuple[int, int], dict[str, Any]]]:
    """The grid and the tile of each launch over all tasks of a kernel that gathers x [.., K, F]."""
    heads, width = x.shape[1:]
    if not x.numel():
        return
    vector = vector_of(x.view(x.shape[0], -1), heads * width)
    shapes = launches(tasks, lambda longest: tile_of(heads, width, vector, longest))
    for span, tile in shapes:
        grid_columns = triton.cdiv(heads, tile.heads) * triton.cdiv(width, tile.width)
        yield (
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
                "VECTOR": gcd(vector, width, tile.width),
                "ROWS": tile.rows,
                "UNROLL": tile.unroll,
                "LANES": tile.lanes,
            },
        )


def edge_options(block: Block, options: Options, wide: torch.dtype) -> dict[str, Any]:
    return {
        "eid": block.eid,
        "gid": block.dst_gid,
        "num_graph_edges": block.num_graph_edges,
        "key": options.key if options.threshold else None,
        "threshold": options.threshold,
        "site": options.site,
        "SLOPE": options.negative_slope,
        "SCALE": options.scale,
        "SHIFT": options.head,
        "DROPOUT": options.threshold > 0,
        "SELF_LOOP": options.self_loop,
        "SUM": tl.float64 if wide == torch.float64 else tl.float32,
    }


def stats_of(grad_PKF: Tensor, out_PKF: Tensor, best_PK: Tensor, inverse_PK: Tensor) -> Tensor:
    """What ``rows_kernel`` says of every row, [P, 3K]."""
    num_dst, heads, width = grad_PKF.shape
    stats = best_PK.new_empty(num_dst, 3 * heads)
    if grad_PKF.numel():
        tile = tile_of(heads, width, 1, 1)
        rows = _rows_in_order(tile)
        grid = triton.cdiv(num_dst, rows), triton.cdiv(heads, tile.heads)
        given = {
            "grad": grad_PKF,
            "out": out_PKF,
            "best": best_PK,
            "inverse": inverse_PK,
            "stats": stats,
            "num_dst": num_dst,
            "K": heads,
            "F": width,
            "SUM": tl.float64 if stats.dtype == torch.float64 else tl.float32,
            "HEADS": tile.heads,
            "WIDTH": tile.width,
            "ROWS": rows,
        }
        launch(rows_kernel, grid, given, num_warps=BY_ROW_WARPS)
    return stats


def _rows_in_order(tile: Tile) -> int:
    """Rows of a program that goes through all of them in order."""
    return max(1, BY_ROW // (tile.heads * tile.width))


def record_width(heads: int) -> int:
    """Numbers from record to record, of 3 * heads: none lies across sectors that it need not."""
    width = 3 * heads
    return power_of_two(width) if width < SECTOR else width + -width % SECTOR


def records_of(
    dst_PK: Tensor,
    grad_PKF: Tensor,
    out_PKF: Tensor,
    state: tuple[Tensor, ...],
    slope: float,
    pitch: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Records [P, R] and grad_dst [P, K] of ``record_kernel``, and grad with heads ``pitch`` apart.

    ``state``: what forward kept.
    """
    num_dst, heads, width = grad_PKF.shape
    record = dst_PK.new_empty(num_dst, record_width(heads))
    grad_dst = torch.empty_like(dst_PK)
    table = grad_PKF if pitch == width else grad_PKF.new_empty(num_dst, heads, pitch)
    if grad_PKF.numel():
        vector = vector_of(grad_PKF.view(num_dst, -1), heads * width)
        tile = tile_of(heads, pitch, vector, 1)
        rows = _rows_in_order(tile)
        best, inverse, steep, steep_total = state
        given = {
            "dst": dst_PK,
            "grad": grad_PKF,
            "out": out_PKF,
            "best": best,
            "inverse": inverse,
            "steep": steep,
            "steep_total": steep_total,
            "record": record,
            "spaced": None if table is grad_PKF else table,
            "grad_dst": grad_dst,
            "num_dst": num_dst,
            "K": heads,
            "F": width,
            "PITCH": pitch,
            "RECORD": record.shape[1],
            "SLOPE": slope,
            "SUM": tl.float64 if record.dtype == torch.float64 else tl.float32,
            "HEADS": tile.heads,
            "WIDTH": tile.width,
            "ROWS": rows,
        }
        grid = triton.cdiv(num_dst, rows), triton.cdiv(heads, tile.heads)
        launch(record_kernel, grid, given, num_warps=BY_ROW_WARPS)
    return record, grad_dst, table


def softmax_parts(
    tasks: Tasks, out_PKF: Tensor, dtype: torch.dtype, train: bool
) -> dict[str, Tensor | None]:
    """Room for what tasks that share a row have come to: maximum, totals and sums of rows."""
    if not tasks.num_parts:
        return dict.fromkeys(PARTS)
    heads, width = out_PKF.shape[1:]
    count, kinds = tasks.num_parts, 2 if train else 1
    shapes = (count, heads), (kinds, count, heads), (kinds, count, heads, width)
    made = (torch.empty(shape, dtype=dtype, device=out_PKF.device) for shape in shapes)
    return dict(zip(PARTS, made, strict=True))


def merge_softmax(
    tasks: Tasks,
    parts: dict[str, Tensor | None],
    outputs: dict[str, Tensor | None],
    train: bool,
) -> None:
    """Finish the rows that several tasks share: out and what is kept for backward."""
    out = outputs["out"]
    assert out is not None
    while tasks.merge is not None:
        best, total, acc = (parts[name] for name in PARTS)
        assert acc is not None
        given = {
            "best": best,
            "total": total,
            "acc": acc,
            "order": tasks.order,
            "num_before": tasks.num_parts,
            "TRAIN": train,
        }
        tasks = tasks.merge
        parts = softmax_parts(tasks, out, torch.float64, train)
        for grid, run in launches_of(tasks, acc[0]):
            launch(merge_kernel, grid, given | outputs | parts | run)


def parts_of(tasks: Tasks, out: Tensor, dtype: torch.dtype) -> Tensor | None:
    """Room for the sums of tasks that share a row of out, [Q, ...]."""
    if not tasks.num_parts:
        return None
    return torch.empty(tasks.num_parts, *out.shape[1:], dtype=dtype, device=out.device)


def merge_parts(tasks: Tasks, part: Tensor | None, out: Tensor) -> None:
    """Add up the parts of rows of out that several tasks share."""
    if part is not None:
        merge_sums(tasks, part.flatten(1), None, out.flatten(1))


def share_of_blocks(rows_ED: Tensor | None, blocks: int, needed: bool) -> Tensor | None:
    """Room for every block of columns' share of the gradient of edge features."""
    if rows_ED is None or not needed:
        return None
    return rows_ED.new_zeros(*rows_ED.shape, blocks)
