"""Rows of numbers as single vector values inside Numba functions.

Numba keeps an array accumulator in memory; a vector value stays in registers, which makes a sum
over gathered rows several times faster. LLVM splits a wide vector into the machine's registers,
whatever the machine. Addresses are int64 from ``Tensor.data_ptr``: whoever makes them keeps the
tensor alive. Each operation below says its types and emits its code; compiled code calls it
without the typing context.
"""

# llvmlite's values and builders come without types.
# pyright: reportAttributeAccessIssue=false, reportReturnType=false

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils, types

from tiergnn.kernels import simd
from tiergnn.kernels.tile import (
    BYTES,
    I8,
    I32,
    I64,
    LanesType,
    decode,
    encode,
    full_of,
    lanes_of,
    operation,
    pointer_to,
    read,
    splat,
    stored,
    vector,
    write,
)

_ADDRESS = types.int64


@operation
def load(typing_context, tile, address, count):
    """The ``count`` numbers at an address, as lanes; all of the width unless the tile is masked."""

    def emit(context, builder, signature, args):
        return decode(builder, tile, read(builder, tile, args[1], stored(tile), args[2]))

    return lanes_of(tile)(tile, _ADDRESS, _ADDRESS), emit


@operation
def load_as_is(typing_context, tile, address, count):
    """As ``load`` of numbers that are stored in what the tile's are computed in."""
    kind = lanes_of(tile)

    def emit(context, builder, signature, args):
        return read(builder, tile, args[1], vector(kind.dtype, kind.width), args[2])

    return kind(tile, _ADDRESS, _ADDRESS), emit


@operation
def store(typing_context, tile, address, count, lanes):
    """Write the first ``count`` lanes at an address, rounded once to the tile's element."""

    def emit(context, builder, signature, args):
        write(builder, tile, args[1], encode(builder, tile, args[3]), args[2])
        return context.get_dummy_value()

    return types.void(tile, _ADDRESS, _ADDRESS, lanes), emit


@operation
def zeros(typing_context, tile):
    """Lanes of 0 to sum into."""
    kind = lanes_of(tile)

    def emit(context, builder, signature, args):
        return ir.Constant(vector(kind.dtype, kind.width), [0.0] * kind.width)

    return kind(tile), emit


@operation
def add(typing_context, a, b):
    """a + b, lane by lane."""

    def emit(context, builder, signature, args):
        return builder.fadd(*args)

    return a(a, b), emit


@operation
def multiply_add(typing_context, a, b, factor):
    """a + b * factor: factor is a number or lanes. Fused where the machine can."""
    number = not isinstance(factor, LanesType)
    kind = types.float64 if a.dtype == "float64" else types.float32

    def emit(context, builder, signature, args):
        times = splat(builder, args[2], a.width) if number else args[2]
        return simd.multiply_add(builder, args[1], times, args[0])

    return a(a, b, kind if number else factor), emit


@operation
def divide(typing_context, a, number):
    """a / number, lane by lane; number is an integer."""

    def emit(context, builder, signature, args):
        element = vector(a.dtype, a.width).element
        return builder.fdiv(args[0], splat(builder, builder.sitofp(args[1], element), a.width))

    return a(a, types.int64), emit


@operation
def multiply(typing_context, a, b):
    """a * b, lane by lane."""

    def emit(context, builder, signature, args):
        return builder.fmul(*args)

    return a(a, b), emit


@operation
def scale(typing_context, a, factor):
    """a * factor, lane by lane: a number or lanes."""
    number = not isinstance(factor, LanesType)
    kind = types.float64 if a.dtype == "float64" else types.float32

    def emit(context, builder, signature, args):
        times = splat(builder, args[1], a.width) if number else args[1]
        return builder.fmul(args[0], times)

    return a(a, kind if number else factor), emit


@operation
def subtract(typing_context, a, b):
    """a - b, lane by lane."""

    def emit(context, builder, signature, args):
        return builder.fsub(*args)

    return a(a, b), emit


@operation
def where_above(typing_context, value, a, b):
    """a where value is above 0, else b."""

    def emit(context, builder, signature, args):
        above = builder.fcmp_ordered(">", args[0], full_of(0.0, args[0].type))
        return builder.select(above, args[1], args[2])

    return a(value, a, b), emit


@operation
def total(typing_context, a):
    """The sum of all lanes, by halves: the same tree on every machine."""
    kind = types.float64 if a.dtype == "float64" else types.float32

    def emit(context, builder, signature, args):
        value, width = args[0], a.width
        while width > 1:
            width //= 2
            halves = (
                ir.Constant(ir.VectorType(I32, width), list(range(first, first + width)))
                for first in (0, width)
            )
            undefined = ir.Constant(value.type, ir.Undefined)
            low, high = (builder.shuffle_vector(value, undefined, half) for half in halves)
            value = builder.fadd(low, high)
        return builder.extract_element(value, ir.Constant(I32, 0))

    return kind(a), emit


@operation
def rounded(typing_context, tile, lanes):
    """The lanes as they would come back after being stored as the tile's element."""

    def emit(context, builder, signature, args):
        return decode(builder, tile, encode(builder, tile, args[1]))

    return lanes(tile, lanes), emit


