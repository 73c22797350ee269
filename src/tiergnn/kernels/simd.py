"""Column loops for Numba kernels: each compiles to whole vector instructions, whatever its length.

Left to itself the compiler guards every short loop against overlapping arrays, which costs more
than the loop. Every operand is a Span and the offset of its first column. One that is written
(``acc``) has room for a multiple of LANES columns, and zeros behind the last.

No kernel lets the compiler reorder or fuse operations (Numba's fastmath): what it made of them
depended on the code around, so that a function just compiled and the same one read from Numba's
cache gave other bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import overload, register_jitable

from tiergnn.kernels.span import intrinsic

LANES = 8
CACHE_LINE_BYTES = 64

_I32, _I64 = ir.IntType(32), ir.IntType(64)


@register_jitable
def padded(num_columns: int) -> int:
    """``num_columns`` rounded up to whole vectors."""
    return -(-num_columns // LANES) * LANES


class _Vectors:
    """What the bodies of the loops below are written in: vectors of one float type."""

    def __init__(self, context: Any, builder: Any, dtype: Any):
        self.context, self.builder = context, builder
        self.item_bytes = dtype.bitwidth // 8
        self.name = f"v{LANES}f{dtype.bitwidth}"
        self.type = ir.VectorType(context.get_data_type(dtype), LANES)
        self.mask_type = ir.VectorType(ir.IntType(1), LANES)
        self.zero = ir.Constant(self.type, [0.0] * LANES)

    def address(self, span: Any, at: Any) -> Any:
        return self.builder.gep(span, [at])

    def splat(self, scalar: Any) -> Any:
        vector = ir.VectorType(scalar.type, LANES)
        undefined = ir.Constant(vector, ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, ir.Constant(_I32, 0))
        lanes = ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES)
        return self.builder.shuffle_vector(first, undefined, lanes)

    def load(self, address: Any, column: Any, mask: Any) -> Any:
        """Columns ``column``.. of what ``address`` points to; 0 where the mask says no."""
        at = self._vector_pointer(address, column)
        if mask is None:
            return self.builder.load(at, align=self.item_bytes)
        signature = ir.FunctionType(self.type, [at.type, _I32, self.mask_type, self.type])
        name = f"llvm.masked.load.{self.name}.p0"
        function = cgutils.get_or_insert_function(self.builder.module, signature, name)
        align = ir.Constant(_I32, self.item_bytes)
        return self.builder.call(function, [at, align, mask, self.zero])

    def store(self, value: Any, address: Any, column: Any) -> None:
        at = self._vector_pointer(address, column)
        self.builder.store(value, at, align=self.item_bytes)

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        return multiply_add(self.builder, a, b, c)

    def leaky(self, x: Any, slope: Any) -> Any:
        """x, or slope * x where x is not above 0."""
        positive = self.builder.fcmp_ordered(">", x, self.zero)
        return self.builder.select(positive, x, self.builder.fmul(slope, x))

    def leaky_slope(self, x: Any, slope: Any) -> Any:
        one = ir.Constant(self.type, [1.0] * LANES)
        return self.builder.select(self.builder.fcmp_ordered(">", x, self.zero), one, slope)

    def sum(self, vector: Any) -> Any:
        """The halves added lane by lane until one number is left."""
        width = LANES
        while width > 1:
            width //= 2
            undefined = ir.Constant(vector.type, ir.Undefined)
            low, high = (
                ir.Constant(ir.VectorType(_I32, width), list(range(first, first + width)))
                for first in (0, width)
            )
            halves = [self.builder.shuffle_vector(vector, undefined, half) for half in (low, high)]
            vector = self.builder.fadd(*halves)
        return self.builder.extract_element(vector, ir.Constant(_I32, 0))

    def columns(self, count: Any, body: Callable[[Any, Any], None]) -> None:
        """Run ``body(column, mask)`` for every vector of ``count`` columns, the last one masked."""
        zero, step = ir.Constant(_I64, 0), ir.Constant(_I64, LANES)
        full = self.builder.and_(count, ir.Constant(_I64, -LANES))
        with cgutils.for_range_slice(self.builder, zero, full, step, inc=True) as (column, _):
            body(column, None)
        with self.builder.if_then(self.builder.icmp_signed("!=", full, count)):
            lane = ir.Constant(ir.VectorType(_I64, LANES), list(range(LANES)))
            rest = self.splat(self.builder.sub(count, full))
            body(full, self.builder.icmp_signed("<", lane, rest))

    def _vector_pointer(self, address: Any, column: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(address, [column]), self.type.as_pointer())


def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, numbers or vectors; rounded once on every processor that can, else twice.

    The flag "contract" would leave that to the code around it, and so to how it was compiled.
    """
    kind = a.type
    lanes = f"v{kind.count}" if isinstance(kind, ir.VectorType) else ""
    element = kind.element if lanes else kind
    name = f"llvm.fmuladd.{lanes}f{64 if isinstance(element, ir.DoubleType) else 32}"
    signature = ir.FunctionType(kind, [kind] * 3)
    function = cgutils.get_or_insert_function(builder.module, signature, name)
    return builder.call(function, [a, b, c])


