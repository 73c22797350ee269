"""Tiles: how a piece of a row is stored, how wide it is, and how LLVM reads and writes it.

Numba compiles a function once for each tile that it is called with. The operations that compiled
code works with are in ``lanes``.
"""

# llvmlite's values and builders come without types.
# pyright: reportAttributeAccessIssue=false, reportReturnType=false, reportArgumentType=false, reportAssignmentType=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import NativeValue, intrinsic, models, register_model, unbox

ELEMENTS = {
    torch.float64: "float64",
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}
BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
_ALIGN = {"double": 8, "float": 4, "i32": 4, "i16": 2}  # rows may start at any element
_NARROWEST, _WIDEST_BYTES = 16, 512  # lanes; bytes of one vector of sums

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))


class TileType(types.Type):
    """The Numba type of a Tile: everything that code is compiled for."""

    def __init__(self, element: str, width: int, masked: bool):
        self.element, self.width, self.masked = element, width, masked
        super().__init__(f"Tile({element}, {width}, {masked})")


class LanesType(types.Type):
    """``width`` numbers of one dtype: float64, float32 or int32."""

    def __init__(self, dtype: str, width: int):
        self.dtype, self.width = dtype, width
        super().__init__(f"Lanes({dtype}, {width})")


@dataclass(frozen=True)
class Tile:
    """Pieces of ``width`` columns stored as ``element``; masked: only the first n of them exist."""

    element: str
    width: int
    masked: bool

    @cached_property
    def _numba_type_(self) -> TileType:
        return TileType(self.element, self.width, self.masked)


def tiles(dtype: torch.dtype, num_columns: int) -> list[tuple[Tile, int, int]]:
    """How rows are cut: (tile, first column, number of columns), few and wide.

    A width is a power of two between 16 lanes and 512 bytes of sums; the last piece is masked when
    it is not full.
    """
    element = ELEMENTS[dtype]
    widest = _WIDEST_BYTES // (8 if element == "float64" else 4)
    out = []
    for first in range(0, num_columns, widest):
        count = min(widest, num_columns - first)
        width = max(_NARROWEST, 1 << (count - 1).bit_length())
        out.append((Tile(element, width, count < width), first, count))
    return out


def whole_tiles(
    dtype: torch.dtype, num_columns: int, lanes: int
) -> tuple[Tile, int, int, Tile, int]:
    """How a row is cut that is passed from end to end: tile, how many of them, lanes of each; then
    the tile of what is left of it, and its columns. One that is no wider is all left over."""
    element = ELEMENTS[dtype]
    times = num_columns // lanes if num_columns > lanes else 0
    count = num_columns - times * lanes
    width = max(_NARROWEST, 1 << max(0, count - 1).bit_length())
    return Tile(element, lanes, False), times, lanes, Tile(element, width, count < width), count


def operation(emitter: Callable[..., Any]) -> Any:
    """An intrinsic, of which type checkers know nothing: Numba supplies its first argument."""
    return intrinsic(emitter)


register_model(TileType)(models.OpaqueModel)


@register_model(LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: LanesType):
        super().__init__(manager, kind, vector(kind.dtype, kind.width))


@unbox(TileType)
def _unbox_tile(kind: TileType, value: Any, context: Any) -> NativeValue:
    return NativeValue(context.context.get_dummy_value())


def _scalar(dtype: str) -> ir.Type:
    return {"float64": ir.DoubleType(), "float32": ir.FloatType(), "int32": I32}[dtype]


def vector(dtype: str, width: int) -> ir.VectorType:
    return ir.VectorType(_scalar(dtype), width)


def _wide(tile: TileType) -> str:
    """What numbers of a tile are computed in."""
    return "float64" if tile.element == "float64" else "float32"


def lanes_of(tile: TileType) -> LanesType:
    return LanesType(_wide(tile), tile.width)


def splat(builder: ir.IRBuilder, value: ir.Value, width: int) -> ir.Value:
    kind = ir.VectorType(value.type, width)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(I32, 0))
    return builder.shuffle_vector(
        one, ir.Constant(kind, ir.Undefined), ir.Constant(ir.VectorType(I32, width), [0] * width)
    )


def full_of(value: Any, kind: ir.VectorType) -> ir.Constant:
    return ir.Constant(kind, [value] * kind.count)


def _name(kind: ir.VectorType) -> str:
    """LLVM's short name of a vector type, as in v16f32."""
    element = {"double": "f64", "float": "f32"}.get(str(kind.element), str(kind.element))
    return f"v{kind.count}{element}"


def pointer_to(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type) -> ir.Value:
    return builder.inttoptr(address, kind.as_pointer())


def _mask(builder: ir.IRBuilder, count: ir.Value, width: int) -> ir.Value:
    numbers = ir.Constant(ir.VectorType(I32, width), list(range(width)))
    count_32 = splat(builder, builder.trunc(count, I32), width)
    return builder.icmp_signed("<", numbers, count_32)


