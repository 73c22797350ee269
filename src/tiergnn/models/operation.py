"""What a function is to a trace, and what is kept with a block between calls."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Proxy

from tiergnn.kernels.block import Block


@dataclass(frozen=True, kw_only=True)
class Operation:
    """What a function below is to the trace: its kind, and which parameters are gathered rows."""

    kind: str  # graph, structure, dropout, statistic, rows
    gathers: tuple[str, ...] = ()  # the first one's width is the result's
    of: str = "rows"  # what the result is or has one row of: rows, edges, count, edge count


def operation(**facts: Any) -> Callable[[Callable], Callable]:
    """Declare a function to be an Operation: called with a Proxy, it asks the tracer for a node."""

    def declare(function: Callable) -> Callable:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            tracer = _tracer((*args, *kwargs.values()))
            if tracer is None:
                return function(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return tracer.call_operation(call, bound.arguments)

        declared: Any = call
        declared.operation = Operation(**facts)
        return declared

    return declare


def _tracer(values: tuple[Any, ...]) -> Any:
    for value in values:
        if issubclass(type(value), Proxy):
            return value.tracer
        if isinstance(value, tuple) and (tracer := _tracer(value)) is not None:
            return tracer
    return None


# What depends on a block alone (and on weights without a gradient) is made once.
_made: weakref.WeakKeyDictionary[Block, dict[tuple, tuple]] = weakref.WeakKeyDictionary()


def kept(block: Block, name: tuple, source: Tensor | None, make: Callable[[], Any]) -> Any:
    """make(), or what it made before from the same block and the same unchanged tensor, with
    which it goes."""
    if source is None and block.whole is not None:
        name, block = (*name, block.turn, block.num_dst), block.whole
    made = _made.setdefault(block, {})
    if name in made:
        ref, version, value = made[name]
        if source is None or (ref() is source and version == source._version):
            return value
    with torch.inference_mode(False), torch.no_grad():  # what is kept serves training, too
        value = make()
    if source is None:
        made[name] = None, 0, value
        return value

    def gone(ref: weakref.ref[Tensor]) -> None:
        if name in made and made[name][0] is ref:
            del made[name]

    made[name] = weakref.ref(source, gone), source._version, value
    return value