@intrinsic
def fused(typing_context, a, b, c):
    """a * b + c of numbers of one dtype."""

    def generate(context, builder, signature, args):
        return multiply_add(builder, *args)

    return a(a, b, c), generate


@intrinsic
def axpy(typing_context, acc, at, x, x_at, weight, count):
    """acc += weight * x."""
    signature = types.void(acc, types.intp, x, types.intp, acc.dtype, types.intp)

    def generate(context, builder, signature, args):
        v = _Vectors(context, builder, acc.dtype)
        to = v.address(args[0], args[1])
        source = v.address(args[2], args[3])
        factor = v.splat(args[4])

        def body(column, mask):
            total = v.load(to, column, None)
            v.store(v.multiply_add(factor, v.load(source, column, mask), total), to, column)

        v.columns(args[5], body)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def add(typing_context, acc, at, x, x_at, y, y_at, count):
    """acc = x + y."""
    signature = types.void(acc, types.intp, x, types.intp, y, types.intp, types.intp)

    def generate(context, builder, signature, args):
        v = _Vectors(context, builder, acc.dtype)
        to = v.address(args[0], args[1])
        first = v.address(args[2], args[3])
        second = v.address(args[4], args[5])

        def body(column, mask):
            total = builder.fadd(v.load(first, column, mask), v.load(second, column, mask))
            v.store(total, to, column)

        v.columns(args[6], body)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def dot(typing_context, x, x_at, y, y_at, count):
    """Sum of x * y."""
    signature = x.dtype(x, types.intp, y, types.intp, types.intp)

    def generate(context, builder, signature, args):
        v = _Vectors(context, builder, x.dtype)
        first = v.address(args[0], args[1])
        second = v.address(args[2], args[3])
        total = cgutils.alloca_once_value(builder, v.zero)

        def body(column, mask):
            product = v.load(first, column, mask), v.load(second, column, mask)
            builder.store(v.multiply_add(*product, builder.load(total)), total)

        v.columns(args[4], body)
        return v.sum(builder.load(total))

    return signature, generate


@intrinsic
def leaky_dot(typing_context, x, x_at, y, y_at, slope, count):
    """Sum of leaky_relu(x) * y."""
    signature = x.dtype(x, types.intp, y, types.intp, x.dtype, types.intp)

    def generate(context, builder, signature, args):
        v = _Vectors(context, builder, x.dtype)
        first = v.address(args[0], args[1])
        second = v.address(args[2], args[3])
        slope = v.splat(args[4])
        total = cgutils.alloca_once_value(builder, v.zero)

        def body(column, mask):
            bent = v.leaky(v.load(first, column, mask), slope)
            factor = v.load(second, column, mask)
            builder.store(v.multiply_add(bent, factor, builder.load(total)), total)

        v.columns(args[5], body)
        return v.sum(builder.load(total))

    return signature, generate


