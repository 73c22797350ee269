"""exp(x) - 1 of lanes that are not above 0, accurate near 0 too."""

# llvmlite's values and builders come without types.
# pyright: reportAttributeAccessIssue=false, reportReturnType=false

from __future__ import annotations

from math import factorial, log

from llvmlite import ir

from tiergnn.kernels.simd import multiply_add
from tiergnn.kernels.tile import I32, I64, full_of, operation

# dtype -> terms of the series of exp(r) - 1 for abs(r) <= log(2) / 2, bits of the mantissa, the
# exponent's bias, the least x (below it the result is -1), log(2) with bits to spare.
_LIMITS = {
    "float32": (8, 23, 127, -87.0, 0.693359375),
    "float64": (14, 52, 1023, -708.0, 0.6931471803691238),
}


@operation
def expm1_below(typing_context, a):
    """exp(a) - 1 where a <= 0, nothing of use elsewhere: 2^n (exp(r) - 1) + (2^n - 1)."""
    terms, bits, bias, least, high = _LIMITS[a.dtype]
    narrow = ir.VectorType(I64 if a.dtype == "float64" else I32, a.width)

    def emit(context, builder, signature, args):
        kind = args[0].type

        def number(value):
            return full_of(value, kind)

        is_more = builder.fcmp_ordered("<=", args[0], number(least))
        x = builder.select(is_more, number(least), args[0])
        x = builder.select(builder.fcmp_ordered(">", x, number(0.0)), number(0.0), x)
        magic = number(1.5 * 2.0**bits)  # adding it rounds to whole numbers
        whole = builder.fsub(multiply_add(builder, x, number(1 / log(2)), magic), magic)
        left = multiply_add(builder, whole, number(-high), x)
        left = multiply_add(builder, whole, number(high - log(2)), left)
        series = number(1 / factorial(terms))
        for k in range(terms - 1, 0, -1):
            series = multiply_add(builder, series, left, number(1 / factorial(k)))
        series = builder.fmul(series, left)
        exponent = builder.add(builder.fptosi(whole, narrow), full_of(bias, narrow))
        power = builder.bitcast(builder.shl(exponent, full_of(bits, narrow)), kind)
        return multiply_add(builder, power, series, builder.fsub(power, number(1.0)))

    return a(a), emit