def read(
    builder: ir.IRBuilder, tile: TileType, address: ir.Value, kind: ir.VectorType, count: ir.Value
) -> ir.Value:
    """The stored bits of a piece, 0 beyond ``count``."""
    pointer = pointer_to(builder, address, kind)
    align = _ALIGN[str(kind.element)]
    if not tile.masked:
        return builder.load(pointer, align=align)
    mask_kind = ir.VectorType(I1, kind.count)
    load = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(kind, [pointer.type, I32, mask_kind, kind]),
        f"llvm.masked.load.{_name(kind)}.p0",
    )
    mask = _mask(builder, count, kind.count)
    return builder.call(load, [pointer, ir.Constant(I32, align), mask, full_of(0, kind)])


def write(
    builder: ir.IRBuilder, tile: TileType, address: ir.Value, value: ir.Value, count: ir.Value
) -> None:
    kind = value.type
    pointer = pointer_to(builder, address, kind)
    align = _ALIGN[str(kind.element)]
    if not tile.masked:
        builder.store(value, pointer, align=align)
        return
    store = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(ir.VoidType(), [kind, pointer.type, I32, ir.VectorType(I1, kind.count)]),
        f"llvm.masked.store.{_name(kind)}.p0",
    )
    mask = _mask(builder, count, kind.count)
    builder.call(store, [value, pointer, ir.Constant(I32, align), mask])


def decode(builder: ir.IRBuilder, tile: TileType, bits: ir.Value) -> ir.Value:
    """Stored bits to the numbers that are computed with."""
    if tile.element in ("float64", "float32"):
        return bits
    wide = ir.VectorType(I32, tile.width)
    bits = builder.zext(bits, wide)
    as_float = vector("float32", tile.width)
    if tile.element == "bfloat16":
        return builder.bitcast(builder.shl(bits, full_of(16, wide)), as_float)
    # float16: shift the fields into place, move the exponent's bias by 112; infinities and NaN
    # (exponent 31) by another 112; subnormal numbers are a difference that float32 holds exactly.
    sign = builder.shl(builder.and_(bits, full_of(0x8000, wide)), full_of(16, wide))
    rest = builder.shl(builder.and_(bits, full_of(0x7FFF, wide)), full_of(13, wide))
    exponent = builder.and_(rest, full_of(0x0F800000, wide))
    bias = full_of(112 << 23, wide)
    normal = builder.add(rest, bias)
    special = builder.add(normal, bias)
    magic = full_of(113 << 23, wide)
    small = builder.fsub(
        builder.bitcast(builder.add(rest, magic), as_float), builder.bitcast(magic, as_float)
    )
    is_special = builder.icmp_unsigned("==", exponent, full_of(0x0F800000, wide))
    is_small = builder.icmp_unsigned("==", exponent, full_of(0, wide))
    value = builder.select(is_special, special, normal)
    value = builder.select(is_small, builder.bitcast(small, wide), value)
    return builder.bitcast(builder.or_(value, sign), as_float)


def encode(builder: ir.IRBuilder, tile: TileType, value: ir.Value) -> ir.Value:
    """Numbers to stored bits, rounded to nearest, ties to even, as torch does."""
    if tile.element in ("float64", "float32"):
        return value
    wide = ir.VectorType(I32, tile.width)
    half = ir.VectorType(I16, tile.width)
    is_nan = builder.fcmp_unordered("uno", value, value)
    bits = builder.bitcast(value, wide)
    if tile.element == "bfloat16":
        odd = builder.and_(builder.lshr(bits, full_of(16, wide)), full_of(1, wide))
        up = builder.add(builder.add(bits, full_of(0x7FFF, wide)), odd)
        rounded = builder.lshr(up, full_of(16, wide))
        return builder.trunc(builder.select(is_nan, full_of(0x7FC0, wide), rounded), half)
    sign = builder.and_(builder.lshr(bits, full_of(16, wide)), full_of(0x8000, wide))
    size = builder.and_(bits, full_of(0x7FFFFFFF, wide))
    odd = builder.and_(builder.lshr(size, full_of(13, wide)), full_of(1, wide))
    up = builder.add(builder.add(size, full_of((0xFFF - (112 << 23)) & 0xFFFFFFFF, wide)), odd)
    normal = builder.lshr(up, full_of(13, wide))
    # Below 2**-14 the sum with 0.5 rounds to the spacing of float16's subnormal numbers.
    as_float = vector("float32", tile.width)
    shifted = builder.fadd(builder.bitcast(size, as_float), full_of(0.5, as_float))
    small = builder.sub(builder.bitcast(shifted, wide), full_of(0x3F000000, wide))
    is_small = builder.icmp_unsigned("<", size, full_of(113 << 23, wide))
    is_over = builder.icmp_unsigned(">=", size, full_of((127 + 16) << 23, wide))
    out = builder.select(is_small, small, normal)
    out = builder.select(is_over, full_of(0x7C00, wide), out)
    out = builder.select(is_nan, full_of(0x7E00, wide), out)
    return builder.trunc(builder.or_(out, sign), half)


def stored(tile: TileType) -> ir.VectorType:
    element = _scalar(tile.element) if tile.element in ("float64", "float32") else I16
    return ir.VectorType(element, tile.width)
