"""Span: a plain pointer to numbers of one dtype, for Numba kernels.

A NumPy array in compiled code counts its references, by atomic additions that threads fight over,
and guards every index against being negative. A span does neither. Whoever makes one keeps the
tensor alive and the indices right.
"""

from __future__ import annotations

import operator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numba.extending
import torch
from numba.core import types
from numba.extending import (
    NativeValue,
    models,
    overload,
    register_model,
    unbox,
)
from torch import Tensor

_NUMBERS = {
    torch.float64: types.float64,
    torch.float32: types.float32,
    torch.int64: types.int64,
    torch.int32: types.int32,
}
intrinsic: Any = numba.extending.intrinsic  # what it makes is called without a typing context


class SpanType(types.Type):
    """The Numba type of a Span."""

    def __init__(self, dtype: types.Type):
        self.dtype = dtype
        super().__init__(f"Span({dtype})")


class Span:
    """The elements of a contiguous CPU tensor, in order; holds the tensor."""

    def __init__(self, tensor: Tensor):
        assert tensor.device.type == "cpu"
        assert tensor.is_contiguous()
        self.tensor = tensor
        self.address = tensor.data_ptr()

    if TYPE_CHECKING:  # as compiled code sees it

        def __getitem__(self, index: Any) -> Any: ...

        def __setitem__(self, index: Any, value: Any) -> None: ...

    @cached_property
    def _numba_type_(self) -> SpanType:
        return SpanType(_NUMBERS[self.tensor.dtype])


@register_model(SpanType)
class _SpanModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: SpanType):
        super().__init__(manager, kind, manager[kind.dtype].get_data_type().as_pointer())


@unbox(SpanType)
def _unbox_span(kind: SpanType, value: Any, context: Any) -> NativeValue:
    held = context.pyapi.object_getattr_string(value, "address")
    address = context.pyapi.long_as_longlong(held)
    context.pyapi.decref(held)
    pointer = context.builder.inttoptr(address, context.context.get_value_type(kind))
    return NativeValue(pointer)


@intrinsic
def _get(typing_context, span, index):
    def generate(context, builder, signature, args):
        at = builder.gep(args[0], [args[1]])
        return context.unpack_value(builder, span.dtype, at)

    return span.dtype(span, types.int64), generate


@intrinsic
def _set(typing_context, span, index, value):
    def generate(context, builder, signature, args):
        context.pack_value(builder, span.dtype, args[2], builder.gep(args[0], [args[1]]))
        return context.get_dummy_value()

    return types.void(span, types.int64, span.dtype), generate


@intrinsic
def address(typing_context, span, index):
    """Where element ``index`` is, as a number."""

    def generate(context, builder, signature, args):
        at = builder.gep(args[0], [args[1]])
        return builder.ptrtoint(at, context.get_value_type(types.int64))

    return types.int64(span, types.int64), generate


@intrinsic
def rest(typing_context, span, index):
    """The span from ``index`` on."""

    def generate(context, builder, signature, args):
        return builder.gep(args[0], [args[1]])

    return span(span, types.int64), generate


@intrinsic
def number(typing_context, span, value):
    """``value`` in the dtype of the span's elements."""

    def generate(context, builder, signature, args):
        return args[1]

    return span.dtype(span, span.dtype), generate


@overload(operator.getitem)
def _getitem(span, index):
    if isinstance(span, SpanType):
        return lambda span, index: _get(span, index)
    return None


@overload(operator.setitem)
def _setitem(span, index, value):
    if isinstance(span, SpanType):
        return lambda span, index, value: _set(span, index, value)
    return None
