"""Dropout on the CPU: the words of a piece of a row are made as vectors beside its numbers.

Bytes: N * D * element read and written. Integer work: 20 multiplications of words for 4 elements.

Legend: N rows, D columns.
"""

# llvmlite's values and builders come without types.
# pyright: reportAttributeAccessIssue=false, reportReturnType=false

from __future__ import annotations

import numpy as np
import torch
from llvmlite import ir
from numba.core import types
from torch import Tensor

from tiergnn.kernels.dropout.reference import MULTIPLIER_0, MULTIPLIER_1, ROUNDS, WEYL_0, WEYL_1
from tiergnn.kernels.lanes import load, scale, store
from tiergnn.kernels.memory import new_rows
from tiergnn.kernels.rows import Columns, dense, njit
from tiergnn.kernels.threads import spread
from tiergnn.kernels.tile import I32, I64, LanesType, full_of, operation, splat, whole_tiles

_NOTHING = 2**32  # the threshold that keeps nothing
_LANES = 128  # of a row, which is passed from end to end


@operation
def draw(typing_context, tile, row, quad, key, site):
    """The word of every column of a piece that starts at column 4 * quad, as lanes of int32.

    key holds word 0 in its low half and word 1 in its high half.
    """
    kind = LanesType("int32", tile.width)
    num_quads = tile.width // 4

    def emit(context, builder, signature, args):
        _, row, quad, key, site = args
        narrow = ir.VectorType(I32, num_quads)

        def word(value, shift=0):
            shifted = builder.lshr(value, ir.Constant(I64, shift)) if shift else value
            return splat(builder, builder.trunc(shifted, I32), num_quads)

        numbers = ir.Constant(narrow, list(range(num_quads)))
        c0, c1, c2, c3 = word(row), word(row, 32), builder.add(word(quad), numbers), word(site)
        k0, k1 = word(key), word(key, 32)
        for _ in range(ROUNDS):
            high_0, low_0 = _product(builder, c0, MULTIPLIER_0)
            high_1, low_1 = _product(builder, c2, MULTIPLIER_1)
            c0 = builder.xor(builder.xor(high_1, c1), k0)
            c2 = builder.xor(builder.xor(high_0, c3), k1)
            c1, c3 = low_1, low_0
            k0 = builder.add(k0, full_of(WEYL_0, narrow))
            k1 = builder.add(k1, full_of(WEYL_1, narrow))
        pairs = _join(builder, c0, c1), _join(builder, c2, c3)
        order = [part * num_quads + q for q in range(num_quads) for part in range(4)]
        return builder.shuffle_vector(*pairs, ir.Constant(ir.VectorType(I32, tile.width), order))

    return kind(tile, types.int64, types.int64, types.uint64, types.int64), emit


def _product(builder: ir.IRBuilder, a: ir.Value, constant: int) -> tuple[ir.Value, ir.Value]:
    """High and low words of a * constant."""
    wide = ir.VectorType(I64, a.type.count)
    product = builder.mul(builder.zext(a, wide), full_of(constant, wide))
    high = builder.trunc(builder.lshr(product, full_of(32, wide)), a.type)
    return high, builder.trunc(product, a.type)


def _join(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    count = 2 * a.type.count
    both = ir.Constant(ir.VectorType(I32, count), list(range(count)))
    return builder.shuffle_vector(a, b, both)


@operation
def where_kept(typing_context, words, threshold, lanes):
    """Lanes whose word is at least the threshold; 0 elsewhere."""

    def emit(context, builder, signature, args):
        least = splat(builder, builder.trunc(args[1], I32), words.width)
        kept = builder.icmp_unsigned(">=", args[0], least)
        return builder.select(kept, args[2], full_of(0.0, args[2].type))

    return lanes(words, types.int64, lanes), emit


@njit(inline="always")
def _write(tile, count, quad, row_id, x, out, threshold, factor, key, site):
    """A piece of a row, whose words begin with those of ``quad``."""
    words = draw(tile, row_id, quad, key, site)
    value = scale(load(tile, x, count), factor)
    store(tile, out, count, where_kept(words, threshold, value))


@njit
def _dropout_kernel(
    first, last, tile, times, width, tail, count, size, x, x_stride, out, out_stride, gid,
    threshold, factor, key, site,
):  # fmt: skip
    """Rows first..last-1, numbers of ``size`` bytes: ``times`` whole tiles of ``width`` columns,
    then those of the tail."""
    for row in range(first, last):
        row_id = row if gid is None else gid[row]
        from_x, to = x + x_stride * row, out + out_stride * row
        for piece in range(times):
            at = piece * width
            _write(
                tile, width, at // 4, row_id, from_x + at * size, to + at * size, threshold,
                factor, key, site,
            )  # fmt: skip
        if count > 0:
            at = times * width
            _write(
                tail, count, at // 4, row_id, from_x + at * size, to + at * size, threshold,
                factor, key, site,
            )  # fmt: skip


def dropout(
    x_ND: Tensor,
    gid_N: Tensor | None,
    threshold: int,
    scale: float,
    key: Tensor,
    site: int,
) -> Tensor:
    """As the reference."""
    x = dense(x_ND)
    if threshold == _NOTHING:
        return torch.zeros(x.shape, dtype=x.dtype)
    out = new_rows(x.shape[0], x.shape[1], x.dtype)
    if not out.numel():
        return out
    gid = None if gid_N is None else gid_N.contiguous().numpy()
    words = np.uint64(int(key) % 2**64)
    factor = np.float64(scale) if x.dtype == torch.float64 else np.float32(scale)
    given = (
        *whole_tiles(x.dtype, x.shape[1], _LANES), x.element_size(), *Columns.of(x, 0),
        *Columns.of(out, 0), gid, threshold, factor, words, site,
    )  # fmt: skip

    def work(first: int, last: int) -> None:
        _dropout_kernel(first, last, *given)

    spread(work, x.shape[0], 2 * out.nbytes)
    return out