@operation
def add_to_double(typing_context, tile, address, lanes):
    """Add lanes to the tile's width of float64 at an address: partial sums of long rows."""

    def emit(context, builder, signature, args):
        kind = vector("float64", tile.width)
        pointer = pointer_to(builder, args[1], kind)
        value = args[2] if lanes.dtype == "float64" else builder.fpext(args[2], kind)
        builder.store(builder.fadd(builder.load(pointer, align=8), value), pointer, align=8)
        return context.get_dummy_value()

    return types.void(tile, _ADDRESS, lanes), emit


@operation
def from_double(typing_context, tile, address):
    """The tile's width of float64 at an address, as lanes."""
    kind = lanes_of(tile)

    def emit(context, builder, signature, args):
        wide = vector("float64", tile.width)
        value = builder.load(pointer_to(builder, args[1], wide), align=8)
        if kind.dtype == "float64":
            return value
        return builder.fptrunc(value, vector(kind.dtype, kind.width))

    return kind(tile, _ADDRESS), emit


@operation
def prefetch(typing_context, tile, address):
    """Ask for the cache lines of one piece of a row."""

    def emit(context, builder, signature, args):
        _ask(builder, args[1], tile.width * BYTES[tile.element])
        return context.get_dummy_value()

    return types.void(tile, _ADDRESS), emit


@operation
def prefetch_wide(typing_context, tile, address):
    """The same of numbers that are stored in what the tile's are computed in."""

    def emit(context, builder, signature, args):
        _ask(builder, args[1], tile.width * BYTES[lanes_of(tile).dtype])
        return context.get_dummy_value()

    return types.void(tile, _ADDRESS), emit


def _ask(builder: ir.IRBuilder, address: ir.Value, num_bytes: int) -> None:
    pointer = pointer_to(builder, address, I8)
    hint = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(ir.VoidType(), [pointer.type, I32, I32, I32]),
        "llvm.prefetch.p0",
    )
    flags = [ir.Constant(I32, flag) for flag in (0, 3, 1)]  # read, keep, data
    for line in range(max(1, num_bytes // 64)):
        builder.call(hint, [builder.gep(pointer, [ir.Constant(I64, 64 * line)]), *flags])


@operation
def full(typing_context, tile, number):
    """Lanes that all hold one number."""
    kind = lanes_of(tile)

    def emit(context, builder, signature, args):
        return splat(builder, args[1], kind.width)

    return kind(tile, types.float64 if kind.dtype == "float64" else types.float32), emit


@operation
def no_ties(typing_context, tile):
    """Counts of 0, as lanes of int32."""
    kind = LanesType("int32", tile.width)

    def emit(context, builder, signature, args):
        return full_of(0, vector("int32", tile.width))

    return kind(tile), emit


def _reaches(builder: ir.IRBuilder, value: ir.Value, best: ir.Value) -> ir.Value:
    """Where a value equals the best, NaN being equal to NaN."""
    both_nan = builder.and_(
        builder.fcmp_unordered("uno", value, value), builder.fcmp_unordered("uno", best, best)
    )
    return builder.or_(builder.fcmp_ordered("==", value, best), both_nan)


def _exceeds(builder: ir.IRBuilder, value: ir.Value, best: ir.Value) -> ir.Value:
    """Where a value is above the best, NaN being above every number."""
    new_nan = builder.and_(
        builder.fcmp_unordered("uno", value, value), builder.fcmp_ordered("ord", best, best)
    )
    return builder.or_(builder.fcmp_ordered(">", value, best), new_nan)


@operation
def larger(typing_context, best, value):
    """The larger of two, lane by lane; NaN is the largest."""

    def emit(context, builder, signature, args):
        return builder.select(_exceeds(builder, args[1], args[0]), args[1], args[0])

    return best(best, value), emit


@operation
def count_ties(typing_context, ties, best, value):
    """How many reached the larger of best and value, ``ties`` having reached best."""

    def emit(context, builder, signature, args):
        ties, best, value = args
        one = full_of(1, ties.type)
        more = builder.select(_reaches(builder, value, best), builder.add(ties, one), ties)
        return builder.select(_exceeds(builder, value, best), one, more)

    return ties(ties, best, value), emit


@operation
def where_reached(typing_context, value, best, share):
    """share where value equals best, else 0."""

    def emit(context, builder, signature, args):
        zero = full_of(0.0, args[2].type)
        return builder.select(_reaches(builder, args[0], args[1]), args[2], zero)

    return share(value, best, share), emit


@operation
def store_as_is(typing_context, tile, address, count, lanes):
    """Write the first ``count`` lanes at an address in their own dtype."""

    def emit(context, builder, signature, args):
        write(builder, tile, args[1], args[3], args[2])
        return context.get_dummy_value()

    return types.void(tile, _ADDRESS, _ADDRESS, lanes), emit


@operation
def as_wide(typing_context, tile, lanes):
    """Lanes in what numbers of the tile are computed in: float64 or float32."""
    kind = lanes_of(tile)

    def emit(context, builder, signature, args):
        if kind.dtype == lanes.dtype:
            return args[1]
        to = vector(kind.dtype, kind.width)
        change = builder.fpext if kind.dtype == "float64" else builder.fptrunc
        return change(args[1], to)

    return kind(tile, lanes), emit