@intrinsic
def leaky_axpy(typing_context, acc, at, x, x_at, weight, slope, count):
    """acc += weight * leaky_relu(x)."""
    signature = types.void(acc, types.intp, x, types.intp, acc.dtype, acc.dtype, types.intp)

    def generate(context, builder, signature, args):
        v = _Vectors(context, builder, acc.dtype)
        to = v.address(args[0], args[1])
        source = v.address(args[2], args[3])
        factor, slope = v.splat(args[4]), v.splat(args[5])

        def body(column, mask):
            bent = v.leaky(v.load(source, column, mask), slope)
            v.store(v.multiply_add(factor, bent, v.load(to, column, None)), to, column)

        v.columns(args[6], body)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def leaky_slopes(typing_context, acc, at, x, x_at, y, y_at, weight, slope, count):
    """acc = weight * y * (1 where x > 0, else slope): the gradient of leaky_dot in x."""
    signature = types.void(
        acc, types.intp, x, types.intp, y, types.intp, acc.dtype, acc.dtype, types.intp
    )

    def generate(context, builder, signature, args):
        v = _Vectors(context, builder, acc.dtype)
        to = v.address(args[0], args[1])
        first = v.address(args[2], args[3])
        second = v.address(args[4], args[5])
        factor, slope = v.splat(args[6]), v.splat(args[7])

        def body(column, mask):
            steep = v.leaky_slope(v.load(first, column, mask), slope)
            scaled = builder.fmul(factor, v.load(second, column, mask))
            v.store(builder.fmul(scaled, steep), to, column)

        v.columns(args[8], body)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def prefetch(typing_context, x, at, count):
    """Ask for the cache lines of ``count`` columns, which will be read soon."""
    signature = types.void(x, types.intp, types.intp)

    def generate(context, builder, signature, args):
        v = _Vectors(context, builder, x.dtype)
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), _I32, _I32, _I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        to_read, keep, data = (ir.Constant(_I32, value) for value in (0, 3, 1))
        row, zero = v.address(args[0], args[1]), ir.Constant(_I64, 0)
        line = ir.Constant(_I64, CACHE_LINE_BYTES // v.item_bytes)
        with cgutils.for_range_slice(builder, zero, args[2], line, inc=True) as (column, _):
            address = builder.bitcast(v.address(row, column), ir.IntType(8).as_pointer())
            builder.call(function, [address, to_read, keep, data])
        return context.get_dummy_value()

    return signature, generate


def exp(x: Any) -> Any:
    """e**x for x <= 0 in compiled code; float32 to 2 ulp, by range reduction and a polynomial."""
    raise NotImplementedError("only compiled code calls this")


@overload(exp)
def _exp(x):
    if x != types.float32:
        return lambda x: np.exp(x)

    # e**x = 2**n * e**r, |r| <= ln(2)/2; ln(2) in two parts; minimax coefficients as in Cephes.
    def polynomial(x):
        bounded = max(x, np.float32(-87.0))
        n = np.floor(fused(bounded, np.float32(1.4426950408889634), np.float32(0.5)))
        r = fused(n, np.float32(-0.693359375), bounded)
        r = fused(n, np.float32(2.12194440e-4), r)
        y = np.float32(1.9875691500e-4)
        y = fused(y, r, np.float32(1.3981999507e-3))
        y = fused(y, r, np.float32(8.3334519073e-3))
        y = fused(y, r, np.float32(4.1665795894e-2))
        y = fused(y, r, np.float32(1.6666665459e-1))
        y = fused(y, r, np.float32(5.0000001201e-1))
        y = fused(y * r, r, r) + np.float32(1.0)
        power = np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
        return np.float32(0.0) if x < np.float32(-87.0) else y * power

    return polynomial
